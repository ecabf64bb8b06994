package projector

import (
	"github.com/pdlog/pdlog/events"
)

// noted is what the transfer engine of one prefill rank has told of its chunks:
// a fold of NotificationReceived.
type noted struct {
	chunks map[uint64]*notedChunk
	count  uint32 // how many chunks there are
	last   bool   // count is known
}

// notedChunk is what has landed of one chunk.
type notedChunk struct {
	of    uint32 // parts it has; 1 = it went whole
	parts map[uint64]bool
}

// complete: every chunk, the last included, is there in all its parts.
func (n *noted) complete() bool {
	if n == nil || !n.last {
		return false
	}
	for i := range uint64(n.count) {
		if c := n.chunks[i]; c == nil || uint64(len(c.parts)) < uint64(c.of) {
			return false
		}
	}
	return true
}

// misfit: what is said of a chunk does not go with what was said before.
func (n *noted) misfit(c WireNotification) string {
	if n == nil || !c.carriesChunk() {
		return ""
	}
	if have := n.chunks[uint64(c.Chunk)]; have != nil && have.of != c.Parts {
		return "a chunk in two numbers of parts"
	}
	if n.last && (c.Chunk >= n.count || c.Last && c.Chunk+1 != n.count) {
		return "a chunk behind the last"
	}
	return ""
}

func (n *noted) land(e *events.NotificationReceived) {
	switch e.What {
	case "kv", "stg":
		c := n.chunks[uint64(e.Chunk)]
		if c == nil {
			c = &notedChunk{parts: map[uint64]bool{}}
			n.chunks[uint64(e.Chunk)] = c
		}
		c.of = e.Parts
		c.parts[uint64(e.Part)] = true
		if e.Last {
			n.count, n.last = e.Chunk+1, true
		}
	case "aux_nokv":
		n.count, n.last = e.Expected, true
	}
}

// maxNotedChunk bounds what a peer can make a room remember.
const maxNotedChunk = 1 << 16

// notified takes what a transfer engine says of a live room (F29): from a
// source that owes the room its pages, and nothing else. A source has succeeded
// when all of its chunks and the aux row are there; that is recorded as the
// status which this backend does not send.
func (m *Machine) notified(c WireNotification) {
	r := m.current(c.Room)
	if why := m.misNotified(r, c); why != "" {
		m.reject(Rejected{Kind: "notification", Reason: why, From: string(c.At)})
		return
	}
	e := &events.Event{Room: r.Room, RoomSeq: r.Seq, Payload: &events.Event_NotificationReceived{NotificationReceived: &events.NotificationReceived{
		To: string(c.At), What: c.What, Source: c.Source, Chunk: c.Chunk, Last: c.Last, Part: c.Part, Parts: c.Parts, Expected: c.Expected,
	}}}
	if p := m.bySource(r, c); p != nil {
		e.Rank = string(p.Rank)
	}
	seq := m.emit(e)
	for _, p := range r.Pairs {
		if p.To != c.At || p.Dummy || p.Succeeded || !p.noted.complete() || !r.AuxNoted[c.At] {
			continue
		}
		m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(p.Rank), Cause: m.localCause(seq), Payload: &events.Event_StatusReceived{
			StatusReceived: &events.StatusReceived{
				Status: events.TerminalStatus_TERMINAL_STATUS_SUCCESS, Counted: true, To: string(p.To), Reason: "told by its transfer engine",
			},
		}})
	}
	m.maybeSucceed(r)
	m.touch(r.Seq)
}

// misNotified says why a notification changes nothing; "" = it is taken.
func (m *Machine) misNotified(r *Room, c WireNotification) string {
	switch {
	case r == nil:
		return "unknown or ended room"
	case !r.live():
		return "the room has ended"
	case r.published() == 0:
		return "nothing of the room was published"
	case m.st.Known.find(c.Room).failedBefore():
		return "an earlier use of the number failed, and may be what is meant"
	case c.What == "stg":
		return "no staging ring is registered"
	case c.Chunk >= maxNotedChunk || c.Expected > maxNotedChunk:
		return "more chunks than a room has"
	}
	if c.What == "aux" {
		return ""
	}
	p := m.bySource(r, c)
	if p == nil {
		return "no rank of the room has that source"
	}
	return p.noted.misfit(c)
}

func (c WireNotification) carriesChunk() bool { return c.What == "kv" || c.What == "stg" }

// bySource finds the pair that a notification speaks of. A pdlog rank says its
// own success on the control plane.
func (m *Machine) bySource(r *Room, c WireNotification) *Pair {
	if c.What == "aux" {
		return nil // it names none
	}
	for _, p := range r.Pairs {
		if p.To != c.At || p.Dummy || p.Publish == PublishNone || p.PDLog {
			continue
		}
		if peer := m.st.Peers[p.Rank.Node()]; peer != nil && peer.Ranks[p.Rank].Source == c.Source {
			return p
		}
	}
	return nil
}

func applyNotification(e *events.Event, r *Room, n *events.NotificationReceived) {
	to := RankID(n.To)
	r.LandedAt = e.Clock()
	if n.What == "aux" || n.What == "aux_nokv" {
		if r.AuxNoted == nil {
			r.AuxNoted = map[RankID]bool{}
		}
		r.AuxNoted[to] = true
	}
	p := r.pair(RankID(e.Rank), to)
	if p == nil {
		return
	}
	if p.noted == nil {
		p.noted = &noted{chunks: map[uint64]*notedChunk{}}
	}
	p.noted.land(n)
}
