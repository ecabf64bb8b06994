package fleetlog

import (
	"slices"

	"github.com/pdlog/pdlog/events"
)

// room is one room's life, told step by step.
type room struct {
	g          *generator
	d          *decode
	number     uint64
	seq        uint64 // on the decode node
	pages      []uint32
	generation uint64
	legs       []*leg
	evidence   []*events.Evidence
}

// leg is the room as one prefill rank has it.
type leg struct {
	n    *node
	rank string
	seq  uint64 // the room_seq there
}

func (g *generator) newRoom(d *decode) *room {
	g.room++
	g.fleet.Rooms++
	r := &room{g: g, d: d, number: g.room}
	p := d.prefill[g.dice.IntN(len(d.prefill))]
	for i := range g.o.Ranks {
		r.legs = append(r.legs, &leg{n: p, rank: rankName(p.name, i)})
	}
	return r
}

func rankName(node string, i int) string { return node + "/" + string(rune('0'+i)) }

func (r *room) onDecode(rank string, cause *events.Event, e *events.Event) *events.Event {
	e.Room, e.RoomSeq, e.Rank = r.number, r.seq, rank
	return r.g.put(r.d.node, caused(e, cause, r.d.name))
}

func (r *room) onPrefill(l *leg, cause *events.Event, e *events.Event) *events.Event {
	e.Room, e.RoomSeq, e.Rank = r.number, l.seq, l.rank
	e = r.g.put(l.n, caused(e, cause, l.n.name))
	for _, other := range r.legs { // one incarnation a node
		other.seq = e.RoomSeq
	}
	return e
}

func caused(e, cause *events.Event, node string) *events.Event {
	if cause != nil {
		e.Cause = &events.Cause{Seq: cause.Seq}
		if cause.Node != node {
			e.Cause.Node = cause.Node
		}
	}
	return e
}

// open reserves pages and publishes to every leg, one leg a step.
func (r *room) open() []func() {
	steps := []func(){func() {
		p := &events.RoomOpened{Role: events.Role_ROLE_DECODE, RequestId: "req-" + digits(r.number)}
		for i, l := range r.legs {
			p.Pairs = append(p.Pairs, &events.Pair{Rank: l.rank, To: r.d.rank, WireId: uint32(i)}) //nolint:gosec // small
		}
		r.pages = slices.Clone(r.d.free[:roomPages])
		r.d.free = r.d.free[roomPages:]
		r.seq = r.onDecode("", nil, &events.Event{Payload: &events.Event_RoomOpened{RoomOpened: p}}).Seq
		r.onDecode("", nil, &events.Event{Payload: &events.Event_PagesReserved{PagesReserved: &events.PagesReserved{Pages: r.pages, Aux: uint32(r.number)}}}) //nolint:gosec // a test's rooms
	}}
	for _, l := range r.legs {
		steps = append(steps, func() {
			aux := uint32(r.number) //nolint:gosec // a test's rooms
			e := r.onDecode(l.rank, nil, &events.Event{Payload: &events.Event_PublishStarted{PublishStarted: &events.PublishStarted{
				To: r.d.rank, Pages: r.pages, Aux: aux, Lease: r.d.at.Seq + 1, Fence: events.FenceKind_FENCE_KIND_HARD, Pdlog: true,
			}}})
			r.onDecode(l.rank, nil, &events.Event{Payload: &events.Event_MetadataPublished{MetadataPublished: &events.MetadataPublished{To: r.d.rank}}})
			r.onPrefill(l, e, &events.Event{Payload: &events.Event_MetadataReceived{MetadataReceived: &events.MetadataReceived{
				To: r.d.rank, DecodeNode: r.d.name, DecodeRoomSeq: r.seq, Pages: r.pages, Aux: &aux,
			}}})
		})
	}
	return steps
}

// write is one chunk: queued and posted, landed, completed.
func (r *room) write(l *leg, chunk int) []func() {
	var post *events.Event
	return []func(){
		func() { post = r.post(l, chunk) },
		func() { r.land(l, post, false) },
		func() { r.complete(l, post) },
	}
}

func (r *room) post(l *leg, chunk int) *events.Event {
	pages := r.pages[chunk*chunkPages : (chunk+1)*chunkPages]
	last := (chunk+1)*chunkPages == roomPages
	c := uint32(chunk) //nolint:gosec // small
	r.onPrefill(l, nil, &events.Event{Payload: &events.Event_ChunkQueued{ChunkQueued: &events.ChunkQueued{Chunk: c, Pages: pages, Last: last, To: []string{r.d.rank}}}})
	return r.onPrefill(l, nil, &events.Event{Payload: &events.Event_ChunkPosted{ChunkPosted: &events.ChunkPosted{
		Token: l.n.at.Seq + 1, Chunk: c, To: r.d.rank, Pages: pages, Bytes: 65536 * chunkPages, Last: last,
	}}})
}

func (r *room) land(l *leg, post *events.Event, late bool) {
	p := post.GetChunkPosted()
	r.onDecode(l.rank, post, &events.Event{Payload: &events.Event_WriteLanded{WriteLanded: &events.WriteLanded{
		To: p.GetTo(), Pages: p.GetPages(), Aux: p.GetLast(), Bytes: p.GetBytes(), Chunk: p.GetChunk(), AfterRelease: late,
	}}})
}

func (r *room) complete(l *leg, post *events.Event) {
	p := post.GetChunkPosted()
	r.onPrefill(l, nil, &events.Event{Payload: &events.Event_ChunkCompleted{ChunkCompleted: &events.ChunkCompleted{
		Token: p.GetToken(), Chunk: p.GetChunk(), To: p.GetTo(), Bytes: p.GetBytes(),
	}}})
}

func (r *room) writes(chunks int) []func() {
	var steps []func()
	for c := range chunks {
		for _, l := range r.legs {
			steps = append(steps, r.write(l, c)...)
		}
	}
	return steps
}

// succeed: every rank reports, the room succeeds, the engine is done with it.
func (r *room) succeed() []func() {
	return []func(){func() {
		for _, l := range r.legs {
			sent := r.onPrefill(l, nil, &events.Event{Payload: &events.Event_StatusSent{StatusSent: &events.StatusSent{
				To: r.d.rank, Status: events.TerminalStatus_TERMINAL_STATUS_SUCCESS, DecodeRoomSeq: r.seq,
			}}})
			got := r.onDecode(l.rank, sent, &events.Event{Payload: &events.Event_StatusReceived{StatusReceived: &events.StatusReceived{
				Status: events.TerminalStatus_TERMINAL_STATUS_SUCCESS, Counted: true, To: r.d.rank,
			}}})
			r.evidence = append(r.evidence, &events.Evidence{Rank: l.rank, To: r.d.rank, Basis: events.Basis_BASIS_SUCCESS, Seq: got.Seq})
		}
		r.onDecode("", nil, &events.Event{Payload: &events.Event_CoverageCompleted{CoverageCompleted: &events.CoverageCompleted{Pages: roomPages, Writers: uint64(len(r.legs))}}})
		r.onDecode("", nil, &events.Event{Payload: &events.Event_RoomSucceeded{RoomSucceeded: &events.RoomSucceeded{}}})
	}, func() {
		r.onPrefill(r.legs[0], nil, &events.Event{Payload: &events.Event_RoomSucceeded{RoomSucceeded: &events.RoomSucceeded{}}})
		r.clear()
		r.release(events.Basis_BASIS_SUCCESS)
	}}
}

func (r *room) clear() {
	l := r.legs[0]
	r.onPrefill(l, nil, &events.Event{Payload: &events.Event_SourceReleased{SourceReleased: &events.SourceReleased{Pages: r.pages}}})
	r.onPrefill(l, nil, &events.Event{Payload: &events.Event_RoomCleared{RoomCleared: &events.RoomCleared{}}})
}

// fail aborts the room at the decode node and tells every leg.
func (r *room) fail() {
	r.g.generation++
	r.generation = r.g.generation
	var expected []*events.Pair
	for _, l := range r.legs {
		expected = append(expected, &events.Pair{Rank: l.rank, To: r.d.rank})
	}
	r.onDecode("", nil, &events.Event{Payload: &events.Event_RoomFailed{RoomFailed: &events.RoomFailed{Cause: events.AbortCause_ABORT_CAUSE_CLIENT, Who: "engine"}}})
	armed := r.onDecode("", nil, &events.Event{Payload: &events.Event_AbortArmed{AbortArmed: &events.AbortArmed{
		Generation: r.generation, Cause: events.AbortCause_ABORT_CAUSE_CLIENT, Expected: expected,
	}}})
	for i, l := range r.legs {
		r.onDecode(l.rank, armed, &events.Event{Payload: &events.Event_AbortSent{AbortSent: &events.AbortSent{Generation: r.generation, To: r.d.rank, Attempt: 1}}})
		heard := r.onPrefill(l, armed, &events.Event{Payload: &events.Event_AbortReceived{AbortReceived: &events.AbortReceived{To: r.d.rank, Generation: &r.generation, DecodeRoomSeq: r.seq}}})
		if i == 0 {
			r.onPrefill(l, heard, &events.Event{Payload: &events.Event_RoomFailed{RoomFailed: &events.RoomFailed{Cause: events.AbortCause_ABORT_CAUSE_ABORTED}}})
		}
		r.onPrefill(l, nil, &events.Event{Payload: &events.Event_AckTargetHeld{AckTargetHeld: &events.AckTargetHeld{To: r.d.rank, Generation: &r.generation}}})
	}
}

func (r *room) ack(l *leg) *events.Event {
	r.onPrefill(l, nil, &events.Event{Payload: &events.Event_Drained{Drained: &events.Drained{}}})
	return r.onPrefill(l, nil, &events.Event{Payload: &events.Event_AckSent{AckSent: &events.AckSent{
		To: r.d.rank, Generation: &r.generation, Proof: events.Proof_PROOF_DRAINED, DecodeRoomSeq: r.seq,
	}}})
}

func (r *room) acked(l *leg, sent *events.Event) {
	got := r.onDecode(l.rank, sent, &events.Event{Payload: &events.Event_AckReceived{AckReceived: &events.AckReceived{
		Generation: r.generation, Form: events.AckForm_ACK_FORM_V3, Proof: events.Proof_PROOF_DRAINED, Counted: true, To: r.d.rank,
	}}})
	r.evidence = append(r.evidence, &events.Evidence{Rank: l.rank, To: r.d.rank, Basis: events.Basis_BASIS_ACKS, Proof: events.Proof_PROOF_DRAINED, Seq: got.Seq})
}

// abort ends the room by acknowledgements.
func (r *room) abort() []func() {
	return []func(){r.fail, func() {
		for _, l := range r.legs {
			r.acked(l, r.ack(l))
		}
		r.clear()
		r.release(events.Basis_BASIS_ACKS)
	}}
}

func (r *room) release(basis events.Basis) {
	rel := &events.Released{Pages: r.pages, Aux: uint32(r.number), Basis: basis, Evidence: r.evidence} //nolint:gosec // a test's rooms
	if basis == events.Basis_BASIS_TIMEOUT {
		rel.Unsafe = true
		for _, l := range r.legs {
			if !slices.ContainsFunc(r.evidence, func(ev *events.Evidence) bool { return ev.GetRank() == l.rank }) {
				rel.Missing = append(rel.Missing, &events.Pair{Rank: l.rank, To: r.d.rank})
			}
		}
		if len(r.evidence) > 0 {
			rel.Basis = events.Basis_BASIS_MIXED
		}
	}
	r.onDecode("", nil, &events.Event{Payload: &events.Event_Released{Released: rel}})
	r.d.free = append(r.d.free, r.pages...)
}

// healthy is a room that succeeds, or is aborted and acknowledged.
func (g *generator) healthy(d *decode) []func() {
	r := g.newRoom(d)
	steps := r.open()
	if g.dice.IntN(100) < g.o.AbortPercent {
		steps = append(steps, r.writes(1+g.dice.IntN(roomPages/chunkPages-1))...)
		return append(steps, r.abort()...)
	}
	steps = append(steps, r.writes(roomPages/chunkPages)...)
	return append(steps, r.succeed()...)
}

// incident is a room that is released by timeout while the newest chunk of one
// of its ranks is on its way; the next room takes its pages first, and has that
// chunk land in them.
func (g *generator) incident(d *decode) []func() {
	r, v := g.newRoom(d), g.newRoom(d)
	chunk := 1 + g.dice.IntN(roomPages/chunkPages-1)
	late := r.legs[g.dice.IntN(len(r.legs))]
	var post *events.Event
	steps := append(r.open(), r.writes(chunk)...)
	steps = append(steps,
		func() { post = r.post(late, chunk) },
		r.fail,
		func() {
			for _, l := range r.legs {
				if l != late {
					r.acked(l, r.ack(l))
				}
			}
		},
		func() {
			r.onDecode("", nil, &events.Event{Payload: &events.Event_AckTimedOut{AckTimedOut: &events.AckTimedOut{
				Generation: r.generation, Missing: []*events.Pair{{Rank: late.rank, To: r.d.rank}},
			}}})
			r.release(events.Basis_BASIS_TIMEOUT)
			free := d.free[:len(d.free)-roomPages]
			d.free = append(slices.Clone(r.pages), free...) // the last freed are used first
			v.open()[0]()
		})
	steps = append(steps, v.open()[1:]...)
	steps = append(steps, v.writes(roomPages/chunkPages)...)
	steps = append(steps, func() {
		r.land(late, post, true)
		r.complete(late, post)
		r.ack(late)
		r.clear()
		g.fleet.Incidents = append(g.fleet.Incidents, Incident{
			Node: d.name, Pages: post.GetChunkPosted().GetPages(), Victim: v.number, WriterRoom: r.number, Writer: late.rank, Chunk: post.GetChunkPosted().GetChunk(),
		})
	})
	return append(steps, v.succeed()...)
}

func digits(n uint64) string {
	var b [20]byte
	i := len(b)
	for {
		i--
		b[i] = byte('0' + n%10)
		if n /= 10; n == 0 {
			return string(b[i:])
		}
	}
}
