package invariants

import (
	"github.com/pdlog/pdlog/events"
)

// prefill checks the events of a prefill node: I3, I6 (statuses), I7
// (metadata) and I8; I5 is in answers.go.
func (c *Checker) prefill(n *node, r *room, e *events.Event) {
	switch p := e.Payload.(type) {
	case *events.Event_ReceiptDropped:
		d := p.ReceiptDropped
		n.watermarks[d.GetDecodeNode()] = max(n.watermarks[d.GetDecodeNode()], d.GetDecodeRoomSeq())
	case *events.Event_AckSent:
		c.ackSent(n, r, e, p.AckSent)
	}
	if r == nil {
		return
	}
	switch p := e.Payload.(type) {
	case *events.Event_MetadataReceived:
		c.metadata(n, r, e, p.MetadataReceived)
	case *events.Event_ChunkPosted:
		c.posted(n, r, e, p.ChunkPosted)
	case *events.Event_ChunkCompleted:
		c.closed(n, e, p.ChunkCompleted.GetToken(), true)
	case *events.Event_ChunkFailed:
		if p.ChunkFailed.GetProven() {
			c.closed(n, e, p.ChunkFailed.GetToken(), false)
		}
	case *events.Event_ChunkDrained:
		c.closed(n, e, p.ChunkDrained.GetToken(), p.ChunkDrained.GetLanded())
	case *events.Event_StatusSent:
		c.statusSent(r, e, p.StatusSent)
	case *events.Event_Drained:
		if t := r.openToken(e.Rank); t != nil {
			c.report(e, "I3", NoPage, "drained while write %d of %s is open", t.posted, e.Rank)
		}
		r.drained.put(c.name(e.Rank), drain{e.Seq, events.HLC(e.Hlc).Millis(), e.Boot})
	case *events.Event_AbortReceived:
		if a := p.AbortReceived; !a.GetStale() {
			if r.aborted == 0 {
				r.aborted = e.Seq
			}
			if a.Generation != nil {
				at := c.pair(e.Rank, a.GetTo())
				r.generations.put(at, max(r.generations.get(at), a.GetGeneration()))
			}
		}
	case *events.Event_AckTargetHeld:
		c.held(n, r, e, p.AckTargetHeld)
	case *events.Event_AckWithheld:
		delete(n.targets, ackTarget{r.seq, e.Rank, p.AckWithheld.GetTo()})
	case *events.Event_SourceReleased:
		if t := r.openToken(""); t != nil {
			c.report(e, "I8", NoPage, "source pages released while write %d of %s is open", t.posted, t.pair.rank)
		}
		r.source = e.Seq
	case *events.Event_RoomCleared:
		c.end(n, r)
	}
}

// metadata is I7: an incarnation that has ended is not opened again by its own
// metadata. Metadata that was refused opens nothing.
func (c *Checker) metadata(n *node, r *room, e *events.Event, p *events.MetadataReceived) {
	d := destination{c.name(p.GetDecodeNode()), c.name(string(p.GetDecodeLogId())), p.GetDecodeRoomSeq()}
	r.dests.put(c.pair(e.Rank, p.GetTo()), d)
	if p.GetDecodeRoomSeq() == 0 {
		return
	}
	ours := n.destinies[d]
	for _, seq := range ours {
		if old := n.rooms[seq]; seq != r.seq && old != nil && old.outcome != 0 && !old.refused {
			r.again, r.againEvent = true, e
		}
	}
	if len(ours) == 0 || ours[len(ours)-1] != r.seq {
		n.destinies[d] = append(ours, r.seq)
	}
}

func (c *Checker) posted(n *node, r *room, e *events.Event, p *events.ChunkPosted) {
	at := c.pair(e.Rank, p.GetTo())
	if r.aborted != 0 {
		c.report(e, "I3", NoPage, "chunk %d posted after the abort (event %d)", p.GetChunk(), r.aborted)
	}
	if r.source != 0 {
		c.report(e, "I8", NoPage, "chunk %d posted after the source pages were released (event %d)", p.GetChunk(), r.source)
	}
	if _, known := r.dests.find(at); !known && r.whole {
		c.report(e, "I7", NoPage, "chunk %d posted to %s, which gave no destination", p.GetChunk(), p.GetTo())
	}
	if r.again {
		c.report(e, "I7", NoPage, "chunk %d posted for a decode incarnation that had ended here (metadata %d)", p.GetChunk(), r.againEvent.Seq)
		r.again = false
	}
	id := p.GetToken()
	if id == 0 {
		id = e.Seq
	}
	t := &token{room: r, pair: at, chunk: p.GetChunk(), pages: p.GetPages(), posted: e.Seq}
	n.tokens[id] = t
	r.open.put(id, t)
}

// openToken is an open write of a rank (any rank if it is empty), the oldest
// one; nil if there is none.
func (r *room) openToken(rank string) *token {
	var found *token
	for _, open := range r.open {
		t := open.value
		if (rank == "" || t.pair.rank == rank) && (found == nil || t.posted < found.posted) {
			found = t
		}
	}
	return found
}

// vouch marks the open writes of a rank: the peer was told that there are none.
func (r *room) vouch(rank string) {
	for _, open := range r.open {
		if t := open.value; t.pair.rank == rank {
			t.vouched = true
		}
	}
}

func (c *Checker) statusSent(r *room, e *events.Event, p *events.StatusSent) {
	at := c.pair(e.Rank, p.GetTo())
	success := p.GetStatus() == events.TerminalStatus_TERMINAL_STATUS_SUCCESS
	if success {
		r.success.put(c.name(e.Rank), true)
		if t := r.openToken(e.Rank); t != nil {
			c.report(e, "I3", NoPage, "success told to %s while write %d is open", p.GetTo(), t.posted)
			r.vouch(e.Rank)
		}
	}
	if p.GetRepeat() {
		return
	}
	if r.told.get(at) {
		c.report(e, "I6", NoPage, "a second terminal status to %s, not marked as a repeat", p.GetTo())
	}
	r.told.put(at, true)
}

// ackSent is I3: an ACK says that nothing is outstanding. cannot_tell says no
// such thing.
func (c *Checker) ackSent(n *node, r *room, e *events.Event, p *events.AckSent) {
	if r != nil {
		c.answered(n, r, e, p)
	}
	if p.GetProof() == events.Proof_PROOF_CANNOT_TELL {
		return
	}
	if r == nil {
		return // a receipt answers: its incarnation is named by no event in view
	}
	if t := r.openToken(e.Rank); t != nil {
		c.report(e, "I3", NoPage, "ACK to %s while write %d of %s is open", p.GetTo(), t.posted, e.Rank)
		r.vouch(e.Rank)
		return
	}
	if p.GetProof() == events.Proof_PROOF_NEVER_SEEN {
		return
	}
	if r.drained.get(e.Rank).seq == 0 && !r.success.get(e.Rank) && r.whole && !n.dropped(p) {
		c.report(e, "I3", NoPage, "ACK to %s without a drain of %s", p.GetTo(), e.Rank)
	}
}

// dropped: the receipt of this decode incarnation went, and its node's
// watermark answers for it (events.md, terminal outcomes and messages).
func (n *node) dropped(p *events.AckSent) bool {
	return p.GetDecodeRoomSeq() != 0 && p.GetDecodeRoomSeq() <= n.watermarks[rankNode(p.GetTo())]
}
