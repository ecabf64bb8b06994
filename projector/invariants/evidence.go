package invariants

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pdlog/pdlog/events"
)

// learnFact keeps what can be evidence of a release (events.md, the release
// rule), whatever the node made of it.
func (c *Checker) learnFact(r *room, e *events.Event) {
	var f fact
	switch p := e.Payload.(type) {
	case *events.Event_StatusReceived:
		s := p.StatusReceived
		f = fact{kind: events.Basis_BASIS_SUCCESS, to: s.GetTo(), ok: s.GetStatus() == events.TerminalStatus_TERMINAL_STATUS_SUCCESS && s.GetCounted(), why: "is not a success that counts"}
	case *events.Event_CoverageCompleted:
		r.covered = true
		f = fact{kind: events.Basis_BASIS_SUCCESS, ok: true}
	case *events.Event_RoomSucceeded:
		r.succeeded = true
		f = fact{kind: events.Basis_BASIS_SUCCESS, ok: true}
	case *events.Event_RoomFinished:
		f = fact{kind: events.Basis_BASIS_SUCCESS, ok: true}
	case *events.Event_AckReceived:
		a := p.AckReceived
		f = fact{kind: events.Basis_BASIS_ACKS, to: a.GetTo(), generation: a.GetGeneration(), form: a.GetForm(), ok: a.GetCounted(), why: "did not count"}
		if a.GetProof() == events.Proof_PROOF_CANNOT_TELL {
			f.ok, f.why = false, "says that it cannot tell"
		}
		if a.GetForm() == events.AckForm_ACK_FORM_V1 {
			f.ok, f.why = false, "is a mere receipt"
		}
	case *events.Event_Fenced:
		f = fact{kind: events.Basis_BASIS_FENCE, to: p.Fenced.GetTo(), ok: proven(p.Fenced.GetEvidence()), why: "proves nothing"}
	case *events.Event_PeerRestartProven:
		f = fact{kind: events.Basis_BASIS_PEER_RESTART, to: p.PeerRestartProven.GetTo(), ok: proven(p.PeerRestartProven.GetEvidence()), why: "proves nothing"}
	default:
		return
	}
	if f.ok && (f.kind == events.Basis_BASIS_FENCE || f.kind == events.Basis_BASIS_PEER_RESTART) {
		if pub := r.published.get(pair{e.Rank, f.to}); pub != nil {
			pub.fenced = true
		}
	}
	if r.released == nil {
		f.rank = e.Rank
		r.facts = append(r.facts, entry[uint64, fact]{e.Seq, f}) // each seq comes once
	}
}

func proven(k events.FenceKind) bool {
	return k == events.FenceKind_FENCE_KIND_HARD || k == events.FenceKind_FENCE_KIND_READER_STOPPED
}

// checkEvidence is I2: for every pair that was published, the log holds what
// the release says it rests on.
func (c *Checker) checkEvidence(n *node, r *room, e *events.Event, p *events.Released) {
	if p.GetUnsafe() {
		c.report(e, "I2", NoPage, "unsafe release (%s)%s", word(p.GetBasis()), missingText(p.GetMissing()))
	}
	var bad []string
	for _, ev := range p.GetEvidence() {
		at := c.pair(ev.GetRank(), ev.GetTo())
		if why := r.weak(n, ev, e.Seq); why != "" {
			bad = append(bad, ev.GetRank()+" to "+ev.GetTo()+": "+why)
			continue
		}
		r.released.evidence.put(at, ev.GetBasis())
	}
	if !p.GetUnsafe() { // an unsafe one is reported already, with what it lacks
		for _, pub := range r.published {
			at := pub.key
			if _, ok := r.released.evidence.find(at); ok || r.dummyCovered(at) || pub.value.dummy && !r.whole || hasEvidence(p, at) {
				continue
			}
			bad = append(bad, fmt.Sprintf("no evidence for %s to %s", at.rank, at.to))
		}
		if len(p.GetMissing()) > 0 {
			bad = append(bad, "not marked unsafe, yet"+missingText(p.GetMissing()))
		}
		if b := p.GetBasis(); b == events.Basis_BASIS_TIMEOUT || b == events.Basis_BASIS_FORCED {
			bad = append(bad, "basis "+word(b)+" is not marked unsafe")
		}
	}
	slices.Sort(bad)
	for _, why := range slices.Compact(bad) {
		c.report(e, "I2", NoPage, "%s", why)
	}
}

func hasEvidence(p *events.Released, at pair) bool {
	return slices.ContainsFunc(p.GetEvidence(), func(ev *events.Evidence) bool {
		return ev.GetRank() == at.rank && ev.GetTo() == at.to
	})
}

// weak says why one piece of evidence does not hold; "" if it does, or if it
// lies before what is in view.
func (r *room) weak(n *node, ev *events.Evidence, before uint64) string {
	if !r.whole || ev.GetSeq() < n.first && ev.GetSeq() != 0 {
		return ""
	}
	pub := r.published.get(pair{ev.GetRank(), ev.GetTo()})
	switch ev.GetBasis() {
	case events.Basis_BASIS_NEVER_PUBLISHED:
		if pub != nil {
			return "evidence never_published, yet it was published"
		}
		return ""
	case events.Basis_BASIS_FORCED, events.Basis_BASIS_TIMEOUT:
		return word(ev.GetBasis()) + " is no evidence"
	}
	if ev.GetBasis() == events.Basis_BASIS_SUCCESS && ev.GetSeq() == 0 {
		return r.weakSuccess(pair{ev.GetRank(), ev.GetTo()})
	}
	if ev.GetSeq() >= before {
		return fmt.Sprintf("evidence %d is not before the release", ev.GetSeq())
	}
	f, ok := r.facts.find(ev.GetSeq())
	switch {
	case !ok:
		return fmt.Sprintf("event %d is no evidence of this room", ev.GetSeq())
	case f.kind != ev.GetBasis():
		return fmt.Sprintf("event %d is evidence of %s, not of %s", ev.GetSeq(), word(f.kind), word(ev.GetBasis()))
	case !f.ok:
		return fmt.Sprintf("event %d %s", ev.GetSeq(), f.why)
	case f.rank != "" && f.rank != ev.GetRank(), f.to != "" && f.to != ev.GetTo():
		return fmt.Sprintf("event %d is of %s to %s", ev.GetSeq(), f.rank, f.to)
	case f.kind == events.Basis_BASIS_ACKS && r.armed == 0:
		return "acknowledged, yet no abort was armed"
	case f.kind == events.Basis_BASIS_ACKS && f.form == events.AckForm_ACK_FORM_V3 && f.generation != r.armed:
		return fmt.Sprintf("event %d acknowledges generation %d, armed is %d", ev.GetSeq(), f.generation, r.armed)
	case f.kind == events.Basis_BASIS_SUCCESS && !r.covered && !r.succeeded:
		return "success without coverage of the room"
	}
	return ""
}

// weakSuccess judges evidence of success that names no event: the rank's own
// report is on the log, or it is a dummy, and the room is covered.
func (r *room) weakSuccess(at pair) string {
	if r.dummyCovered(at) {
		return ""
	}
	if !r.covered && !r.succeeded {
		return "success without coverage of the room"
	}
	for _, fact := range r.facts {
		if f := fact.value; f.kind == events.Basis_BASIS_SUCCESS && f.ok && f.rank == at.rank && f.to == at.to {
			return ""
		}
	}
	return "success, yet the rank reported none that counts"
}

// dummyCovered: a dummy owes nothing once the others covered the room.
func (r *room) dummyCovered(at pair) bool {
	pub := r.published.get(at)
	return pub != nil && pub.dummy && (r.covered || r.succeeded)
}

func missingText(missing []*events.Pair) string {
	if len(missing) == 0 {
		return ""
	}
	parts := make([]string, len(missing))
	for i, m := range missing {
		parts[i] = m.GetRank() + " to " + m.GetTo()
	}
	return " without evidence of " + strings.Join(parts, ", ")
}

func word(b events.Basis) string { return events.EnumWord(b.Descriptor(), b.Number()) }

// roomName is "room/room_seq".
func (n *node) roomName(seq uint64) string {
	if r := n.rooms[seq]; r != nil {
		return fmt.Sprintf("%d/%d", r.number, seq)
	}
	return fmt.Sprintf("?/%d", seq)
}
