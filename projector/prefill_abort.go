package projector

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/pdlog/pdlog/events"
)

// abort takes an ABORT (wire.md 1.4, 4.2). Every one with a return address of a
// registered peer is answered: drained now: now; else at the drain; and if an
// earlier life of this node may still write: cannot_tell, to a peer that can be
// told so.
func (m *Machine) abort(c WireAbort) {
	r := m.pcurrent(c.Room)
	if c.Address == "" { // no way to answer: the room still ends (F38)
		if r != nil && r.live() {
			m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(c.At), Payload: &events.Event_AbortReceived{AbortReceived: &events.AbortReceived{Generation: c.Generation}}})
			m.failP(r, events.AbortCause_ABORT_CAUSE_ABORTED, "ABORT without an address", "")
			m.settleP(r)
			m.touchAny(r.Seq)
		}
		return
	}
	ep, why := m.endpoint(c.Address, c.Ext)
	if why != "" {
		m.reject(Rejected{Kind: "abort", Reason: why, From: c.Address})
		return
	}
	var seq uint64
	if c.Ext != nil {
		seq = c.Ext.RoomSeq
		m.gates[c.Address] = true
	}
	otherLog := m.strange(c.Ext)
	r, rc := m.abortRoomOf(c.Room, ep.Rank.Node(), ep.LogID, seq)
	lost := false // what is here of the use came in late copies: this log has lost what came before them
	switch {
	case r == nil || seq == 0:
	case len(r.Dests) == 0 && m.lostUse(c.Ext, otherLog):
		r = nil // a room that awaits its metadata says nothing of a use that this log may have lost
	default:
		lost = m.lostLife(c.Ext, otherLog) || !r.OldLife && m.lostUse(c.Ext, otherLog)
	}
	e, ev := m.pool.AbortReceived.New()
	e.Room, e.Rank, e.Cause = c.Room, string(c.At), m.causeOf(c.Ext)
	ev.To, ev.Address, ev.Generation, ev.DecodeRoomSeq = string(ep.Rank), c.Address, c.Generation, seq
	if r == nil {
		m.abortOfReceipt(c, ep, seq, rc, e, otherLog)
		return
	}
	e.RoomSeq = r.Seq
	t := r.target(c.At, c.Address)
	switch {
	case t != nil && lowerGen(c.Generation, t.Gen):
		ev.Stale = true // lower than the one held: changes nothing (F47)
		m.emit(e)
		return
	case t != nil && equalGen(t.Gen, c.Generation):
		t.Repeats++
		ev.Repeats = t.Repeats
		if t.Repeats&(t.Repeats-1) == 0 { // a repeat; each power of two is on the log
			m.emit(e)
		}
	default:
		m.emit(e)
	}
	var reason string
	switch {
	case !r.live():
	case c.Ext != nil && c.Ext.Reason != "":
		reason = m.intern(c.Ext.Reason)
	default:
		reason = "aborted by " + ep.Rank.Node()
	}
	m.failP(r, events.AbortCause_ABORT_CAUSE_ABORTED, reason, string(ep.Rank)) // Failed first, then the target
	switch t = r.target(c.At, c.Address); {
	case t == nil:
	case lost && !r.LostUse:
		m.withhold(r.Room, r.Seq, t.Rank, t.To, t.Address, t.Gen, t.RoomSeq, r.openTokens(t.Rank), reasonLostUse)
	default:
		m.answer(r, t, t.Answered)
	}
	m.settleP(r)
	m.touchAny(r.Seq)
}

// reasons of AckWithheld
const (
	reasonCannotTell = "cannot_tell"
	reasonLostUse    = "lost_use" // the room came from a late copy of metadata that a lost part of the log held
)

// intern is a reason in memory of its own, which rooms that end for the same one
// share: it stays with the room, a message does not.
func (m *Machine) intern(reason string) string {
	if m.reason != reason {
		m.reason = strings.Clone(reason)
	}
	return m.reason
}

// lowerGen: a generation that changes nothing next to the one held. An ABORT that
// has lost its own is older than any that has one.
func lowerGen(have, held *uint64) bool {
	return held != nil && (have == nil || *have < *held)
}

// lostLife: the use that an ABORT names was published to a life that this log
// does not hold at all, or to another log.
func (m *Machine) lostLife(x *Ext, otherLog bool) bool {
	return x != nil && x.PublishedBoot != 0 && !m.st.holds(x.PublishedBoot) || otherLog
}

// lostUse: the use that an ABORT names was published to a life of which this log
// does not hold everything, so it cannot tell what became of it.
func (m *Machine) lostUse(x *Ext, otherLog bool) bool {
	return m.lostLife(x, otherLog) ||
		m.st.UnknownPast && (x == nil || !bytes.Equal(x.SeenLogID, m.st.LogID)) || m.olderCopy() && x != nil && x.PublishedBoot == 0
}

// abortRoomOf finds the incarnation an ABORT is about: one in the table, ended or
// not, before any receipt, for only what has left the table has nothing open.
// An ABORT that names an ended incarnation does not touch the room that has the
// number now.
func (m *Machine) abortRoomOf(room uint64, node string, logID []byte, seq uint64) (*PRoom, *Receipt) {
	cur := m.pcurrent(room)
	keys := m.st.byNumber[room]
	if seq == 0 {
		switch list := m.st.Receipts[room]; {
		case cur != nil:
			return cur, nil
		case len(keys) > 0: // an earlier use that still holds tokens
			return m.st.PRooms[keys[len(keys)-1]], nil
		case len(list) > 0:
			return nil, list[len(list)-1]
		}
		return nil, nil
	}
	for i := len(keys) - 1; i >= 0; i-- {
		r := m.proom(keys[i])
		for _, d := range r.Dests {
			if d.Node == node && d.RoomSeq == seq && sameLog(d.LogID, logID) {
				return r, nil
			}
		}
	}
	if rc := m.receipt(room, node, logID, seq); rc != nil {
		return nil, rc
	}
	if cur != nil && cur.live() && len(cur.Dests) == 0 {
		return cur, nil // awaited, and the ABORT has overtaken the metadata
	}
	return nil, nil
}

// abortOfReceipt answers an ABORT of an incarnation that is not in the table:
// ended here, or never seen.
func (m *Machine) abortOfReceipt(c WireAbort, ep *Endpoint, seq uint64, rc *Receipt, e *events.Event, otherLog bool) {
	proof := events.Proof_PROOF_NEVER_SEEN
	var key roomKey
	repeat := false
	switch {
	case rc != nil && !rc.NeverSeen:
		proof, key = events.Proof_PROOF_DRAINED, rc.Seq
		if rc.CannotTell || seq != 0 && (m.lostLife(c.Ext, otherLog) || rc.Seq >= m.st.LifeSince && m.lostUse(c.Ext, otherLog)) {
			proof = events.Proof_PROOF_CANNOT_TELL
		}
	case c.Ext != nil && c.Ext.PublishedBoot != 0 && !m.st.holds(c.Ext.PublishedBoot):
		proof = events.Proof_PROOF_CANNOT_TELL // published to a life of which this log does not hold all
	case rc == nil && seq != 0 && seq <= m.st.Watermark[ep.Rank.Node()]:
		proof = events.Proof_PROOF_DRAINED
	case otherLog, m.st.UnknownPast && (c.Ext == nil || !bytes.Equal(c.Ext.SeenLogID, m.st.LogID)), m.olderCopy() && c.Ext != nil && c.Ext.PublishedBoot == 0:
		proof = events.Proof_PROOF_CANNOT_TELL // it was published before this log began
	}
	if rc != nil {
		for _, d := range rc.Dests {
			if d.Rank != c.At || d.To != ep.Rank || d.Gen == nil {
				continue
			}
			if lowerGen(c.Generation, d.Gen) { // lower than the one that was answered: changes nothing (F47)
				e.RoomSeq, e.GetAbortReceived().Stale = key, true
				m.emit(e)
				return
			}
			repeat = *c.Generation == *d.Gen
		}
	}
	e.RoomSeq = key
	if !repeat {
		m.emit(e)
		m.boundReceipts()
	}
	if proof == events.Proof_PROOF_CANNOT_TELL {
		m.withhold(c.Room, key, c.At, ep.Rank, c.Address, c.Generation, seq, 0, reasonCannotTell)
		return
	}
	if key != 0 {
		if pr := rc.done(c.At); !pr.Drained {
			m.drained(c.Room, key, c.At, pr.Writes)
		}
	}
	m.sendAck(c.Room, key, c.At, ep.Rank, c.Address, c.Generation, seq, proof, repeat)
}

func (rc *Receipt) find(id RankID) (at int, found bool) {
	return slices.BinarySearchFunc(rc.Ranks, id, func(r ReceiptRank, id RankID) int { return cmp.Compare(r.Rank, id) })
}

// done is what a rank had done, without making an entry for it.
func (rc *Receipt) done(id RankID) PRank {
	if i, ok := rc.find(id); ok {
		return rc.Ranks[i].PRank
	}
	return PRank{}
}

// rank is valid until the next one is made.
func (rc *Receipt) rank(id RankID) *PRank {
	i, ok := rc.find(id)
	if !ok {
		rc.Ranks = slices.Insert(rc.Ranks, i, ReceiptRank{Rank: shared(id)})
	}
	return &rc.Ranks[i].PRank
}

// answer acknowledges a target if its rank has drained, else holds it: targets
// belong to the open writes (F7, F9).
func (m *Machine) answer(r *PRoom, t *Target, repeat bool) {
	others, unsure := m.otherUses(r, t)
	open := r.openTokens(t.Rank) + others
	pr := r.done(t.Rank)
	switch {
	case unsure, open > 0 && r.uncertainOld(t.Rank), open == 0 && r.OldLife && !pr.Drained && !r.provenRank(t.Rank), r.LostUse:
		if !t.Answered {
			m.withhold(r.Room, r.Seq, t.Rank, t.To, t.Address, t.Gen, t.RoomSeq, open, reasonCannotTell)
		} else {
			m.tellCannot(r.Room, t.Rank, t.To, t.Address, t.Gen, t.RoomSeq)
		}
	case open > 0:
		if !t.Held {
			m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(t.Rank), Payload: &events.Event_AckTargetHeld{AckTargetHeld: &events.AckTargetHeld{
				To: string(t.To), Address: t.Address, Generation: t.Gen, Outstanding: uint64(open), //nolint:gosec // count
			}}})
		}
	default:
		if !pr.Drained {
			m.drained(r.Room, r.Seq, t.Rank, pr.Writes)
		}
		m.sendAck(r.Room, r.Seq, t.Rank, t.To, t.Address, t.Gen, t.RoomSeq, events.Proof_PROOF_DRAINED, repeat)
	}
}

// otherUses is what other uses of a room's number still write to the rank that
// has sent an ABORT which names no use: it may mean any of them (I1). unsure: this
// log does not hold all that one of them has written. A pdlog peer whose frame was
// lost on the way names its use when it asks again.
func (m *Machine) otherUses(r *PRoom, t *Target) (open int, unsure bool) {
	if ep := m.st.Endpoints[t.Address]; t.RoomSeq != 0 || ep != nil && len(ep.LogID) > 0 {
		return 0, false
	}
	for _, key := range m.st.byNumber[r.Room] {
		o := m.st.PRooms[key]
		if o == nil || o == r {
			continue
		}
		for _, w := range o.Tokens {
			if w.Rank == t.Rank && w.To == t.To {
				open++
			}
		}
		unsure = unsure || o.dest(t.Rank, t.To) != nil && (o.LostUse || o.OldLife && !o.provenRank(t.Rank))
	}
	for _, rc := range m.st.Receipts[r.Room] {
		for i := range rc.Dests {
			unsure = unsure || rc.CannotTell && rc.Dests[i].Rank == t.Rank && rc.Dests[i].To == t.To
		}
	}
	return open, unsure
}

func (m *Machine) drained(room uint64, key roomKey, rank RankID, writes uint64) {
	e, p := m.pool.Drained.New()
	e.Room, e.RoomSeq, e.Rank, p.Writes = room, key, string(rank), writes
	m.emit(e)
}

// uncertainOld: an open token of the rank was posted in an earlier life.
func (r *PRoom) uncertainOld(rank RankID) bool {
	if !r.OldLife {
		return false
	}
	for _, t := range r.Tokens {
		if t.Rank == rank {
			return true
		}
	}
	return false
}

// provenRank: the log of an earlier life proves that the rank has nothing open:
// it had drained, had reported success, or that life ended with a clean stop.
func (r *PRoom) provenRank(rank RankID) bool {
	pr := r.Ranks[rank]
	return r.LifeClean || pr != nil && (pr.Drained || pr.Concluded)
}

func (r *PRoom) provenEnd() bool {
	for _, rank := range r.ranks() {
		if !r.provenRank(rank) {
			return false
		}
	}
	return true
}

// cannotTell: this log does not hold all that the room has written.
func (r *PRoom) cannotTell() bool { return r.LostUse || r.OldLife && !r.provenEnd() }

func (m *Machine) sendAck(room uint64, key roomKey, rank, to RankID, addr string, gen *uint64, seq uint64, proof events.Proof, repeat bool) {
	e, p := m.pool.AckSent.New()
	e.Room, e.RoomSeq, e.Rank = room, key, string(rank)
	p.To, p.Address, p.Generation, p.Proof, p.DecodeRoomSeq, p.Repeat = string(to), addr, gen, proof, seq, repeat
	s := m.emit(e)
	x := m.extTo(to.Node(), seq, s)
	x.Proof = proof
	if proof == events.Proof_PROOF_NEVER_SEEN {
		x.LogSince = m.st.LogSince
	}
	m.doAfter(s, SendAck{Room: room, Rank: rank, WireID: m.wireID(rank), To: to, Address: addr, Generation: gen, WithExt: m.gates[addr], Ext: x})
}

// withhold: no ACK. A peer that reads our extension is told that we cannot
// tell, so that it fences instead of waiting; any other hears nothing.
func (m *Machine) withhold(room uint64, key roomKey, rank, to RankID, addr string, gen *uint64, seq uint64, open int, reason string) {
	m.emit(&events.Event{Room: room, RoomSeq: key, Rank: string(rank), Payload: &events.Event_AckWithheld{AckWithheld: &events.AckWithheld{
		To: string(to), Address: addr, Generation: gen, Reason: reason, Outstanding: uint64(open), Told: m.gates[addr], //nolint:gosec // count
	}}})
	m.tellCannot(room, rank, to, addr, gen, seq)
}

func (m *Machine) tellCannot(room uint64, rank, to RankID, addr string, gen *uint64, seq uint64) {
	if !m.gates[addr] {
		return
	}
	x := m.extTo(to.Node(), seq, m.st.Seq)
	x.Proof = events.Proof_PROOF_CANNOT_TELL
	id := m.wireID(rank)
	x.PrefillRank = &id
	m.do(SendAck{Room: room, Rank: rank, WireID: id, To: to, Address: addr, Generation: gen, WithExt: true, Ext: x})
}
