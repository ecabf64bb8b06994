package invariants

import (
	"fmt"
	"slices"

	"github.com/pdlog/pdlog/events"
)

// NoPage is the Page of a violation that is about no single page.
const NoPage = -1

// maxEnded bounds the ended room incarnations that are kept over all nodes, for
// writes and messages that come after the end: as many as a prefill's bounded
// receipts (projector.DefaultConfig), about a kilobyte each. A write that lands
// later still is known as one by its own event (WriteLanded.after_release).
const maxEnded = 1 << 16

type endedRoom struct {
	node *node
	seq  uint64
}

// Violation is one breach of an invariant, at one event.
type Violation struct {
	Invariant string // "I1" ... "I11"
	Node      string // whose log holds the event
	Room      uint64 // 0 = no room
	RoomSeq   uint64 // 0 = no room incarnation
	Page      int64  // NoPage if it is about no single page
	Seq       uint64 // the event that shows it
	Detail    string // one sentence
}

// String is the violation in one line.
func (v Violation) String() string {
	s := fmt.Sprintf("%s %s#%d", v.Invariant, v.Node, v.Seq)
	if v.RoomSeq != 0 {
		s += fmt.Sprintf(" room=%d/%d", v.Room, v.RoomSeq)
	}
	if v.Page != NoPage {
		s += fmt.Sprintf(" page=%d", v.Page)
	}
	return s + ": " + v.Detail
}

// Checker collects violations over a stream of events. New is the only way in.
type Checker struct {
	nodes map[string]*node
	kept  map[string]string // one copy of each name that is kept
	ended []endedRoom       // of all nodes, oldest first
	found []Violation
	late  []lateWrite // landings seen from the writer's side, settled by Finish
	chain bool
	keep  int            // ended rooms at most
	told  map[place]bool // I1 that Take handed out
}

// New is a checker that has seen nothing.
func New() *Checker {
	return &Checker{nodes: map[string]*node{}, kept: map[string]string{}, told: map[place]bool{}, keep: maxEnded}
}

// CheckChain makes the checker recompute each node's hash chain as well
// (events.md I9). It is for events read from a log; a machine's fresh events
// carry no prev_hash yet. Call it before the first Feed.
func (c *Checker) CheckChain() { c.chain = true }

// Feed takes the next event. Events of one node come in the order of their
// seq; an event of another node that is named as a cause comes before its
// effect.
func (c *Checker) Feed(e *events.Event) {
	n := c.node(e)
	c.order(n, e)
	r := n.room(e)
	if r != nil {
		c.creation(n, r, e)
	}
	switch p := e.Payload.(type) {
	case *events.Event_NodeStarted:
		n.role = p.NodeStarted.GetRole()
	case *events.Event_InvariantViolated:
		c.report(e, p.InvariantViolated.GetInvariant(), NoPage, "the node itself says: %s", p.InvariantViolated.GetDetail())
	case *events.Event_RoomSucceeded, *events.Event_RoomFailed:
		c.outcome(r, e)
	}
	c.decode(n, r, e)
	c.prefill(n, r, e)
	n.millis = events.HLC(e.Hlc).Millis()
}

// Finish settles what only the end of the history decides, and returns every
// violation in the order found. The checker must not be fed afterwards.
func (c *Checker) Finish() []Violation {
	for _, name := range c.names() {
		n := c.nodes[name]
		c.unanswered(n)
		c.lostPages(n)
	}
	c.settle(c.late)
	return c.found
}

func (c *Checker) names() []string {
	names := make([]string, 0, len(c.nodes))
	for name := range c.nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Violations are those found so far, without what Finish settles.
func (c *Checker) Violations() []Violation { return c.found }

// name is the kept copy of a name: a decoded event has strings of its own.
func (c *Checker) name(s string) string {
	if kept, ok := c.kept[s]; ok {
		return kept
	}
	c.kept[s] = s
	return s
}

// pair is a pair that is kept.
func (c *Checker) pair(rank, to string) pair { return pair{c.name(rank), c.name(to)} }

func (c *Checker) report(e *events.Event, inv string, page int64, format string, args ...any) {
	c.found = append(c.found, Violation{
		Invariant: inv, Node: e.Node, Room: e.Room, RoomSeq: e.RoomSeq, Page: page, Seq: e.Seq,
		Detail: fmt.Sprintf(format, args...),
	})
}

// node finds the record of the event's log. A log that begins anew under the
// same name is a wiped node: nothing of the old log holds but the generations,
// which never repeat (events.md, identity).
func (c *Checker) node(e *events.Event) *node {
	n := c.nodes[e.Node]
	if n == nil || (e.Seq == 1 && n.last > 0 && n.boot != e.Boot) {
		fresh := newNode(e.Node, e.Seq)
		if n != nil {
			c.unanswered(n)
			fresh.generation = n.generation
		}
		c.nodes[e.Node], n = fresh, fresh
	}
	return n
}

// order is I9.
func (c *Checker) order(n *node, e *events.Event) {
	switch {
	case n.last == 0:
	case e.Seq != n.last+1:
		c.report(e, "I9", NoPage, "seq %d follows %d", e.Seq, n.last)
		if e.Seq > n.last {
			n.hole(e.Seq)
		}
	case e.Hlc <= n.hlc:
		c.report(e, "I9", NoPage, "hlc %d does not grow: %d was before it", e.Hlc, n.hlc)
	case e.Incarnation < n.incarnation:
		c.report(e, "I9", NoPage, "incarnation %d follows %d", e.Incarnation, n.incarnation)
	}
	if c.chain {
		c.checkChain(n, e)
	}
	n.last, n.hlc, n.boot, n.incarnation = e.Seq, e.Hlc, e.Boot, e.Incarnation
}

// outcome is the first half of I6: the first terminal outcome stands.
func (c *Checker) outcome(r *room, e *events.Event) {
	if r == nil {
		return
	}
	if r.outcome != 0 {
		c.report(e, "I6", NoPage, "a second outcome, %s; the first is event %d", e.TypeName(), r.outcome)
		return
	}
	r.outcome, r.failed = e.Seq, e.GetRoomFailed() != nil
	r.refused = e.GetRoomFailed().GetCause() == events.AbortCause_ABORT_CAUSE_REFUSED
	r.endMillis, r.endBoot = events.HLC(e.Hlc).Millis(), e.Boot
}

// creation is I7, the half about messages that make rooms.
func (c *Checker) creation(n *node, r *room, e *events.Event) {
	if e.Seq != e.RoomSeq {
		return
	}
	switch e.Payload.(type) {
	case *events.Event_StatusReceived, *events.Event_AckReceived, *events.Event_WriteLanded,
		*events.Event_LateWriteRejected, *events.Event_MessageRejected, *events.Event_ChunkPosted:
		c.report(e, "I7", NoPage, "a room came into being by %s", e.TypeName())
	}
}

// checkChain recomputes the chain over the record before. One that this build
// cannot recompute is skipped over: the reader of the log verified those.
func (c *Checker) checkChain(n *node, e *events.Event) {
	if n.chainKnown && e.Seq == n.last+1 && e.PrevHash != n.chainNext {
		c.report(e, "I9", NoPage, "chain broken: have %08x, want %08x", e.PrevHash, n.chainNext)
	}
	if n.last == 0 && e.Seq == 1 && e.PrevHash != 0 {
		c.report(e, "I9", NoPage, "chain of the first record is %08x, not 0", e.PrevHash)
	}
	n.chainNext, n.chainKnown = events.ChainAfter(e)
}
