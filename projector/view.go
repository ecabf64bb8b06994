package projector

import (
	"slices"

	"github.com/pdlog/pdlog/events"
)

// RoomView is what people and scenarios see of a room incarnation.
type RoomView struct {
	Room, RoomSeq uint64
	State         string // the words of scenarios.md
	Basis         string
	Unsafe        bool
	Cause         string
	Reason        string
	Generation    uint64
	Acked         int // pairs with an ACK that counted
	Pairs         int // pairs that were published
	Missing       []RankID
	Outstanding   int // prefill: open tokens
	AckTargets    int // prefill: endpoints that wait for an ACK
	Pages         []uint32
	Aux           uint32
	OpenedAt      uint64 // unix ms
	ArmedAt       uint64
	RequestID     string
	Until         uint64 // the request's own limit, unix ms; 0 = none
	ReleasedSeq   uint64 // of a released room: seq of its Released
	Fenced        bool   // held, and a writer of it was fenced
}

func (m *Machine) roomView(r *Room) RoomView {
	v := RoomView{
		Room: r.Room, RoomSeq: r.Seq, Reason: r.Reason, Generation: r.Gen, Pages: r.Pages, Aux: r.Aux,
		OpenedAt: r.OpenedAt, ArmedAt: r.ArmedAt, RequestID: r.RequestID, Until: r.Until,
	}
	if r.Cause != 0 {
		v.Cause = events.EnumWord(r.Cause.Descriptor(), r.Cause.Number())
	}
	for _, p := range r.Pairs {
		if p.Publish == PublishNone {
			continue
		}
		v.Pairs++
		if p.Evidence == events.Basis_BASIS_ACKS {
			v.Acked++
		}
		if p.Evidence == events.Basis_BASIS_FENCE || p.Fencing {
			v.Fenced = r.Outcome == OutcomeFailed
		}
		if p.Evidence == 0 {
			v.Missing = append(v.Missing, p.Rank)
		}
	}
	switch {
	case r.Quarantined:
		v.State = "quarantined"
	case r.Outcome == OutcomeFailed:
		v.State = "held"
	case r.Outcome == OutcomeSucceeded:
		v.State = "succeeded"
	case r.bootstrapping():
		v.State = "bootstrapping"
	case r.LandedAt != 0:
		v.State = "transferring"
	default:
		v.State = "waiting"
	}
	return v
}

func (m *Machine) proomView(r *PRoom) RoomView {
	v := RoomView{
		Room: r.Room, RoomSeq: r.Seq, Reason: r.Reason, OpenedAt: r.OpenedAt, RequestID: r.RequestID,
		Outstanding: len(r.Tokens), AckTargets: r.unanswered(), Until: m.limits[r.Seq],
	}
	if r.Cause != 0 {
		v.Cause = events.EnumWord(r.Cause.Descriptor(), r.Cause.Number())
	}
	switch {
	case r.Outcome == OutcomeFailed:
		v.State = "failed"
	case r.Outcome == OutcomeSucceeded:
		v.State = "succeeded"
	case len(r.Dests) == 0:
		v.State = "bootstrapping"
	case r.Posted:
		v.State = "transferring"
	default:
		v.State = "waiting"
	}
	return v
}

// RoomView shows the newest incarnation of a room number, forgotten or not;
// State is "unknown" for a number that was never used (or so long ago that its
// receipt is gone).
func (m *Machine) RoomView(room uint64) RoomView {
	if r := m.current(room); r != nil {
		return m.roomView(r)
	}
	if k := m.st.Known.find(room); k != nil {
		return m.st.Known.view(k)
	}
	if r := m.pcurrent(room); r != nil {
		return m.proomView(r)
	}
	for i := len(m.st.Receipts[room]) - 1; i >= 0; i-- {
		if l := m.st.Receipts[room][i]; l.Seq != 0 {
			v := RoomView{Room: room, RoomSeq: l.Seq, State: "failed"}
			if l.Outcome == OutcomeSucceeded {
				v.State = "succeeded"
			}
			return v
		}
	}
	return RoomView{Room: room, State: "unknown"}
}

// RoomViews lists the rooms the node keeps state for, bounded receipts aside,
// by room_seq.
func (m *Machine) RoomViews() []RoomView {
	var out []RoomView
	for _, key := range sortedKeys(m.st.Rooms) {
		out = append(out, m.roomView(m.st.Rooms[key]))
	}
	for _, key := range sortedKeys(m.st.PRooms) {
		out = append(out, m.proomView(m.st.PRooms[key]))
	}
	return out
}

// RoomKeys lists the room incarnations of RoomViews, by room_seq.
func (m *Machine) RoomKeys() []uint64 {
	out := make([]uint64, 0, m.Rooms())
	for key := range m.st.Rooms {
		out = append(out, key)
	}
	for key := range m.st.PRooms {
		out = append(out, key)
	}
	slices.Sort(out)
	return out
}

// RoomViewAt shows one of them.
func (m *Machine) RoomViewAt(roomSeq uint64) (RoomView, bool) {
	if r := m.st.Rooms[roomSeq]; r != nil {
		return m.roomView(r), true
	}
	if r := m.st.PRooms[roomSeq]; r != nil {
		return m.proomView(r), true
	}
	return RoomView{}, false
}

// Rooms counts them.
func (m *Machine) Rooms() int { return len(m.st.Rooms) + len(m.st.PRooms) }

// PageView is the state of one page or aux row of a decode node.
type PageView struct {
	State string // free, owned, held, quarantined, fenced
	Room  uint64
	Seq   uint64
}

// Page shows one page.
func (m *Machine) Page(n uint32) PageView {
	if int(n) >= len(m.st.Pages) {
		return PageView{State: "free"}
	}
	if len(m.st.Unsettled) > 0 { // not offered before the past is settled
		return PageView{State: "quarantined"}
	}
	return m.pageView(m.st.Pages[n].owner)
}

// AuxRow shows one aux row.
func (m *Machine) AuxRow(n uint32) PageView {
	if int(n) >= len(m.st.Aux) {
		return PageView{State: "free"}
	}
	return m.pageView(m.st.Aux[n])
}

func (m *Machine) pageView(owner roomKey) PageView {
	r := m.st.Rooms[owner]
	switch {
	case r == nil:
		return PageView{State: "free"}
	case r.Quarantined:
		return PageView{State: "quarantined", Room: r.Room, Seq: r.Seq}
	case r.Outcome == OutcomeFailed:
		return PageView{State: "held", Room: r.Room, Seq: r.Seq}
	}
	return PageView{State: "owned", Room: r.Room, Seq: r.Seq}
}

// PageCounts counts the pool's pages by state (I11: they always add up).
func (m *Machine) PageCounts() map[string]int {
	n := len(m.st.Pages)
	if len(m.st.Unsettled) > 0 {
		return map[string]int{"quarantined": n}
	}
	out := map[string]int{"free": n}
	for key, r := range m.st.Rooms {
		out[m.pageView(key).State] += len(r.Pages)
		out["free"] -= len(r.Pages)
	}
	return out
}

// FreePages gives the lowest free pages, in order; false when there are fewer
// than n.
func (m *Machine) FreePages(n int) ([]uint32, bool) {
	if n > len(m.st.Pages) || len(m.st.Unsettled) > 0 {
		return nil, n == 0
	}
	out := m.st.free.first(n, make([]uint32, 0, n))
	return out, len(out) == n
}

// Ready: would the node take a room now, as far as the core knows.
func (m *Machine) Ready() bool {
	return m.started && !m.stopped && !m.st.Draining && !m.logFull && len(m.st.Unsettled) == 0
}

// LastSeq is the sequence of the newest event, 0 for an empty log.
func (m *Machine) LastSeq() uint64 { return m.st.Seq }

// Clock is the hybrid clock's newest value.
func (m *Machine) Clock() events.HLC { return m.st.HLC }

// LogSince is the hybrid clock of the oldest event.
func (m *Machine) LogSince() uint64 { return m.st.LogSince }

// State gives the fold itself, to read only.
func (m *Machine) State() *State { return m.st }

// PeerViews lists what is known of peers, by name.
func (m *Machine) PeerViews() []PeerView {
	var out []PeerView
	for _, n := range sortedKeys(m.st.Peers) {
		p := m.st.Peers[n]
		v := PeerView{Node: n, PDLog: p.PDLog, Boot: p.Boot, Incarnation: p.Inc, Weak: p.Weak, Fence: events.EnumWord(p.Fence.Descriptor(), p.Fence.Number()), State: "ok"}
		switch {
		case p.Lost:
			v.State = "lost"
		case p.Suspect:
			v.State = "suspect"
		}
		for _, id := range sortedKeys(p.Ranks) {
			v.Ranks = append(v.Ranks, p.Ranks[id])
		}
		out = append(out, v)
	}
	for _, a := range sortedKeys(m.st.Endpoints) {
		ep := m.st.Endpoints[a]
		out = append(out, PeerView{
			Node: ep.Rank.Node(), PDLog: ep.Boot != 0, Boot: ep.Boot, Incarnation: ep.Inc, State: "ok",
			Ranks: []PeerRank{{Rank: ep.Rank, Address: a}},
		})
	}
	return out
}

// PeerView is what people see of a peer.
type PeerView struct {
	Node        string
	State       string // ok, suspect, lost
	PDLog       bool
	Boot        uint64
	Incarnation uint64
	Weak        bool
	Fence       string
	Ranks       []PeerRank
}
