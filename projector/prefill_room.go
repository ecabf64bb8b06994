package projector

import (
	"fmt"
	"slices"

	"github.com/pdlog/pdlog/events"
)

func (m *Machine) pcurrent(room uint64) *PRoom { return m.proom(m.st.PCurrent[room]) }

// proom is room on a prefill node.
func (m *Machine) proom(key roomKey) *PRoom {
	if m.phot == nil || m.phot.Seq != key {
		m.phot = m.st.PRooms[key]
	}
	return m.phot
}

// await: the engine has the request (or its first chunk) and waits for
// metadata.
func (m *Machine) await(c AwaitRoom) {
	if c.Room == 0 {
		m.refuse("bad_request", "room 0 is no identity")
		return
	}
	if r := m.pcurrent(c.Room); r != nil {
		m.res.RoomSeq = r.Seq
		switch {
		case r.live() && r.Awaited:
			m.refuse("room_live", fmt.Sprintf("room %d is open since seq %d", c.Room, r.Seq))
			return
		case r.live(): // metadata came first
			m.opened(c, r.Seq)
			m.limit(r.Seq, c.Timeout)
			m.touch(r.Seq)
			if rank := r.readyRank(); rank != "" {
				m.doAfter(0, Tell{Kind: TellReady, Room: r.Room, RoomSeq: r.Seq, Who: string(rank)})
			}
			return
		case !r.Awaited && !r.Cleared: // it ended before the engine asked for it
			r.Awaited = true
			m.doAfter(0, Tell{Kind: TellFailed, Room: r.Room, RoomSeq: r.Seq, Cause: r.Cause, Reason: r.Reason})
			return
		}
		m.clearRoom(r) // a new use of the number
	}
	if ref := m.admitP(); ref != nil {
		m.res.Refused = ref
		return
	}
	seq := m.st.Seq + 1
	m.opened(c, seq)
	m.res.RoomSeq = seq
	m.limit(seq, c.Timeout)
	m.touch(seq)
}

// opened records that the engine has the request, and who will send. A room
// that metadata has opened keeps its room_seq.
func (m *Machine) opened(c AwaitRoom, seq roomKey) {
	opened := &events.RoomOpened{Role: events.Role_ROLE_PREFILL, RequestId: c.RequestID, TraceId: c.TraceID, TimeoutMs: c.Timeout}
	for _, rank := range c.Ranks {
		opened.Pairs = append(opened.Pairs, &events.Pair{Rank: string(rank)})
	}
	m.emit(&events.Event{Room: c.Room, RoomSeq: seq, Payload: &events.Event_RoomOpened{RoomOpened: opened}})
}

// limit sets the request's own limit of a room. It needs no place in the log: a
// prefill room does not outlive the life that opened it.
func (m *Machine) limit(key roomKey, timeout uint64) {
	if timeout > 0 {
		m.limits[key] = addCapped(m.now.Clock, timeout)
	}
}

func (m *Machine) admitP() *Refusal {
	switch {
	case m.st.Draining:
		return &Refusal{Word: "not_ready", Detail: "the node is draining"}
	case m.logFull:
		return &Refusal{Word: "not_ready", Detail: "the log takes no new rooms: its volume is full or it is behind"}
	case len(m.st.PRooms) >= m.cfg.MaxRooms:
		return &Refusal{Word: "limit", Detail: fmt.Sprintf("%d rooms are open, which is the limit", len(m.st.PRooms))}
	}
	return nil
}

// metadata takes a destination. A message creates a room only here, and only
// for a new incarnation (I7, F16).
func (m *Machine) metadata(c WireMetadata) {
	ep, why := m.endpoint(c.Address, c.Ext)
	if why == "" && c.Room == 0 {
		why = "room 0 is no identity"
	}
	if why != "" {
		m.reject(Rejected{Kind: "metadata", Reason: why, From: c.Address})
		return
	}
	var seq, boot uint64
	var logID []byte
	if c.Ext != nil {
		seq, boot, logID = c.Ext.RoomSeq, c.Ext.Boot, c.Ext.LogID
		m.gates[c.Address] = true
	} else {
		delete(m.gates, c.Address)
	}
	m.strange(c.Ext)
	node := ep.Rank.Node()
	r := m.pcurrent(c.Room)
	var dup, known *Dest
	if r != nil {
		dup = r.dest(c.At, ep.Rank)
		for _, d := range r.Dests {
			if d.Node == node && (known == nil || d.RoomSeq > known.RoomSeq) { // one that lost its frame says nothing
				known = d
			}
		}
	}
	newest, old := m.newestUse(c.Room, node, logID, seq)
	switch {
	case seq != 0 && newest > seq:
		m.reject(Rejected{Kind: "metadata", Reason: "of an earlier incarnation", From: c.Address})
		return
	case old != nil && old != r:
		if old.dest(c.At, ep.Rank) != nil {
			m.reject(Rejected{Kind: "metadata", Reason: "a copy of what is known", From: c.Address})
		} else {
			m.tellRefused(c, ep, seq, old, "the room has ended: "+old.Reason)
		}
		return
	case dup != nil && dup.RoomSeq == seq && sameLog(dup.LogID, logID):
		m.reject(Rejected{Kind: "metadata", Reason: "a copy of what is known", From: c.Address})
		return
	case c.Dummy && r != nil && !r.live() && r.sameIncarnation(node, seq): // it owes nothing, and opens nothing anew
		m.reject(Rejected{Kind: "metadata", Reason: "of an incarnation that has ended", From: c.Address})
		return
	case known != nil && !sameLog(known.LogID, logID): // its log was wiped: nothing it said before counts
		m.supersede(r)
		r = nil
	case known != nil && seq != 0 && seq > known.RoomSeq:
		m.supersede(r)
		r = nil
	}
	if refused := m.refuseMetadata(r, c, node, logID, seq); refused != "" {
		m.tellRefused(c, ep, seq, r, refused)
		return
	}
	if r != nil && r.live() && r.ready(c.At) {
		m.reject(Rejected{Kind: "metadata", Reason: "a peer more than the room needs", From: c.Address}) // F39
		return
	}
	if r != nil && !r.live() {
		if !r.sameIncarnation(node, seq) {
			m.clearRoom(r)
		}
		r = nil // a new use of the number, whose last use has ended
	}
	key := m.st.Seq + 1
	if r != nil {
		key = r.Seq
	}
	s := m.emit(&events.Event{Room: c.Room, RoomSeq: key, Rank: string(c.At), Cause: m.causeOf(c.Ext), Payload: &events.Event_MetadataReceived{MetadataReceived: &events.MetadataReceived{
		To: string(ep.Rank), Address: c.Address, DecodeRoomSeq: seq, DecodeNode: node, Pages: c.Pages, Aux: c.Aux, Dummy: c.Dummy,
		RequiredDstInfoNum: c.Required, DecodePrefixLen: c.PrefixLen, WriteKeys: keysOf(c.Ext), DecodeBoot: boot, DecodeLogId: logID, Session: c.Session,
	}}})
	r = m.proom(key)
	if r.ready(c.At) {
		m.doAfter(s, Tell{Kind: TellReady, Room: r.Room, RoomSeq: r.Seq, Who: string(c.At), Pages: c.Pages})
		m.flush(r, c.At)
	}
	m.touch(key)
}

// newestUse is the highest room_seq that is known of a decode node's uses of a
// number, and the room in the table that holds the given one.
func (m *Machine) newestUse(room uint64, node string, logID []byte, seq uint64) (newest uint64, same *PRoom) {
	if seq == 0 {
		return 0, nil
	}
	for _, key := range m.st.byNumber[room] {
		r := m.st.PRooms[key]
		for _, d := range r.Dests {
			if d.Node != node || !sameLog(d.LogID, logID) {
				continue
			}
			newest = max(newest, d.RoomSeq)
			if d.RoomSeq == seq {
				same = r
			}
		}
	}
	for _, rc := range m.st.Receipts[room] {
		for _, d := range rc.Dests {
			if d.Node == node && sameLog(d.LogID, logID) {
				newest = max(newest, d.RoomSeq)
			}
		}
	}
	return newest, same
}

func keysOf(x *Ext) []*events.WriteKey {
	if x == nil {
		return nil
	}
	return x.Keys
}

// refuseMetadata says why a destination is answered Failed; "" = it is taken.
func (m *Machine) refuseMetadata(r *PRoom, c WireMetadata, node string, logID []byte, seq uint64) string {
	st := m.st
	switch {
	case seq != 0 && m.receipt(c.Room, node, logID, seq) != nil:
		return "this incarnation has ended"
	case r != nil && r.Outcome == OutcomeSucceeded && len(r.Targets) == 0 && len(r.Expect) == 0 && r.sameIncarnation(node, seq):
		return "" // another rank's metadata, after the first ranks are done; where the engine has named them, all of them are
	case r != nil && !r.live() && r.sameUse(node, seq):
		return "the room has ended: " + r.Reason
	case r == nil && seq != 0 && seq <= st.Watermark[node]:
		return "older than what is remembered"
	case (r == nil || !r.live()) && m.admitP() != nil:
		return m.admitP().Detail
	case (r == nil || !r.live() || len(r.Dests) == 0) && len(m.parked[node]) >= m.cfg.MaxParked:
		return fmt.Sprintf("the ends of %d writes to %s are not known, which is the limit", len(m.parked[node]), node)
	}
	return ""
}

// sameUse: metadata that belongs to a room which has ended here: another rank's
// copy of the same incarnation, or the answer to an await that has expired.
func (r *PRoom) sameUse(node string, seq uint64) bool {
	for _, t := range r.Targets { // asked to end before its metadata was here
		if seq != 0 && t.RoomSeq == seq && t.To.Node() == node {
			return true
		}
	}
	if len(r.Dests) == 0 {
		return !r.Cleared
	}
	for _, d := range r.Dests {
		if d.Node == node {
			return d.RoomSeq == seq
		}
	}
	return !r.Cleared
}

func (r *PRoom) sameIncarnation(node string, seq uint64) bool {
	for _, d := range r.Dests {
		if d.Node == node && d.RoomSeq == seq && seq != 0 {
			return true
		}
	}
	return false
}

// readyRank is the first rank that has all of its metadata, "" if none has.
func (r *PRoom) readyRank() RankID {
	for _, rank := range r.ranks() {
		if r.ready(rank) {
			return rank
		}
	}
	return ""
}

// tellRefused answers metadata that is not taken: Failed at once, once.
func (m *Machine) tellRefused(c WireMetadata, ep *Endpoint, seq uint64, r *PRoom, reason string) {
	if rc := m.receipt(c.Room, ep.Rank.Node(), ep.LogID, seq); rc != nil && seq != 0 {
		for _, d := range rc.Dests {
			if d.Rank == c.At && d.To == ep.Rank {
				m.reject(Rejected{Kind: "metadata", Reason: "of an incarnation that has ended", From: c.Address})
				return // it was told, or has asked itself
			}
		}
	}
	var key roomKey
	if r != nil && !r.live() && r.sameUse(ep.Rank.Node(), seq) {
		key = r.Seq
		if r.Refused[[2]RankID{c.At, ep.Rank}] || r.target(c.At, c.Address) != nil {
			m.reject(Rejected{Kind: "metadata", Reason: "of an incarnation that has ended", From: c.Address})
			return
		}
	}
	if c.Dummy {
		return
	}
	m.sendStatus(c.Room, key, c.At, ep.Rank, c.Address, seq, false, reason, nil)
}

// supersede ends a use of a number that a newer incarnation has taken.
func (m *Machine) supersede(r *PRoom) {
	if r.live() {
		m.failP(r, events.AbortCause_ABORT_CAUSE_SUPERSEDED, "a newer incarnation has the number", "")
	}
	m.clearRoom(r)
	m.settleP(r)
}

func (m *Machine) sendStatus(room uint64, key roomKey, rank, to RankID, addr string, seq uint64, ok bool, reason string, drained *bool) {
	st := &events.StatusSent{To: string(to), Status: events.TerminalStatus_TERMINAL_STATUS_FAILED, Reason: reason, DecodeRoomSeq: seq}
	if ok {
		st.Status = events.TerminalStatus_TERMINAL_STATUS_SUCCESS
	}
	s := m.emit(&events.Event{Room: room, RoomSeq: key, Rank: string(rank), Payload: &events.Event_StatusSent{StatusSent: st}})
	x := m.extTo(to.Node(), seq, s)
	x.Reason, x.Drained = reason, drained
	m.doAfter(s, SendStatus{
		Room: room, Rank: rank, WireID: m.wireID(rank), To: to, Address: addr, Success: ok, Reason: reason,
		Foreign: m.foreign(addr), WithExt: m.gates[addr], Ext: x,
	})
}

// foreign: no pdlog node has registered with the endpoint.
func (m *Machine) foreign(addr string) bool {
	ep := m.st.Endpoints[addr]
	return ep == nil || ep.Boot == 0
}

func (m *Machine) wireID(rank RankID) uint32 {
	if i, ok := m.cfg.localRank(rank); ok {
		return m.cfg.Ranks[i].WireID
	}
	return 0
}

// failP ends a live prefill room. Its end is told to every decode rank of the
// room at once, once (F36, F37), but not to the node that asked for it.
func (m *Machine) failP(r *PRoom, cause events.AbortCause, reason, who string) {
	if !r.live() {
		return
	}
	delete(m.limits, r.Seq)
	delete(m.staging, r.Seq)
	seq := m.roomFailed(r.Room, r.Seq, cause, reason, who, nil)
	m.doAfter(seq, Tell{Kind: TellFailed, Room: r.Room, RoomSeq: r.Seq, Cause: cause, Reason: reason, Who: who})
	m.do(SealRoom{Room: r.Room, RoomSeq: r.Seq})
	for _, q := range slices.Clone(r.Queue) {
		m.skip(r, q.cmd, "the room has ended")
	}
	for _, d := range r.Dests {
		if d.Dummy || d.StatusTold != 0 || r.TermNode != "" && d.Node == r.TermNode {
			continue
		}
		if cause == events.AbortCause_ABORT_CAUSE_RESTART && d.Boot != 0 {
			continue // a pdlog peer sees the new life itself, and asks
		}
		drained := !r.open(d.Rank)
		m.sendStatus(r.Room, r.Seq, d.Rank, d.To, d.Address, d.RoomSeq, false, reason, &drained)
	}
}

// settleP draws the consequences when a room may have ended or drained: every
// path that closes a token or ends a room comes through here (F8).
func (m *Machine) settleP(r *PRoom) {
	uses := m.st.byNumber[r.Room]
	m.settleUse(r)
	if len(uses) < 2 {
		return
	}
	for _, key := range uses { // their ABORTs may have waited for a write of this use
		if o := m.st.PRooms[key]; o != nil && o != r && !o.live() {
			for _, t := range o.Targets {
				if !t.Answered && t.RoomSeq == 0 {
					m.answer(o, t, false)
				}
			}
		}
	}
}

func (m *Machine) settleUse(r *PRoom) {
	if m.proom(r.Seq) == nil {
		return
	}
	if r.live() {
		m.conclude(r)
	}
	if r.live() {
		return
	}
	for _, t := range r.Targets {
		if !t.Answered {
			m.answer(r, t, false)
		}
	}
	if len(r.Tokens) == 0 && !r.SourceFree {
		e, _ := m.pool.SourceReleased.New()
		e.Room, e.RoomSeq = r.Room, r.Seq
		seq := m.emit(e)
		m.doAfter(seq, Tell{Kind: TellSourceReleased, Room: r.Room, RoomSeq: r.Seq})
	}
}

// conclude reports success for each rank that has posted its last chunk and has
// no open write; the room has succeeded when every rank that owes data has.
func (m *Machine) conclude(r *PRoom) {
	if len(r.Dests) == 0 {
		return
	}
	all := len(r.Queue) == 0 && r.allHere() && (r.Awaited || !r.dummiesOnly())
	for _, rank := range r.ranks() {
		pr := r.done(rank)
		if pr.Concluded || r.dummyRank(rank) {
			continue
		}
		if !r.lastPosted(rank) || r.open(rank) || r.queuedFor(rank) || !r.ready(rank) {
			all = false
			continue
		}
		drained := true
		for _, d := range r.Dests {
			if d.Rank == rank && !d.Dummy && d.StatusTold == 0 {
				m.sendStatus(r.Room, r.Seq, rank, d.To, d.Address, d.RoomSeq, true, "", &drained)
			}
		}
	}
	if all {
		delete(m.limits, r.Seq)
		delete(m.staging, r.Seq)
		seq := m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Payload: &events.Event_RoomSucceeded{RoomSucceeded: &events.RoomSucceeded{}}})
		m.doAfter(seq, Tell{Kind: TellSucceeded, Room: r.Room, RoomSeq: r.Seq})
	}
}

// lastPosted: every destination of the rank that is owed data got its last chunk.
func (r *PRoom) lastPosted(rank RankID) bool {
	for _, d := range r.Dests {
		if d.Rank == rank && !d.Dummy && !d.LastPosted {
			return false
		}
	}
	return true
}

// allHere: every rank that the engine said would send has its metadata.
func (r *PRoom) allHere() bool {
	for _, rank := range r.Expect {
		if !r.ready(rank) {
			return false
		}
	}
	return true
}

// ranks lists the local ranks that hold a destination, in order.
func (r *PRoom) ranks() []RankID {
	var out []RankID
	for _, d := range r.Dests {
		if !slices.Contains(out, d.Rank) {
			out = append(out, d.Rank)
		}
	}
	slices.Sort(out)
	return out
}

func (r *PRoom) dummyRank(rank RankID) bool {
	for _, d := range r.Dests {
		if d.Rank == rank && !d.Dummy {
			return false
		}
	}
	return true
}

// dummiesOnly: as far as metadata has told, nobody here owes anything. The
// metadata of a rank that does may still come.
func (r *PRoom) dummiesOnly() bool {
	for _, d := range r.Dests {
		if !d.Dummy {
			return false
		}
	}
	return true
}

func (r *PRoom) queuedFor(rank RankID) bool {
	for _, q := range r.Queue {
		if q.cmd.Rank == rank {
			return true
		}
	}
	return false
}

func (m *Machine) abortPRoom(c AbortRoom) {
	r := m.pcurrent(c.Room)
	if r == nil {
		if m.st.Receipts[c.Room] == nil {
			m.refuse("unknown_room", fmt.Sprintf("room %d is not open here", c.Room))
		}
		return
	}
	m.res.RoomSeq = r.Seq
	reason := c.Reason
	if reason == "" {
		reason = "aborted by the engine"
	}
	m.failP(r, c.cause(), reason, m.cfg.Node)
	m.settleP(r)
}

func (c AbortRoom) cause() events.AbortCause {
	if c.Cause != 0 {
		return c.Cause
	}
	return events.AbortCause_ABORT_CAUSE_CLIENT
}

// clear: the engine forgets the room. Writes and ACK targets do not go with it
// (F9); a live room is ended first.
func (m *Machine) clear(c ClearRoom) {
	r := m.pcurrent(c.Room)
	if r == nil {
		if m.st.Receipts[c.Room] == nil {
			m.refuse("unknown_room", fmt.Sprintf("room %d is not open here", c.Room))
		}
		return
	}
	m.res.RoomSeq = r.Seq
	if r.live() {
		m.failP(r, events.AbortCause_ABORT_CAUSE_CLIENT, "cleared by the engine", m.cfg.Node)
		m.settleP(r)
	}
	m.clearRoom(r)
}

func (m *Machine) clearRoom(r *PRoom) {
	if r.Cleared || m.proom(r.Seq) == nil {
		return
	}
	m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Payload: &events.Event_RoomCleared{RoomCleared: &events.RoomCleared{}}})
	m.boundReceipts()
}

// boundReceipts drops the oldest receipts above the bound, raising the
// watermark of their decode nodes: what is older than it is answered by it. It is
// answered as drained, so a room of which this log cannot tell that keeps its
// receipt; there are no more of them than rooms were open when a life ended.
func (m *Machine) boundReceipts() {
	for len(m.st.receiptQ) > m.cfg.MaxReceipts {
		i := m.st.oldestTold()
		if i < 0 {
			return
		}
		rc := m.st.receiptQ[i]
		p := &events.ReceiptDropped{}
		for _, d := range rc.Dests {
			if d.RoomSeq > p.DecodeRoomSeq {
				p.DecodeNode, p.DecodeRoomSeq = d.Node, d.RoomSeq
			}
		}
		m.emit(&events.Event{Room: rc.Room, Payload: &events.Event_ReceiptDropped{ReceiptDropped: p}})
	}
}

// abandoned: opened by metadata, ended, and no engine has shown interest.
func (r *PRoom) abandoned() bool {
	return !r.Awaited && !r.Posted && !r.Cleared && r.SourceFree
}

// proomDeadline: bootstrapping, waiting for chunks, and each write under way
// have clocks of their own.
func (m *Machine) proomDeadline(r *PRoom) (uint64, bool) {
	at, ok := m.pstateDeadline(r)
	if until := m.limits[r.Seq]; r.live() && until != 0 && (!ok || until < at) {
		return until, true
	}
	return at, ok
}

func (m *Machine) pstateDeadline(r *PRoom) (uint64, bool) {
	at, ok := uint64(0), false
	for _, t := range r.Tokens {
		if d := t.PostedAt + millis(m.cfg.TransferTimeout); !t.Uncertain && (!ok || d < at) {
			at, ok = d, true
		}
	}
	if !ok && !r.live() && r.abandoned() {
		return r.ActiveAt + millis(m.cfg.WaitingTimeout) + millis(m.cfg.BootstrapTimeout), true
	}
	if ok || !r.live() {
		return at, ok
	}
	if len(r.Dests) == 0 {
		return r.OpenedAt + millis(m.cfg.BootstrapTimeout), true
	}
	// Longer than decode's own limits: decode decides first if it is alive.
	return r.ActiveAt + millis(m.cfg.WaitingTimeout) + millis(m.cfg.TransferTimeout), true
}

func (m *Machine) proomDue(r *PRoom) {
	over := false
	for _, id := range sortedKeys(r.Tokens) {
		t := r.Tokens[id]
		if !t.Uncertain && t.PostedAt+millis(m.cfg.TransferTimeout) <= m.now.Clock {
			m.uncertain(r, t, "not done within "+m.cfg.TransferTimeout.String())
			over = true
		}
	}
	until := m.limits[r.Seq]
	switch {
	case over:
		m.failP(r, events.AbortCause_ABORT_CAUSE_TRANSFER_TIMEOUT, "a write was not done within "+m.cfg.TransferTimeout.String(), m.cfg.Node)
	case r.live() && until != 0 && until <= m.now.Clock:
		m.failP(r, events.AbortCause_ABORT_CAUSE_REQUEST_TIMEOUT, requestLimit(r.OpenedAt, until), m.cfg.Node)
	case !r.live() && r.abandoned() && len(r.Tokens) == 0:
		m.clearRoom(r) // opened by metadata alone, and no engine ever asked (cases.md C-28)
		return
	case !r.live() || len(r.Tokens) > 0:
		return
	case len(r.Dests) == 0:
		m.failP(r, events.AbortCause_ABORT_CAUSE_BOOTSTRAP_TIMEOUT, "no metadata within "+m.cfg.BootstrapTimeout.String(), m.cfg.Node)
	default:
		m.failP(r, events.AbortCause_ABORT_CAUSE_WAITING_TIMEOUT, "no chunk within the limits", m.cfg.Node)
	}
	m.settleP(r)
}
