package invariants

// A checker that follows a fleet for ever is asked now and then for what is
// late for good, hands its findings out, and says how far back a successor
// would have to read.

// overdue is how long something may stay undone before Overdue reports it, in
// ms of the logs' clocks: far above every group commit, retry and reconnect.
const overdue = 60_000

// told bounds the places of reported I1 violations that Take remembers.
const maxTold = 1 << 16

// place is where an I1 violation was seen.
type place struct {
	number uint64
	page   int64
}

// Bound limits the ended rooms that are kept over all nodes: what comes after the
// end of older ones is judged with less. Call it before the first Feed.
func (c *Checker) Bound(ended int) { c.keep = ended }

// Take returns the violations found since the last Take, without what Finish or
// Overdue would settle. What it returned is not returned by Finish.
func (c *Checker) Take() []Violation {
	out := c.found
	c.found = nil
	for _, v := range out {
		if v.Invariant == "I1" {
			if len(c.told) >= maxTold {
				clear(c.told)
			}
			c.told[place{v.Room, v.Page}] = true
		}
	}
	return out
}

// Overdue reports, once each, what Finish would report of things that are late
// for good: the logs went on for a minute without them. Take hands them out.
func (c *Checker) Overdue() {
	now := uint64(0)
	for _, name := range c.names() {
		n := c.nodes[name]
		now = max(now, n.millis)
		c.unansweredFor(n, overdue)
		c.lostPages(n)
	}
	waiting := c.late[:0]
	var due []lateWrite
	for _, l := range c.late {
		if now > l.millis+overdue {
			due = append(due, l)
		} else {
			waiting = append(waiting, l)
		}
	}
	c.late = waiting
	c.settle(due)
}

// Needs is the oldest event of a node that a checker would have to be fed again
// to judge what comes: the first of its oldest room that has not ended, or the
// last one seen. peers are the rooms of other nodes that those rooms write to:
// the lowest room_seq of each.
func (c *Checker) Needs(name string) (seq uint64, peers map[string]uint64) {
	n := c.nodes[name]
	if n == nil {
		return 0, nil
	}
	seq, peers = n.last, map[string]uint64{}
	for _, r := range n.rooms {
		if r.gone {
			continue
		}
		seq = min(seq, r.seq)
		for _, d := range r.dests {
			if at, ok := peers[d.value.node]; d.value.seq != 0 && (!ok || d.value.seq < at) {
				peers[d.value.node] = d.value.seq
			}
		}
	}
	return seq, peers
}
