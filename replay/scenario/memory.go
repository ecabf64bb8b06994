package scenario

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/pdlog/pdlog/projector"
)

// memory is the simulation's own truth: which bytes landed where, and when.
type memory struct {
	w           *world
	pages       map[pageAt]*pageTruth
	corruptions []corruption
	waiting     []*write // landings that wait for a heal
}

type pageAt struct {
	to   projector.RankID
	page uint32
}

// pageTruth is who wrote the slices of a page: prefill rank -> room incarnation.
type pageTruth struct {
	parts map[projector.RankID]uint64
	bad   bool
}

// corruption is a page that was changed under an owner's feet, or after it was
// released.
type corruption struct {
	node      string
	page      uint32
	victim    uint64 // room number
	victimSeq uint64
	none      bool // nobody owned it
	writer    projector.RankID
	room      uint64 // the writer's
	chunk     uint32
}

// sendSpec is what the file says of one send: how its writes behave.
type sendSpec struct {
	rank   projector.RankID
	room   uint64
	chunk  uint32
	takes  time.Duration
	result string
	more   time.Duration
	used   map[projector.RankID]bool
}

// write is one posted write.
type write struct {
	from    node
	life    int
	token   uint64
	rank    projector.RankID
	to      projector.RankID
	room    uint64
	chunk   uint32
	pages   []uint32
	last    bool
	lease   uint64
	done    func(projector.WriteOutcome, bool, string)
	outcome projector.WriteOutcome // once landed
}

func (m *memory) init() { m.pages = map[pageAt]*pageTruth{} }

func (m *memory) at(to projector.RankID, page uint32) *pageTruth {
	k := pageAt{to, page}
	t := m.pages[k]
	if t == nil {
		t = &pageTruth{parts: map[projector.RankID]uint64{}}
		m.pages[k] = t
	}
	return t
}

// spec finds what the file says of a write to one destination.
func (m *memory) spec(rank projector.RankID, room uint64, chunk uint32, to projector.RankID) *sendSpec {
	for _, s := range m.w.specs {
		if s.rank == rank && s.room == room && s.chunk == chunk && !s.used[to] {
			s.used[to] = true
			return s
		}
	}
	return nil
}

// post takes a write of a pdlog node.
func (m *memory) post(n *pdNode, a projector.PostWrite) {
	x := &write{from: n, life: n.life, token: a.Token, rank: a.Rank, to: a.To, room: a.Room, chunk: a.Chunk, pages: a.Pages, last: a.Last}
	if len(a.Keys) > 0 && len(a.Keys[0].Key) == 8 {
		x.lease = binary.BigEndian.Uint64(a.Keys[0].Key)
	}
	life := n.life
	x.done = func(o projector.WriteOutcome, landed bool, why string) {
		if n.life == life && n.up {
			n.step(projector.WriteDone{Token: a.Token, Outcome: o, Landed: landed, Reason: why})
		}
	}
	m.start(x)
}

// start lets a write run as its send says.
func (m *memory) start(x *write) {
	if d, ok := m.w.nodes[x.to.Node()].(*pdNode); ok && x.lease == 0 {
		if l := d.leaseOf(x); l != nil { // what it was told when it posted
			x.lease = l.key
		}
	}
	s := m.spec(x.rank, x.room, x.chunk, x.to)
	if s == nil {
		s = &sendSpec{result: "ok"}
	}
	m.w.after(s.takes, func() {
		switch s.result {
		case "ok":
			x.outcome = projector.WriteCompleted
			m.land(x, x.pages)
		case "error":
			x.done(projector.WriteFailed, false, "transfer error")
		case "hang":
		case "late", "partial":
			x.done(projector.WriteUncertain, false, "transfer "+s.result)
			m.w.after(s.more, func() {
				x.outcome = projector.WriteDrained
				pages := x.pages
				if s.result == "partial" {
					pages = pages[:(len(pages)+1)/2]
					x.last = false
				}
				m.land(x, pages)
			})
		}
	})
}

// land puts bytes into the target's memory, unless the lease is revoked. In a
// cut it waits for the heal.
func (m *memory) land(x *write, pages []uint32) {
	if m.w.net.cut(x.from.def().name, x.to.Node()) {
		x.pages = pages
		m.waiting = append(m.waiting, x)
		return
	}
	d, ok := m.w.nodes[x.to.Node()].(*pdNode)
	if !ok { // an old peer: nothing is known of its memory
		x.done(x.outcome, true, "")
		return
	}
	l := d.leaseOf(x)
	if l != nil && l.revoked {
		seq := l.roomSeq
		if l.wipes != d.wipes {
			seq = 0 // of a log that is gone
		}
		d.step(projector.LateWrite{Lease: l.tag, Room: l.room, RoomSeq: seq, Rank: x.rank, To: x.to, Pages: pages, Writes: 1})
		x.done(projector.WriteFailed, false, "refused: the key is revoked")
		return
	}
	var roomSeq, tag uint64
	if l != nil && l.wipes == d.wipes {
		roomSeq, tag = l.roomSeq, l.tag
	}
	for _, pg := range pages {
		v := d.view.Page(pg)
		t := m.at(x.to, pg)
		t.parts[x.rank] = roomSeq
		switch {
		case v.Seq != 0 && v.Seq == roomSeq:
			t.bad = false
			continue
		case v.Seq == 0 && d.m.Page(pg).State == "quarantined": // an unknown past: the page is nobody's to harm
			continue
		}
		t.bad = v.Seq != 0
		m.corruptions = append(m.corruptions, corruption{node: d.d.name, page: pg, victim: v.Room, victimSeq: v.Seq, none: v.Seq == 0, writer: x.rank, room: x.room, chunk: x.chunk})
	}
	d.step(projector.Landed{Lease: tag, Room: x.room, RoomSeq: roomSeq, Rank: x.rank, To: x.to, Pages: pages, Aux: x.last, Bytes: uint64(len(pages)), Chunk: x.chunk})
	x.done(x.outcome, true, "")
}

// leaseOf finds the lease a write goes through: the one its key names, or, for
// a peer that was given none, the newest of its pair.
func (n *pdNode) leaseOf(x *write) *lease {
	if x.lease != 0 {
		return n.leases[x.lease]
	}
	var best *lease
	var bestKey uint64
	for key, l := range n.leases {
		if l.room == x.room && l.rank == x.rank && l.to == x.to && (best == nil || key > bestKey) {
			best, bestKey = l, key
		}
	}
	return best
}

func (m *memory) healed() {
	ready := m.waiting
	m.waiting = nil
	for _, x := range ready {
		m.land(x, x.pages)
	}
}

// corrupt changes bytes of a page outside any transfer.
func (m *memory) corrupt(n *pdNode, page uint32) {
	v := n.view.Page(page)
	m.corruptions = append(m.corruptions, corruption{node: n.d.name, page: page, victim: v.Room, none: v.Seq == 0})
	for r := range n.d.ranks {
		m.at(projector.MakeRank(n.d.name, r), page).bad = true
	}
}

// check compares a room's pages with what its own ranks wrote.
func (m *memory) check(n *pdNode, a projector.CheckPages) []projector.PageReport {
	r := n.m.State().Rooms[a.RoomSeq]
	if r == nil {
		return nil
	}
	var bad []projector.PageReport
	for _, pg := range a.Pages {
		for _, to := range a.Ranks {
			t := m.at(to, pg)
			ok := !t.bad
			for _, p := range r.Pairs {
				if p.To == to && !p.Dummy && t.parts[p.Rank] != a.RoomSeq {
					ok = false
				}
			}
			if !ok {
				bad = append(bad, projector.PageReport{Room: a.Room, Page: pg, To: to, Detail: "bytes changed after they landed"})
				break
			}
		}
	}
	return bad
}

func splitNames(v string) []string {
	return slices.DeleteFunc(strings.Split(v, ","), func(s string) bool { return s == "" })
}

// truth lists the corruptions that a transfer made.
func (m *memory) truth() []Corruption {
	var out []Corruption
	for _, c := range m.corruptions {
		if c.writer != "" {
			out = append(out, Corruption{
				Node: c.node, Page: c.page, Victim: c.victim, VictimSeq: c.victimSeq, Writer: string(c.writer), WriterRoom: c.room, Chunk: c.chunk,
			})
		}
	}
	return out
}
