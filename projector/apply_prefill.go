package projector

import (
	"bytes"
	"slices"
	"unique"

	"github.com/pdlog/pdlog/events"
)

func (m *Machine) applyPrefill(e *events.Event) {
	st := m.st
	switch p := e.Payload.(type) {
	case *events.Event_RoomOpened:
		r := m.proom(e.RoomSeq)
		if r == nil {
			r = m.newPRoom(e)
		}
		r.Awaited = true
		r.RequestID, r.TraceID = p.RoomOpened.RequestId, p.RoomOpened.TraceId
		for _, pr := range p.RoomOpened.Pairs {
			r.Expect = append(r.Expect, RankID(pr.Rank))
		}
		return
	case *events.Event_MetadataReceived:
		m.applyMetadata(e, p.MetadataReceived)
		return
	case *events.Event_ReceiptDropped:
		d := p.ReceiptDropped
		st.Watermark[d.DecodeNode] = max(st.Watermark[d.DecodeNode], d.DecodeRoomSeq)
		m.dropReceipt()
		return
	}
	r := m.proom(e.RoomSeq)
	if r == nil {
		m.applyToReceipt(e)
		return
	}
	switch p := e.Payload.(type) {
	case *events.Event_ChunkQueued:
		q := p.ChunkQueued
		cmd := SendChunk{
			Room: r.Room, Rank: RankID(e.Rank), Chunk: q.Chunk, Pages: q.Pages, First: q.First, Count: uint32(q.Count), //nolint:gosec // was uint32
			SourcePages: q.SourcePages, Last: q.Last, Bytes: q.Bytes, SourceAux: q.SourceAux,
		}
		for _, to := range q.To {
			cmd.To = append(cmd.To, RankID(to))
		}
		r.Queue = append(r.Queue, queued{seq: e.Seq, cmd: cmd})
	case *events.Event_ChunkPosted:
		c := p.ChunkPosted
		r.Posted, r.ActiveAt = true, e.Clock()
		m.st.tokens[c.Token] = r.Seq
		r.Tokens[c.Token] = &Token{
			ID: c.Token, Rank: RankID(e.Rank), To: RankID(c.To), Chunk: c.Chunk, Bytes: c.Bytes, PostedAt: e.Clock(),
			Staged: c.StagingEnd > 0, First: c.First, Pages: uint32(len(c.Pages)), //nolint:gosec // pool size
		}
		r.rank(RankID(e.Rank)).Writes++
		if d := r.dest(RankID(e.Rank), RankID(c.To)); d != nil && c.Last {
			d.LastPosted = true
		}
		r.unqueue(RankID(e.Rank), c.Chunk)
	case *events.Event_ChunkCompleted:
		m.closeToken(r, p.ChunkCompleted.Token)
		r.ActiveAt = e.Clock()
	case *events.Event_ChunkFailed:
		if p.ChunkFailed.Proven {
			m.closeToken(r, p.ChunkFailed.Token)
		}
	case *events.Event_ChunkUncertain:
		if t := r.Tokens[p.ChunkUncertain.Token]; t != nil {
			t.Uncertain = true
			m.parked.add(t)
		}
	case *events.Event_ChunkDrained:
		m.closeToken(r, p.ChunkDrained.Token)
		r.ActiveAt = e.Clock()
	case *events.Event_ChunkSkipped:
		r.unqueue(RankID(e.Rank), p.ChunkSkipped.Chunk)
	case *events.Event_StatusSent:
		if d := r.dest(RankID(e.Rank), RankID(p.StatusSent.To)); d != nil && d.StatusTold == 0 {
			d.StatusTold = p.StatusSent.Status
			if d.StatusTold == events.TerminalStatus_TERMINAL_STATUS_SUCCESS {
				r.rank(d.Rank).Concluded = true
			}
		} else if d == nil {
			if r.Refused == nil {
				r.Refused = map[[2]RankID]bool{}
			}
			r.Refused[[2]RankID{RankID(e.Rank), RankID(p.StatusSent.To)}] = true
		}
	case *events.Event_RoomSucceeded:
		if r.live() {
			r.Outcome = OutcomeSucceeded
		}
	case *events.Event_RoomFailed:
		if r.live() {
			r.Outcome, r.Cause, r.Reason = OutcomeFailed, p.RoomFailed.Cause, p.RoomFailed.Reason
			if p.RoomFailed.Cause == events.AbortCause_ABORT_CAUSE_ABORTED {
				r.TermNode = RankID(p.RoomFailed.Who).Node()
			}
		}
	case *events.Event_AbortReceived:
		m.applyTarget(r, e, p.AbortReceived)
	case *events.Event_AckTargetHeld:
		if t := r.target(RankID(e.Rank), p.AckTargetHeld.Address); t != nil {
			t.Held = true
		}
	case *events.Event_Drained:
		r.rank(RankID(e.Rank)).Drained = true
	case *events.Event_AckSent:
		if t := r.target(RankID(e.Rank), p.AckSent.Address); t != nil && equalGen(t.Gen, p.AckSent.Generation) {
			t.Answered = true
		}
	case *events.Event_AckWithheld:
		if t := r.target(RankID(e.Rank), p.AckWithheld.Address); t != nil {
			t.Answered = p.AckWithheld.Told
		}
		r.LostUse = r.LostUse || p.AckWithheld.Reason == reasonLostUse
	case *events.Event_SourceReleased:
		r.SourceFree = true
	case *events.Event_RoomCleared:
		r.Cleared = true
	}
	m.forget(r)
}

func (m *Machine) applyTarget(r *PRoom, e *events.Event, p *events.AbortReceived) {
	if p.Address == "" || p.Stale {
		return
	}
	t := r.target(RankID(e.Rank), p.Address)
	if t == nil {
		t = &Target{Rank: RankID(e.Rank), To: RankID(p.To), Address: p.Address}
		r.Targets = append(r.Targets, t)
	} else if !equalGen(t.Gen, p.Generation) {
		t.Answered, t.Held = false, false
		t.Repeats = 0
	}
	if p.DecodeRoomSeq != 0 || !equalGen(t.Gen, p.Generation) { // a repeat that has lost its frame takes nothing away
		t.RoomSeq = p.DecodeRoomSeq
	}
	t.Gen, t.LogID = p.Generation, m.logOf(RankID(p.To).Node())
}

func equalGen(a, b *uint64) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

func (m *Machine) newPRoom(e *events.Event) *PRoom {
	r := &PRoom{
		Room: e.Room, Seq: e.RoomSeq, Life: e.Incarnation, OpenedAt: e.Clock(), ActiveAt: e.Clock(),
		Tokens: map[uint64]*Token{}, Ranks: map[RankID]*PRank{},
	}
	m.st.PRooms[r.Seq], m.phot = r, r
	m.st.PCurrent[r.Room] = r.Seq
	m.st.byNumber[r.Room] = append(m.st.byNumber[r.Room], r.Seq)
	return r
}

func (m *Machine) applyMetadata(e *events.Event, p *events.MetadataReceived) {
	r := m.proom(e.RoomSeq)
	if r == nil {
		r = m.newPRoom(e)
	}
	r.ActiveAt = e.Clock()
	r.Dests = append(r.Dests, &Dest{
		Rank: RankID(e.Rank), To: RankID(p.To), Address: p.Address, Session: p.Session, Node: p.DecodeNode, RoomSeq: p.DecodeRoomSeq,
		LogID: p.DecodeLogId, Boot: p.DecodeBoot, Pages: p.Pages, Aux: p.Aux, Dummy: p.Dummy, Required: p.RequiredDstInfoNum,
		Keys: p.WriteKeys, MetaSeq: e.Seq,
	})
}

func (m *Machine) closeToken(r *PRoom, id uint64) {
	if t := r.Tokens[id]; t != nil && t.Uncertain {
		m.parked.remove(t)
	}
	delete(r.Tokens, id)
	delete(m.st.tokens, id)
}

func (r *PRoom) queuedChunk(rank RankID, chunk uint32) bool {
	for _, q := range r.Queue {
		if q.cmd.Rank == rank && q.cmd.Chunk == chunk {
			return true
		}
	}
	return false
}

func (r *PRoom) unqueue(rank RankID, chunk uint32) {
	for i, q := range r.Queue {
		if q.cmd.Rank == rank && q.cmd.Chunk == chunk {
			r.Queue = append(r.Queue[:i:i], r.Queue[i+1:]...)
			return
		}
	}
}

// forget turns a room into a bounded receipt once its engine has cleared it
// and nothing of it is open: targets and tokens outlive the engine's interest
// (F9), a finished room does not (I7).
func (m *Machine) forget(r *PRoom) {
	if !r.Cleared || r.live() || !r.SourceFree || len(r.Tokens) > 0 || r.unanswered() > 0 {
		return
	}
	st := m.st
	rc := &Receipt{Room: r.Room, Seq: r.Seq, Outcome: r.Outcome, Ranks: make([]ReceiptRank, 0, len(r.Ranks)), CannotTell: r.cannotTell()}
	for _, rank := range sortedKeys(r.Ranks) {
		rc.Ranks = append(rc.Ranks, ReceiptRank{Rank: shared(rank), PRank: *r.Ranks[rank]})
	}
	for _, d := range r.Dests {
		rd := ReceiptDest{Rank: shared(d.Rank), To: shared(d.To), Node: shared(d.Node), LogID: m.sharedLog(d.Node, d.LogID), RoomSeq: d.RoomSeq}
		if t := r.target(d.Rank, d.Address); t != nil {
			rd.Gen = t.Gen
		}
		rc.Dests = append(rc.Dests, rd)
	}
	for _, t := range r.Targets { // an ABORT that was here before its metadata: that is refused when it comes
		if r.dest(t.Rank, t.To) == nil {
			rc.Dests = append(rc.Dests, ReceiptDest{
				Rank: shared(t.Rank), To: shared(t.To), Node: shared(t.To.Node()), LogID: m.sharedLog(t.To.Node(), t.LogID), RoomSeq: t.RoomSeq, Gen: t.Gen,
			})
		}
	}
	delete(st.PRooms, r.Seq)
	m.phot = nil
	st.leaveNumber(r.Room, r.Seq)
	if st.PCurrent[r.Room] == r.Seq {
		delete(st.PCurrent, r.Room)
	}
	m.addReceipt(rc)
}

// leaveNumber takes an incarnation out of those of its room number. The list is
// not changed in place: a caller may be walking it.
func (st *State) leaveNumber(room uint64, key roomKey) {
	list := st.byNumber[room]
	if len(list) == 1 && list[0] == key {
		delete(st.byNumber, room)
		return
	}
	left := make([]roomKey, 0, len(list))
	for _, k := range list {
		if k != key {
			left = append(left, k)
		}
	}
	if len(left) > 0 {
		st.byNumber[room] = left
	} else {
		delete(st.byNumber, room)
	}
}

// shared is a text that receipts have in common: what an event or a message
// brought goes with it otherwise.
func shared[T ~string](s T) T { return T(unique.Make(string(s)).Value()) }

// sharedLog is a log id in the memory of its node's endpoint, where it is the same.
func (m *Machine) sharedLog(node string, id []byte) []byte {
	if l := m.logOf(node); bytes.Equal(l, id) {
		return l
	}
	return bytes.Clone(id)
}

func (m *Machine) addReceipt(rc *Receipt) {
	m.st.Receipts[rc.Room] = append(m.st.Receipts[rc.Room], rc)
	m.st.receiptQ = append(m.st.receiptQ, rc)
}

// oldestTold is the place of the oldest receipt that may be dropped, -1 = none: one
// of a room of which this log cannot tell stays.
func (st *State) oldestTold() int {
	return slices.IndexFunc(st.receiptQ, func(rc *Receipt) bool { return !rc.CannotTell })
}

func (m *Machine) dropReceipt() {
	st := m.st
	at := st.oldestTold()
	if at < 0 {
		return
	}
	rc := st.receiptQ[at]
	if at == 0 {
		st.receiptQ[0] = nil // the memory before the list's beginning is looked through too
		st.receiptQ = st.receiptQ[1:]
	} else {
		st.receiptQ = slices.Delete(st.receiptQ, at, at+1)
	}
	list := st.Receipts[rc.Room]
	for i, x := range list {
		if x == rc {
			list = append(list[:i:i], list[i+1:]...)
			break
		}
	}
	if len(list) == 0 {
		delete(st.Receipts, rc.Room)
	} else {
		st.Receipts[rc.Room] = list
	}
}

// applyToReceipt: an ABORT or a refused metadata for an incarnation that was
// never opened here leaves a bounded receipt, so that the late metadata of that
// incarnation is refused (cases.md C-22).
func (m *Machine) applyToReceipt(e *events.Event) {
	var to RankID
	var seq uint64
	var gen *uint64
	switch p := e.Payload.(type) {
	case *events.Event_AbortReceived:
		if p.AbortReceived.Stale {
			return
		}
		to, seq, gen = RankID(p.AbortReceived.To), p.AbortReceived.DecodeRoomSeq, p.AbortReceived.Generation
		if seq == 0 && gen != nil { // a decode that is not pdlog: the event says which use it is about
			m.askedAgain(e, to, gen)
		}
	case *events.Event_Drained:
		for _, rc := range m.st.Receipts[e.Room] {
			if rc.Seq == e.RoomSeq {
				rc.rank(RankID(e.Rank)).Drained = true
			}
		}
		return
	case *events.Event_StatusSent:
		to, seq = RankID(p.StatusSent.To), p.StatusSent.DecodeRoomSeq
	default:
		return
	}
	if seq == 0 || to == "" {
		return
	}
	logID := m.logOf(to.Node())
	if rc := m.receipt(e.Room, to.Node(), logID, seq); rc != nil {
		for i := range rc.Dests {
			if d := &rc.Dests[i]; d.Rank == RankID(e.Rank) && d.To == to {
				if gen != nil {
					d.Gen = gen
				}
				return
			}
		}
		rc.Dests = append(rc.Dests, ReceiptDest{Rank: shared(RankID(e.Rank)), To: shared(to), Node: shared(to.Node()), LogID: logID, RoomSeq: seq, Gen: gen})
		return
	}
	m.addReceipt(&Receipt{
		Room: e.Room, NeverSeen: true, Outcome: OutcomeFailed,
		Dests: []ReceiptDest{{Rank: shared(RankID(e.Rank)), To: shared(to), Node: shared(to.Node()), LogID: logID, RoomSeq: seq, Gen: gen}},
	})
}

// askedAgain keeps the newest generation of an ABORT for an ended room, of a rank
// that the room has not heard of too.
func (m *Machine) askedAgain(e *events.Event, to RankID, gen *uint64) {
	if e.RoomSeq == 0 {
		return
	}
	for _, rc := range m.st.Receipts[e.Room] {
		if rc.Seq != e.RoomSeq {
			continue
		}
		known := false
		for i := range rc.Dests {
			if d := &rc.Dests[i]; d.Rank == RankID(e.Rank) && d.To == to {
				d.Gen, known = gen, true
			}
		}
		if !known {
			rc.Dests = append(rc.Dests, ReceiptDest{Rank: shared(RankID(e.Rank)), To: shared(to), Node: shared(to.Node()), LogID: m.logOf(to.Node()), Gen: gen})
		}
	}
}

// logOf is the log id of a decode node's present life, nil if it has none.
func (m *Machine) logOf(node string) []byte {
	if ep := m.firstOf(node); ep != nil {
		return ep.LogID
	}
	return nil
}

// firstOf is a decode node's endpoint with the lowest address, nil if it has none.
func (m *Machine) firstOf(node string) *Endpoint {
	ep := m.nodes[node]
	if ep != nil {
		return ep
	}
	for _, o := range m.st.Endpoints {
		if o.Rank.Node() == node && (ep == nil || o.Address < ep.Address) {
			ep = o
		}
	}
	if ep != nil {
		m.nodes[node] = ep
	}
	return ep
}

// receipt finds what is remembered of a decode node's room incarnation.
func (m *Machine) receipt(room uint64, node string, logID []byte, roomSeq uint64) *Receipt {
	list := m.st.Receipts[room]
	for i := len(list) - 1; i >= 0; i-- {
		for _, d := range list[i].Dests {
			if d.Node == node && d.RoomSeq == roomSeq && sameLog(d.LogID, logID) {
				return list[i]
			}
		}
	}
	return nil
}
