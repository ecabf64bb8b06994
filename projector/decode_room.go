package projector

import (
	"fmt"
	"math"

	"github.com/pdlog/pdlog/events"
)

// landed records a write that our provider placed. The room's coverage is a
// fold of these.
func (m *Machine) landed(c Landed) {
	r := m.room(c.RoomSeq)
	e, p := m.pool.WriteLanded.New()
	e.Room, e.RoomSeq, e.Rank = c.Room, c.RoomSeq, string(c.Rank)
	p.To, p.Lease, p.Pages, p.PageOff, p.PageLen = string(c.To), c.Lease, c.Pages, c.PageOff, c.PageLen
	p.StagingOffset, p.StagingEnd, p.Aux, p.Bytes, p.Chunk = c.StagingOffset, c.StagingEnd, c.Aux, c.Bytes, c.Chunk
	p.AfterRelease = r == nil && len(m.st.Unsettled) == 0
	m.emit(e)
	if r != nil {
		m.maybeSucceed(r)
		m.touch(r.Seq)
	}
}

func (m *Machine) lateWrite(c LateWrite) {
	m.emit(&events.Event{Room: c.Room, RoomSeq: c.RoomSeq, Rank: string(c.Rank), Payload: &events.Event_LateWriteRejected{LateWriteRejected: &events.LateWriteRejected{
		To: string(c.To), Lease: c.Lease, Pages: c.Pages, Bytes: c.Bytes, Writes: c.Writes,
	}}})
}

// auxArrived: the copy of an aux row that came as a message is a local write:
// only into a row that a live room owns, and a token until it has ended (F22,
// F28). After the arming or an outcome none starts.
func (m *Machine) auxArrived(c AuxArrived) {
	r := m.current(c.Room)
	switch {
	case r == nil:
		m.reject(Rejected{Kind: "aux_data", Reason: "unknown or ended room", From: string(c.At)})
		return
	case !r.live():
		m.reject(Rejected{Kind: "aux_data", Reason: "the room has ended", From: string(c.At)})
		return
	case c.Row != r.Aux || r.published() == 0:
		m.reject(Rejected{Kind: "aux_data", Reason: "the room does not own the row", From: string(c.At)})
		return
	}
	token := m.st.Seq + 1
	m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Payload: &events.Event_LocalCopyStarted{LocalCopyStarted: &events.LocalCopyStarted{
		Token: token, To: string(c.At), What: copyAux, Index: c.Index, Aux: c.Row, Bytes: c.Bytes,
	}}})
	m.do(CopyAux{Room: r.Room, RoomSeq: r.Seq, Token: token, To: c.At, Index: c.Index, Row: c.Row, Data: c.Data})
}

func (m *Machine) copyDone(c CopyDone) {
	r := m.room(c.RoomSeq)
	if r == nil {
		return
	}
	of, open := r.Copies[c.Token]
	if !open {
		return
	}
	m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Cause: m.localCause(c.Token), Payload: &events.Event_LocalCopyEnded{LocalCopyEnded: &events.LocalCopyEnded{
		Token: c.Token, To: string(of.To), Failed: c.Err != "", Reason: c.Err,
	}}})
	if c.Err != "" {
		what := "aux row: "
		if of.Staged {
			what = fmt.Sprintf("staged chunk %d: ", of.Chunk)
		}
		m.fail(r, events.AbortCause_ABORT_CAUSE_TRANSFER_FAILED, what+c.Err, m.cfg.Node, nil)
	}
	m.maybeSucceed(r)
	m.tryRelease(r)
	m.touchAny(c.RoomSeq)
}

// status takes a prefill rank's terminal status (wire.md 1.6, 9.5).
func (m *Machine) status(c WireStatus) {
	x, _ := m.peerExt(c.Ext)
	r, known := m.roomOfMessage(c.Room, x)
	if r == nil && !known {
		m.reject(Rejected{Kind: "status", Reason: "unknown room", From: string(c.At)})
		return
	}
	ev := &events.StatusReceived{Status: events.TerminalStatus_TERMINAL_STATUS_FAILED, Reason: c.Reason, To: string(c.At)}
	if c.Success {
		ev.Status = events.TerminalStatus_TERMINAL_STATUS_SUCCESS
	}
	e := &events.Event{Room: c.Room, Cause: m.causeOf(x), Payload: &events.Event_StatusReceived{StatusReceived: ev}}
	if x != nil {
		ev.Drained = x.Drained
		if x.Reason != "" && ev.Reason == "" {
			ev.Reason = m.intern(x.Reason)
		}
	}
	if r == nil {
		e.RoomSeq, e.Rank = m.knownSeq(c.Room, x), m.rankName(c.Rank, x)
		ev.Why = events.NotCounted_NOT_COUNTED_STALE_ROOM
		m.emit(e)
		return
	}
	e.RoomSeq = r.Seq
	p := r.byWireID(c.Rank, c.At, x)
	if p == nil {
		e.Rank = m.rankName(c.Rank, x)
		ev.Why = events.NotCounted_NOT_COUNTED_UNEXPECTED_RANK
		m.emit(e)
		return
	}
	e.Rank = string(p.Rank)
	switch {
	case !r.live():
		ev.Why = events.NotCounted_NOT_COUNTED_ENDED
		m.emit(e)
	case c.Success && p.Succeeded:
		ev.Why = events.NotCounted_NOT_COUNTED_DUPLICATE
		m.emit(e)
	case c.Success && x == nil && m.owesEarlier(r, p):
		ev.Why = events.NotCounted_NOT_COUNTED_STALE_ROOM
		m.emit(e)
	case c.Success:
		ev.Counted = true
		m.emit(e)
		m.maybeSucceed(r)
	default:
		ev.Counted = true
		seq := m.emit(e)
		m.fail(r, events.AbortCause_ABORT_CAUSE_PEER_FAILED, ev.Reason, string(p.Rank), m.localCause(seq))
	}
	m.touch(r.Seq)
}

// owesEarlier: the rank has not answered for an earlier use of the room number, so
// that a success that names none may be of that one. Behind its answer none comes:
// a rank's messages keep their order.
func (m *Machine) owesEarlier(r *Room, p *Pair) bool {
	for _, key := range m.incarnations(r.Room) {
		if key >= r.Seq {
			continue
		}
		for _, q := range m.st.Rooms[key].Pairs {
			if q.Rank == p.Rank && q.To == p.To && q.owesEvidence() {
				return true
			}
		}
	}
	return false
}

// roomOfMessage finds the incarnation that a message of a prefill is about: by
// room_seq if it names one, else the number's newest.
func (m *Machine) roomOfMessage(room uint64, x *Ext) (r *Room, known bool) {
	if x != nil && x.RoomSeq != 0 {
		if r := m.room(x.RoomSeq); r != nil && r.Room == room {
			return r, true
		}
		return nil, m.st.Known.find(room) != nil
	}
	return m.current(room), m.st.Known.find(room) != nil
}

func (m *Machine) knownSeq(room uint64, x *Ext) uint64 {
	if x != nil && x.RoomSeq != 0 {
		return x.RoomSeq
	}
	if k := m.st.Known.find(room); k != nil {
		return k.Seq
	}
	return 0
}

func (m *Machine) rankName(wireID uint32, x *Ext) string {
	if x != nil {
		if p := m.st.Peers[x.Node]; p != nil {
			for _, id := range sortedKeys(p.Ranks) {
				if p.Ranks[id].WireID == wireID {
					return string(id)
				}
			}
		}
	}
	return ""
}

// byWireID finds the pair of a prefill rank's wire id and our receiving rank.
// With an extension the node must be the pair's own.
func (r *Room) byWireID(id uint32, at RankID, x *Ext) *Pair {
	for _, p := range r.Pairs {
		if p.WireID == id && p.To == at && p.Publish != PublishNone && (x == nil || x.Node == p.Rank.Node()) {
			return p
		}
	}
	return nil
}

// peerExt judges an extension of a prefill: its (node, boot) must be the one
// discovered, else it counts as absent (wire.md 9.5).
func (m *Machine) peerExt(x *Ext) (good *Ext, misfit bool) {
	if x == nil {
		return nil, false
	}
	if p := m.st.Peers[x.Node]; p != nil && p.PDLog && p.Boot == x.Boot {
		return x, false
	}
	m.do(Rediscover{Node: x.Node})
	return nil, true
}

// maybeSucceed ends the transfer when every rank that owes pages has said that
// it is done. A "last" flag or a count is not enough: every page by every rank
// (cases.md C-40), aux and state.
func (m *Machine) maybeSucceed(r *Room) {
	if !r.live() || r.bootstrapping() || m.checks[r.Seq] || len(r.Copies) > 0 {
		return
	}
	writers := 0
	for _, p := range r.Pairs {
		if p.Dummy {
			continue
		}
		if !p.Succeeded {
			return
		}
		writers++
	}
	if writers == 0 {
		return
	}
	if gap := r.gap(); gap != "" {
		m.fail(r, events.AbortCause_ABORT_CAUSE_COVERAGE_GAP, gap, m.cfg.Node, nil)
		return
	}
	if !r.Covered {
		m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Payload: &events.Event_CoverageCompleted{CoverageCompleted: &events.CoverageCompleted{
			Pages: uint64(len(r.Pages)), Writers: uint64(writers),
		}}})
	}
	if m.cfg.PageCheck && r.pdlogOnly() {
		m.checks[r.Seq] = true
		var ranks []RankID
		for i := range m.cfg.Ranks {
			for _, p := range r.Pairs {
				if p.To == m.cfg.rank(i) {
					ranks = append(ranks, p.To)
					break
				}
			}
		}
		m.do(CheckPages{Room: r.Room, RoomSeq: r.Seq, Pages: r.Pages, Ranks: ranks})
		return
	}
	m.succeed(r)
}

func (r *Room) pdlogOnly() bool {
	for _, p := range r.Pairs {
		if !p.PDLog {
			return false
		}
	}
	return true
}

// gap names what is missing for coverage, "" if nothing is.
func (r *Room) gap() string {
	aux := map[RankID]bool{}
	for to := range r.AuxCopied {
		aux[to] = true
	}
	for _, p := range r.Pairs {
		if p.Dummy {
			continue
		}
		if !p.tracked() {
			aux[p.To] = true
			continue
		}
		aux[p.To] = aux[p.To] || p.AuxLanded
		if int(p.landed) < len(r.Pages) {
			return fmt.Sprintf("%d of %d pages by %s", p.landed, len(r.Pages), p.Rank)
		}
	}
	for _, p := range r.Pairs {
		if !p.Dummy && !aux[p.To] {
			return "aux row of " + string(p.To)
		}
	}
	return ""
}

func (m *Machine) succeed(r *Room) {
	m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Payload: &events.Event_RoomSucceeded{RoomSucceeded: &events.RoomSucceeded{}}})
	m.do(Tell{Kind: TellSucceeded, Room: r.Room, RoomSeq: r.Seq, Pages: r.Pages, Aux: r.Aux})
}

func (m *Machine) pagesChecked(c PagesChecked) {
	delete(m.checks, c.RoomSeq)
	r := m.room(c.RoomSeq)
	if r == nil || !r.live() {
		return
	}
	if c.Skipped == "" && len(r.Staged) > 0 {
		c.Skipped = "what came through the staging ring is not checked" // its checksums are of the ring
	}
	if c.Skipped != "" {
		m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Payload: &events.Event_PageCheckSkipped{PageCheckSkipped: &events.PageCheckSkipped{Reason: c.Skipped}}})
	}
	for _, b := range c.Bad {
		m.pageFailed(r.Room, r.Seq, b, false)
	}
	if len(c.Bad) > 0 {
		m.fail(r, events.AbortCause_ABORT_CAUSE_PAGE_CHECK, fmt.Sprintf("%d pages changed after they landed, first page %d", len(c.Bad), c.Bad[0].Page), m.cfg.Node, nil)
	} else {
		m.succeed(r)
	}
	m.touch(c.RoomSeq)
}

func (m *Machine) pageFailed(room uint64, seq roomKey, b PageReport, after bool) {
	m.emit(&events.Event{Room: room, RoomSeq: seq, Payload: &events.Event_PageCheckFailed{PageCheckFailed: &events.PageCheckFailed{
		Page: b.Page, To: string(b.To), Detail: b.Detail, AfterSuccess: after, PageOff: b.PageOff, PageLen: b.PageLen,
	}}})
}

// pageReport takes the engine's own finding. It is evidence; a room that has
// not ended fails by it.
func (m *Machine) pageReport(c PageReport) {
	r := m.current(c.Room)
	if r == nil {
		k := m.st.Known.find(c.Room)
		if k == nil {
			m.refuse("unknown_room", fmt.Sprintf("room %d was never open here", c.Room))
			return
		}
		m.pageFailed(c.Room, k.Seq, c, true)
		return
	}
	m.res.RoomSeq = r.Seq
	m.pageFailed(c.Room, r.Seq, c, r.Outcome == OutcomeSucceeded)
	if r.live() {
		m.fail(r, events.AbortCause_ABORT_CAUSE_PAGE_CHECK, c.Detail, m.cfg.Node, nil)
		m.touch(r.Seq)
	}
}

// roomDeadline is when a decode room has to be looked at next. Every
// non-terminal state has one (cases.md C-34), each with its own clock (C-35).
func (m *Machine) roomDeadline(r *Room) (uint64, bool) {
	at, ok := m.stateDeadline(r)
	if r.live() && r.Until != 0 && !m.checks[r.Seq] && (!ok || r.Until < at) {
		return r.Until, true
	}
	return at, ok
}

// stateDeadline is the deadline of the state the room is in.
func (m *Machine) stateDeadline(r *Room) (uint64, bool) {
	switch {
	case r.live() && r.LandedAt != 0:
		return r.LandedAt + millis(m.cfg.TransferTimeout), !m.checks[r.Seq]
	case r.live() && r.PublishedAt != 0:
		return r.PublishedAt + millis(m.cfg.WaitingTimeout), !m.checks[r.Seq]
	case r.live():
		return r.OpenedAt + millis(m.cfg.BootstrapTimeout), true
	case r.Outcome == OutcomeFailed && r.Gen != 0:
		at, ok := m.retryAt(r)
		if !r.TimedOut {
			if t := r.ArmedAt + millis(m.cfg.AckTimeout); !ok || t < at {
				at, ok = t, true
			}
		}
		return at, ok
	}
	return 0, false
}

func (m *Machine) roomDue(r *Room) {
	switch {
	case r.live() && r.Until != 0 && r.Until <= m.now.Clock:
		m.fail(r, events.AbortCause_ABORT_CAUSE_REQUEST_TIMEOUT, requestLimit(r.OpenedAt, r.Until)+r.silent(), m.cfg.Node, nil)
	case r.live() && r.LandedAt != 0:
		m.fail(r, events.AbortCause_ABORT_CAUSE_TRANSFER_TIMEOUT, "nothing landed for "+m.cfg.TransferTimeout.String()+r.silent(), m.cfg.Node, nil)
	case r.live() && r.PublishedAt != 0:
		m.fail(r, events.AbortCause_ABORT_CAUSE_WAITING_TIMEOUT, "no data within "+m.cfg.WaitingTimeout.String()+r.silent(), m.cfg.Node, nil)
	case r.live():
		m.fail(r, events.AbortCause_ABORT_CAUSE_BOOTSTRAP_TIMEOUT, "not published within "+m.cfg.BootstrapTimeout.String(), m.cfg.Node, nil)
	default:
		if !r.TimedOut && r.ArmedAt+millis(m.cfg.AckTimeout) <= m.now.Clock {
			m.ackTimedOut(r)
		}
		if at, ok := m.retryAt(r); ok && at <= m.now.Clock && m.room(r.Seq) != nil {
			m.resendAborts(r, "")
		}
	}
}

// requestLimit says that a request's own time is over.
func requestLimit(from, until uint64) string {
	return fmt.Sprintf("not done within the request's limit of %dms", until-min(from, until))
}

// addCapped is a + b, or the end of time.
func addCapped(a, b uint64) uint64 {
	if a+b < a {
		return math.MaxUint64
	}
	return a + b
}

// silent names the ranks that have not said that they are done (cases.md C-56).
func (r *Room) silent() string {
	s := ""
	for _, p := range r.Pairs {
		if !p.Dummy && !p.Succeeded {
			if s == "" {
				s = "; waiting for "
			} else {
				s += ","
			}
			s += string(p.Rank)
		}
	}
	return s
}
