package whatif

import (
	"slices"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/replay"
)

// feed gives the machine the input that a recorded event tells of. Events that
// the machine makes by itself only let time pass.
func (n *node) feed(e *events.Event) {
	if s := e.GetNodeStarted(); s != nil {
		n.start(e, s)
		return
	}
	if n.m == nil {
		return
	}
	now := n.now(e)
	n.pass(now)
	n.overdue(e)
	n.lastMS = max(n.lastMS, events.HLC(e.Hlc).Millis())
	if r := n.rooms[e.RoomSeq]; e.RoomSeq != 0 && r != nil {
		n.feedRoom(now, r, e)
		return
	}
	switch p := e.Payload.(type) {
	case *events.Event_RoomOpened:
		n.opening = e
	case *events.Event_PagesReserved:
		if n.opening != nil && n.opening.RoomSeq == e.RoomSeq {
			n.open(now, n.opening, e)
		}
		n.opening = nil
	default:
		n.feedNode(now, e, p)
	}
}

// pass lets deadlines fire at their own time, where they are not the recorded
// ones. Otherwise they fire with the events that they fired with.
func (n *node) pass(now projector.Instant) {
	for !n.lockstep {
		at, ok := n.m.NextDeadline()
		if !ok || at >= now.Clock {
			return
		}
		n.step(projector.Instant{Clock: at, Wall: uint64(int64(at) + n.skew)}, projector.Tick{})
		if next, ok := n.m.NextDeadline(); ok && next <= at {
			return
		}
	}
}

// overdue lets late writes come in that the decode log does not show.
func (n *node) overdue(e *events.Event) {
	ms := events.HLC(e.Hlc).Millis()
	n.late = slices.DeleteFunc(n.late, func(a arrival) bool {
		if a.seq != 0 && a.seq > e.Seq || a.seq == 0 && a.ms > ms {
			return false
		}
		n.lateArrival(a)
		return true
	})
}

func (n *node) lateArrival(a arrival) {
	r := n.rooms[a.room]
	if r == nil || r.seq == 0 {
		return
	}
	if pr := r.pairs[a.pair]; pr != nil && !pr.revoked {
		n.hurt(r, r.placeOf(a.page))
	}
}

func (n *node) feedNode(now projector.Instant, e *events.Event, payload any) {
	switch p := payload.(type) {
	case *events.Event_NodeDraining:
		n.step(now, projector.Stop{Grace: p.NodeDraining.GetGraceMs(), Reason: p.NodeDraining.GetReason()})
	case *events.Event_MemoryUnregistered:
		n.unreg = p.MemoryUnregistered.GetName()
	case *events.Event_MemoryRegistered:
		m := p.MemoryRegistered
		if n.unreg != "" {
			n.step(now, projector.ReRegister{Memory: m})
			n.unreg = ""
			return
		}
		n.step(now, projector.MemoryAdded{Memory: m})
	case *events.Event_PeerCapabilities:
		n.caps[p.PeerCapabilities.GetPeer()] = p.PeerCapabilities
		n.step(now, n.discovered(p.PeerCapabilities.GetPeer()))
	case *events.Event_PeerRegistered:
		rank := projector.RankID(p.PeerRegistered.GetPeer())
		c := n.discovered(rank.Node())
		c.Ranks = []projector.PeerRank{{Rank: rank, Address: p.PeerRegistered.GetAddress(), WireID: p.PeerRegistered.GetWireId()}}
		n.step(now, c)
	case *events.Event_PeerSuspect:
		n.step(now, projector.Heartbeat{Node: p.PeerSuspect.GetPeer()})
	case *events.Event_PeerLost:
		n.step(now, projector.Heartbeat{Node: p.PeerLost.GetPeer()})
	case *events.Event_PastSettled:
		if s := p.PastSettled; provable(s.GetEvidence()) {
			n.step(now, projector.PeerFenced{Node: s.GetPeer(), Evidence: s.GetEvidence()})
		} else {
			n.step(now, projector.PastAnswer{Node: s.GetPeer(), Answered: true, Known: s.GetKnown()})
		}
	case *events.Event_Quarantined:
		for _, m := range p.Quarantined.GetMissing() {
			n.step(now, projector.PeerFenced{Node: m.GetRank(), Evidence: events.FenceKind_FENCE_KIND_NONE})
		}
	default:
		n.step(now, projector.Tick{})
	}
}

func (n *node) discovered(peer string) projector.PeerDiscovered {
	c := n.caps[peer]
	return projector.PeerDiscovered{
		Node: peer, PDLog: c.GetPdlog(), Boot: c.GetPeerBoot(), Incarnation: c.GetPeerIncarnation(), LogSince: c.GetLogSince(), LogID: c.GetLogId(),
		Fence: c.GetFence(), Form: c.GetAckForm(), PageSize: c.GetPageSize(), DType: c.GetKvCacheDtype(),
	}
}

// feedRoom: inputs about one room incarnation.
func (n *node) feedRoom(now projector.Instant, r *room, e *events.Event) {
	if g := e.GetAbortArmed(); g != nil {
		r.recordedGen = g.GetGeneration()
		n.byGen[r.recordedGen] = r
	}
	if r.seq == 0 {
		n.step(now, projector.Tick{})
		return
	}
	switch p := e.Payload.(type) {
	case *events.Event_PublishStarted:
		n.publish(now, r, e.Rank, p.PublishStarted)
	case *events.Event_MetadataPublished:
		m := p.MetadataPublished
		c := projector.PublishResult{RoomSeq: r.seq, Rank: projector.RankID(e.Rank), To: projector.RankID(m.GetTo()), Err: m.GetReason()}
		if m.GetFailed() && c.Err == "" {
			c.Err = "failed"
		}
		n.step(now, c)
	case *events.Event_WriteLanded:
		l := p.WriteLanded
		n.arrive(now, r, replay.PairKey{Rank: e.Rank, To: l.GetTo()}, projector.Landed{
			Pages: l.GetPages(), PageOff: l.GetPageOff(), PageLen: l.GetPageLen(), Aux: l.GetAux(), Bytes: l.GetBytes(), Chunk: l.GetChunk(),
		})
	case *events.Event_LateWriteRejected:
		l := p.LateWriteRejected
		n.arrive(now, r, replay.PairKey{Rank: e.Rank, To: l.GetTo()}, projector.Landed{Pages: l.GetPages(), Bytes: l.GetBytes()})
	case *events.Event_StatusReceived:
		n.status(now, r, e, p.StatusReceived)
	case *events.Event_AckReceived:
		n.ack(now, r, e, p.AckReceived)
	case *events.Event_PeerRestartProven:
		n.step(now, projector.ConnectionEnded{Node: projector.RankID(e.Rank).Node(), Boot: p.PeerRestartProven.GetOldBoot(), Evidence: p.PeerRestartProven.GetEvidence()})
	case *events.Event_Fenced:
		n.fenceDone(now, r, replay.PairKey{Rank: e.Rank, To: p.Fenced.GetTo()}, p.Fenced.GetEvidence())
	case *events.Event_FenceFailed:
		n.fenceDone(now, r, replay.PairKey{Rank: e.Rank, To: p.FenceFailed.GetTo()}, events.FenceKind_FENCE_KIND_NONE)
	case *events.Event_FenceStarted:
		if p.FenceStarted.GetWhy() == "operator" {
			n.step(now, projector.FenceRoom{Room: r.number, Peer: e.Rank})
			return
		}
		n.step(now, projector.Tick{})
	case *events.Event_PageCheckSkipped:
		r.skipped = p.PageCheckSkipped.GetReason()
	case *events.Event_PageCheckFailed:
		if c := p.PageCheckFailed; !c.GetAfterSuccess() {
			r.bad = append(r.bad, projector.PageReport{Room: r.number, Page: c.GetPage(), To: projector.RankID(c.GetTo()), Detail: c.GetDetail(),
				PageOff: c.GetPageOff(), PageLen: c.GetPageLen()})
		}
	case *events.Event_RoomSucceeded:
		n.checked(now, r)
	case *events.Event_RoomFailed:
		n.failed(now, r, p.RoomFailed)
	case *events.Event_RoomFinished:
		n.step(now, projector.FinishRoom{Room: r.number})
	case *events.Event_Released:
		if p.Released.GetBasis() == events.Basis_BASIS_FORCED {
			n.step(now, projector.ForceRelease{Room: r.number})
			return
		}
		n.step(now, projector.Tick{})
	default:
		n.step(now, projector.Tick{})
	}
}

// publish: what the recorded run knew of the peer then. The machine publishes by
// itself; only a room that was reserved waits for its engine.
func (n *node) publish(now projector.Instant, r *room, rank string, s *events.PublishStarted) {
	if pr := r.pairs[replay.PairKey{Rank: rank, To: s.GetTo()}]; pr != nil {
		pr.fence, pr.pdlog, pr.since, pr.logID = s.GetFence(), s.GetPdlog(), s.GetPeerLogSince(), s.GetPeerLogId()
	}
	if st := n.m.State().Rooms[r.seq]; st != nil && st.ReserveOnly {
		n.step(now, projector.PublishRoom{Room: r.number})
	}
}

func (n *node) fenceDone(now projector.Instant, r *room, k replay.PairKey, kind events.FenceKind) {
	if pr := r.pairs[k]; pr != nil && pr.pending {
		n.fenceEnded(now, r, k, kind)
	}
}

// ext is the frame that the peer's message had.
func (n *node) ext(r *room, k replay.PairKey, cause *events.Cause) *projector.Ext {
	pr, peer := r.pairs[k], n.m.State().Peers[projector.RankID(k.Rank).Node()]
	if pr == nil || !pr.pdlog || peer == nil {
		return nil
	}
	return &projector.Ext{
		Node: peer.Node, Boot: peer.Boot, Incarnation: peer.Inc, RoomSeq: r.seq, CauseSeq: cause.GetSeq(),
		LogSince: pr.since, LogID: pr.logID, PrefillRank: &pr.wire,
	}
}

func (n *node) status(now projector.Instant, r *room, e *events.Event, s *events.StatusReceived) {
	k := replay.PairKey{Rank: e.Rank, To: s.GetTo()}
	pr := r.pairs[k]
	if pr == nil {
		return
	}
	x := n.ext(r, k, e.Cause)
	if x != nil {
		x.Drained, x.Reason = s.Drained, s.GetReason()
	}
	n.step(now, projector.WireStatus{
		At: projector.RankID(s.GetTo()), Room: r.number, Rank: pr.wire, Reason: s.GetReason(), Ext: x,
		Success: s.GetStatus() == events.TerminalStatus_TERMINAL_STATUS_SUCCESS,
	})
}

// ack: one that came after the recorded release did not count there; in this
// run it may.
func (n *node) ack(now projector.Instant, r *room, e *events.Event, a *events.AckReceived) {
	k := replay.PairKey{Rank: e.Rank, To: a.GetTo()}
	if e.Rank == "" {
		for _, at := range r.pairsSorted() {
			if r.pairs[at].wire == a.GetWireId() && at.To == a.GetTo() {
				k = at
			}
		}
	}
	pr := r.pairs[k]
	if pr == nil {
		return
	}
	c := projector.WireAck{At: projector.RankID(a.GetTo()), Room: r.number}
	if a.GetForm() != events.AckForm_ACK_FORM_V1 {
		c.Rank = &pr.wire
	}
	if a.GetForm() == events.AckForm_ACK_FORM_V3 {
		gen := a.GetGeneration()
		if of := n.byGen[gen]; of != nil && of.gen != 0 {
			gen = of.gen
		}
		c.Generation = &gen
	}
	if a.GetProof() != 0 && a.GetWhy() != events.NotCounted_NOT_COUNTED_NO_PROOF {
		if c.Ext = n.ext(r, k, e.Cause); c.Ext != nil {
			c.Ext.Proof = a.GetProof()
		}
	}
	n.step(now, c)
}

// checked: the recorded run found every page as it had landed.
func (n *node) checked(now projector.Instant, r *room) {
	if r.checking {
		r.checking = false
		n.step(now, projector.PagesChecked{RoomSeq: r.seq, Skipped: r.skipped})
		return
	}
	n.step(now, projector.Tick{})
}

// failed: a room that this run did not fail by itself was failed from outside,
// or by a page check. A check that failed by a write which does no harm in this
// run holds here, and its engine is done with the room at once.
func (n *node) failed(now projector.Instant, r *room, f *events.RoomFailed) {
	n.step(now, projector.Tick{})
	st := n.m.State().Rooms[r.seq]
	if st == nil || st.Outcome != projector.OutcomeNone {
		return
	}
	if f.GetCause() != events.AbortCause_ABORT_CAUSE_PAGE_CHECK {
		n.step(now, projector.AbortRoom{Room: r.number, Reason: f.GetReason(), Cause: f.GetCause()})
		return
	}
	bad := slices.DeleteFunc(r.bad, func(b projector.PageReport) bool {
		return !n.nobody[pageKey{r.recorded, b.Page}] && !n.harm[harm{page: r.placeOf(b.Page), victim: r.seq}]
	})
	for i := range bad {
		bad[i].Page = r.placeOf(bad[i].Page)
	}
	switch {
	case r.checking:
		r.checking = false
		n.step(now, projector.PagesChecked{RoomSeq: r.seq, Bad: bad})
	case len(bad) > 0:
		n.step(now, bad[0])
	}
	if len(bad) == 0 {
		n.step(now, projector.FinishRoom{Room: r.number})
	}
}
