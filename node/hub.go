package node

import (
	"slices"
	"sync"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
)

// hub hands what the node tells its engine to every Watch stream. Notices come
// from the outbox alone, in order; so does each subscription, with the state of
// the past as of its place in that order: a stream hears everything exactly
// once, and nothing that is not durable.
type hub struct {
	mu     sync.Mutex
	subs   map[*subscriber]struct{}
	ready  map[uint64]bool // prefill: room_seq told ready and not ended
	closed bool
	last   *enginepb.Notice // stopping or log_failed: told to late comers too
	idle   func()           // the last stream has gone
}

// subscriber is one Watch stream. Its channel is closed when it fell too far
// behind or the node ends; the engine then watches anew and is told the past.
type subscriber struct {
	ch chan *enginepb.Notice
}

// watchBuffer is how far an engine may fall behind.
const watchBuffer = 1 << 16

func newHub() *hub {
	return &hub{subs: map[*subscriber]struct{}{}, ready: map[uint64]bool{}}
}

// join adds a stream that begins with the notices of the past.
func (h *hub) join(s *subscriber, past []*enginepb.Notice) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range past {
		if n.Kind == enginepb.Notice_KIND_OPEN && h.ready[n.RoomSeq] {
			n.Kind = enginepb.Notice_KIND_READY
		}
	}
	past = append(past, &enginepb.Notice{Kind: enginepb.Notice_KIND_CAUGHT_UP})
	if h.last != nil {
		past = append(past, h.last)
	}
	h.subs[s] = struct{}{}
	for _, n := range past {
		h.give(s, n)
	}
	if h.closed {
		h.remove(s)
	}
}

// leave ends a stream.
func (h *hub) leave(s *subscriber) {
	h.mu.Lock()
	h.remove(s)
	idle := len(h.subs) == 0 && !h.closed
	h.mu.Unlock()
	if idle && h.idle != nil {
		h.idle()
	}
}

func (h *hub) remove(s *subscriber) {
	if _, ok := h.subs[s]; ok {
		delete(h.subs, s)
		close(s.ch)
	}
}

func (h *hub) give(s *subscriber, n *enginepb.Notice) {
	if _, ok := h.subs[s]; !ok {
		return
	}
	select {
	case s.ch <- n:
	default:
		h.remove(s)
	}
}

// offer gives a notice to every stream; false: there is none.
func (h *hub) offer(n *enginepb.Notice) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs {
		h.give(s, n)
	}
	return len(h.subs) > 0
}

// tell gives a notice to every stream.
func (h *hub) tell(n *enginepb.Notice) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch n.Kind {
	case enginepb.Notice_KIND_READY:
		h.ready[n.RoomSeq] = true
	case enginepb.Notice_KIND_FAILED, enginepb.Notice_KIND_SOURCE_RELEASED, enginepb.Notice_KIND_SUCCEEDED:
		delete(h.ready, n.RoomSeq)
	case enginepb.Notice_KIND_STOPPING, enginepb.Notice_KIND_LOG_FAILED:
		h.last = n
	}
	for s := range h.subs {
		h.give(s, n)
	}
}

// watchers counts the streams.
func (h *hub) watchers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.subs)
}

// close ends every stream, those to come too, after what they were told.
func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for s := range h.subs {
		h.remove(s)
	}
}

var noticeKinds = [...]enginepb.Notice_Kind{
	projector.TellSucceeded:      enginepb.Notice_KIND_SUCCEEDED,
	projector.TellFailed:         enginepb.Notice_KIND_FAILED,
	projector.TellReleased:       enginepb.Notice_KIND_RELEASED,
	projector.TellSourceReleased: enginepb.Notice_KIND_SOURCE_RELEASED,
	projector.TellReady:          enginepb.Notice_KIND_READY,
}

// notices makes notices, some in one piece of memory. It is for one goroutine.
type notices struct{ free []enginepb.Notice }

const noticePiece = 16

func (p *notices) of(t *projector.Tell, seq uint64) *enginepb.Notice {
	if len(p.free) == 0 {
		p.free = make([]enginepb.Notice, noticePiece)
	}
	n := &p.free[0]
	p.free = p.free[1:]
	n.Kind, n.Room, n.RoomSeq, n.Pages, n.Aux = noticeKinds[t.Kind], t.Room, t.RoomSeq, t.Pages, t.Aux
	n.Unsafe, n.Reason, n.Who, n.Seq = t.Unsafe, t.Reason, t.Who, seq
	if t.Basis != 0 {
		n.Basis = events.EnumWord(t.Basis.Descriptor(), t.Basis.Number())
	}
	if t.Cause != 0 {
		n.Cause = events.EnumWord(t.Cause.Descriptor(), t.Cause.Number())
	}
	return n
}

// releasesSince are the releases that an engine has not dealt with, which said
// that it has with everything up to after; 0: it said nothing, and compares what
// it holds with the rooms it is told of.
func releasesSince(m *projector.Machine, after uint64) []*enginepb.Notice {
	if after == 0 {
		return nil
	}
	var out []*enginepb.Notice
	for _, v := range m.State().Known.ReleasedAfter(after) {
		out = append(out, &enginepb.Notice{
			Kind: enginepb.Notice_KIND_RELEASED, Room: v.Room, RoomSeq: v.RoomSeq, Pages: v.Pages, Aux: v.Aux, Basis: v.Basis,
			Unsafe: v.Unsafe, Cause: v.Cause, Reason: v.Reason, Resumed: true, Seq: v.ReleasedSeq,
		})
	}
	return out
}

// pastOf is what a new stream is told: the releases after a sequence, and the
// rooms the node still holds.
func pastOf(m *projector.Machine, after uint64) []*enginepb.Notice {
	out := releasesSince(m, after)
	st := m.State()
	for _, v := range m.RoomViews() {
		n := &enginepb.Notice{
			Room: v.Room, RoomSeq: v.RoomSeq, Pages: v.Pages, Aux: v.Aux, Cause: v.Cause, Reason: v.Reason,
			Resumed: true, Kind: enginepb.Notice_KIND_OPEN, Seq: m.LastSeq(),
		}
		p := st.PRooms[v.RoomSeq]
		switch {
		case v.State == "succeeded":
			n.Kind = enginepb.Notice_KIND_SUCCEEDED
		case v.State == "held" || v.State == "quarantined":
			n.Kind = enginepb.Notice_KIND_HELD
		case v.State == "failed":
			n.Kind = enginepb.Notice_KIND_FAILED
		}
		out = append(out, n)
		if p != nil && p.Outcome != projector.OutcomeNone && p.SourceFree {
			out = append(out, &enginepb.Notice{
				Kind: enginepb.Notice_KIND_SOURCE_RELEASED, Room: v.Room, RoomSeq: v.RoomSeq, Resumed: true, Seq: m.LastSeq(),
			})
		}
	}
	return out
}

// notYetTold puts what an engine is still to be told, which the state is ahead
// of, out of the past: a release that waits for a revocation is a room that is
// held, and is told to the stream when it is told to all.
func notYetTold(past []*enginepb.Notice, tells []projector.Tell) []*enginepb.Notice {
	seen := map[uint64]bool{}
	for i := range tells {
		t := &tells[i]
		if seen[t.RoomSeq] { // what is told first counts
			continue
		}
		kind := enginepb.Notice_KIND_OPEN
		switch t.Kind {
		case projector.TellReleased:
			kind = enginepb.Notice_KIND_HELD
		case projector.TellSucceeded, projector.TellFailed:
		default:
			continue
		}
		seen[t.RoomSeq] = true
		at := slices.IndexFunc(past, func(n *enginepb.Notice) bool { return n.RoomSeq == t.RoomSeq })
		if at < 0 {
			past = append(past, &enginepb.Notice{Room: t.Room, RoomSeq: t.RoomSeq, Pages: t.Pages, Aux: t.Aux, Resumed: true})
			at = len(past) - 1
		}
		n := past[at]
		n.Kind, n.Basis, n.Unsafe = kind, "", false
		if kind == enginepb.Notice_KIND_OPEN {
			n.Cause, n.Reason = "", ""
		}
	}
	return past
}
