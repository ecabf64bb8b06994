package replay

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pdlog/pdlog/events"
)

// Clocks compares the clocks of nodes by their messages. A hybrid clock that was
// pulled ahead by a message stands still until its own wall has come after, so
// that its stamps say little about when something was. But each event carries the
// node's deadline clock as well (time_offset_ms), which goes evenly through each
// start of a node; and a message that arrives cannot have been sent later. So the
// least time that messages took either way bounds how far two clocks are apart.
//
// The zero value has seen nothing.
type Clocks struct {
	lives  []life
	byNode map[string]*sentRing
	took   map[[2]int]int64 // least time of a message from one life to another, ms, by their own clocks
	off    []int64          // of each life, against the first it is connected to; nil: not worked out
}

// life is one start of a node, in which its deadline clock goes evenly.
type life struct {
	node string
	boot uint64
}

// sentRing remembers when the newest events of a node were.
type sentRing struct {
	life int
	seq  [4096]uint64
	at   [4096]int64
	by   [4096]int
}

// observe takes an event, in merged order, and says when it was by its node's
// own clock.
func (c *Clocks) observe(e *events.Event) (life int, at int64) {
	r := c.ring(e)
	at = int64(events.HLC(e.Hlc).Millis()) + e.TimeOffsetMs //nolint:gosec // 48 bits
	i := e.Seq % uint64(len(r.seq))
	r.seq[i], r.at[i], r.by[i] = e.Seq, at, r.life
	if m := e.Cause; m.GetNode() != "" && m.GetNode() != e.Node {
		if from := c.byNode[m.GetNode()]; from != nil {
			if j := m.GetSeq() % uint64(len(from.seq)); from.seq[j] == m.GetSeq() {
				c.message(from.by[j], r.life, at-from.at[j])
			}
		}
	}
	return r.life, at
}

func (c *Clocks) ring(e *events.Event) *sentRing {
	r := c.byNode[e.Node]
	if r == nil {
		if c.byNode == nil {
			c.byNode, c.took = map[string]*sentRing{}, map[[2]int]int64{}
		}
		r = &sentRing{life: -1}
		c.byNode[e.Node] = r
	}
	if r.life < 0 || c.lives[r.life].boot != e.Boot {
		r.life = len(c.lives)
		c.lives = append(c.lives, life{e.Node, e.Boot})
	}
	return r
}

func (c *Clocks) message(from, to int, took int64) {
	k := [2]int{from, to}
	if least, ok := c.took[k]; !ok || took < least {
		c.took[k], c.off = took, nil
	}
}

// offsets works out by how much each life's clock is ahead. A pair of lives with
// messages both ways is known to half of what both ways took; with one way it is
// taken that the fastest message took no time.
func (c *Clocks) offsets() []int64 {
	if c.off != nil || len(c.lives) == 0 {
		return c.off
	}
	type edge struct {
		to   int
		plus int64
		span int64 // how far off it may be
	}
	edges := make([][]edge, len(c.lives))
	for k, took := range c.took {
		plus, span := took, int64(1)<<40
		if back, ok := c.took[[2]int{k[1], k[0]}]; ok {
			plus, span = (took-back)/2, took+back
		}
		edges[k[0]] = append(edges[k[0]], edge{k[1], plus, span})
		edges[k[1]] = append(edges[k[1]], edge{k[0], -plus, span})
	}
	c.off = make([]int64, len(c.lives))
	seen := make([]bool, len(c.lives))
	for start := range c.lives {
		if seen[start] {
			continue
		}
		seen[start] = true
		for queue := []int{start}; len(queue) > 0; queue = queue[1:] {
			at := queue[0]
			slices.SortFunc(edges[at], func(a, b edge) int { return cmp.Or(cmp.Compare(a.span, b.span), cmp.Compare(a.to, b.to)) })
			for _, x := range edges[at] {
				if !seen[x.to] {
					seen[x.to] = true
					c.off[x.to] = c.off[at] + x.plus
					queue = append(queue, x.to)
				}
			}
		}
	}
	return c.off
}

// ClockOff is a node whose clock disagrees with the others'.
type ClockOff struct {
	Node    string `json:"node"`
	AheadMS int64  `json:"ahead_ms"` // negative: behind
}

// notable is a disagreement that a person should hear of: more than messages
// and schedulers explain.
const notable = 500 // ms

// Off lists the nodes whose newest clock is notably off the middle of all.
func (c *Clocks) Off() []ClockOff {
	newest := map[string]int64{}
	for i, o := range c.offsets() {
		newest[c.lives[i].node] = o
	}
	all := make([]int64, 0, len(newest))
	for _, o := range newest {
		all = append(all, o)
	}
	slices.Sort(all)
	out := []ClockOff{}
	for node, o := range newest {
		if d := o - all[(len(all)-1)/2]; d > notable || d < -notable {
			out = append(out, ClockOff{node, d})
		}
	}
	slices.SortFunc(out, func(a, b ClockOff) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// Text is the finding in one line.
func (c ClockOff) Text() string {
	if c.AheadMS < 0 {
		return fmt.Sprintf("the clock of %s is %s behind the others", c.Node, millisText(-c.AheadMS))
	}
	return fmt.Sprintf("the clock of %s is %s ahead of the others", c.Node, millisText(c.AheadMS))
}
