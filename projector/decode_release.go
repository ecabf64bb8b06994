package projector

import (
	"fmt"

	"github.com/pdlog/pdlog/events"
)

func (m *Machine) finish(room uint64, reason string) {
	r := m.current(room)
	if r == nil {
		if m.st.Known.find(room) == nil {
			m.refuse("unknown_room", fmt.Sprintf("room %d was never open here", room))
		}
		return // already released: answered as done (cases.md C-15)
	}
	m.res.RoomSeq = r.Seq
	if r.Outcome != OutcomeSucceeded {
		m.refuse("bad_request", fmt.Sprintf("room %d has not succeeded", room))
		return
	}
	m.finishRoom(r, reason)
}

func (m *Machine) finishRoom(r *Room, reason string) {
	if r.Finished {
		return
	}
	m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Payload: &events.Event_RoomFinished{RoomFinished: &events.RoomFinished{Reason: reason}}})
	m.tryRelease(r)
}

// tryRelease applies the release rule (events.md): every pair that was
// published has evidence on the log.
func (m *Machine) tryRelease(r *Room) {
	if m.room(r.Seq) == nil || len(r.Copies) > 0 { // a copy of our own is a write like any other
		return
	}
	switch r.Outcome {
	case OutcomeNone:
		return
	case OutcomeSucceeded:
		if r.Finished {
			m.release(r, events.Basis_BASIS_SUCCESS, false)
		}
		return
	}
	var basis events.Basis
	for _, p := range r.Pairs {
		switch {
		case p.Publish == PublishNone:
		case p.Evidence == 0:
			return
		case basis == 0 || basis == p.Evidence:
			basis = p.Evidence
		default:
			basis = events.Basis_BASIS_MIXED
		}
	}
	if basis == 0 {
		basis = events.Basis_BASIS_NEVER_PUBLISHED
	}
	m.release(r, basis, false)
}

// release frees the room's pages and aux row: told once, for all local ranks
// together (F23). The room's leases are revoked before it is told, but for an
// unsafe release, where the key ends when the rank answers.
func (m *Machine) release(r *Room, basis events.Basis, unsafe bool) {
	e, rel := m.pool.Released.New()
	e.Room, e.RoomSeq = r.Room, r.Seq
	rel.Pages, rel.Aux, rel.Basis, rel.Unsafe = r.Pages, r.Aux, basis, unsafe
	proofs := m.proofs.open()
	for _, p := range r.Pairs {
		if p.Publish == PublishNone {
			continue
		}
		ev, at := p.Evidence, p.EvidenceAt
		if basis == events.Basis_BASIS_SUCCESS {
			ev, at = events.Basis_BASIS_SUCCESS, p.SuccessAt
			if p.Dummy { // it owes nothing: the coverage by the others stands for it
				at = r.CoveredAt
			}
		}
		if ev == 0 {
			rel.Missing = append(rel.Missing, p.proto())
			continue
		}
		x := m.pool.Evidence()
		x.Rank, x.To, x.Basis, x.Proof, x.Fence, x.Seq = string(p.Rank), string(p.To), ev, p.Proof, p.FenceProof, at
		proofs = append(proofs, x)
	}
	rel.Evidence = m.proofs.close(proofs)
	pairs, seq, room, pages, aux, staged := r.Pairs, r.Seq, r.Room, r.Pages, r.Aux, r.Staged
	m.emit(e)
	delete(m.retries, seq)
	for _, p := range pairs {
		if p.Publish == PublishNone || p.Dummy || p.FenceProof != 0 {
			continue
		}
		if unsafe && p.Evidence == 0 {
			continue
		}
		m.do(RevokeLease{RoomSeq: seq, Lease: p.Lease, Rank: p.Rank, To: p.To})
	}
	m.do(Tell{Kind: TellReleased, Room: room, RoomSeq: seq, Pages: pages, Aux: aux, Basis: basis, Unsafe: unsafe})
	m.freeStaging(staged, pairs)
}

// ackTimedOut: the deadline is no proof (F4). What happens is policy.
func (m *Machine) ackTimedOut(r *Room) {
	seq := m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Payload: &events.Event_AckTimedOut{AckTimedOut: &events.AckTimedOut{
		Generation: r.Gen, Missing: m.missing(r),
	}}})
	m.overdue(r, seq)
}

// overdue does with a room that its deadline has passed what policy says.
func (m *Machine) overdue(r *Room, cause uint64) {
	switch m.cfg.Policy {
	case events.Policy_POLICY_TIMEOUT:
		m.release(r, events.Basis_BASIS_TIMEOUT, true)
	case events.Policy_POLICY_HOLD:
		m.quarantine(r, "ack_timeout")
	default:
		m.fenceMissing(r, "ack_timeout", cause)
		if r.settled() {
			m.quarantine(r, "ack_timeout") // earlier fences have failed already
		}
	}
}

// resumeWait goes on with a failed room where a death cut between what ended the
// wait for its ranks and what follows from that.
func (m *Machine) resumeWait(r *Room) {
	switch {
	case m.room(r.Seq) == nil || r.Quarantined || !r.owes():
	case m.cfg.Policy == events.Policy_POLICY_TIMEOUT && r.fencing():
		// A fence that an earlier life began is waited for: if the policy has become
		// timeout since, that releases nothing whose fence is under way.
	case r.TimedOut:
		m.overdue(r, 0)
	default:
		for _, p := range r.Pairs {
			if p.CannotTell && p.owesEvidence() {
				m.cannotTell(r, p, 0)
			}
		}
	}
}

func (m *Machine) fenceMissing(r *Room, why string, cause uint64) {
	for _, p := range r.Pairs {
		if p.owesEvidence() {
			m.startFence(r, p, why, cause)
		}
	}
}

func (m *Machine) startFence(r *Room, p *Pair, why string, cause uint64) {
	if p.Fencing || !p.owesEvidence() {
		return
	}
	m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(p.Rank), Cause: m.localCause(cause), Payload: &events.Event_FenceStarted{FenceStarted: &events.FenceStarted{
		To: string(p.To), Lease: p.Lease, Why: why,
	}}})
	m.do(Fence{Room: r.Room, RoomSeq: r.Seq, Lease: p.Lease, Rank: p.Rank, To: p.To})
}

func (m *Machine) fenceResult(c FenceResult) {
	r := m.room(c.RoomSeq)
	if r == nil {
		return
	}
	var p *Pair
	for _, q := range r.Pairs {
		if q.Lease == c.Lease && q.Publish != PublishNone {
			p = q
		}
	}
	if p == nil || !p.Fencing {
		return
	}
	e := &events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(p.Rank)}
	switch c.Evidence {
	case events.FenceKind_FENCE_KIND_HARD, events.FenceKind_FENCE_KIND_READER_STOPPED:
		e.Payload = &events.Event_Fenced{Fenced: &events.Fenced{To: string(p.To), Lease: c.Lease, Evidence: c.Evidence, TookUs: c.TookUS, Method: c.Method}}
		m.emit(e)
		m.tryRelease(r)
	default: // a fence is not taken as done before it is proven
		e.Payload = &events.Event_FenceFailed{FenceFailed: &events.FenceFailed{To: string(p.To), Lease: c.Lease, Reason: c.Reason}}
		m.emit(e)
	}
	if m.room(r.Seq) == nil {
		return
	}
	if r.owes() && r.settled() { // the last of its fences has ended, and one of them has failed
		m.quarantine(r, "fence_failed")
	}
	m.touch(c.RoomSeq)
}

func (m *Machine) quarantine(r *Room, cause string) {
	if r.Quarantined {
		return
	}
	m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Payload: &events.Event_Quarantined{Quarantined: &events.Quarantined{
		Pages: r.Pages, Aux: r.Aux, Missing: m.missing(r), Cause: cause,
	}}})
}

// force is an operator's release without evidence.
func (m *Machine) force(c ForceRelease) {
	done := false
	for _, key := range m.incarnations(c.Room) {
		if r := m.st.Rooms[key]; r.Outcome == OutcomeFailed {
			m.release(r, events.Basis_BASIS_FORCED, true)
			done = true
		}
	}
	if r := m.current(c.Room); r != nil && !done {
		m.refuse("bad_request", fmt.Sprintf("room %d has not failed: abort it first", c.Room))
	} else if !done && m.st.Known.find(c.Room) == nil {
		m.refuse("unknown_room", fmt.Sprintf("room %d was never open here", c.Room))
	}
}

// fenceRoom is an operator's order; it works under any policy.
func (m *Machine) fenceRoom(c FenceRoom) {
	for _, key := range m.incarnations(c.Room) {
		r := m.st.Rooms[key]
		if r.Outcome != OutcomeFailed {
			continue
		}
		for _, p := range r.Pairs {
			if p.owesEvidence() && c.reaches(p.Rank) {
				m.startFence(r, p, "operator", 0)
			}
		}
	}
}

// refence tries again what could not be fenced before (events.md, policies):
// when the peer is lost, comes back in another life, or the memory is
// registered anew.
func (m *Machine) refence(node, why string, cause uint64) {
	if m.cfg.Policy != events.Policy_POLICY_FENCE {
		return
	}
	for _, key := range sortedKeys(m.st.Rooms) {
		r := m.st.Rooms[key]
		if !r.Quarantined {
			continue
		}
		for _, p := range r.Pairs {
			if p.owesEvidence() && (node == "" || p.Rank.Node() == node) {
				m.startFence(r, p, why, cause)
			}
		}
	}
}
