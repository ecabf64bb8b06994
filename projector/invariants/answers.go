package invariants

import (
	"cmp"
	"slices"
	"strings"

	"github.com/pdlog/pdlog/events"
)

// ackTarget is a decode rank that waits for the ACK of one local rank.
type ackTarget struct {
	room uint64
	rank string
	to   string
}

type targetHeld struct{ event *events.Event }

func (c *Checker) held(n *node, r *room, e *events.Event, p *events.AckTargetHeld) {
	n.targets[ackTarget{r.seq, c.name(e.Rank), c.name(p.GetTo())}] = &targetHeld{event: e}
	if p.Generation != nil {
		at := c.pair(e.Rank, p.GetTo())
		r.generations.put(at, max(r.generations.get(at), p.GetGeneration()))
	}
}

// answered is I5: each target is told its latest generation.
func (c *Checker) answered(n *node, r *room, e *events.Event, p *events.AckSent) {
	delete(n.targets, ackTarget{r.seq, e.Rank, p.GetTo()})
	latest, told := r.generations.get(pair{e.Rank, p.GetTo()}), p.GetGeneration()
	if p.Generation != nil && told < latest {
		c.report(e, "I5", NoPage, "ACK to %s with generation %d; its latest ABORT had %d", p.GetTo(), told, latest)
	}
}

// unanswered is the other half of I5: a target that waits although its rank
// has drained, on a node that lived on. Only a drain of the life that runs at
// the end counts: between a drain and its ACK a node may die.
func (c *Checker) unanswered(n *node) {
	c.unansweredFor(n, 1000) // ms; drain and ACK are decided in one step
}

// unansweredFor reports the targets that wait for more than patience, in ms,
// and forgets them.
func (c *Checker) unansweredFor(n *node, patience uint64) {
	var late []ackTarget
	for at := range n.targets {
		r := n.rooms[at.room]
		if r == nil {
			continue
		}
		if d := r.drained.get(at.rank); d.seq != 0 && d.boot == n.boot && n.millis > d.millis+patience && !n.otherUseWrites(r, at) {
			late = append(late, at)
		}
	}
	slices.SortFunc(late, func(a, b ackTarget) int {
		return cmp.Or(cmp.Compare(a.room, b.room), strings.Compare(a.rank, b.rank), strings.Compare(a.to, b.to))
	})
	for _, at := range late {
		h, r := n.targets[at], n.rooms[at.room]
		delete(n.targets, at)
		c.found = append(c.found, Violation{
			Invariant: "I5", Node: n.name, Room: r.number, RoomSeq: r.seq, Page: NoPage, Seq: h.event.Seq,
			Detail: at.to + " waits for the ACK of " + at.rank + ", which has drained, and was never answered",
		})
	}
}

// otherUseWrites: another use of the room's number has a write open towards a
// target. The ABORT of an SGLang rank names no use, and waits for that one too (I1).
func (n *node) otherUseWrites(r *room, at ackTarget) bool {
	for _, o := range n.rooms {
		if o == r || o.number != r.number {
			continue
		}
		for _, t := range o.open {
			if t.value.pair == (pair{at.rank, at.to}) {
				return true
			}
		}
	}
	return false
}

func rankNode(rank string) string {
	if i := strings.LastIndexByte(rank, '/'); i >= 0 {
		return rank[:i]
	}
	return rank
}
