package projector

import (
	"github.com/pdlog/pdlog/events"
)

// start begins a life: NodeStarted is the first event of it, and everything the
// earlier life left undone is taken up again (cases.md C-47 to C-49).
func (m *Machine) start(c Start) {
	m.reset()
	m.started, m.stopped = true, false
	m.boot, m.inc = c.Boot, c.Incarnation
	clean := m.st.Clean
	first := !m.st.Started
	if m.st.HLC > events.MakeHLC(m.now.Wall, 0) {
		m.now.Wall = m.st.HLC.Millis()
	}
	p := &events.NodeStarted{
		Role: m.cfg.Role, LogId: c.LogID, Ranks: uint64(len(m.cfg.Ranks)), Pages: uint64(len(m.st.Pages)), AuxRows: uint64(len(m.st.Aux)),
		PageSize: uint64(m.cfg.PageSize), Policy: m.cfg.Policy, //nolint:gosec // positive
		AckTimeoutMs: millis(m.cfg.AckTimeout), AbortRetryMs: millis(m.cfg.AbortRetry), BootstrapTimeoutMs: millis(m.cfg.BootstrapTimeout),
		WaitingTimeoutMs: millis(m.cfg.WaitingTimeout), TransferTimeoutMs: millis(m.cfg.TransferTimeout),
		Version: m.cfg.Version, UnknownPast: c.UnknownPast, Root: c.Root, Dialect: m.cfg.Dialect, Provider: m.cfg.Provider,
		AllowWeak: m.cfg.AllowWeak, PageCheck: m.cfg.PageCheck, Place: m.cfg.Place,
	}
	if first || c.UnknownPast { // generations that were lost must not come again
		p.GenerationBase = c.GenerationBase
	}
	if m.cfg.Role == events.Role_ROLE_DECODE {
		p.AskPeers = sortedKeys(m.st.Unsettled) // what an earlier life has not settled
		for _, n := range c.AskPeers {
			if c.UnknownPast && !m.st.Unsettled[n] {
				p.AskPeers = append(p.AskPeers, n)
			}
		}
	}
	if clean {
		p.CleanStop = 1
	}
	for _, r := range m.cfg.Ranks {
		p.RankAddresses = append(p.RankAddresses, r.Address)
	}
	if len(p.RankAddresses) > 0 {
		p.Address = p.RankAddresses[0]
	}
	m.emit(&events.Event{Payload: &events.Event_NodeStarted{NodeStarted: p}})
	for _, n := range sortedKeys(m.st.Unsettled) {
		m.do(AskPast{Node: n})
	}
	for _, key := range sortedKeys(m.st.Rooms) {
		m.st.Rooms[key].timer = 0
		m.resume(m.st.Rooms[key])
		m.touchAny(key)
	}
	for _, key := range sortedKeys(m.st.PRooms) {
		m.st.PRooms[key].timer = 0
		m.resumeP(m.st.PRooms[key])
		m.touchAny(key)
	}
}

func (m *Machine) touchAny(key roomKey) {
	if m.room(key) != nil || m.proom(key) != nil {
		m.touch(key)
	}
}

// resume takes up a decode room of an earlier life. Decode's own rooms, their
// deadlines included, outlive its restart.
func (m *Machine) resume(r *Room) {
	switch {
	case r.Outcome == OutcomeFailed && r.Gen == 0: // cut between the failure and what follows from it
		m.arm(r, r.FailedSeq)
	case r.Outcome == OutcomeFailed:
		for _, p := range r.Pairs {
			if p.Fencing {
				m.do(Fence{Room: r.Room, RoomSeq: r.Seq, Lease: p.Lease, Rank: p.Rank, To: p.To})
			}
		}
		m.resendAborts(r, "")
		m.tryRelease(r)
		m.resumeWait(r)
	case r.Outcome == OutcomeSucceeded:
		m.tryRelease(r)
	case r.published() > 0 && r.bootstrapping(): // broke off while it was being published
		m.fail(r, events.AbortCause_ABORT_CAUSE_PUBLISH_FAILED, "the node restarted while the room was being published", m.cfg.Node, nil)
	case r.published() == 0 && !r.ReserveOnly:
		m.fail(r, events.AbortCause_ABORT_CAUSE_PUBLISH_FAILED, "the node restarted before the room was published", m.cfg.Node, nil)
	default:
		m.maybeSucceed(r)
	}
}

// resumeP takes up a prefill room of an earlier life: its open tokens are
// uncertain from now on, and a room that had not ended has failed.
func (m *Machine) resumeP(r *PRoom) {
	for _, id := range sortedKeys(r.Tokens) {
		if t := r.Tokens[id]; !t.Uncertain {
			m.uncertain(r, t, "the process that posted it has ended")
		}
	}
	if r.live() {
		m.failP(r, events.AbortCause_ABORT_CAUSE_RESTART, "the node restarted", "")
	}
	m.settleP(r)
}

// stop begins a graceful stop (cases.md C-54).
func (m *Machine) stop(c Stop) {
	if m.st.Draining {
		return
	}
	m.emit(&events.Event{Payload: &events.Event_NodeDraining{NodeDraining: &events.NodeDraining{GraceMs: c.Grace, Reason: c.Reason}}})
}

// drainDue ends a graceful stop when nothing is open any more, or its time is up.
func (m *Machine) drainDue() {
	if !m.st.Draining || m.stopped {
		return
	}
	over := m.now.Clock >= m.st.DrainUntil
	if !over && m.busy() {
		return
	}
	for _, key := range sortedKeys(m.st.Rooms) {
		if r := m.st.Rooms[key]; r.live() {
			m.fail(r, events.AbortCause_ABORT_CAUSE_SHUTDOWN, "the node stops", m.cfg.Node, nil)
		}
	}
	for _, key := range sortedKeys(m.st.PRooms) {
		if r := m.st.PRooms[key]; r.live() {
			m.failP(r, events.AbortCause_ABORT_CAUSE_SHUTDOWN, "the node stops", "")
		}
	}
	m.emit(&events.Event{Payload: &events.Event_NodeStopped{NodeStopped: &events.NodeStopped{Reason: "graceful stop"}}})
	m.do(Stopped{})
	m.stopped = true
}

// busy: a room is live, or a write of ours is still open.
func (m *Machine) busy() bool {
	for _, r := range m.st.Rooms {
		if r.live() || r.Outcome == OutcomeSucceeded {
			return true
		}
	}
	for _, r := range m.st.PRooms {
		if r.live() || len(r.Tokens) > 0 {
			return true
		}
	}
	return false
}

// reregister: old addresses and keys are void; open rooms are aborted.
func (m *Machine) reregister(c ReRegister) {
	seq := m.emit(&events.Event{Payload: &events.Event_MemoryUnregistered{MemoryUnregistered: &events.MemoryUnregistered{Name: c.Memory.GetName(), Reason: "registered anew"}}})
	for _, key := range sortedKeys(m.st.Rooms) {
		if r := m.st.Rooms[key]; r.live() {
			m.fail(r, events.AbortCause_ABORT_CAUSE_MEMORY, "memory was registered anew", m.cfg.Node, m.localCause(seq))
		}
	}
	m.emit(&events.Event{Payload: &events.Event_MemoryRegistered{MemoryRegistered: c.Memory}})
	m.refence("", "memory_registered", seq)
}

type rejectKey struct{ kind, reason string }

type reject struct {
	at    uint64
	count uint64
}

// rejectEvery is how often one kind of rejection is put on the log, in ms; the
// rest is counted into the next.
const rejectEvery = 1000

const maxRejectKinds = 256 // reasons come from messages: bounded

func (m *Machine) reject(c Rejected) {
	k := rejectKey{c.Kind, c.Reason}
	r := m.rejects[k]
	if r == nil {
		if len(m.rejects) >= maxRejectKinds {
			k = rejectKey{"other", "more kinds of rejection than are told apart"}
			r = m.rejects[k]
		}
		if r == nil {
			r = &reject{}
			m.rejects[k] = r
		}
	}
	r.count++
	if r.at != 0 && m.now.Clock < r.at+rejectEvery {
		return
	}
	if len(c.First) > 32 {
		c.First = c.First[:32]
	}
	m.emit(&events.Event{Payload: &events.Event_MessageRejected{MessageRejected: &events.MessageRejected{
		Kind: k.kind, Reason: k.reason, FirstBytes: c.First, Count: r.count, From: c.From,
	}}})
	r.at, r.count = m.now.Clock, 0
}
