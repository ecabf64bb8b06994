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
	newest int64            // physical time of the latest stamp of all, ms
	off    []int64          // of each life, against the first it is connected to, ms; nil: not worked out
	span   []int64          // how far off that may be, ms
}

// life is one start of a node, in which its deadline clock goes evenly. Its wall
// clock may have been set meanwhile.
type life struct {
	node string
	boot uint64
	set  int64 // wall minus deadline clock, ms, as of the newest stamp that was the wall's own
	lead stamp // the newest stamp that was ahead of all nodes'
}

// stamp is an event's physical time, and how far the deadline clock was behind it.
type stamp struct{ phys, ahead int64 }

// stamped looks for the wall clock behind a hybrid stamp. One that is ahead of all
// that was stamped before comes from the wall, or from a message that stands in
// no log; the latter stands still, so that two that went on evenly are the wall.
func (l *life) stamped(s stamp) {
	if d := s.ahead - l.lead.ahead; s.phys > l.lead.phys && d <= closeBy && d >= -closeBy {
		l.set = s.ahead
	}
	l.lead = s
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
	phys := int64(events.HLC(e.Hlc).Millis()) //nolint:gosec // 48 bits
	at = phys + e.TimeOffsetMs
	if phys > c.newest {
		c.newest = phys
		c.lives[r.life].stamped(stamp{phys, -e.TimeOffsetMs})
	}
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
		c.lives = append(c.lives, life{node: e.Node, boot: e.Boot})
	}
	return r
}

func (c *Clocks) message(from, to int, took int64) {
	k := [2]int{from, to}
	if least, ok := c.took[k]; !ok || took < least {
		c.took[k], c.off = took, nil
	}
}

// oneWay is how far off a pair may be that messages went only one way between: no
// bound is known.
const oneWay = int64(1) << 40 // ms

// offsets works out by how much each life's clock is ahead. A pair of lives with
// messages both ways is known to half of what both ways took; with one way it is
// taken that the fastest message took no time. Lives that no message joins are
// reached over those that are known best.
func (c *Clocks) offsets() []int64 {
	if c.off != nil || len(c.lives) == 0 {
		return c.off
	}
	type edge struct {
		to         int
		plus, span int64 // ms; span: how far off plus may be, either way
	}
	edges := make([][]edge, len(c.lives))
	for k, took := range c.took {
		plus, span := took, oneWay
		if back, ok := c.took[[2]int{k[1], k[0]}]; ok {
			plus, span = (took-back)/2, (took+back+1)/2
		}
		edges[k[0]] = append(edges[k[0]], edge{k[1], plus, span})
		edges[k[1]] = append(edges[k[1]], edge{k[0], -plus, span})
	}
	for _, e := range edges {
		slices.SortFunc(e, func(a, b edge) int { return cmp.Or(cmp.Compare(a.span, b.span), cmp.Compare(a.to, b.to)) })
	}
	c.off, c.span = make([]int64, len(c.lives)), make([]int64, len(c.lives))
	seen := make([]bool, len(c.lives))
	for start := range c.lives {
		if seen[start] {
			continue
		}
		seen[start] = true
		for queue := []int{start}; len(queue) > 0; queue = queue[1:] {
			at := queue[0]
			for _, x := range edges[at] {
				if !seen[x.to] {
					seen[x.to] = true
					c.off[x.to], c.span[x.to] = c.off[at]+x.plus, min(c.span[at]+x.span, oneWay)
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
	// WithinMS is how far off the estimate may be, either way, as far as the
	// messages tell; nil: they went one way only.
	WithinMS *int64 `json:"within_ms"`
}

// notable is a disagreement that a person should hear of: more than messages
// and schedulers explain.
const notable = 500 // ms

// Off lists the nodes whose newest wall clock is notably off the middle of all.
func (c *Clocks) Off() []ClockOff {
	c.offsets()
	newest := map[string]int{}
	for i := range c.lives {
		newest[c.lives[i].node] = i
	}
	wall := func(i int) int64 { return c.off[i] + c.lives[i].set }
	all := make([]int64, 0, len(newest))
	for _, i := range newest {
		all = append(all, wall(i))
	}
	slices.Sort(all)
	out := []ClockOff{}
	for node, i := range newest {
		d := wall(i) - all[(len(all)-1)/2]
		if d <= notable && d >= -notable {
			continue
		}
		f := ClockOff{Node: node, AheadMS: d}
		if within := c.span[i]; within < oneWay {
			f.WithinMS = &within
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b ClockOff) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// Text is the finding in one line.
func (c ClockOff) Text() string {
	d, way := c.AheadMS, "ahead of"
	if d < 0 {
		d, way = -d, "behind"
	}
	how := "messages went one way only: it may be more"
	if c.WithinMS != nil {
		how = "give or take " + millisText(*c.WithinMS) + ", by their messages"
	}
	return fmt.Sprintf("the clock of %s is %s %s the others' (%s); order here comes from messages and sequences", c.Node, millisText(d), way, how)
}
