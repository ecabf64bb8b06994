package invariants

import (
	"fmt"

	"github.com/pdlog/pdlog/events"
)

// lateWrite is a write that ended, landed, after its pages were released, as
// the writer's log tells it.
type lateWrite struct {
	at     Violation
	room   *room // of the decode node
	pair   pair
	page   uint32
	millis uint64 // when the writer's log has it
}

// closed ends a write. If its bytes landed and the decode incarnation it went
// to had been released by then, that is I1 from the writer's side: the decode
// node may never have seen it land. It is settled by Finish, when every
// refusal of the decode node is known.
func (c *Checker) closed(n *node, e *events.Event, id uint64, landed bool) {
	t := n.tokens[id]
	delete(n.tokens, id)
	if t == nil {
		return
	}
	t.room.open.remove(id)
	if !landed {
		return
	}
	d := t.room.dests.get(t.pair)
	dn := c.nodes[d.node]
	if d.seq == 0 || dn == nil {
		return
	}
	r := dn.rooms[d.seq]
	if r == nil || r.released == nil || r.number != t.room.number {
		return
	}
	pub := r.published.get(t.pair)
	if pub == nil || pub.landed.has(t.chunk) {
		return // the decode node saw it land, in time
	}
	if _, proven := r.released.evidence.find(t.pair); proven && !t.vouched {
		return // the drain it rests on is after the end of this write
	}
	for _, page := range t.pages {
		v := Violation{
			Invariant: "I1", Node: n.name, Room: e.Room, RoomSeq: e.RoomSeq, Page: int64(page), Seq: e.Seq,
			Detail: fmt.Sprintf("chunk %d of %s landed on %s after the release of room %s (event %d there)",
				t.chunk, t.pair.rank, t.pair.to, dn.roomName(r.seq), r.released.seq),
		}
		c.late = append(c.late, lateWrite{at: v, room: r, pair: t.pair, page: page, millis: events.HLC(e.Hlc).Millis()})
	}
}

// settle reports the late writes that nothing on the decode node refused and
// that it did not report itself.
func (c *Checker) settle(late []lateWrite) {
	seen := map[place]bool{}
	for _, v := range c.found {
		if v.Invariant == "I1" {
			seen[place{v.Room, v.Page}] = true
		}
	}
	for _, l := range late {
		at := place{l.at.Room, l.at.Page}
		pub := l.room.published.get(l.pair)
		if pub.fenced || pub.rejected || seen[at] || c.told[at] || !l.room.whole { // or may have been
			continue
		}
		c.found = append(c.found, l.at)
	}
}
