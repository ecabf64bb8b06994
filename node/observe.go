package node

import (
	"slices"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

var ackForms = [...]events.AckForm{
	backends.AckReceipt:   events.AckForm_ACK_FORM_V1,
	backends.AckDrainOld:  events.AckForm_ACK_FORM_V2,
	backends.AckDrainFull: events.AckForm_ACK_FORM_V3,
}

// observed is how a prefill that is not pdlog has answered an ABORT, and who it
// was then: with other addresses it is another process.
type observed struct {
	form  events.AckForm
	ranks []projector.PeerRank
}

// observeAck learns from an ABORT_ACK without extension in which form its
// sender answers. What is seen beats what is configured (F44, F45). An ACK that
// nobody asked for teaches nothing.
func (n *Node) observeAck(a *backends.AbortAck, at projector.RankID) {
	form := ackForms[a.Form()]
	_ = n.loop.submit(task{look: func(m *projector.Machine, _ uint64) {
		node := askedOf(m.State(), a, at)
		if p := m.State().Peers[node]; p != nil && !p.PDLog && p.Form != form {
			n.background.Go(func() { n.peers.observe(node, form) }) // not here: it submits to this loop
		}
	}})
}

// askedOf is the node whose evidence for the room is still asked for by rank
// at, if there is just one that the ACK can be of.
func askedOf(st *projector.State, a *backends.AbortAck, at projector.RankID) string {
	r := st.Rooms[st.Current[a.Room]]
	if r == nil || r.Gen == 0 || a.Generation.Set && a.Generation.V != r.Gen {
		return ""
	}
	node := ""
	for _, p := range r.Pairs {
		switch {
		case p.To != at, p.Publish == projector.PublishNone, p.Evidence != 0,
			a.PrefillRank.Set && int64(p.WireID) != int64(a.PrefillRank.V):
			continue
		case node != "" && node != p.Rank.Node():
			return ""
		}
		node = p.Rank.Node()
	}
	return node
}

// observe records the form a peer has answered in, and tells the core.
func (t *peerTable) observe(node string, form events.AckForm) {
	t.mu.Lock()
	p := t.byNode[node]
	if p == nil || p.seen.PDLog || p.seen.Form == form {
		t.mu.Unlock()
		return
	}
	t.observed[node] = observed{form: form, ranks: p.seen.Ranks}
	q := *p // others read p without the lock
	q.seen.Form = form
	t.byNode[node] = &q
	t.mu.Unlock()
	t.tell(q.seen)
}

// recall gives a peer that is found again the form it was seen to answer in,
// unless it is another process now.
func (t *peerTable) recall(seen *projector.PeerDiscovered) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o, ok := t.observed[seen.Node]
	switch {
	case !ok:
	case seen.PDLog || !slices.Equal(o.ranks, seen.Ranks):
		delete(t.observed, seen.Node)
	default:
		seen.Form = o.form
	}
}
