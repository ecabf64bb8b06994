package projector

import (
	"bytes"
	"fmt"

	"github.com/pdlog/pdlog/events"
)

// fail ends a live room: the engine is told, and what was published is aborted
// and held. The first cause stands (I6).
func (m *Machine) fail(r *Room, cause events.AbortCause, reason, who string, c *events.Cause) {
	if !r.live() {
		return
	}
	delete(m.checks, r.Seq)
	seq := m.roomFailed(r.Room, r.Seq, cause, reason, who, c)
	for _, p := range r.Pairs {
		if p.Publish == PublishStarted { // nothing of it is published after the arming
			m.doAfter(0, DropPublish{Room: r.Room, RoomSeq: r.Seq})
			break
		}
	}
	m.doAfter(seq, Tell{Kind: TellFailed, Room: r.Room, RoomSeq: r.Seq, Cause: cause, Reason: reason, Who: who})
	m.arm(r, seq)
}

func (m *Machine) roomFailed(room uint64, key roomKey, cause events.AbortCause, reason, who string, c *events.Cause) uint64 {
	e, p := m.pool.RoomFailed.New()
	e.Room, e.RoomSeq, e.Cause = room, key, c
	p.Cause, p.Reason, p.Who = cause, reason, who
	return m.emit(e)
}

// arm hands out the generation and sends the ABORTs. AbortArmed is durable
// before the first ABORT leaves (I4, F13); a room of which nothing was
// published is released at once (release rule 3).
func (m *Machine) arm(r *Room, cause uint64) {
	if r.published() == 0 {
		m.tryRelease(r)
		return
	}
	expected := m.missing(r)
	e, armed := m.pool.AbortArmed.New()
	e.Room, e.RoomSeq, e.Cause = r.Room, r.Seq, m.localCause(cause)
	armed.Generation, armed.Cause, armed.Expected = m.st.LastGen+1, r.Cause, expected
	seq := m.emit(e)
	e, deferred := m.pool.ReleaseDeferred.New()
	e.Room, e.RoomSeq, e.Cause = r.Room, r.Seq, m.localCause(seq)
	deferred.Waiting, deferred.Cause = expected, r.Cause
	m.emit(e)
	m.resendAborts(r, "")
	m.touch(r.Seq)
}

// abortLogFirst: every attempt up to this one is on the log, later ones at
// powers of two: a rank that never answers must not fill the log.
const abortLogFirst = 8

// resendAborts sends ABORT, with the armed generation, to every pair that has
// given no evidence (of one prefill node, if node is not empty).
func (m *Machine) resendAborts(r *Room, node string) {
	rt := m.retries[r.Seq]
	rt.attempt++
	rt.again = false
	if node == "" {
		rt.at = m.now.Clock + millis(m.cfg.AbortRetry)
	}
	m.retries[r.Seq] = rt
	for _, p := range r.Pairs {
		if !p.owesEvidence() || p.CannotTell || node != "" && p.Rank.Node() != node {
			continue
		}
		m.sendAbort(r, p, rt.attempt)
	}
}

func (m *Machine) sendAbort(r *Room, p *Pair, attempt uint64) {
	peer := m.st.Peers[p.Rank.Node()]
	if peer == nil {
		return
	}
	if attempt <= abortLogFirst || attempt&(attempt-1) == 0 {
		e, sent := m.pool.AbortSent.New()
		e.Room, e.RoomSeq, e.Rank = r.Room, r.Seq, string(p.Rank)
		sent.Generation, sent.To, sent.Attempt = r.Gen, string(p.To), attempt
		m.emit(e)
	}
	x := m.ext(r.Seq, m.st.Seq)
	x.Reason = r.Reason
	x.SeenLogID, x.PublishedBoot = p.LogID, p.Boot
	if bytes.Equal(p.LogID, peer.LogID) {
		seen := peer.seenOf(p.Boot)
		x.SeenSeq, x.SeenBoot = seen.Seq, seen.Boot
	}
	m.do(SendAbort{
		Room: r.Room, Rank: p.Rank, Address: peer.Ranks[p.Rank].Address, To: p.To,
		Generation: r.Gen, WithExt: peer.PDLog, Ext: x,
	})
}

func (m *Machine) retryAt(r *Room) (uint64, bool) {
	rt, ok := m.retries[r.Seq]
	if !ok {
		return 0, false
	}
	for _, p := range r.Pairs {
		if p.owesEvidence() && !p.CannotTell {
			return rt.at, true
		}
	}
	return 0, false
}

// ack takes an ABORT_ACK. It is matched by generation, rank and endpoint, never
// counted (F10), and never creates state (C-14).
func (m *Machine) ack(c WireAck) {
	x, misfit := m.peerExt(c.Ext)
	e, ev := m.pool.AckReceived.New()
	e.Room, e.Cause, ev.To = c.Room, m.causeOf(x), string(c.At)
	rank := c.Rank
	if x != nil {
		ev.Proof = x.Proof
		if rank == nil {
			rank = x.PrefillRank
		}
	}
	switch {
	case rank == nil:
		ev.Form = events.AckForm_ACK_FORM_V1
	case c.Generation == nil:
		ev.Form = events.AckForm_ACK_FORM_V2
	default:
		ev.Form = events.AckForm_ACK_FORM_V3
	}
	if c.Generation != nil {
		ev.Generation = *c.Generation
	}
	r := m.ackRoom(c, x)
	if r == nil {
		if m.st.Known.find(c.Room) == nil {
			m.reject(Rejected{Kind: "abort_ack", Reason: "unknown room", From: string(c.At)})
			return
		}
		e.RoomSeq = m.knownSeq(c.Room, x)
		ev.Why = events.NotCounted_NOT_COUNTED_RELEASED
		if rank != nil {
			ev.WireId = *rank
			e.Rank = m.rankName(*rank, x)
		}
		m.endUnsafeKey(c, x, e)
		return
	}
	e.RoomSeq = r.Seq
	var p *Pair
	if rank != nil {
		ev.WireId = *rank
		if p = r.byWireID(*rank, c.At, x); p != nil {
			e.Rank = string(p.Rank)
		} else {
			e.Rank = m.rankName(*rank, x)
		}
	}
	ev.Why = m.judgeAck(r, p, c, x, misfit)
	ev.Counted = ev.Why == 0
	if ev.Counted && ev.Proof == 0 {
		ev.Proof = events.Proof_PROOF_DRAINED
	}
	seq := m.emit(e)
	switch {
	case ev.Counted:
		m.tryRelease(r)
	case ev.Why == events.NotCounted_NOT_COUNTED_CANNOT_TELL && p != nil:
		m.cannotTell(r, p, seq)
	case ev.Why == events.NotCounted_NOT_COUNTED_NO_PROOF && p != nil && p.PDLog && p.owesEvidence() && (x == nil || misfit || x.RoomSeq != r.Seq):
		m.askAgain(r, p)
	}
	m.touch(r.Seq)
}

// askAgain sends the ABORT with the frame to a rank whose ACK came without it,
// or with one that did not fit (wire.md 9.5): once between two retries, so that
// two nodes never answer each other without end.
func (m *Machine) askAgain(r *Room, p *Pair) {
	if rt, ok := m.retries[r.Seq]; ok && !rt.again {
		rt.again = true
		m.retries[r.Seq] = rt
		m.sendAbort(r, p, rt.attempt)
	}
}

// ackRoom finds the incarnation an ACK is for: the one it names, the one armed
// with its generation, or the number's newest.
func (m *Machine) ackRoom(c WireAck, x *Ext) *Room {
	if x != nil && x.RoomSeq != 0 {
		if r := m.room(x.RoomSeq); r != nil && r.Room == c.Room {
			return r
		}
		return nil
	}
	if c.Generation != nil {
		for _, key := range m.incarnations(c.Room) {
			if r := m.st.Rooms[key]; r.Gen == *c.Generation && r.Gen != 0 {
				return r
			}
		}
	}
	return m.current(c.Room)
}

// incarnations lists the room's incarnations that still hold something, oldest
// first. The newest may be over before an older one that is held.
func (m *Machine) incarnations(room uint64) []roomKey { return m.st.byNumber[room] }

// judgeAck says why an ACK does not count; 0 = it counts (release rule 2,
// wire.md 9.5).
func (m *Machine) judgeAck(r *Room, p *Pair, c WireAck, x *Ext, misfit bool) events.NotCounted {
	cannot := x != nil && x.Proof == events.Proof_PROOF_CANNOT_TELL
	switch {
	case c.Rank == nil && !cannot:
		return events.NotCounted_NOT_COUNTED_RECEIPT_ONLY
	case r.Gen == 0:
		return events.NotCounted_NOT_COUNTED_NOT_ARMED
	case c.Generation != nil && *c.Generation != r.Gen:
		return events.NotCounted_NOT_COUNTED_STALE_GENERATION
	case p == nil:
		return events.NotCounted_NOT_COUNTED_UNEXPECTED_RANK
	case p.Evidence != 0:
		return events.NotCounted_NOT_COUNTED_DUPLICATE
	case cannot:
		return events.NotCounted_NOT_COUNTED_CANNOT_TELL
	}
	if p.PDLog {
		if x == nil || misfit || c.Generation == nil || x.RoomSeq != r.Seq || !m.proves(p, x) { // a frame that names no incarnation proves nothing of this one
			return events.NotCounted_NOT_COUNTED_NO_PROOF
		}
		return 0
	}
	if p.CannotTell {
		return events.NotCounted_NOT_COUNTED_NO_PROOF
	}
	if c.Generation != nil {
		return 0
	}
	// A drain ACK of the older form: only for a number without an earlier use.
	if k := m.st.Known.find(r.Room); k != nil && k.Uses > 1 {
		return events.NotCounted_NOT_COUNTED_NO_PROOF
	}
	return 0
}

// neverSeenSlack: log_since must be that much older than the publish if it is
// not the one of the discovery answer (wire.md 9.5 iii).
const neverSeenSlack = 60 * 1000

func (m *Machine) proves(p *Pair, x *Ext) bool {
	if len(p.LogID) > 0 && !bytes.Equal(p.LogID, x.LogID) {
		return false // another log: a wiped node must not answer for its earlier one
	}
	sameLife := x.Boot == p.Boot && x.Incarnation == p.Inc
	if !sameLife && x.Incarnation <= p.Inc {
		return false
	}
	switch x.Proof {
	case events.Proof_PROOF_DRAINED:
		return true
	case events.Proof_PROOF_NEVER_SEEN:
		return x.LogSince == p.LogSince || events.HLC(x.LogSince).Millis()+neverSeenSlack <= p.PublishAt
	default:
		return false
	}
}

// cannotTell: the rank does not know whether its earlier life still writes. It
// is not waited for; it is fenced.
func (m *Machine) cannotTell(r *Room, p *Pair, cause uint64) {
	switch m.cfg.Policy {
	case events.Policy_POLICY_FENCE:
		m.startFence(r, p, "cannot_tell", cause)
	case events.Policy_POLICY_HOLD:
		if r.settled() {
			m.quarantine(r, "cannot_tell")
		}
	}
}

// settled: nothing that is still missing can come by itself.
func (r *Room) settled() bool {
	for _, p := range r.Pairs {
		if p.owesEvidence() && (p.Fencing || !p.CannotTell && !r.TimedOut) {
			return false
		}
	}
	return true
}

func (m *Machine) abortRoom(c AbortRoom) {
	r := m.current(c.Room)
	if r == nil {
		if m.st.Known.find(c.Room) == nil {
			m.refuse("unknown_room", fmt.Sprintf("room %d was never open here", c.Room))
		}
		return
	}
	m.res.RoomSeq = r.Seq
	switch r.Outcome {
	case OutcomeSucceeded:
		m.finishRoom(r, "abort")
	case OutcomeNone:
		reason := c.Reason
		if reason == "" {
			reason = "aborted by the engine"
		}
		m.fail(r, c.cause(), reason, m.cfg.Node, nil)
	}
	m.touch(r.Seq)
}

// endUnsafeKey records an ACK that came after the release. If that release was
// unsafe, the rank's key ends now that it has answered.
func (m *Machine) endUnsafeKey(c WireAck, x *Ext, e *events.Event) {
	var u *Room
	for _, key := range sortedKeys(m.st.Unsafe) {
		r := m.st.Unsafe[key]
		if r.Room == c.Room && c.Generation != nil && r.Gen == *c.Generation {
			u = r
		}
	}
	var p *Pair
	if u != nil && c.Rank != nil {
		if p = u.byWireID(*c.Rank, c.At, x); p != nil {
			e.RoomSeq, e.Rank = u.Seq, string(p.Rank)
		}
	}
	open := p != nil && p.Evidence == 0
	m.emit(e)
	if open {
		m.do(RevokeLease{RoomSeq: u.Seq, Lease: p.Lease, Rank: p.Rank, To: p.To})
	}
}
