package projector

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/pdlog/pdlog/events"
)

// snapshotVersion is the form of a snapshot. It goes up with every change of
// State or of what an event does to it: a fold from a snapshot of another
// version would not be the fold of the log. A build reads its own version and
// the one before it, while there is one.
const snapshotVersion = 12

// ErrSnapshot: bytes that are no snapshot of this node's state: damaged, of
// another version, or of another node or role.
var ErrSnapshot = errors.New("snapshot cannot be used")

// Snapshot is the state after the events applied so far, in a form that
// Restore reads. Only what follows from the log is in it: take it of a Machine
// that has folded a log, not of one that has been stepped. Equal folds give
// equal bytes.
func (m *Machine) Snapshot() []byte { return m.AppendSnapshot(nil) }

// AppendSnapshot puts a Snapshot behind b. A busy node's is some 100 bytes for
// each room of the last hour: who knows how long the last one was has the room
// for it in b.
func (m *Machine) AppendSnapshot(b []byte) []byte {
	c := &coder{b: b}
	m.snapshot(c)
	return c.b
}

// Restore puts the state of a snapshot in place of an empty one; Apply goes on
// with the event after State.Seq. The pool may have another size than it had:
// pages that are gone are left out, as in a fold. On an error (ErrSnapshot) the
// machine is as it was.
func (m *Machine) Restore(b []byte) error {
	old := m.st
	m.st = newState(&m.cfg)
	c := &coder{b: b, reading: true}
	m.snapshot(c)
	if c.err == nil && len(c.b) != 0 {
		c.fail(fmt.Errorf("%d bytes are left over", len(c.b)))
	}
	if c.err != nil {
		m.st = old
		return fmt.Errorf("%w: %w", ErrSnapshot, c.err)
	}
	m.st.index()
	m.parked = parkedIn(m.st)
	clear(m.nodes)
	m.hot, m.phot = nil, nil
	return nil
}

// OldestRoom is the first sequence of the oldest room incarnation that is not
// released (decode) or not yet a receipt (prefill); the next sequence of the
// log if there is none.
func (m *Machine) OldestRoom() uint64 {
	seq := m.st.Seq + 1
	for _, rooms := range []iter.Seq[roomKey]{maps.Keys(m.st.Rooms), maps.Keys(m.st.PRooms), maps.Keys(m.st.Unsafe)} {
		for key := range rooms {
			seq = min(seq, key)
		}
	}
	return seq
}

// index rebuilds what the state keeps of its rooms in a second form.
func (st *State) index() {
	for _, key := range sortedKeys(st.Rooms) {
		r := st.Rooms[key]
		st.byNumber[r.Room] = append(st.byNumber[r.Room], key)
	}
	for _, key := range sortedKeys(st.PRooms) {
		r := st.PRooms[key]
		st.byNumber[r.Room] = append(st.byNumber[r.Room], key)
		for id := range r.Tokens {
			st.tokens[id] = key
		}
	}
	for _, rc := range st.receiptQ {
		st.Receipts[rc.Room] = append(st.Receipts[rc.Room], rc)
	}
}

func (m *Machine) snapshot(c *coder) {
	version, node, role := uint64(snapshotVersion), m.cfg.Node, m.cfg.Role
	c.u64(&version)
	text(c, &node)
	number(c, &role)
	switch {
	case c.err != nil:
		return
	case version != snapshotVersion:
		c.fail(fmt.Errorf("it has version %d, this build knows %d", version, snapshotVersion))
		return
	case node != m.cfg.Node || role != m.cfg.Role:
		c.fail(fmt.Errorf("it is of node %q, role %d, this is %q, role %d", node, role, m.cfg.Node, m.cfg.Role))
		return
	}
	m.st.code(c)
}

func (st *State) code(c *coder) {
	hlc := uint64(st.HLC)
	for _, p := range []*uint64{&st.Seq, &hlc, &st.LogSince, &st.Boot, &st.Incarnation, &st.DrainUntil, &st.LifeSince, &st.LastGen} {
		c.u64(p)
	}
	st.HLC = events.HLC(hlc)
	for _, p := range []*bool{&st.Started, &st.Clean, &st.Draining, &st.UnknownPast, &st.PastHeld, &st.OlderCopy} {
		c.flag(p)
	}
	c.bytes(&st.LogID)
	named(c, &st.Unsettled, func(_ string, p *bool) { c.flag(p) })

	numbered(c, &st.Rooms, whole(c, c.room))
	numbered(c, &st.Current, func(_ uint64, p *roomKey) { c.u64(p) })
	c.pool(st)
	c.knownRooms(st.Known)
	numbered(c, &st.Unsafe, whole(c, c.room))
	named(c, &st.Peers, func(_ string, p **Peer) {
		if c.reading {
			*p = &Peer{}
		}
		c.peer(*p)
	})
	named(c, &st.Rings, func(_ RankID, p **Ring) {
		if c.reading {
			*p = &Ring{}
		}
		c.ring(*p)
	})

	numbered(c, &st.PRooms, whole(c, c.proom))
	numbered(c, &st.PCurrent, func(_ uint64, p *roomKey) { c.u64(p) })
	named(c, &st.Endpoints, func(_ string, p **Endpoint) {
		if c.reading {
			*p = &Endpoint{}
		}
		c.endpoint(*p)
	})
	pointers(c, &st.receiptQ, c.receipt)
	named(c, &st.Watermark, func(_ string, p *uint64) { c.u64(p) })
	numbered(c, &st.Lives, func(_ uint64, p *uint64) { c.u64(p) })
	numbered(c, &st.Closed, func(_ uint64, p *bool) { c.flag(p) })
	named(c, &st.ClosedLogs, func(_ string, p *bool) { c.flag(p) })
}

// pool writes the slots that have an owner. A slot behind the end of a pool
// that has shrunk is skipped.
func (c *coder) pool(st *State) {
	type slot struct {
		at, owner uint64
		index     int32
	}
	walk := func(n int, get func(int) slot, put func(slot)) {
		var used []slot
		for i := range n {
			if s := get(i); s.owner != 0 {
				used = append(used, s)
			}
		}
		list(c, &used, func(s *slot) { c.u64(&s.at); c.u64(&s.owner); number(c, &s.index) })
		if !c.reading {
			return
		}
		for _, s := range used {
			if s.at < uint64(n) { //nolint:gosec // a length
				put(s)
			}
		}
	}
	walk(len(st.Pages), func(i int) slot { return slot{uint64(i), st.Pages[i].owner, st.Pages[i].index} }, //nolint:gosec // an index
		func(s slot) {
			st.Pages[s.at] = PageSlot{owner: s.owner, index: s.index}
			st.free.remove(int(s.at)) //nolint:gosec // an index
		})
	walk(len(st.Aux), func(i int) slot { return slot{at: uint64(i), owner: st.Aux[i]} }, //nolint:gosec // an index
		func(s slot) {
			st.Aux[s.at] = s.owner
			st.auxFree.remove(int(s.at)) //nolint:gosec // an index
		})
}

// room leaves out timer, which is of one life.
func (c *coder) room(r *Room) {
	for _, p := range []*uint64{
		&r.Room, &r.Seq, &r.OpenedAt, &r.Until, &r.PublishedAt, &r.LandedAt, &r.Gen, &r.ArmedAt, &r.CoveredAt, &r.FailedSeq,
	} {
		c.u64(p)
	}
	for _, p := range []*bool{&r.ReserveOnly, &r.TimedOut, &r.Quarantined, &r.Covered, &r.Finished} {
		c.flag(p)
	}
	c.pages(&r.Pages)
	number(c, &r.Aux)
	pointers(c, &r.Pairs, c.pair)
	number(c, &r.Outcome)
	number(c, &r.Cause)
	for _, p := range []*string{&r.Reason, &r.RequestID, &r.TraceID} {
		text(c, p)
	}
	numbered(c, &r.Copies, func(_ uint64, p *LocalCopy) { text(c, &p.To); c.flag(&p.Staged); number(c, &p.Chunk) })
	pointers(c, &r.Staged, func(s *Staged) {
		text(c, &s.To)
		for _, p := range []*uint32{&s.Chunk, &s.Pages, &s.First, &s.Count} {
			number(c, p)
		}
		c.u64(&s.From)
		named(c, &s.Ready, func(_ RankID, p *bool) { c.flag(p) })
		named(c, &s.Landed, func(_ RankID, p *bool) { c.flag(p) })
	})
	named(c, &r.AuxCopied, func(_ RankID, p *bool) { c.flag(p) })
	named(c, &r.AuxNoted, func(_ RankID, p *bool) { c.flag(p) })
}

func (c *coder) pair(p *Pair) {
	text(c, &p.Rank)
	text(c, &p.To)
	number(c, &p.WireID)
	number(c, &p.Required)
	number(c, &p.Publish)
	for _, v := range []*uint64{&p.Lease, &p.PublishAt, &p.Boot, &p.Inc, &p.LogSince, &p.SuccessAt, &p.EvidenceAt} {
		c.u64(v)
	}
	for _, v := range []*bool{&p.Dummy, &p.PDLog, &p.AuxLanded, &p.Succeeded, &p.Fencing, &p.CannotTell} {
		c.flag(v)
	}
	c.bytes(&p.LogID)
	number(c, &p.Fence)
	list(c, &p.bits, c.u64)
	number(c, &p.landed)
	number(c, &p.Evidence)
	number(c, &p.Proof)
	number(c, &p.FenceProof)
	maybe(c, &p.noted, func(n *noted) {
		numbered(c, &n.chunks, whole(c, func(k *notedChunk) {
			number(c, &k.of)
			numbered(c, &k.parts, func(_ uint64, p *bool) { c.flag(p) })
		}))
		number(c, &n.count)
		c.flag(&n.last)
	})
}

func (c *coder) peer(p *Peer) {
	text(c, &p.Node)
	for _, v := range []*bool{&p.PDLog, &p.Weak, &p.Suspect, &p.Lost} {
		c.flag(v)
	}
	for _, v := range []*uint64{&p.Boot, &p.Inc, &p.LogSince, &p.PageSize} {
		c.u64(v)
	}
	list(c, &p.Seen, func(l *SeenLife) {
		c.u64(&l.Boot)
		c.u64(&l.Seq)
	})
	c.bytes(&p.LogID)
	number(c, &p.Fence)
	number(c, &p.Form)
	text(c, &p.DType)
	number(c, &p.Missed)
	named(c, &p.Ranks, func(_ RankID, r *PeerRank) {
		text(c, &r.Rank)
		text(c, &r.Address)
		number(c, &r.WireID)
		number(c, &r.Source)
	})
}

func (c *coder) endpoint(ep *Endpoint) {
	text(c, &ep.Rank)
	text(c, &ep.Address)
	text(c, &ep.Session)
	c.u64(&ep.Boot)
	c.u64(&ep.Inc)
	c.bytes(&ep.LogID)
	maybe(c, &ep.Memory, c.memory)
	named(c, &ep.at, func(_ RankID, p *bool) { c.flag(p) })
}

func (c *coder) ring(g *Ring) {
	for _, p := range []*uint64{&g.Size, &g.Item, &g.Head, &g.NextSize, &g.NextItem} {
		c.u64(p)
	}
	list(c, &g.Live, func(s *Span) {
		c.u64(&s.Room)
		number(c, &s.Chunk)
		c.u64(&s.From)
		c.u64(&s.To)
	})
}

func (c *coder) memory(m *events.PeerMemory) {
	for _, p := range []*[]uint64{&m.KvPtrs, &m.KvItemBytes, &m.AuxPtrs} {
		list(c, p, c.u64)
	}
	pointers(c, &m.State, func(s *events.StateMemory) {
		list(c, &s.Ptrs, c.u64)
		list(c, &s.ItemBytes, c.u64)
	})
	for _, p := range []*uint32{&m.TpSize, &m.TpRank, &m.DcpSize, &m.DcpRank} {
		number(c, p)
	}
	c.pages(&m.KvLayers)
	c.u64(&m.StagingBase)
	c.u64(&m.StagingBytes)
}

// proom leaves out timer, which is of one life.
func (c *coder) proom(r *PRoom) {
	for _, p := range []*uint64{&r.Room, &r.Seq, &r.Life, &r.OpenedAt, &r.ActiveAt} {
		c.u64(p)
	}
	for _, p := range []*bool{&r.Awaited, &r.Posted, &r.Cleared, &r.SourceFree, &r.OldLife, &r.LifeClean, &r.LostUse} {
		c.flag(p)
	}
	c.ranks(&r.Expect)
	pointers(c, &r.Dests, c.dest)
	numbered(c, &r.Tokens, whole(c, func(t *Token) {
		c.u64(&t.ID)
		text(c, &t.Rank)
		text(c, &t.To)
		number(c, &t.Chunk)
		c.u64(&t.Bytes)
		c.u64(&t.PostedAt)
		c.flag(&t.Uncertain)
		c.flag(&t.Staged)
		number(c, &t.First)
		number(c, &t.Pages)
	}))
	list(c, &r.Queue, c.queued)
	number(c, &r.Outcome)
	number(c, &r.Cause)
	for _, p := range []*string{&r.Reason, &r.RequestID, &r.TraceID, &r.TermNode} {
		text(c, p)
	}
	pointers(c, &r.Targets, func(t *Target) {
		text(c, &t.Rank)
		text(c, &t.To)
		text(c, &t.Address)
		maybe(c, &t.Gen, c.u64)
		c.u64(&t.RoomSeq)
		c.bytes(&t.LogID)
		c.flag(&t.Answered)
		c.u64(&t.Repeats)
		c.flag(&t.Held)
	})
	c.prefillRanks(&r.Ranks)
	c.refused(&r.Refused)
}

func (c *coder) prefillRanks(p *map[RankID]*PRank) {
	named(c, p, func(_ RankID, r **PRank) {
		if c.reading {
			*r = &PRank{}
		}
		c.prefillRank(*r)
	})
}

func (c *coder) prefillRank(r *PRank) {
	c.flag(&r.Concluded)
	c.flag(&r.Drained)
	c.u64(&r.Writes)
}

func (c *coder) refused(p *map[[2]RankID]bool) {
	var pairs [][2]RankID
	for k, v := range *p {
		if v {
			pairs = append(pairs, k)
		}
	}
	slices.SortFunc(pairs, func(a, b [2]RankID) int { return slices.Compare(a[:], b[:]) })
	list(c, &pairs, func(k *[2]RankID) { text(c, &k[0]); text(c, &k[1]) })
	if c.reading && len(pairs) > 0 {
		*p = map[[2]RankID]bool{}
		for _, k := range pairs {
			(*p)[k] = true
		}
	}
}

func (c *coder) dest(d *Dest) {
	for _, p := range []*RankID{&d.Rank, &d.To} {
		text(c, p)
	}
	for _, p := range []*string{&d.Address, &d.Session, &d.Node} {
		text(c, p)
	}
	for _, p := range []*uint64{&d.RoomSeq, &d.Boot, &d.MetaSeq} {
		c.u64(p)
	}
	c.bytes(&d.LogID)
	c.pages(&d.Pages)
	maybe(c, &d.Aux, func(v *uint32) { number(c, v) })
	c.flag(&d.Dummy)
	number(c, &d.Required)
	pointers(c, &d.Keys, c.writeKey)
	number(c, &d.StatusTold)
	c.flag(&d.LastPosted)
}

func (c *coder) queued(q *queued) {
	c.u64(&q.seq)
	s := &q.cmd
	c.u64(&s.Room)
	c.u64(&s.RoomSeq)
	text(c, &s.Rank)
	for _, p := range []*uint32{&s.Chunk, &s.First, &s.Count} {
		number(c, p)
	}
	c.pages(&s.Pages)
	c.pages(&s.SourcePages)
	c.u64(&s.Bytes)
	c.flag(&s.Last)
	number(c, &s.SourceAux)
	c.ranks(&s.To)
}

func (c *coder) receipt(rc *Receipt) {
	c.u64(&rc.Room)
	c.u64(&rc.Seq)
	number(c, &rc.Outcome)
	c.flag(&rc.NeverSeen)
	c.flag(&rc.CannotTell)
	list(c, &rc.Ranks, func(r *ReceiptRank) {
		word(c, &r.Rank)
		c.prefillRank(&r.PRank)
	})
	list(c, &rc.Dests, func(d *ReceiptDest) {
		word(c, &d.Rank)
		word(c, &d.To)
		word(c, &d.Node)
		c.logID(&d.LogID)
		c.u64(&d.RoomSeq)
		maybe(c, &d.Gen, c.u64)
	})
}
