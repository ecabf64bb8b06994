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
	name, seen := t.sglang(node)
	if seen == nil || seen.Form == form {
		t.mu.Unlock()
		return
	}
	t.observed[node] = observed{form: form, ranks: seen.Ranks}
	q := *t.byNode[name] // others read it without the lock
	changed := *seen
	changed.Form = form
	if q.others == seen {
		q.others = &changed
	} else {
		q.seen = changed
	}
	t.byNode[name] = &q
	t.mu.Unlock()
	t.tell(changed)
}

// sglang finds the ranks that are not pdlog by the node name the core knows
// them by, and the name of the entry they stand in; the lock is held.
func (t *peerTable) sglang(node string) (name string, seen *projector.PeerDiscovered) {
	if p := t.byNode[node]; p != nil && !p.seen.PDLog {
		return node, &p.seen
	}
	for name, p := range t.byNode {
		if p.others != nil && p.others.Node == node {
			return name, p.others
		}
	}
	return "", nil
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
