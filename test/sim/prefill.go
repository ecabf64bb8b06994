package sim

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// prefillEngine is the engine of a prefill node.
type prefillEngine struct {
	rooms map[uint64]*sending // by room_seq, of the present log
	freed map[uint64]bool     // room_seq whose source pages were given back, of this life
	metas map[metaKey]uint64  // seq of MetadataReceived
	held  map[metaKey]bool    // targets of this life that wait for the drain; true: of an SGLang rank, whose ABORT names no use
}

type metaKey struct {
	room     uint64
	rank, to projector.RankID
}

func sorted[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// targetsAnswered is I5 within a step: what drains a rank answers all that wait
// for it, none of which another endpoint's ABORT has displaced.
func (n *node) targetsAnswered(step []*events.Event) {
	for _, e := range step {
		at := metaKey{room: e.RoomSeq, rank: projector.RankID(e.Rank)}
		switch p := e.Payload.(type) {
		case *events.Event_NodeStarted:
			n.engine.held = map[metaKey]bool{}
		case *events.Event_AbortReceived:
			if a := p.AbortReceived; !a.Stale && a.Address != "" && e.RoomSeq != 0 && a.Repeats == 0 { // a repeat of what was answered waits for nothing
				at.to = projector.RankID(a.To)
				ep := n.m.State().Endpoints[a.Address]
				n.engine.held[at] = a.DecodeRoomSeq == 0 && (ep == nil || len(ep.LogID) == 0)
			}
		case *events.Event_AckSent:
			at.to = projector.RankID(p.AckSent.To)
			delete(n.engine.held, at)
		case *events.Event_AckWithheld:
			at.to = projector.RankID(p.AckWithheld.To)
			delete(n.engine.held, at)
		}
	}
	for _, e := range step {
		if _, ok := e.Payload.(*events.Event_Drained); !ok {
			continue
		}
		for at, anyUse := range n.engine.held {
			if at.room == e.RoomSeq && at.rank == projector.RankID(e.Rank) && !(anyUse && n.otherUseWrites(e.Room, at)) {
				n.w.fail("I5", "%s: %s has drained for room %d/%d, and %s, which waited for it, is not told", n.name, e.Rank, e.Room, e.RoomSeq, at.to)
			}
		}
	}
}

// otherUseWrites: another use of a room number has a write open towards a target,
// whose ABORT may be about that one.
func (n *node) otherUseWrites(room uint64, at metaKey) bool {
	for key, r := range n.m.State().PRooms {
		if r.Room != room || key == at.room {
			continue
		}
		for _, t := range r.Tokens {
			if t.Rank == at.rank && t.To == at.to {
				return true
			}
		}
	}
	return false
}

// serve lets the prefill engines of a request begin.
func (w *world) serve(pl *plan) {
	for _, p := range w.prefills {
		s := pl.prefill[p]
		if s == nil || w.fault(w.f.noEngine) {
			continue
		}
		d := w.exp(5 * time.Millisecond)
		if w.fault(w.f.slowEngine) {
			d = w.exp(2 * time.Second)
		}
		w.after(d, func() { s.begin() })
	}
	for _, o := range w.olds {
		o.serve(pl)
	}
}

func (s *sending) begin() {
	p, w := s.node, s.node.w
	if !p.up {
		return
	}
	cmd := projector.AwaitRoom{Room: s.plan.number}
	for _, r := range s.ranks {
		cmd.Ranks = append(cmd.Ranks, p.rank(r))
	}
	res := p.run(cmd)
	if res.Refused != nil || p.engine.rooms[res.RoomSeq] != nil {
		w.refused(res.Refused)
		return
	}
	s.seq = res.RoomSeq
	p.engine.rooms[s.seq] = s
	if r := p.m.State().PRooms[s.seq]; r == nil || r.Outcome != projector.OutcomeNone {
		s.end()
		return
	}
	for _, r := range s.ranks {
		at := time.Duration(0)
		for c := range s.plan.chunks {
			at += w.exp(20 * time.Millisecond)
			w.after(at, p.guard(func() { s.chunk(r, c) }))
		}
	}
}

func (s *sending) chunk(rank, c int) {
	p, n := s.node, len(s.plan.pages)
	if p.engine.rooms[s.seq] != s || s.ended {
		return
	}
	lo, hi := n*c/s.plan.chunks, n*(c+1)/s.plan.chunks
	p.run(projector.SendChunk{
		Room: s.plan.number, RoomSeq: s.seq, Rank: p.rank(rank), Chunk: uint32(c), First: uint32(lo), Count: uint32(hi - lo), //nolint:gosec // small
		Bytes: uint64(hi-lo) << 16, Last: c == s.plan.chunks-1, //nolint:gosec // small
	})
}

// end: the engine has nothing more to do with the room, and forgets it, now or
// soon.
func (s *sending) end() {
	w := s.node.w
	s.ended = true
	w.after(w.exp(500*time.Millisecond), func() { s.clear() })
}

func (s *sending) clear() {
	p := s.node
	if s.cleared || p.engine.rooms[s.seq] != s {
		return
	}
	if !p.up {
		p.w.after(time.Second, func() { s.clear() })
		return
	}
	if cur := p.m.State().PCurrent[s.plan.number]; cur == s.seq {
		p.run(projector.ClearRoom{Room: s.plan.number})
	}
	s.cleared = true
	delete(p.engine.rooms, s.seq)
}

func (e *prefillEngine) told(n *node, a projector.Tell) {
	s := e.rooms[a.RoomSeq]
	switch a.Kind {
	case projector.TellSourceReleased:
		e.freed[a.RoomSeq] = true
	case projector.TellFailed, projector.TellSucceeded:
		if s != nil && !s.ended {
			if n.w.rng.IntN(3) == 0 { // it forgets at once, whatever still runs
				s.ended = true
				n.w.after(0, n.guard(func() { s.clear() }))
				return
			}
			s.end()
		}
	}
}

// reconcile: the node is in another life, its open rooms have failed.
func (e *prefillEngine) reconcile(n *node) {
	e.freed = map[uint64]bool{}
	for _, seq := range sorted(e.rooms) {
		s := e.rooms[seq]
		if n.m.State().PRooms[seq] == nil {
			delete(e.rooms, seq)
			continue
		}
		if !s.ended {
			s.end()
		}
	}
}

// lost: the log has lost what comes after kept.
func (e *prefillEngine) lost(kept uint64) {
	for seq := range e.rooms {
		if seq > kept {
			delete(e.rooms, seq)
		}
	}
	for k, seq := range e.metas {
		if seq > kept {
			delete(e.metas, k)
		}
	}
}

// checkPost: the destination's MetadataReceived is on disk before its first
// write is posted.
func (e *prefillEngine) checkPost(n *node, a projector.PostWrite) {
	if at, ok := e.metas[metaKey{a.RoomSeq, a.Rank, a.To}]; !ok || at > n.durable {
		n.w.fail("log before wire", "%s posts chunk %d of room %d/%d to %s; its metadata is event %d, the disk has %d", n.name, a.Chunk, a.Room, a.RoomSeq, a.To, at, n.durable)
	}
}
