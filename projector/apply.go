package projector

import (
	"github.com/pdlog/pdlog/events"
)

// apply folds one event into the state. It is total: an event that does not
// fit (a log cut short, a newer writer) changes what it can and nothing else.
func (m *Machine) apply(e *events.Event) {
	st := m.st
	st.Seq = e.Seq
	st.HLC = st.HLC.Merge(events.HLC(e.Hlc))
	if st.LogSince == 0 {
		st.LogSince = e.Hlc
	}
	if c := e.Cause; c != nil && c.Node != "" {
		if peer := st.Peers[c.Node]; peer != nil {
			peer.seen(c.Seq)
		}
	}
	switch p := e.Payload.(type) {
	case *events.Event_NodeStarted:
		m.applyStarted(e, p.NodeStarted)
	case *events.Event_NodeDraining:
		st.Draining = true
		st.DrainUntil = e.Clock() + p.NodeDraining.GraceMs
	case *events.Event_NodeStopped:
		st.Clean = true
	case *events.Event_ConfigChanged:
		if p.ConfigChanged.Values["unknown_past"] == "true" {
			st.UnknownPast, st.OlderCopy = true, true
			st.Lives = map[uint64]uint64{st.Boot: 0}
		}
	case *events.Event_PastSettled:
		delete(st.Unsettled, p.PastSettled.Peer)
		if len(st.Unsettled) == 0 {
			st.PastHeld = false
		}
	case *events.Event_MemoryRegistered:
		m.applyMemory(p.MemoryRegistered)
	case *events.Event_PeerRegistered:
		m.applyPeerRegistered(p.PeerRegistered)
	case *events.Event_PeerCapabilities:
		m.applyCapabilities(p.PeerCapabilities)
	case *events.Event_PeerSuspect:
		if peer := st.Peers[p.PeerSuspect.Peer]; peer != nil {
			peer.Suspect, peer.Missed = true, p.PeerSuspect.Missed
		}
	case *events.Event_PeerLost:
		if peer := st.Peers[p.PeerLost.Peer]; peer != nil {
			peer.Lost, peer.Missed = true, p.PeerLost.Missed
		}
	case *events.Event_PeerIncarnationSeen:
		m.applyIncarnation(p.PeerIncarnationSeen)
	default:
		if m.cfg.Role == events.Role_ROLE_PREFILL {
			m.applyPrefill(e)
		} else {
			m.applyDecode(e)
		}
	}
}

func (m *Machine) applyStarted(e *events.Event, p *events.NodeStarted) {
	st := m.st
	for _, r := range st.PRooms {
		r.OldLife = true
		r.LifeClean = st.Clean
		r.timer = 0
	}
	for _, r := range st.Rooms {
		r.Copies = nil // they ended with the process that made them
	}
	if st.holds(st.Boot) {
		st.Lives[st.Boot] = e.Seq - 1
	}
	st.Boot, st.Incarnation = e.Boot, e.Incarnation
	if p.UnknownPast {
		clear(st.Lives)
	}
	st.Lives[e.Boot] = 0
	st.LogID = p.LogId
	st.Started = true
	st.Clean = false
	st.Draining, st.DrainUntil = false, 0
	st.Unsafe = map[roomKey]*Room{}
	st.LifeSince = e.Seq
	st.UnknownPast = st.UnknownPast || p.UnknownPast // what a log has lost it never gets back
	st.Unsettled, st.PastHeld = map[string]bool{}, false
	for _, n := range p.AskPeers {
		st.Unsettled[n] = true
	}
	st.LastGen = max(st.LastGen, p.GenerationBase)
}

func (m *Machine) applyPeerRegistered(p *events.PeerRegistered) {
	st := m.st
	rank := RankID(p.Peer)
	if m.cfg.Role == events.Role_ROLE_DECODE {
		if peer := st.Peers[rank.Node()]; peer != nil {
			if old := peer.Ranks[rank].Address; old != "" && old != p.Address && p.PeerBoot == 0 {
				m.applyMoved(rank)
			}
			peer.Ranks[rank] = PeerRank{Rank: rank, Address: p.Address, WireID: p.WireId, Source: p.Source}
		}
		return
	}
	ep := st.Endpoints[p.Address]
	if ep == nil || ep.Rank != rank {
		clear(m.nodes)
		ep = &Endpoint{Address: p.Address, at: map[RankID]bool{}}
		st.Endpoints[p.Address] = ep
	}
	if ep.Boot != p.PeerBoot {
		ep.at = map[RankID]bool{}
	}
	ep.Rank, ep.Session, ep.Memory = rank, p.Session, p.Memory
	ep.Boot, ep.Inc, ep.LogID = p.PeerBoot, p.PeerIncarnation, p.LogId
	ep.at[RankID(p.At)] = true
}

// applyMoved: an SGLang rank keeps its port for life, so at another address it is
// another process, which knows nothing of what the one before has posted.
func (m *Machine) applyMoved(rank RankID) {
	for _, r := range m.st.Rooms {
		for _, p := range r.Pairs {
			if p.Rank == rank && !p.PDLog && p.Publish != PublishNone {
				p.CannotTell = true
			}
		}
	}
}

func (m *Machine) applyCapabilities(p *events.PeerCapabilities) {
	peer := m.st.Peers[p.Peer]
	if peer == nil {
		peer = &Peer{Node: p.Peer, Ranks: map[RankID]PeerRank{}}
		m.st.Peers[p.Peer] = peer
	}
	peer.PDLog, peer.Form, peer.Fence, peer.Weak = p.Pdlog, p.AckForm, p.Fence, p.Weak
	peer.Boot, peer.Inc, peer.LogSince, peer.LogID = p.PeerBoot, p.PeerIncarnation, p.LogSince, p.LogId
	peer.PageSize, peer.DType = p.PageSize, p.KvCacheDtype
	m.st.dropSeen(peer)
	peer.Suspect, peer.Lost, peer.Missed = false, false, 0
}

func (m *Machine) applyIncarnation(p *events.PeerIncarnationSeen) {
	if p.NewIncarnation == 0 { // the question about the past, which does not say it
		m.st.Closed[p.OldBoot] = true
		m.st.closeLogs(p.Peer, p.LogId)
		return
	}
	if peer := m.st.Peers[p.Peer]; peer != nil {
		peer.Boot, peer.Inc = p.NewBoot, p.NewIncarnation
		m.st.dropSeen(peer)
		return
	}
	for _, ep := range m.st.Endpoints {
		if ep.Rank.Node() == p.Peer {
			ep.Boot, ep.Inc, ep.LogID = p.NewBoot, p.NewIncarnation, p.LogId
			ep.at = map[RankID]bool{} // it has to register anew
		}
	}
	if p.NewIncarnation <= p.OldIncarnation {
		delete(m.st.Watermark, p.Peer) // a watermark belongs to a log: one that comes back wiped starts with none
	}
}

func (m *Machine) applyDecode(e *events.Event) {
	st := m.st
	switch p := e.Payload.(type) {
	case *events.Event_RoomOpened:
		r := &Room{
			Room: e.Room, Seq: e.RoomSeq, OpenedAt: e.Clock(), ReserveOnly: p.RoomOpened.ReserveOnly,
			RequestID: p.RoomOpened.RequestId, TraceID: p.RoomOpened.TraceId,
		}
		if t := p.RoomOpened.TimeoutMs; t > 0 {
			r.Until = addCapped(r.OpenedAt, t)
		}
		for _, pp := range p.RoomOpened.Pairs {
			r.Pairs = append(r.Pairs, &Pair{Rank: RankID(pp.Rank), To: RankID(pp.To), WireID: pp.WireId, Dummy: pp.Dummy})
		}
		st.Rooms[r.Seq], m.hot = r, r
		st.Current[r.Room] = r.Seq
		st.byNumber[r.Room] = append(st.byNumber[r.Room], r.Seq)
		st.Known.opened(r.Room, r.Seq, e.Clock())
		return
	case *events.Event_AckReceived:
		m.applyAck(e, p.AckReceived)
		return
	case *events.Event_Quarantined:
		if e.RoomSeq == 0 {
			st.PastHeld = true
			return
		}
	}
	r := m.room(e.RoomSeq)
	if r == nil {
		return
	}
	switch p := e.Payload.(type) {
	case *events.Event_PagesReserved:
		r.Pages, r.Aux = p.PagesReserved.Pages, p.PagesReserved.Aux
		for i, pg := range r.Pages {
			if int(pg) < len(st.Pages) {
				st.Pages[pg] = PageSlot{owner: r.Seq, index: int32(i)} //nolint:gosec // pool size
				st.free.remove(int(pg))
			}
		}
		if int(r.Aux) < len(st.Aux) {
			st.Aux[r.Aux] = r.Seq
			st.auxFree.remove(int(r.Aux))
		}
	case *events.Event_PublishStarted:
		r.ReserveOnly = false
		if pr := r.pair(RankID(e.Rank), RankID(p.PublishStarted.To)); pr != nil {
			s := p.PublishStarted
			pr.Publish, pr.Lease, pr.PublishAt = PublishStarted, s.Lease, e.Clock()
			pr.PDLog, pr.Boot, pr.Inc, pr.LogSince, pr.LogID = s.Pdlog, s.PeerBoot, s.PeerIncarnation, s.PeerLogSince, s.PeerLogId
			pr.Fence = s.Fence
		}
	case *events.Event_MetadataPublished:
		if pr := r.pair(RankID(e.Rank), RankID(p.MetadataPublished.To)); pr != nil {
			pr.Publish = PublishDone
			if p.MetadataPublished.Failed {
				pr.Publish = PublishFailed
			}
		}
		if !r.bootstrapping() {
			r.PublishedAt = e.Clock()
		}
	case *events.Event_WriteLanded:
		m.applyLanded(e, r, p.WriteLanded)
	case *events.Event_LocalCopyStarted:
		if r.Copies == nil {
			r.Copies = map[uint64]LocalCopy{}
		}
		s := p.LocalCopyStarted
		r.Copies[s.Token] = LocalCopy{To: RankID(s.To), Staged: s.What == copyStaging, Chunk: s.Index}
	case *events.Event_LocalCopyEnded:
		of := r.Copies[p.LocalCopyEnded.Token]
		delete(r.Copies, p.LocalCopyEnded.Token)
		switch {
		case p.LocalCopyEnded.Failed:
		case of.Staged:
			r.applyCopied(of)
			r.LandedAt = e.Clock()
		default:
			if r.AuxCopied == nil {
				r.AuxCopied = map[RankID]bool{}
			}
			r.AuxCopied[RankID(p.LocalCopyEnded.To)] = true
			r.LandedAt = e.Clock()
		}
	case *events.Event_StagingAllocated:
		m.applyAllocated(r, p.StagingAllocated)
	case *events.Event_StagingReady:
		applyStagingReady(r, RankID(e.Rank), p.StagingReady)
		r.LandedAt = e.Clock()
	case *events.Event_NotificationReceived:
		applyNotification(e, r, p.NotificationReceived)
	case *events.Event_StatusReceived:
		s := p.StatusReceived
		if s.Counted && s.Status == events.TerminalStatus_TERMINAL_STATUS_SUCCESS {
			if pr := r.pair(RankID(e.Rank), RankID(s.To)); pr != nil {
				pr.Succeeded, pr.SuccessAt = true, e.Seq
			}
		}
	case *events.Event_CoverageCompleted:
		r.Covered, r.CoveredAt = true, e.Seq
	case *events.Event_RoomSucceeded:
		r.Outcome = OutcomeSucceeded
	case *events.Event_RoomFailed:
		if r.Outcome == OutcomeNone {
			r.Outcome, r.Cause, r.Reason, r.FailedSeq = OutcomeFailed, p.RoomFailed.Cause, p.RoomFailed.Reason, e.Seq
			if k := st.Known.find(r.Room); k != nil {
				k.FailedUse = true
			}
		}
	case *events.Event_AbortArmed:
		r.Gen, r.ArmedAt = p.AbortArmed.Generation, e.Clock()
		st.LastGen = max(st.LastGen, r.Gen)
	case *events.Event_AckTimedOut:
		r.TimedOut = true
	case *events.Event_FenceStarted:
		if pr := r.pair(RankID(e.Rank), RankID(p.FenceStarted.To)); pr != nil {
			pr.Fencing = true
		}
	case *events.Event_Fenced:
		if pr := r.pair(RankID(e.Rank), RankID(p.Fenced.To)); pr != nil {
			pr.Fencing = false
			if pr.Evidence == 0 {
				pr.Evidence, pr.FenceProof, pr.EvidenceAt = events.Basis_BASIS_FENCE, p.Fenced.Evidence, e.Seq
			}
		}
	case *events.Event_FenceFailed:
		if pr := r.pair(RankID(e.Rank), RankID(p.FenceFailed.To)); pr != nil {
			pr.Fencing = false
		}
	case *events.Event_PeerRestartProven:
		if pr := r.pair(RankID(e.Rank), RankID(p.PeerRestartProven.To)); pr != nil && pr.Evidence == 0 {
			pr.Evidence, pr.FenceProof, pr.EvidenceAt = events.Basis_BASIS_PEER_RESTART, p.PeerRestartProven.Evidence, e.Seq
		}
	case *events.Event_Quarantined:
		r.Quarantined = true
	case *events.Event_RoomFinished:
		r.Finished = true
	case *events.Event_Released:
		m.applyReleased(e, r, p.Released)
	}
}

func (m *Machine) applyLanded(e *events.Event, r *Room, p *events.WriteLanded) {
	pr := r.pair(RankID(e.Rank), RankID(p.To))
	if pr == nil {
		return
	}
	r.LandedAt = e.Clock()
	for _, pg := range p.Pages {
		if int(pg) >= len(m.st.Pages) || m.st.Pages[pg].owner != r.Seq {
			continue
		}
		pr.cover(int(m.st.Pages[pg].index), len(r.Pages))
	}
	pr.AuxLanded = pr.AuxLanded || p.Aux
	if g := m.st.Rings[pr.To]; p.StagingEnd > 0 && g != nil {
		r.stagedLanded(pr, g, p.StagingOffset, p.StagingEnd)
	}
}

func (m *Machine) applyAck(e *events.Event, p *events.AckReceived) {
	r := m.room(e.RoomSeq)
	if r == nil {
		if u := m.st.Unsafe[e.RoomSeq]; u != nil && p.Generation == u.Gen {
			if pr := u.pair(RankID(e.Rank), RankID(p.To)); pr != nil && pr.Evidence == 0 {
				pr.Evidence, pr.EvidenceAt = events.Basis_BASIS_ACKS, e.Seq
			}
			if !u.owes() {
				delete(m.st.Unsafe, u.Seq)
			}
		}
		return
	}
	pr := r.pair(RankID(e.Rank), RankID(p.To))
	if pr == nil {
		return
	}
	if p.Counted && pr.Evidence == 0 {
		pr.Evidence, pr.Proof, pr.EvidenceAt = events.Basis_BASIS_ACKS, p.Proof, e.Seq
	}
	if p.Why == events.NotCounted_NOT_COUNTED_CANNOT_TELL {
		pr.CannotTell = true
	}
}

func (m *Machine) applyReleased(e *events.Event, r *Room, p *events.Released) {
	st := m.st
	end := endingOf(m.roomView(r), r.Cause, p)
	for _, pg := range r.Pages {
		if int(pg) < len(st.Pages) && st.Pages[pg].owner == r.Seq {
			st.Pages[pg] = PageSlot{}
			st.free.add(int(pg))
		}
	}
	if int(r.Aux) < len(st.Aux) && st.Aux[r.Aux] == r.Seq {
		st.Aux[r.Aux] = 0
		st.auxFree.add(int(r.Aux))
	}
	for _, s := range r.Staged {
		if g := st.Rings[s.To]; g != nil {
			g.free(r.Seq)
		}
	}
	delete(st.Rooms, r.Seq)
	m.hot = nil
	st.leaveNumber(r.Room, r.Seq)
	if p.Unsafe {
		st.Unsafe[r.Seq] = r
	}
	if st.Current[r.Room] == r.Seq {
		delete(st.Current, r.Room)
	}
	st.Known.released(r.Room, r.Seq, e.Clock(), e.Seq, &end)
	st.Known.forget(e.Clock(), func(room uint64) bool { return len(st.byNumber[room]) > 0 })
}
