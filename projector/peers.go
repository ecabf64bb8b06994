package projector

import (
	"bytes"
	"fmt"

	"github.com/pdlog/pdlog/events"
)

// discovered takes what is known of a prefill node now. Nothing is recorded
// that the log already says.
func (m *Machine) discovered(c PeerDiscovered) {
	if m.cfg.Role != events.Role_ROLE_DECODE {
		return
	}
	if c.Incompatible != "" {
		m.badPeer[c.Node] = c.Incompatible
	} else {
		delete(m.badPeer, c.Node)
	}
	old := m.st.Peers[c.Node]
	caps := &events.PeerCapabilities{
		Peer: c.Node, Pdlog: c.PDLog, AckForm: c.Form, Fence: c.Fence,
		Weak:     !c.PDLog && c.Form == events.AckForm_ACK_FORM_V1,
		PeerBoot: c.Boot, PeerIncarnation: c.Incarnation, LogSince: c.LogSince, LogId: c.LogID,
		PageSize: c.PageSize, KvCacheDtype: c.DType,
	}
	newLife := old != nil && old.Boot != 0 && c.Boot != 0 && old.Boot != c.Boot
	if old == nil || newLife || old.Lost || old.Suspect || !old.same(caps) {
		var cause uint64
		if newLife {
			cause = m.emit(&events.Event{Payload: &events.Event_PeerIncarnationSeen{PeerIncarnationSeen: &events.PeerIncarnationSeen{
				Peer: c.Node, OldBoot: old.Boot, OldIncarnation: old.Inc, NewBoot: c.Boot, NewIncarnation: c.Incarnation, LogId: c.LogID,
			}}})
		}
		m.emit(&events.Event{Payload: &events.Event_PeerCapabilities{PeerCapabilities: caps}})
		defer func() {
			if newLife {
				m.peerRestarted(c.Node, c.Boot, cause)
			}
			m.greet(c.Node)
		}()
	}
	for _, r := range c.Ranks {
		if p := m.st.Peers[c.Node]; p.Ranks[r.Rank] != r {
			seq := m.emit(&events.Event{Payload: &events.Event_PeerRegistered{PeerRegistered: &events.PeerRegistered{
				Peer: string(r.Rank), Address: r.Address, PeerBoot: c.Boot, PeerIncarnation: c.Incarnation, LogId: c.LogID, WireId: r.WireID, Source: r.Source,
			}}})
			m.rankMoved(r.Rank, seq)
		}
	}
}

// rankMoved ends and fences what was published to a rank that is another process
// now: an ACK of that one would be given by ignorance (wire.md F12).
func (m *Machine) rankMoved(rank RankID, cause uint64) {
	for _, key := range sortedKeys(m.st.Rooms) {
		r := m.st.Rooms[key]
		for _, p := range r.Pairs {
			if p.Rank != rank || p.PDLog || !p.CannotTell {
				continue
			}
			m.fail(r, events.AbortCause_ABORT_CAUSE_PEER_LOST, string(rank)+" is another process", rank.Node(), m.localCause(cause))
			if r.Outcome == OutcomeFailed && p.owesEvidence() {
				m.cannotTell(r, p, cause)
			}
		}
		m.touchAny(key)
	}
}

func (p *Peer) same(c *events.PeerCapabilities) bool {
	return p.PDLog == c.Pdlog && p.Form == c.AckForm && p.Fence == c.Fence && p.Boot == c.PeerBoot && p.Inc == c.PeerIncarnation &&
		p.LogSince == c.LogSince && bytes.Equal(p.LogID, c.LogId) && p.PageSize == c.PageSize && p.DType == c.KvCacheDtype
}

// peerRestarted fails the rooms that are open with an earlier life. A killed
// process is no proof that its writes have ended.
func (m *Machine) peerRestarted(node string, boot, cause uint64) {
	for _, key := range sortedKeys(m.st.Rooms) {
		r := m.st.Rooms[key]
		for _, p := range r.Pairs {
			if p.Rank.Node() == node && p.Publish != PublishNone && p.Boot != 0 && p.Boot != boot && r.live() {
				m.fail(r, events.AbortCause_ABORT_CAUSE_PEER_LOST, node+" is in another life", node, m.localCause(cause))
			}
		}
	}
	m.refence(node, "peer_restart", cause)
}

// greet asks a peer that is heard again at once for what it still owes.
func (m *Machine) greet(node string) {
	for _, key := range sortedKeys(m.st.Rooms) {
		r := m.st.Rooms[key]
		if r.Gen == 0 {
			continue
		}
		for _, p := range r.Pairs {
			if p.Rank.Node() == node && p.owesEvidence() && !p.CannotTell {
				m.resendAborts(r, node)
				break
			}
		}
	}
}

// heartbeatLost is how many probes in a row make a peer lost
// (SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE).
const heartbeatLost = 2

func (m *Machine) heartbeat(c Heartbeat) {
	p := m.st.Peers[c.Node]
	if p == nil {
		return
	}
	if c.OK {
		p.Missed = 0
		m.askPast(c.Node)
		if p.Suspect || p.Lost {
			m.emit(&events.Event{Payload: &events.Event_PeerCapabilities{PeerCapabilities: &events.PeerCapabilities{
				Peer: p.Node, Pdlog: p.PDLog, AckForm: p.Form, Fence: p.Fence, Weak: p.Weak,
				PeerBoot: p.Boot, PeerIncarnation: p.Inc, LogSince: p.LogSince, LogId: p.LogID,
				PageSize: p.PageSize, KvCacheDtype: p.DType,
			}}})
			m.greet(c.Node)
		}
		return
	}
	missed := p.Missed + 1
	switch {
	case missed == 1:
		m.emit(&events.Event{Payload: &events.Event_PeerSuspect{PeerSuspect: &events.PeerSuspect{Peer: p.Node, Missed: missed}}})
	case missed >= heartbeatLost && !p.Lost:
		seq := m.emit(&events.Event{Payload: &events.Event_PeerLost{PeerLost: &events.PeerLost{Peer: p.Node, Missed: missed}}})
		for _, key := range sortedKeys(m.st.Rooms) {
			r := m.st.Rooms[key]
			for _, pr := range r.Pairs {
				if pr.Rank.Node() == c.Node && r.live() {
					m.fail(r, events.AbortCause_ABORT_CAUSE_PEER_LOST, fmt.Sprintf("%s missed %d heartbeats", c.Node, missed), c.Node, m.localCause(seq))
				}
			}
		}
		m.refence(c.Node, "peer_lost", seq)
	default:
		p.Missed = missed
	}
}

// connectionEnded: release rule 5. It counts only for a peer that is known to
// be in another life; for a living one the next connection may still come.
func (m *Machine) connectionEnded(c ConnectionEnded) {
	p := m.st.Peers[c.Node]
	if p == nil || p.Boot == c.Boot || c.Evidence != events.FenceKind_FENCE_KIND_HARD && c.Evidence != events.FenceKind_FENCE_KIND_READER_STOPPED {
		return
	}
	for _, key := range sortedKeys(m.st.Rooms) {
		r := m.st.Rooms[key]
		if r.Outcome != OutcomeFailed {
			continue
		}
		for _, pr := range r.Pairs {
			if pr.Rank.Node() != c.Node || pr.Boot != c.Boot || !pr.owesEvidence() {
				continue
			}
			m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(pr.Rank), Payload: &events.Event_PeerRestartProven{PeerRestartProven: &events.PeerRestartProven{
				To: string(pr.To), Evidence: c.Evidence, OldBoot: c.Boot,
			}}})
		}
		m.tryRelease(r)
	}
}

// ---- prefill: decode endpoints

func (m *Machine) register(c WireRegister) {
	if c.Address == "" {
		m.reject(Rejected{Kind: "register", Reason: "no address"})
		return
	}
	if c.Ext != nil && m.st.closed(c.Ext) {
		m.reject(Rejected{Kind: "register", Reason: "it speaks for an earlier life of " + c.Ext.Node, From: c.Address})
		return
	}
	node := c.Address // an SGLang decode has no name of its own
	rank := MakeRank(node, 0)
	p := &events.PeerRegistered{Address: c.Address, Session: c.Session, At: string(c.At), Memory: c.Memory}
	if c.Ext != nil {
		rank = MakeRank(c.Ext.Node, int(c.EngineRank))
		p.PeerBoot, p.PeerIncarnation, p.LogId = c.Ext.Boot, c.Ext.Incarnation, c.Ext.LogID
		m.gates[c.Address] = true
	} else {
		delete(m.gates, c.Address)
	}
	p.Peer = string(rank)
	m.seeLife(c.Address, c.Ext)
	ep := m.st.Endpoints[c.Address]
	if ep != nil && ep.Rank == rank && ep.Boot == p.PeerBoot && ep.Inc == p.PeerIncarnation && ep.Session == c.Session && ep.at[c.At] && ep.Memory.Same(c.Memory) {
		return
	}
	if ep == nil && len(m.st.Endpoints) >= m.cfg.MaxPeers {
		m.reject(Rejected{Kind: "register", Reason: fmt.Sprintf("%d endpoints are registered, which is the limit", len(m.st.Endpoints)), From: c.Address})
		return
	}
	reborn := p.PeerBoot != 0 && m.knewOtherLife(rank, p.PeerBoot)
	m.emit(&events.Event{Rank: string(c.At), Cause: m.causeOf(c.Ext), Payload: &events.Event_PeerRegistered{PeerRegistered: p}})
	if reborn || ep != nil && ep.Address != c.Address {
		m.repeatStatus(c.At, rank, c.Address)
	}
}

// knewOtherLife: a destination of ours was given by another life of the rank.
func (m *Machine) knewOtherLife(rank RankID, boot uint64) bool {
	for _, r := range m.st.PRooms {
		for _, d := range r.Dests {
			if d.To == rank && d.Boot != 0 && d.Boot != boot {
				return true
			}
		}
	}
	return false
}

// repeatStatus tells a decode rank that has come back, perhaps at another
// address, how its rooms ended meanwhile. Repeats are marked as such.
func (m *Machine) repeatStatus(at, to RankID, addr string) {
	for _, key := range sortedKeys(m.st.PRooms) {
		r := m.st.PRooms[key]
		for _, d := range r.Dests {
			if d.Rank != at || d.To != to || d.StatusTold == 0 {
				continue
			}
			ok := d.StatusTold == events.TerminalStatus_TERMINAL_STATUS_SUCCESS
			s := m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(at), Payload: &events.Event_StatusSent{StatusSent: &events.StatusSent{
				To: string(to), Status: d.StatusTold, Reason: r.Reason, DecodeRoomSeq: d.RoomSeq, Repeat: true,
			}}})
			x := m.extTo(to.Node(), d.RoomSeq, s)
			x.Reason = r.Reason
			m.doAfter(s, SendStatus{
				Room: r.Room, Rank: at, WireID: m.wireID(at), To: to, Address: addr, Success: ok, Reason: r.Reason,
				Foreign: m.foreign(addr), WithExt: m.gates[addr], Ext: x,
			})
		}
	}
}

// seeLife notices that a decode node is in another life.
func (m *Machine) seeLife(addr string, x *Ext) {
	if x == nil {
		return
	}
	old := m.st.Endpoints[addr]
	if old == nil || old.Rank.Node() != x.Node {
		old = m.firstOf(x.Node)
	}
	if old == nil || old.Boot == 0 || old.Boot == x.Boot || x.Incarnation == 0 {
		return
	}
	m.emit(&events.Event{Payload: &events.Event_PeerIncarnationSeen{PeerIncarnationSeen: &events.PeerIncarnationSeen{
		Peer: x.Node, OldBoot: old.Boot, OldIncarnation: old.Inc, NewBoot: x.Boot, NewIncarnation: x.Incarnation, LogId: x.LogID,
	}}})
}

// endpoint finds the registered decode rank behind an address and judges the
// extension against it (F42, wire.md 9.5).
func (m *Machine) endpoint(addr string, x *Ext) (*Endpoint, string) {
	ep := m.st.Endpoints[addr]
	switch {
	case ep == nil:
		return nil, "endpoint " + addr + " is not registered"
	case x == nil:
		return ep, ""
	case x.Node != ep.Rank.Node():
		return nil, fmt.Sprintf("endpoint %s belongs to %s, not to %s", addr, ep.Rank.Node(), x.Node)
	case ep.Boot != 0 && x.Boot != ep.Boot && x.Incarnation < ep.Inc, m.st.closed(x):
		return nil, fmt.Sprintf("%s speaks for an earlier life of %s", addr, x.Node)
	}
	m.seeLife(addr, x)
	return m.st.Endpoints[addr], ""
}
