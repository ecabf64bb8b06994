package sim

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// use is one room incarnation as the decode engine lives it: the simulation's
// truth of who owns which pages.
type use struct {
	id     uint64
	number uint64
	seq    uint64
	node   *node
	pages  []uint32
	pairs  []pairTruth
	plan   *plan
	ended  bool // failed or succeeded, as the engine was told
	good   bool // succeeded
	done   bool // finish was called
	taken  int  // the life of the node that took it: its number may be another use's from then on
	free   bool // the engine may hand the pages out again

	saidOutcome, saidRelease uint64 // seq of the events, once decided
}

// pairTruth is what truly landed of one pair.
type pairTruth struct {
	rank, to projector.RankID
	dummy    bool
	got      []bool // by place in use.pages
	armed    bool
}

// lease is one pair's permission to write, under two keys: one for the pages,
// one for a whole buffer.
type lease struct {
	id      uint64
	tag     uint64
	use     *use
	rank    projector.RankID
	to      projector.RankID
	life    int
	revoked [2]bool
}

func (l *lease) revoke() { l.revoked[0], l.revoked[1] = true, true }

// decodeSide is the memory of a decode node and its engine.
type decodeSide struct {
	leases map[uint64]*lease // by id
	tags   map[uint64]*lease // by tag, of the present log
	uses   map[uint64]*use   // by room_seq, of the present log
	owner  []*use            // by page: who may have its bytes there
	freed  []uint32          // pages the engine may hand out, newest last
	recent [8]uint64         // room numbers of late
	usedAt map[uint64]time.Duration
	armed  int
}

// write is one posted write.
type write struct {
	from    *node // nil: of an old peer
	life    int
	roomSeq uint64 // of the prefill node
	token   uint64
	rank    projector.RankID
	to      *node
	toRank  projector.RankID
	lease   *lease
	key     int
	room    uint64
	chunk   uint32
	pages   []uint32
	last    bool
	done    func(o projector.WriteOutcome, landed bool, why string)
}

func (n *node) forgetUses(kept uint64) {
	if n.prefill {
		n.engine.lost(kept)
		return
	}
	for seq, u := range n.uses {
		if seq > kept {
			delete(n.uses, seq)
			u.free = true
		}
	}
	for tag, l := range n.tags {
		if tag > kept || n.uses[l.use.seq] != l.use {
			delete(n.tags, tag)
		}
	}
}

// publish grants the lease and sends the metadata.
func (n *node) publish(a projector.SendMetadata) {
	w := n.w
	u := n.uses[a.RoomSeq]
	res := projector.PublishResult{RoomSeq: a.RoomSeq, Rank: a.Rank, To: a.To}
	if u == nil {
		w.fail("truth", "%s publishes room %d/%d, which its engine did not open", n.name, a.Room, a.RoomSeq)
		return
	}
	if a.Lease > n.durable {
		w.fail("log before wire", "%s grants lease %d; the disk has %d", n.name, a.Lease, n.durable)
		return
	}
	if p := u.pair(a.Rank, a.To); p != nil && p.armed {
		w.fail("I6", "%s publishes room %d/%d to %s after its end", n.name, a.Room, a.RoomSeq, a.Rank)
		return
	}
	if !a.Dummy {
		w.lastLease++
		l := &lease{id: w.lastLease, tag: a.Lease, use: u, rank: a.Rank, to: a.To, life: n.life}
		n.leases[l.id], n.tags[l.tag] = l, l
		if a.WithExt {
			a.Ext.Keys = []*events.WriteKey{{Kind: 1, Provider: "sim", Endpoint: n.address(a.To.Index()), Key: binary.BigEndian.AppendUint64(nil, l.id)}}
		}
	}
	if w.fault(w.f.loss / 10) {
		w.inject("publish fails")
		res.Err = "connection refused"
	} else {
		m, err := backends.FromMetadata(a, n.self(a.To))
		n.must(n.send(msgMetadata, a.To, a.Address, m, err, a.Ext.CauseSeq))
	}
	w.after(0, n.guard(func() { n.run(res) }))
}

func (u *use) pair(rank, to projector.RankID) *pairTruth {
	for i := range u.pairs {
		if u.pairs[i].rank == rank && u.pairs[i].to == to {
			return &u.pairs[i]
		}
	}
	return nil
}

func (n *node) fenceLease(a projector.Fence) {
	w := n.w
	w.probe("lease fired")
	kind := w.fenceOf(a.Rank.Node())
	w.after(w.fenceTime(), n.guard(func() {
		res := projector.FenceResult{RoomSeq: a.RoomSeq, Lease: a.Lease, Evidence: kind, TookUS: 1000, Method: "sim"}
		switch {
		case kind == events.FenceKind_FENCE_KIND_NONE:
			res.Reason = "the provider cannot prove the end of the peer's writes"
		case w.fault(w.f.fenceFails):
			w.inject("fence fails")
			res.Evidence, res.Reason = events.FenceKind_FENCE_KIND_NONE, "the queue pair does not answer"
		default:
			n.revoke(a.Lease)
		}
		n.tell(res)
	}))
}

func (n *node) revoke(tag uint64) {
	if l := n.tags[tag]; l != nil && n.w.fenceOf(l.rank.Node()) != events.FenceKind_FENCE_KIND_NONE {
		l.revoke()
		if !n.w.cfg.keep() {
			delete(n.leases, l.id)
			delete(n.tags, tag)
		}
	}
}

// post takes a write of a pdlog node.
func (n *node) post(a projector.PostWrite) {
	w := n.w
	d := w.at[a.Address]
	if d.node == nil {
		w.fail("truth", "%s writes to %s, where nobody is", n.name, a.Address)
		return
	}
	n.engine.checkPost(n, a)
	x := &write{
		from: n, life: n.life, roomSeq: a.RoomSeq, token: a.Token, rank: a.Rank, to: d.node, toRank: a.To,
		room: a.Room, chunk: a.Chunk, pages: a.Pages, last: a.Last, key: int(a.Chunk) % 2,
	}
	if len(a.Keys) > 0 && len(a.Keys[0].Key) == 8 {
		x.lease = d.node.leases[binary.BigEndian.Uint64(a.Keys[0].Key)]
	}
	life := n.life
	x.done = func(o projector.WriteOutcome, landed bool, why string) {
		if n.life == life && n.up {
			n.tell(projector.WriteDone{Token: a.Token, Outcome: o, Landed: landed, Reason: why})
		}
	}
	w.launch(x)
}

// launch lets a write run as the dice say.
func (w *world) launch(x *write) {
	takes := w.exp(2*time.Millisecond) + w.stallOf(x)
	switch {
	case w.fault(w.f.late):
		w.inject("write lands late")
		more := min(w.exp(w.f.longest/4), w.f.longest)
		w.after(takes, func() { x.done(projector.WriteUncertain, false, "the completion did not come") })
		w.after(takes+more, func() { w.land(x, x.pages, x.last, projector.WriteDrained) })
	case w.fault(w.f.partial):
		w.inject("write lands in part")
		w.after(takes, func() { x.done(projector.WriteUncertain, false, "an error, with the transfer under way") })
		w.after(takes+w.exp(time.Second), func() { w.land(x, x.pages[:len(x.pages)/2], false, projector.WriteDrained) })
	case w.fault(w.f.failed):
		w.inject("write fails")
		w.after(takes, func() { x.done(projector.WriteFailed, false, "the queue pair is in error") })
	case w.fault(w.f.hang):
		w.inject("write hangs")
		w.after(w.between(10*time.Second, 60*time.Second), func() { w.land(x, x.pages, x.last, projector.WriteCompleted) })
	default:
		w.after(takes, func() { w.land(x, x.pages, x.last, projector.WriteCompleted) })
	}
}

// land puts bytes into the target's memory, unless the key is revoked. A
// process that has died may have given its writes to the network card already.
func (w *world) land(x *write, pages []uint32, last bool, end projector.WriteOutcome) {
	from := ""
	if x.from != nil {
		from = x.from.name
	}
	if from != "" && w.cutNames(from, x.to.name) {
		w.after(200*time.Millisecond, func() { w.land(x, pages, last, end) })
		return
	}
	d := x.to
	l := x.lease
	if l == nil || l.revoked[x.key] {
		if l != nil && d.up {
			seq := l.use.seq
			if d.uses[seq] != l.use {
				seq = 0
			}
			w.probe("fence refused a write")
			d.tell(projector.LateWrite{Lease: l.tag, Room: l.use.number, RoomSeq: seq, Rank: x.rank, To: x.toRank, Pages: pages, Writes: 1})
		}
		x.done(projector.WriteFailed, false, "refused: the key is revoked")
		return
	}
	if !d.up && w.fenceOf(x.rank.Node()) == events.FenceKind_FENCE_KIND_READER_STOPPED { // the reader has died with its process
		x.done(projector.WriteFailed, false, "the connection is gone")
		return
	}
	if x.from != nil && x.from.life == x.life && x.from.engine.freed[x.roomSeq] {
		w.fail("I8", "%s: a write of room %d/%d reads source pages that were given back", x.from.name, x.room, x.roomSeq)
		return
	}
	w.bytes(x, pages)
	if d.up {
		var seq, tag uint64
		if d.uses[l.use.seq] == l.use {
			seq, tag = l.use.seq, l.tag
		}
		d.tell(projector.Landed{Lease: tag, Room: x.room, RoomSeq: seq, Rank: x.rank, To: x.toRank, Pages: pages, Aux: last, Bytes: uint64(len(pages)) << 16, Chunk: x.chunk})
	}
	x.done(end, true, "")
}

// bytes holds a landing against the truth: invariant I1.
func (w *world) bytes(x *write, pages []uint32) {
	d, u := x.to, x.lease.use
	p := u.pair(x.rank, x.toRank)
	for _, pg := range pages {
		switch o := d.owner[pg]; {
		case o == u:
			if i := slices.Index(u.pages, pg); i >= 0 && p != nil {
				p.got[i] = true
			}
		case !d.offers(): // an unknown past: nobody is given the page
			w.probe("late write under an unknown past")
		case o == nil:
			w.fail("I1", "truth: chunk %d of %s (room %d/%d) landed in page %d of %s, which is free", x.chunk, x.rank, u.number, u.seq, pg, d.name)
			return
		default:
			w.fail("I1", "truth: chunk %d of %s (room %d/%d) landed in page %d of %s, which room %d/%d owns", x.chunk, x.rank, u.number, u.seq, pg, d.name, o.number, o.seq)
			return
		}
	}
}

// offers: the node's pages can be handed out, its past is settled.
func (n *node) offers() bool { return n.m != nil && n.up && len(n.m.State().Unsettled) == 0 }

// checkPages is the engine's checksum over what has landed.
func (n *node) checkPages(a projector.CheckPages) {
	n.w.after(time.Millisecond, n.guard(func() {
		c := projector.PagesChecked{RoomSeq: a.RoomSeq}
		if u := n.uses[a.RoomSeq]; u != nil && !u.whole() {
			n.w.fail("I6", "%s takes room %d/%d for complete, and bytes are missing", n.name, a.Room, a.RoomSeq)
			return
		}
		if n.w.fault(0.02) {
			c.Skipped = "no checksums"
		}
		n.tell(c)
	}))
}

// whole: every rank that owes pages has written all of them.
func (u *use) whole() bool {
	for _, p := range u.pairs {
		if !p.dummy && slices.Contains(p.got, false) {
			return false
		}
	}
	return true
}

// copyAux copies an aux row that came as a message. The copy takes its time, and
// is a write like any other.
func (n *node) copyAux(a projector.CopyAux) {
	u := n.uses[a.RoomSeq]
	n.w.probe("aux row by message")
	if u == nil || u.ended {
		n.w.fail("I6", "%s starts to copy an aux row of room %d/%d after its end", n.name, a.Room, a.RoomSeq)
		return
	}
	n.w.after(n.w.exp(time.Second), n.guard(func() {
		if u.free {
			n.w.fail("I1", "%s copies into the aux row of room %d/%d after its release", n.name, a.Room, a.RoomSeq)
			return
		}
		n.tell(projector.CopyDone{RoomSeq: a.RoomSeq, Token: a.Token})
	}))
}

// stallPair lets a queue pair stand still for a while.
func (w *world) stallPair() {
	w.inject("queue pair stalls")
	d := pick(w, w.decodes...)
	w.stalls[link{pick(w, d.peers...).name, d.name}] = w.now + w.between(100*time.Millisecond, 10*time.Second)
}

func (w *world) stallOf(x *write) time.Duration {
	return max(0, w.stalls[link{x.rank.Node(), x.to.name}]-w.now)
}

// registerAnew: a decode engine registers its memory anew; all keys are void.
func (w *world) registerAnew() {
	n := pick(w, w.decodes...)
	if !n.up {
		return
	}
	w.inject("memory registered anew")
	for _, l := range n.leases {
		if w.fenceOf(l.rank.Node()) != events.FenceKind_FENCE_KIND_NONE {
			l.revoke()
		}
	}
	n.tell(projector.ReRegister{Memory: &events.MemoryRegistered{Name: "kv", Pages: uint64(n.pages)}}) //nolint:gosec // positive
	for _, p := range n.peers {
		if p.up {
			n.register(p, p.bootID)
		}
	}
}
