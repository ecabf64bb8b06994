package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// oldPrefill is an SGLang prefill rank of an earlier version (wire.md 4.2): v2
// answers an ABORT with rank and room when its count of running chunks is 0, v1
// with a mere receipt at once. It keeps no log, and takes any return of a
// transfer call for its end, so its writes are only ever late by a hang.
type oldPrefill struct {
	w     *world
	idx   int
	name  string
	v1    bool
	fence events.FenceKind
	rooms map[uint64]*oldRoom
	count map[uint64]int // running chunks, by room number alone
}

type oldRoom struct {
	plan    *plan
	dests   []*backends.Metadata
	failed  bool
	told    bool
	begun   bool
	left    int
	served  int // dests that were there when it began
	targets []place
}

func (o *oldPrefill) address() string { return fmt.Sprintf("10.99.%d.%d:5000", o.idx>>8, o.idx&255) }
func (o *oldPrefill) wireID() uint32  { return uint32(60000 + o.idx) } //nolint:gosec // small

func (n *node) discoverOld(o *oldPrefill) {
	w := n.w
	w.after(w.latency(), n.guard(func() {
		c := projector.PeerDiscovered{
			Node: o.name, Fence: o.fence, Form: events.AckForm_ACK_FORM_V2, PageSize: 64, DType: "auto",
			Ranks: []projector.PeerRank{{Rank: projector.MakeRank(o.name, 0), Address: o.address(), WireID: o.wireID()}},
		}
		if o.v1 {
			c.Form = events.AckForm_ACK_FORM_V1
		}
		n.tell(c)
	}))
}

func (o *oldPrefill) serve(pl *plan) {
	if !slices.ContainsFunc(pl.pairs, func(p projector.OpenPair) bool { return p.Rank.Node() == o.name }) {
		return
	}
	o.w.after(o.w.exp(20*time.Millisecond), func() {
		if r := o.room(pl.number); r.plan == nil {
			r.plan = pl
			o.flush(pl.number, r)
		}
	})
}

func (o *oldPrefill) room(n uint64) *oldRoom {
	if r := o.rooms[n]; r == nil || r.failed || r.told {
		o.rooms[n] = &oldRoom{}
	}
	return o.rooms[n]
}

func (o *oldPrefill) receive(_ int, f backends.Frames) {
	switch m := o.w.dialect.Decode(backends.AtPrefill, f).(type) {
	case *backends.Metadata:
		r := o.room(m.Room)
		r.dests = append(r.dests, m)
		o.flush(m.Room, r)
	case *backends.Abort:
		o.abort(m)
	}
}

func (o *oldPrefill) flush(n uint64, r *oldRoom) {
	if r.plan == nil || r.begun || len(r.dests) == 0 || int(r.dests[0].RequiredDstInfoNum) > len(r.dests) {
		return
	}
	r.begun, r.served = true, len(r.dests)
	for _, m := range r.dests {
		to, ok := o.w.at[m.Peer.Key()]
		if !ok || m.IsDummy || to.node == nil {
			continue
		}
		pages := make([]uint32, len(m.DstPageIndices))
		for i, p := range m.DstPageIndices {
			pages[i] = uint32(p) //nolint:gosec // decoded >= 0
		}
		o.count[n]++
		r.left++
		x := &write{rank: projector.MakeRank(o.name, 0), to: to.node, toRank: to.node.rank(to.rank), room: n, pages: pages, last: true}
		x.lease = to.node.newestLease(n, x.rank, x.toRank, pages)
		ended := false
		x.done = func(out projector.WriteOutcome, _ bool, _ string) {
			if ended {
				return
			}
			ended = true
			o.count[n]--
			r.left--
			if out != projector.WriteCompleted {
				o.conclude(n, r, false)
			} else if r.left == 0 {
				o.conclude(n, r, true)
			}
			o.drain(n, r)
		}
		if x.lease == nil { // an address that was given up: the transfer call fails
			o.w.after(0, func() { x.done(projector.WriteFailed, false, "") })
			continue
		}
		o.w.after(o.w.exp(5*time.Millisecond), func() { o.w.land(x, pages, true, projector.WriteCompleted) })
		if !o.v1 {
			o.auxByMessage(n, to, m)
		}
	}
}

// auxByMessage sends an aux row as a message, late or twice at times.
func (o *oldPrefill) auxByMessage(n uint64, to place, m *backends.Metadata) {
	f, err := o.w.dialect.Encode(&backends.AuxData{Room: n, AuxIndex: m.AuxIndex.Or(0), Data: []byte{1, 2, 3, 4}})
	if err != nil {
		return // the dialect has no such message
	}
	o.w.after(o.w.exp(50*time.Millisecond), func() { o.w.transmit(msgAux, place{old: o}, to, f) })
}

// newestLease is what a peer without keys writes through: the address it was
// told.
func (n *node) newestLease(room uint64, rank, to projector.RankID, pages []uint32) *lease {
	var best *lease
	for _, l := range n.leases {
		if l.use.number == room && l.rank == rank && l.to == to && slices.Equal(l.use.pages, pages) && (best == nil || l.id > best.id) {
			best = l
		}
	}
	return best
}

func (o *oldPrefill) abort(m *backends.Abort) {
	to, ok := o.w.at[m.Peer.Key()]
	r := o.rooms[m.Room]
	if r != nil && !r.told {
		r.failed = true
	}
	switch {
	case !ok:
	case o.v1:
		o.reply(to, msgAck, &backends.AbortAck{Room: m.Room})
	case r == nil:
		if o.count[m.Room] == 0 {
			o.ack(m.Room, to)
		}
	default:
		if !slices.Contains(r.targets, to) {
			r.targets = append(r.targets, to)
		}
		o.drain(m.Room, r)
	}
}

func (o *oldPrefill) ack(room uint64, to place) {
	o.reply(to, msgAck, &backends.AbortAck{Room: room, PrefillRank: backends.Some(int32(o.wireID()))}) //nolint:gosec // small
}

func (o *oldPrefill) reply(to place, kind msgKind, m backends.Message) {
	if f, err := o.w.dialect.Encode(m); err == nil {
		o.w.transmit(kind, place{old: o}, to, f)
	}
}

func (o *oldPrefill) drain(n uint64, r *oldRoom) {
	if o.count[n] > 0 {
		return
	}
	for _, to := range r.targets {
		o.ack(n, to)
	}
	r.targets = nil
}

func (o *oldPrefill) conclude(n uint64, r *oldRoom, good bool) {
	if r.told || r.failed {
		return
	}
	r.told, r.failed = good, !good
	st := &backends.Status{Room: n, Status: backends.PollFailed, PrefillRank: int32(o.wireID())} //nolint:gosec // small
	if good {
		st.Status = backends.PollSuccess
	}
	dests := r.dests
	if good { // not what came when the room was under way, of another decode node with the same number
		dests = dests[:r.served]
	}
	for _, d := range dests {
		if to, known := o.w.at[d.Peer.Key()]; known && !d.IsDummy {
			o.reply(to, msgStatus, st)
		}
	}
}
