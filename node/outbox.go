package node

import (
	"sync"
	"sync/atomic"

	"github.com/pdlog/pdlog/projector"
)

// entry is something to do once the log is durable up to after: an effect of
// the core, or a call of the shell that must keep its place among them.
type entry struct {
	after uint64
	step  uint64 // of the effects of one Step and the call that it answers the same; 0: none
	act   projector.Action
	fn    func()
}

// outbox holds effects until their events are durable and does them in the
// order they were decided in, on its own goroutine. It is unbounded: the loop
// never waits for it; what it holds is bounded by what is not durable yet.
//
// One kind may overtake: a write to post, when its own gate is open. It waits
// for no commit of another room (architecture.md, the table of effects), and
// nothing that is still queued can be about a room that may post: what ends a
// room comes after its posts.
//
// One kind may be overtaken: a revocation that has to wait, and what must come
// after it (see apart).
type outbox struct {
	perform func(projector.Action, uint64)
	drop    func(roomSeq uint64)          // a publish that has not left must not leave; at once, may be nil
	slow    func(projector.Action) func() // what is left to do of a revocation, and waits; nil: it is done. May be nil itself

	durable atomic.Uint64
	wake    chan struct{}
	stop    chan struct{}
	done    chan struct{}
	once    sync.Once

	mu    sync.Mutex
	queue []entry // from head on
	head  int
	posts []entry
	steps uint64
	back  []*parked         // their waiting is over
	tells map[uint64]untold // by room_seq: what an engine has not been told yet
	dead  bool
	busy  bool
	away  int // as apart.n

	apart apart // the goroutine's, as what it does in a round
	ready []entry
	ended []*parked
	slows sync.WaitGroup
}

// untold says what of a room's end is decided and not told.
type untold struct{ outcome, release bool }

func (u *untold) of(k projector.TellKind) *bool {
	switch k {
	case projector.TellSucceeded, projector.TellFailed:
		return &u.outcome
	case projector.TellReleased, projector.TellSourceReleased:
		return &u.release
	}
	return nil
}

func newOutbox(durable uint64, perform func(projector.Action, uint64)) *outbox {
	o := &outbox{
		perform: perform,
		wake:    make(chan struct{}, 1),
		stop:    make(chan struct{}),
		done:    make(chan struct{}),
	}
	o.durable.Store(durable)
	return o
}

// push takes the effects of one Step, in order. An effect is not done before
// the ones in front of it, so its gate is at least theirs. It gives the Step's
// number, for the call that it answers.
func (o *outbox) push(effects []projector.Effect) (step uint64) {
	if len(effects) == 0 {
		return 0
	}
	durable := o.durable.Load()
	o.mu.Lock()
	if o.dead {
		o.mu.Unlock()
		return 0
	}
	o.steps++
	step = o.steps
	var gate uint64
	for _, e := range effects {
		if d, ok := e.Do.(projector.DropPublish); ok { // about what waits in here: it cannot wait behind it
			if o.drop != nil {
				o.drop(d.RoomSeq)
			}
			continue
		}
		gate = max(gate, e.After)
		if _, ok := e.Do.(projector.PostWrite); ok && gate <= durable {
			o.posts = append(o.posts, entry{after: gate, step: step, act: e.Do})
			continue
		}
		if t, ok := e.Do.(projector.Tell); ok {
			o.note(&t, true)
		}
		o.queue = append(o.queue, entry{after: gate, step: step, act: e.Do})
	}
	o.mu.Unlock()
	o.poke()
	return step
}

// note keeps what engines have not been told; the lock is held.
func (o *outbox) note(t *projector.Tell, waits bool) {
	u := o.tells[t.RoomSeq]
	b := u.of(t.Kind)
	if b == nil {
		return
	}
	*b = waits
	switch {
	case u == untold{}:
		delete(o.tells, t.RoomSeq)
		return
	case o.tells == nil:
		o.tells = map[uint64]untold{}
	}
	o.tells[t.RoomSeq] = u
}

// untold says what a room's engine has not been told, of what was pushed.
func (o *outbox) untold(roomSeq uint64) untold {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tells[roomSeq]
}

// call does fn in its place in the order, when after is durable, and behind all
// of the Step that it answers (0: none). After kill it is never called.
func (o *outbox) call(after, step uint64, fn func()) {
	o.mu.Lock()
	if !o.dead {
		o.queue = append(o.queue, entry{after: after, step: step, fn: fn})
	}
	o.mu.Unlock()
	o.poke()
}

// advance is told of each durable sequence by the log's committer.
func (o *outbox) advance(seq uint64) {
	o.durable.Store(seq)
	o.poke()
}

func (o *outbox) poke() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// kill drops what waits: the log has failed, nothing may be done any more. An
// entry that is being done ends.
func (o *outbox) kill() {
	o.mu.Lock()
	o.dead = true
	o.queue, o.head, o.posts = nil, 0, nil
	o.mu.Unlock()
}

// pending counts what has not been done.
func (o *outbox) pending() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := len(o.queue) - o.head + len(o.posts) + o.away
	if o.busy {
		n++
	}
	return n
}

// close ends the goroutine and waits for it, and for what is under way apart;
// what waits is dropped.
func (o *outbox) close() {
	o.once.Do(func() { close(o.stop) })
	<-o.done
}

func (o *outbox) run() {
	defer close(o.done)
	defer o.slows.Wait()
	for {
		if o.round() {
			select {
			case <-o.stop:
				return
			default:
				continue
			}
		}
		select {
		case <-o.wake:
		case <-o.stop:
			return
		}
	}
}

// round does what can be done now, a burst of it. False: there was nothing.
func (o *outbox) round() bool {
	o.ready, o.ended = o.take(o.ready[:0], o.ended[:0])
	for i, p := range o.ended {
		o.begin(o.apart.end(p))
		o.ended[i] = nil
	}
	for i := range o.ready {
		o.one(&o.ready[i])
		o.ready[i] = entry{}
	}
	return len(o.ready)+len(o.ended) > 0
}

// one does an entry, or leaves it to wait for what is under way apart.
func (o *outbox) one(e *entry) {
	if o.apart.n > 0 {
		if at := topicsOf(e); o.apart.behind(e, at) {
			o.apart.add(*e, at)
			o.count()
			return
		}
	}
	if rest := o.do(e, nil); rest != nil {
		o.goOn(o.apart.add(*e, topicsOf(e)), rest)
		o.count()
	}
}

// begin does what waits for nothing any more, and what waits for that alone.
func (o *outbox) begin(ps []*parked) {
	for len(ps) > 0 {
		p := ps[0]
		ps = ps[1:]
		if rest := o.do(&p.entry, p); rest != nil {
			o.goOn(p, rest)
			continue
		}
		ps = append(ps, o.apart.end(p)...)
	}
	o.count()
}

// goOn does the rest of an entry on a goroutine of its own.
func (o *outbox) goOn(p *parked, rest func()) {
	o.slows.Go(func() {
		rest()
		o.mu.Lock()
		o.back = append(o.back, p)
		o.mu.Unlock()
		o.poke()
	})
}

// count tells the other goroutines what is under way apart.
func (o *outbox) count() {
	if o.away == o.apart.n { // nobody else writes it
		return
	}
	o.mu.Lock()
	o.away = o.apart.n
	o.mu.Unlock()
}

// do does an entry, unless the log has failed since it was taken. It gives what
// of it has to wait and is left.
func (o *outbox) do(e *entry, p *parked) (rest func()) {
	o.mu.Lock()
	dead := o.dead
	o.mu.Unlock()
	switch {
	case dead:
	case e.fn != nil:
		e.fn()
	case o.slow != nil && revokes(e):
		return o.slow(e.act)
	default:
		o.perform(e.act, o.apart.told(e.after, p))
		if t, ok := e.act.(projector.Tell); ok {
			o.mu.Lock()
			o.note(&t, false)
			o.mu.Unlock()
		}
	}
	return nil
}

// burst bounds what is done before the queue is looked at again, so that a
// write to post does not wait behind a long run of other effects.
const burst = 64

func (o *outbox) take(into []entry, back []*parked) ([]entry, []*parked) {
	durable := o.durable.Load()
	o.mu.Lock()
	defer o.mu.Unlock()
	back = append(back, o.back...)
	clear(o.back)
	o.back = o.back[:0]
	into = append(into, o.posts...)
	clear(o.posts)
	o.posts = o.posts[:0]
	waiting := o.queue[o.head:]
	n := 0
	for n < len(waiting) && n < burst && waiting[n].after <= durable {
		n++
	}
	into = append(into, waiting[:n]...)
	clear(waiting[:n])
	o.head += n
	o.tidy()
	o.busy = len(into)+len(back) > 0 && !o.dead
	return into, back
}

// tidy reuses the front of the queue, so that its memory is allocated once, and
// lets a queue go that has been much longer than it is.
func (o *outbox) tidy() {
	rest := o.queue[o.head:]
	switch {
	case len(rest) == 0 && cap(o.queue) > maxIdle:
		o.queue, o.head = nil, 0
	case o.head > len(rest):
		n := copy(o.queue, rest)
		clear(o.queue[n:])
		o.queue, o.head = o.queue[:n], 0
	}
}

// maxIdle is how many entries an empty queue keeps room for.
const maxIdle = 1 << 14
