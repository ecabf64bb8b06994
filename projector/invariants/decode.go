package invariants

import (
	"slices"

	"github.com/pdlog/pdlog/events"
)

// decode checks the events of a decode node: I1, I2 (with evidence.go), I4 and
// I11.
func (c *Checker) decode(n *node, r *room, e *events.Event) {
	switch p := e.Payload.(type) {
	case *events.Event_PagesReserved:
		c.reserve(n, r, e, p.PagesReserved)
	case *events.Event_Released:
		c.release(n, r, e, p.Released)
	case *events.Event_AbortArmed:
		gen := p.AbortArmed.GetGeneration()
		if gen <= n.generation {
			c.report(e, "I4", NoPage, "generation %d is not above %d", gen, n.generation)
		}
		n.generation = max(n.generation, gen)
		if r != nil {
			r.armed = gen
		}
	}
	if r == nil {
		if p := e.GetWriteLanded(); p != nil {
			c.landedStray(n, e, p)
		}
		return
	}
	switch p := e.Payload.(type) {
	case *events.Event_PublishStarted:
		r.published.put(c.pair(e.Rank, p.PublishStarted.GetTo()), &publish{dummy: p.PublishStarted.GetDummy()})
	case *events.Event_AbortSent:
		switch gen := p.AbortSent.GetGeneration(); {
		case r.armed == 0 && r.whole:
			c.report(e, "I4", NoPage, "ABORT sent to %s before it was armed", e.Rank)
		case r.armed != 0 && gen != r.armed:
			c.report(e, "I4", NoPage, "ABORT sent to %s with generation %d, armed is %d", e.Rank, gen, r.armed)
		}
	case *events.Event_LocalCopyStarted: // events.md: none starts after an outcome
		if r.outcome != 0 {
			c.report(e, "I6", NoPage, "a copy of the node's own (%s) begins after the outcome, event %d", p.LocalCopyStarted.GetWhat(), r.outcome)
		}
	case *events.Event_WriteLanded:
		c.landed(n, r, e, p.WriteLanded)
	case *events.Event_LateWriteRejected:
		if pub := r.published.get(pair{e.Rank, p.LateWriteRejected.GetTo()}); pub != nil {
			pub.rejected = true
		}
	default:
		c.learnFact(r, e)
	}
}

// reserve is I11: a page has one owner.
func (c *Checker) reserve(n *node, r *room, e *events.Event, p *events.PagesReserved) {
	if r == nil {
		return
	}
	for i, page := range p.GetPages() {
		if owner, taken := n.pages.find(page); taken && owner != r.seq {
			c.report(e, "I11", int64(page), "reserved while room %s owns it", n.roomName(owner))
		}
		if slices.Contains(p.GetPages()[:i], page) {
			c.report(e, "I11", int64(page), "reserved twice in one list")
		}
		n.pages.put(page, r.seq)
	}
	if owner, taken := n.aux[p.GetAux()]; taken && owner != r.seq {
		c.report(e, "I11", NoPage, "aux row %d reserved while room %s owns it", p.GetAux(), n.roomName(owner))
	}
	n.aux[p.GetAux()] = r.seq
	r.reserved, r.pages, r.auxRow = true, p.GetPages(), p.GetAux()
}

func (c *Checker) release(n *node, r *room, e *events.Event, p *events.Released) {
	if r == nil {
		if p.GetUnsafe() {
			c.report(e, "I2", NoPage, "%d pages released unsafely (%s)", len(p.GetPages()), word(p.GetBasis()))
		}
		return
	}
	if r.released != nil {
		c.report(e, "I11", NoPage, "released a second time; the first is event %d", r.released.seq)
		return
	}
	r.released = &release{seq: e.Seq, basis: p.GetBasis(), evidence: make(small[pair, events.Basis], 0, len(p.GetEvidence()))}
	c.checkEvidence(n, r, e, p)
	for _, page := range p.GetPages() {
		owner, known := n.pages.find(page)
		switch {
		case known && owner != r.seq:
			c.report(e, "I11", int64(page), "released by room %s, but room %s owns it", n.roomName(r.seq), n.roomName(owner))
		case !known && r.whole && r.reserved:
			c.report(e, "I11", int64(page), "released, but the room does not own it")
		case known:
			n.pages.remove(page)
		}
	}
	for _, page := range r.pages {
		if owner, _ := n.pages.find(page); owner == r.seq {
			c.report(e, "I11", int64(page), "left out of the release: lost")
			n.pages.remove(page)
		}
	}
	if n.aux[r.auxRow] == r.seq {
		delete(n.aux, r.auxRow)
	}
	c.end(n, r)
}

// landed is I1 as the decode node saw it.
func (c *Checker) landed(n *node, r *room, e *events.Event, p *events.WriteLanded) {
	pub := r.published.get(pair{e.Rank, p.GetTo()})
	after := p.GetAfterRelease() || r.released != nil
	if pub != nil && !after {
		pub.landed.add(p.GetChunk())
	}
	reported := false
	for _, page := range p.GetPages() {
		owner, owned := n.pages.find(page)
		switch {
		case owned && owner != r.seq:
			c.report(e, "I1", int64(page), "a write of %s (room %s, chunk %d) landed while room %s owns the page",
				e.Rank, n.roomName(r.seq), p.GetChunk(), n.roomName(owner))
			reported = true
		case after:
			c.report(e, "I1", int64(page), "a write of %s (room %s, chunk %d) landed after the page was released",
				e.Rank, n.roomName(r.seq), p.GetChunk())
			reported = true
		}
	}
	if after && p.GetAux() && !reported {
		c.report(e, "I1", NoPage, "aux or state of %s (room %s) landed after its release", e.Rank, n.roomName(r.seq))
	}
}

// landedStray is I1 for a write that the node could give to no room.
func (c *Checker) landedStray(n *node, e *events.Event, p *events.WriteLanded) {
	for _, page := range p.GetPages() {
		if owner, owned := n.pages.find(page); owned {
			c.report(e, "I1", int64(page), "a write of %s (room number %d, chunk %d), of no room that the node knows, landed while room %s owns the page",
				e.Rank, e.Room, p.GetChunk(), n.roomName(owner))
		} else if p.GetAfterRelease() {
			c.report(e, "I1", int64(page), "a write of %s (room number %d, chunk %d), of no room that the node knows, landed in a free page",
				e.Rank, e.Room, p.GetChunk())
		}
	}
}

// lostPages is the other half of I11: pages of a room that failed before it
// published anything are free at once (release rule 3).
func (c *Checker) lostPages(n *node) {
	const patience = 60_000 // ms; the release is decided in the same step
	seqs := make([]uint64, 0, len(n.rooms))
	for seq, r := range n.rooms {
		if r.whole && r.reserved && r.failed && !r.lostTold && r.released == nil && len(r.published) == 0 &&
			r.endBoot == n.boot && n.millis > r.endMillis+patience {
			seqs = append(seqs, seq)
		}
	}
	slices.Sort(seqs)
	for _, seq := range seqs {
		r := n.rooms[seq]
		r.lostTold = true
		c.found = append(c.found, Violation{
			Invariant: "I11", Node: n.name, Room: r.number, RoomSeq: seq, Page: NoPage, Seq: r.outcome,
			Detail: "the room failed, nothing was published, and its pages were never released",
		})
	}
}
