package events

// Pool makes events together with their payloads, several in one piece of memory,
// for the types that the end of a room and a chunk are made of. It is for one
// goroutine.
//
// As it is made, what it gives is its receiver's. After Reuse everything that it
// gives stays its own: Recycle takes all of it back, to be given again, and Keep
// leaves all of it to those who hold it.
type Pool struct {
	RoomFailed      Row[Event_RoomFailed, RoomFailed]
	AbortArmed      Row[Event_AbortArmed, AbortArmed]
	ReleaseDeferred Row[Event_ReleaseDeferred, ReleaseDeferred]
	AbortSent       Row[Event_AbortSent, AbortSent]
	AckReceived     Row[Event_AckReceived, AckReceived]
	Released        Row[Event_Released, Released]
	WriteLanded     Row[Event_WriteLanded, WriteLanded]
	AbortReceived   Row[Event_AbortReceived, AbortReceived]
	Drained         Row[Event_Drained, Drained]
	AckSent         Row[Event_AckSent, AckSent]
	SourceReleased  Row[Event_SourceReleased, SourceReleased]
	ChunkPosted     Row[Event_ChunkPosted, ChunkPosted]
	ChunkCompleted  Row[Event_ChunkCompleted, ChunkCompleted]
	causes          pieces[Cause]
	pairs           pieces[Pair]
	evidence        pieces[Evidence]

	all []memory
}

type memory interface {
	own()
	rewind(keep bool)
}

// NewPool is the only way to make one.
func NewPool() *Pool {
	p := new(Pool)
	p.RoomFailed.bind = func(w *Event_RoomFailed, x *RoomFailed) Payload { w.RoomFailed = x; return w }
	p.AbortArmed.bind = func(w *Event_AbortArmed, x *AbortArmed) Payload { w.AbortArmed = x; return w }
	p.ReleaseDeferred.bind = func(w *Event_ReleaseDeferred, x *ReleaseDeferred) Payload { w.ReleaseDeferred = x; return w }
	p.AbortSent.bind = func(w *Event_AbortSent, x *AbortSent) Payload { w.AbortSent = x; return w }
	p.AckReceived.bind = func(w *Event_AckReceived, x *AckReceived) Payload { w.AckReceived = x; return w }
	p.Released.bind = func(w *Event_Released, x *Released) Payload { w.Released = x; return w }
	p.WriteLanded.bind = func(w *Event_WriteLanded, x *WriteLanded) Payload { w.WriteLanded = x; return w }
	p.AbortReceived.bind = func(w *Event_AbortReceived, x *AbortReceived) Payload { w.AbortReceived = x; return w }
	p.Drained.bind = func(w *Event_Drained, x *Drained) Payload { w.Drained = x; return w }
	p.AckSent.bind = func(w *Event_AckSent, x *AckSent) Payload { w.AckSent = x; return w }
	p.SourceReleased.bind = func(w *Event_SourceReleased, x *SourceReleased) Payload { w.SourceReleased = x; return w }
	p.ChunkPosted.bind = func(w *Event_ChunkPosted, x *ChunkPosted) Payload { w.ChunkPosted = x; return w }
	p.ChunkCompleted.bind = func(w *Event_ChunkCompleted, x *ChunkCompleted) Payload { w.ChunkCompleted = x; return w }
	p.all = []memory{
		&p.RoomFailed, &p.AbortArmed, &p.ReleaseDeferred, &p.AbortSent, &p.AckReceived, &p.Released, &p.WriteLanded,
		&p.AbortReceived, &p.Drained, &p.AckSent, &p.SourceReleased, &p.ChunkPosted, &p.ChunkCompleted,
		&p.causes, &p.pairs, &p.evidence,
	}
	return p
}

// Reuse: what the Pool gives from now on stays its own.
func (p *Pool) Reuse() {
	for _, r := range p.all {
		r.own()
	}
}

// Recycle takes back all that was given since the last Recycle or Keep. Nobody
// may look at it any more.
func (p *Pool) Recycle() {
	for _, r := range p.all {
		r.rewind(false)
	}
}

// Keep leaves it to those who hold it.
func (p *Pool) Keep() {
	for _, r := range p.all {
		r.rewind(true)
	}
}

// Cause gives an empty one; so do Pair and Evidence.
func (p *Pool) Cause() *Cause { return zeroed(&p.causes) }

// Pair gives an empty one.
func (p *Pool) Pair() *Pair { return zeroed(&p.pairs) }

// Evidence gives an empty one.
func (p *Pool) Evidence() *Evidence { return zeroed(&p.evidence) }

// Row gives the events of one type.
type Row[W, P any] struct {
	pieces[bundle[W, P]]
	bind func(*W, *P) Payload
}

// New gives an event and its payload, both empty otherwise.
func (r *Row[W, P]) New() (*Event, *P) {
	b, used := r.next()
	if used {
		b.event, b.payload = Event{}, *new(P)
	}
	b.event.Payload = r.bind(&b.wrap, &b.payload)
	return &b.event, &b.payload
}

func zeroed[T any](p *pieces[T]) *T {
	x, used := p.next()
	if used {
		*x = *new(T)
	}
	return x
}

const (
	pieceLen  = 16
	pieceMost = 64 // pieces that Recycle keeps: some batches of the loop
)

// pieces gives one T after the other.
type pieces[T any] struct {
	reuse bool
	have  [][]T // with reuse: all that were given, else what is left of one
	at, n int   // the next is have[at][n]
	dirty int   // pieces in front that were given before
}

// next gives the next one, and whether it was used before.
func (p *pieces[T]) next() (x *T, used bool) {
	if p.at == len(p.have) {
		if !p.reuse {
			p.have, p.at = p.have[:0], 0
		}
		p.have = append(p.have, make([]T, pieceLen))
	}
	x, used = &p.have[p.at][p.n], p.at < p.dirty
	if p.n++; p.n == pieceLen {
		p.at, p.n = p.at+1, 0
	}
	return x, used
}

func (p *pieces[T]) own() { p.reuse, p.have, p.at, p.n = true, nil, 0, 0 }

func (p *pieces[T]) rewind(keep bool) {
	switch {
	case !p.reuse || p.at == 0 && p.n == 0:
		return
	case keep:
		p.have, p.dirty = nil, 0
	default:
		p.dirty = max(p.dirty, min(p.at+1, len(p.have)))
		if len(p.have) > pieceMost {
			clear(p.have[pieceMost:])
			p.have, p.dirty = p.have[:pieceMost], min(p.dirty, pieceMost)
		}
	}
	p.at, p.n = 0, 0
}
