package projector

import (
	"bytes"

	"github.com/pdlog/pdlog/events"
)

// pastQuestion answers a decode node that does not know its past. What this
// node still has of those lives ends first. A room of an earlier life of this
// node whose end is not on its log counts as open: the last writes may not have
// reached the disk before the process died (events.md, what a prefill may answer).
func (m *Machine) pastQuestion(c PastQuestion) {
	if m.st.UnknownPast { // it does not know its own either, and vouches for nothing
		m.res.Past = &PastAnswer{Node: c.Node}
		return
	}
	a := &PastAnswer{Node: c.Node, Answered: true}
	m.closeLives(c)
	for _, addr := range sortedKeys(m.st.Endpoints) {
		if ep := m.st.Endpoints[addr]; ep.Rank.Node() == c.Node && ep.Boot != 0 && ep.Boot != c.Boot {
			a.Known = true
		}
	}
	for _, key := range sortedKeys(m.st.PRooms) {
		r := m.st.PRooms[key]
		old := map[RankID]bool{}
		for _, d := range r.Dests {
			if d.Node == c.Node && d.Boot != c.Boot {
				a.Known = true
				old[d.To] = true
			}
		}
		if len(old) == 0 {
			continue
		}
		if r.live() {
			m.failP(r, events.AbortCause_ABORT_CAUSE_PEER_LOST, c.Node+" is in another life and does not know this room", c.Node)
			m.settleP(r)
		}
		open := a.Open
		for _, t := range r.Tokens {
			if old[t.To] {
				a.Open++
			}
		}
		if a.Open == open && r.cannotTell() {
			a.Open++
		}
	}
	for _, list := range sortedKeys(m.st.Receipts) {
		for _, rc := range m.st.Receipts[list] {
			lost := false // a room of an earlier log
			for _, d := range rc.Dests {
				a.Known = a.Known || d.Node == c.Node
				lost = lost || d.Node == c.Node && (len(c.LogID) == 0 || !bytes.Equal(d.LogID, c.LogID))
			}
			if lost && rc.CannotTell {
				a.Open++
			}
		}
	}
	m.res.Past = a
}

// closeLives ends the lives of a decode node that it asks about: what they have
// sent and has not come yet is refused. Boots tell them apart, for a node that
// was wiped counts its incarnations anew; a life whose first word is still under
// way is known by its log.
func (m *Machine) closeLives(c PastQuestion) {
	old := map[uint64][]byte{} // boot -> log
	for _, ep := range m.st.Endpoints {
		if ep.Rank.Node() == c.Node {
			old[ep.Boot] = ep.LogID
		}
	}
	for _, r := range m.st.PRooms {
		for _, d := range r.Dests {
			if d.Node == c.Node {
				old[d.Boot] = d.LogID
			}
		}
	}
	for _, boot := range sortedKeys(old) {
		if boot == 0 || boot == c.Boot {
			continue
		}
		open := len(c.LogID) > 0 && len(old[boot]) > 0 && !bytes.Equal(old[boot], c.LogID) && !m.st.ClosedLogs[string(old[boot])]
		if open || !m.st.Closed[boot] {
			m.emit(&events.Event{Payload: &events.Event_PeerIncarnationSeen{PeerIncarnationSeen: &events.PeerIncarnationSeen{
				Peer: c.Node, OldBoot: boot, NewBoot: c.Boot, LogId: c.LogID,
			}}})
		}
	}
}

// closed: the extension speaks for a life that a later one has asked about.
func (st *State) closed(x *Ext) bool { return st.Closed[x.Boot] || st.ClosedLogs[string(x.LogID)] }

// closeLogs ends all logs that are known of a decode node, but its present one.
func (st *State) closeLogs(node string, present []byte) {
	if len(present) == 0 {
		return
	}
	old := func(at string, log []byte) {
		if at == node && len(log) > 0 && !bytes.Equal(log, present) {
			st.ClosedLogs[string(log)] = true
		}
	}
	for _, ep := range st.Endpoints {
		old(ep.Rank.Node(), ep.LogID)
	}
	for _, r := range st.PRooms {
		for _, d := range r.Dests {
			old(d.Node, d.LogID)
		}
	}
	for _, rc := range st.receiptQ {
		for _, d := range rc.Dests {
			old(d.Node, d.LogID)
		}
	}
}

// pastAnswer: only an answer with nothing open settles the past with that peer;
// whatever else it says, it is fenced.
func (m *Machine) pastAnswer(c PastAnswer) {
	if !m.st.Unsettled[c.Node] {
		return
	}
	if c.Answered && c.Open == 0 {
		m.emit(&events.Event{Payload: &events.Event_PastSettled{PastSettled: &events.PastSettled{Peer: c.Node, Known: c.Known}}})
		return
	}
	m.do(FencePeer{Node: c.Node})
}

func (m *Machine) peerFenced(c PeerFenced) {
	if !m.st.Unsettled[c.Node] {
		return
	}
	switch c.Evidence {
	case events.FenceKind_FENCE_KIND_HARD, events.FenceKind_FENCE_KIND_READER_STOPPED:
		m.emit(&events.Event{Payload: &events.Event_PastSettled{PastSettled: &events.PastSettled{Peer: c.Node, Known: true, Evidence: c.Evidence}}})
	default:
		if m.st.PastHeld {
			return
		}
		q := &events.Quarantined{Cause: "unknown_past"}
		for _, n := range sortedKeys(m.st.Unsettled) {
			q.Missing = append(q.Missing, &events.Pair{Rank: n})
		}
		for i := range m.st.Pages {
			q.Pages = append(q.Pages, uint32(i)) //nolint:gosec // pool size
		}
		m.emit(&events.Event{Payload: &events.Event_Quarantined{Quarantined: q}})
	}
}

// askPast asks again a peer that has not settled the past.
func (m *Machine) askPast(node string) {
	if m.st.Unsettled[node] {
		m.do(AskPast{Node: node})
	}
}

// strange says whether a decode node's message shows that this node has lost
// something: it knew another log of this node, or more of this one than there
// was when this life began, and than this life has told it (wire.md 9.5). Then
// the past is unknown from here on.
func (m *Machine) strange(x *Ext) (otherLog bool) {
	if x == nil || len(x.SeenLogID) == 0 {
		return false
	}
	if !bytes.Equal(x.SeenLogID, m.st.LogID) {
		return true
	}
	if m.lostEnd(x) && !m.older {
		m.older = true // once a life: an earlier older copy does not excuse this one
		m.emit(&events.Event{Cause: m.causeOf(x), Payload: &events.Event_ConfigChanged{ConfigChanged: &events.ConfigChanged{
			Values: map[string]string{"unknown_past": "true", "why": "a peer has seen more of this log than it holds: it is an older copy"},
		}}})
	}
	return false
}

// lostEnd: the peer has seen more of this log than it holds. Of a life that has
// ended the end decides, for the log may have grown past that number since. A
// log that knows all its lives and not this one has lost it; one that does not
// know them all has said so already.
func (m *Machine) lostEnd(x *Ext) bool {
	switch end, held := m.st.Lives[x.SeenBoot]; {
	case x.SeenBoot == 0 || x.SeenBoot == m.st.Boot:
		return x.SeenSeq > max(m.st.LifeSince-1, m.told[x.Node])
	case held:
		return x.SeenSeq > end
	default:
		return !m.st.UnknownPast
	}
}

// sameLog: two decode room_seq can be compared. An SGLang peer has no log.
func sameLog(a, b []byte) bool { return len(a) == 0 || len(b) == 0 || bytes.Equal(a, b) }

// olderCopy: a peer has shown that this log has lost its end.
func (m *Machine) olderCopy() bool { return m.st.UnknownPast && m.st.OlderCopy }
