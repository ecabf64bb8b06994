package sim

import (
	"slices"
	"time"

	"github.com/pdlog/pdlog/projector"
)

// plan is one request as the prefill side will serve it.
type plan struct {
	number  uint64
	decode  *node
	pairs   []projector.OpenPair
	pages   []uint32
	chunks  int
	prefill map[*node]*sending
}

// sending is a request on one prefill node.
type sending struct {
	plan    *plan
	node    *node
	seq     uint64 // room_seq there, once it has been opened
	ended   bool
	ranks   []int
	cleared bool
}

// openRooms lets a decode engine open rooms at random times.
func (w *world) openRooms(n *node) {
	gap := time.Duration(float64(time.Second) / w.cfg.Rate)
	var again func()
	again = func() {
		if w.healing {
			return
		}
		n.openRoom()
		w.after(w.exp(gap), again)
	}
	w.after(w.exp(gap), again)
}

func (n *node) openRoom() {
	w := n.w
	if !n.up {
		return
	}
	pl := &plan{number: 1 + w.rng.Uint64N(1<<20), decode: n, chunks: 1 + w.rng.IntN(4), prefill: map[*node]*sending{}}
	if w.chance(w.f.reuse) {
		pl.number = n.recent[w.rng.IntN(len(n.recent))]
	}
	count := 1 + w.rng.IntN(8)
	if len(n.freed) < count {
		return
	}
	pl.pages = slices.Clone(n.freed[len(n.freed)-count:]) // the newest come first: reuse at once
	w.choosePairs(pl)
	if len(pl.pairs) == 0 {
		return
	}
	reserve := w.chance(0.1)
	next := n.m.LastSeq() + 1
	w.lastUse++
	u := &use{id: w.lastUse, number: pl.number, seq: next, node: n, pages: pl.pages, plan: pl}
	for _, p := range pl.pairs {
		u.pairs = append(u.pairs, pairTruth{rank: p.Rank, to: p.To, dummy: p.Dummy, got: make([]bool, count)})
	}
	n.uses[next] = u // before the step: its effects are about it
	res := n.run(projector.OpenRoom{Room: pl.number, Pages: pl.pages, Aux: -1, Pairs: pl.pairs, Reserve: reserve})
	if res.Refused != nil || res.RoomSeq != next {
		delete(n.uses, next)
		w.refused(res.Refused)
		return
	}
	n.freed = n.freed[:len(n.freed)-count]
	for _, pg := range pl.pages {
		n.owner[pg] = u
	}
	if at := n.usedAt[pl.number]; at != 0 && w.now-at < time.Second {
		w.probe("room id used again within 1 s")
	}
	n.usedAt[pl.number] = w.now
	n.recent[w.rng.IntN(len(n.recent))] = pl.number
	if reserve {
		w.after(w.exp(10*time.Millisecond), n.guard(func() { n.run(projector.PublishRoom{Room: pl.number}) }))
	}
	w.serve(pl)
	w.abortLater(u)
}

func (w *world) refused(r *projector.Refusal) {
	if r != nil {
		w.probe("refused: " + r.Word)
	}
}

// choosePairs draws who serves a request: one prefill node with all its ranks,
// now and then two, or a rank that only takes part for form's sake.
func (w *world) choosePairs(pl *plan) {
	n := pl.decode
	type from struct {
		rank projector.RankID
		node *node
		i    int
	}
	var ranks []from
	if len(n.olds) > 0 && w.rng.IntN(4) == 0 {
		o := pick(w, n.olds...)
		ranks = append(ranks, from{rank: projector.MakeRank(o.name, 0)})
	} else {
		ps := []*node{pick(w, n.peers...)}
		if q := pick(w, n.peers...); q != ps[0] && w.rng.IntN(6) == 0 {
			ps = append(ps, q)
		}
		for _, p := range ps {
			for r := range p.ranks {
				ranks = append(ranks, from{p.rank(r), p, r})
			}
		}
	}
	dummy := w.rng.IntN(12) == 0 && len(ranks) > 1
	count := max(len(ranks), n.ranks)
	for i := range count {
		f := ranks[i*len(ranks)/count]
		p := projector.OpenPair{Rank: f.rank, To: n.rank(i * n.ranks / count), Dummy: dummy && i == count-1}
		pl.pairs = append(pl.pairs, p)
		if f.node == nil {
			continue
		}
		s := pl.prefill[f.node]
		if s == nil {
			s = &sending{plan: pl, node: f.node}
			pl.prefill[f.node] = s
		}
		if !slices.Contains(s.ranks, f.i) && !p.Dummy {
			s.ranks = append(s.ranks, f.i)
		}
	}
	for i := range pl.pairs {
		for _, q := range pl.pairs {
			if q.Rank == pl.pairs[i].Rank {
				pl.pairs[i].Required++
			}
		}
	}
}

// abortLater draws whether and when the engine aborts.
func (w *world) abortLater(u *use) {
	n := u.node
	abort := func(d time.Duration) {
		w.after(d, n.guard(func() {
			if n.uses[u.seq] == u && !u.free {
				n.abort(u)
			}
		}))
	}
	switch {
	case w.fault(w.f.abortEarly):
		w.inject("abort before metadata")
		abort(w.exp(time.Millisecond))
	case w.fault(w.f.abort):
		d := w.exp(100 * time.Millisecond)
		abort(d)
		if w.fault(w.f.abortTwice) {
			w.inject("abort twice")
			abort(d + w.exp(50*time.Millisecond))
		}
	}
}

// abort: of a room that has succeeded it is the engine's word that it is done.
func (n *node) abort(u *use) {
	n.run(projector.AbortRoom{Room: u.number})
	if r := n.m.State().Rooms[u.seq]; r == nil || r.Finished {
		u.taken = n.life // the number may be another use's from here on
	}
}

// abortStorm aborts everything a decode node has open.
func (w *world) abortStorm() {
	n := pick(w, w.decodes...)
	if !n.up {
		return
	}
	w.inject("abort storm")
	for _, seq := range sorted(n.uses) {
		if u := n.uses[seq]; u != nil && !u.free && !u.done {
			n.abort(u)
		}
	}
}

// orderFence is an operator's `pdnode fence`.
func (w *world) orderFence() {
	n := pick(w, w.decodes...)
	if !n.up {
		return
	}
	for _, seq := range sorted(n.uses) {
		u := n.uses[seq]
		if r := n.m.State().Rooms[seq]; r != nil && r.Quarantined && !u.free {
			w.inject("operator orders a fence")
			n.run(projector.FenceRoom{Room: u.number})
			return
		}
	}
}

// note learns at which event outcomes and releases were decided.
func (n *node) noteUse(seq, at uint64, release bool) {
	u := n.uses[seq]
	switch {
	case u == nil:
	case release:
		u.saidRelease = at
	default:
		u.saidOutcome = at
	}
}

// told is what an engine hears.
func (n *node) told(a projector.Tell) {
	if n.prefill {
		n.engine.told(n, a)
		return
	}
	w := n.w
	u := n.uses[a.RoomSeq]
	if u == nil {
		return
	}
	said := u.saidOutcome
	if a.Kind == projector.TellReleased {
		said = u.saidRelease
	}
	if said == 0 || said > n.durable {
		w.fail("log before wire", "%s tells its engine of room %d/%d what event %d says; the disk has %d", n.name, a.Room, a.RoomSeq, said, n.durable)
		return
	}
	switch a.Kind {
	case projector.TellSucceeded:
		n.succeeded(u)
	case projector.TellFailed:
		if u.good {
			w.fail("I6", "%s: room %d/%d succeeded, and then failed", n.name, u.number, u.seq)
			return
		}
		u.ended = true
		for i := range u.pairs {
			u.pairs[i].armed = true
		}
	case projector.TellReleased:
		if u.free {
			w.fail("I11", "%s: room %d/%d is released twice", n.name, u.number, u.seq)
			return
		}
		n.released(u)
	}
}

func (n *node) succeeded(u *use) {
	w := n.w
	if u.good {
		return
	}
	if u.ended {
		w.fail("I6", "%s: room %d/%d failed, and then succeeded", n.name, u.number, u.seq)
		return
	}
	if !u.whole() {
		w.fail("I6", "%s: room %d/%d succeeded, and bytes are missing", n.name, u.number, u.seq)
		return
	}
	w.probe("room succeeded")
	u.ended, u.good = true, true
	w.after(w.exp(50*time.Millisecond), func() { n.finish(u) }) // it decodes
}

// finish: the engine is done with a room. It asks again until a node takes it.
func (n *node) finish(u *use) {
	if n.uses[u.seq] != u || u.free || u.taken == n.life {
		return
	}
	if !n.up {
		n.w.after(time.Second, func() { n.finish(u) })
		return
	}
	u.done = true
	switch r := n.run(projector.FinishRoom{Room: u.number}).Refused; {
	case r == nil:
		u.taken = n.life
	case r.Word == "not_ready": // it stops: its next life takes it
		n.w.after(time.Second, func() { n.finish(u) })
		return
	default:
		n.w.fail("I6", "%s: the engine is done with room %d/%d, and the node says: %s", n.name, u.number, u.seq, r)
		return
	}
	if n.w.fault(n.w.f.doubleFinish) {
		n.w.inject("pages freed twice")
		n.run(projector.FinishRoom{Room: u.number})
	}
}

func (n *node) released(u *use) {
	u.free = true
	delete(n.uses, u.seq)
	for _, pg := range u.pages {
		if n.owner[pg] == u {
			n.owner[pg] = nil
			n.freed = append(n.freed, pg)
		}
	}
}

// reconcile is an engine that finds its node in another life: it looks at what
// has become of its rooms.
func (n *node) reconcile() {
	st := n.m.State()
	for _, seq := range sorted(n.uses) {
		u := n.uses[seq]
		r := st.Rooms[seq]
		switch {
		case r == nil:
			n.released(u)
		case r.Outcome == projector.OutcomeSucceeded && !u.good:
			n.succeeded(u)
		case r.Outcome == projector.OutcomeSucceeded && !r.Finished:
			n.finish(u)
		case u.good && r.Outcome != projector.OutcomeSucceeded:
			n.w.fail("told before durable", "%s: the engine was told that room %d/%d succeeded; after the restart the log does not say so", n.name, u.number, u.seq)
			return
		case r.Outcome == projector.OutcomeFailed:
			u.ended = true
		}
	}
	// What a lost log had given away is nobody's until the past is settled.
	held := map[uint32]bool{}
	for _, seq := range sorted(n.uses) {
		for _, pg := range n.uses[seq].pages {
			held[pg], n.owner[pg] = true, n.uses[seq]
		}
	}
	n.freed = n.freed[:0]
	for pg := range n.owner {
		if !held[uint32(pg)] { //nolint:gosec // small
			n.owner[pg] = nil
			n.freed = append(n.freed, uint32(pg)) //nolint:gosec // small
		}
	}
	n.w.rng.Shuffle(len(n.freed), func(i, j int) { n.freed[i], n.freed[j] = n.freed[j], n.freed[i] })
}
