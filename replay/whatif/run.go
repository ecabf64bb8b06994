package whatif

import (
	"cmp"
	"context"
	"slices"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
)

// Run replays every decode log among logs under the plan. The logs of prefill
// nodes show late writes that a decode node did not see. An error is one of
// package replay's; a decode log that does not begin at its first event is an
// ErrBadSource: the state before it is not there.
func Run(ctx context.Context, logs []*replay.Log, plan Plan) (*Result, error) {
	h := replay.NewHistory()
	nodes := map[string]*node{}
	for e, err := range replay.Merge(ctx, logs) {
		if err != nil {
			return nil, err
		}
		h.Add(e)
		if s := e.GetNodeStarted(); s != nil && s.GetRole() == events.Role_ROLE_DECODE && nodes[e.Node] == nil {
			if e.Seq != 1 {
				return nil, errors.Wrapf(replay.ErrBadSource, "the log of %s begins at event %d: the state before it is not here", e.Node, e.Seq)
			}
			nodes[e.Node] = newNode(plan)
		}
		if n := nodes[e.Node]; n != nil {
			n.remember(e)
		}
	}
	if len(nodes) == 0 {
		return nil, errors.Wrap(replay.ErrBadSource, "no decode node's log, from its first event on, is among the sources")
	}
	incidents := replay.Blame(h)
	res := &Result{Policy: events.EnumWord(plan.Policy.Descriptor(), plan.Policy.Number()), Rooms: []RoomFate{}}
	if plan.AckTimeout != 0 {
		ms := plan.AckTimeout.Milliseconds()
		res.AckTimeoutMS = &ms
	}
	res.Corruptions.Recorded = len(incidents)
	for name, n := range nodes {
		n.expect(h, name, incidents)
		if err := n.replay(ctx, name, logs); err != nil {
			return nil, err
		}
		res.Unplaced += n.unplaced
		if n.why != "" {
			res.UnplacedWhy = n.why
		}
		res.Corruptions.UnderPolicy += len(n.harm) + len(n.nobody)
	}
	compare(res, h, nodes)
	return res, nil
}

// remember notes what the recorded publishes said and the fences came to.
func (n *node) remember(e *events.Event) {
	switch p := e.Payload.(type) {
	case *events.Event_PublishStarted:
		n.told[pairKey{e.RoomSeq, replay.PairKey{Rank: e.Rank, To: p.PublishStarted.GetTo()}}] = p.PublishStarted
	case *events.Event_Fenced:
		k := pairKey{e.RoomSeq, replay.PairKey{Rank: e.Rank, To: p.Fenced.GetTo()}}
		n.fences[k] = append(n.fences[k], fenced{e.Seq, p.Fenced.GetEvidence()})
	case *events.Event_FenceFailed:
		k := pairKey{e.RoomSeq, replay.PairKey{Rank: e.Rank, To: p.FenceFailed.GetTo()}}
		n.fences[k] = append(n.fences[k], fenced{e.Seq, events.FenceKind_FENCE_KIND_NONE})
	}
}

// expect takes the incidents that the decode log's own landings do not show.
func (n *node) expect(h *replay.History, name string, incidents []*replay.Incident) {
	type place struct {
		page   uint32
		writer uint64
	}
	seen := map[place]bool{}
	for _, l := range h.Landings {
		if l.Node != name {
			continue
		}
		for _, pg := range l.Pages {
			if l.After {
				seen[place{pg, l.Room.Seq}] = true
			}
		}
	}
	for _, in := range incidents {
		switch {
		case in.Node != name:
		case in.Writer == nil || in.WriterRoomSeq == nil:
			if in.VictimRoomSeq != nil {
				n.nobody[pageKey{*in.VictimRoomSeq, in.Page}] = true
			}
		case seen[place{in.Page, *in.WriterRoomSeq}]:
		default:
			a := arrival{room: *in.WriterRoomSeq, page: in.Page, seq: in.CheckFailedSeq}
			if in.WriteLandedAt != nil {
				a.ms, a.seq = uint64(in.WriteLandedAt.UnixMilli()), 0
			}
			for k := range h.Room(replay.RoomKey{Node: name, Seq: a.room}).Pairs {
				if k.Rank == *in.Writer {
					a.pair = k
				}
			}
			n.late = append(n.late, a)
		}
	}
}

func (n *node) replay(ctx context.Context, name string, logs []*replay.Log) error {
	var mine []*replay.Log
	for _, l := range logs {
		if l.Node == name {
			mine = append(mine, l)
		}
	}
	for e, err := range replay.Merge(ctx, mine) {
		if err != nil {
			return err
		}
		n.feed(e)
	}
	for _, a := range n.late {
		n.lateArrival(a)
	}
	return nil
}

// compare lists the rooms that held pages after an abort in either run.
func compare(res *Result, h *replay.History, nodes map[string]*node) {
	var recorded, under []span
	for _, rec := range h.Rooms {
		n := nodes[rec.Node]
		if n == nil {
			continue
		}
		r := n.rooms[rec.Seq]
		if r == nil || r.seq == 0 || !rec.Armed.Is() && r.armed == 0 {
			continue
		}
		f := RoomFate{Node: rec.Node, Room: rec.Number, RoomSeq: rec.Seq, Pages: len(rec.Pages)}
		old := span{node: rec.Node, pages: len(rec.Pages)}
		if rec.Armed.Is() {
			old.from, old.to = millisOf(rec.Armed), n.lastMS
			if rec.Released != nil {
				f.Recorded.Basis, old.to = &rec.Released.Basis, millisOf(rec.Released.Mark)
			}
		}
		made := span{node: rec.Node, pages: len(rec.Pages)}
		if r.armed != 0 {
			made.from, made.to = r.armed, n.lastMS
			if r.released != 0 {
				word := events.EnumWord(r.basis.Descriptor(), r.basis.Number())
				f.UnderPolicy.Basis, made.to = &word, r.released
			}
		}
		f.Recorded.HeldMS, f.UnderPolicy.HeldMS = old.ms(), made.ms()
		f.Changed = !same(f.Recorded, f.UnderPolicy)
		if f.Changed {
			res.ReleasesChanged++
		}
		res.HeldPageSeconds.Recorded += old.pageSeconds()
		res.HeldPageSeconds.UnderPolicy += made.pageSeconds()
		recorded, under = append(recorded, old), append(under, made)
		res.Rooms = append(res.Rooms, f)
	}
	res.PeakHeldPages = Both[int]{Recorded: peak(recorded), UnderPolicy: peak(under)}
}

// sameMS: two releases that differ by no more than the clock's own grain are
// the same.
const sameMS = 1

func same(a, b Fate) bool {
	d := a.HeldMS - b.HeldMS
	return (a.Basis == nil) == (b.Basis == nil) && (a.Basis == nil || *a.Basis == *b.Basis) && -sameMS <= d && d <= sameMS
}

func millisOf(m replay.Mark) uint64 { return events.HLC(m.HLC).Millis() }

// span is the time that a room's pages were held after its abort, in ms.
type span struct {
	node     string
	from, to uint64
	pages    int
}

func (s span) ms() int64 { return int64(max(s.to, s.from) - s.from) }

func (s span) pageSeconds() float64 { return float64(s.ms()) / 1000 * float64(s.pages) }

// peak is the most pages held at once, over the nodes together.
func peak(spans []span) int {
	type edge struct {
		at    uint64
		pages int
	}
	var edges []edge
	for _, s := range spans {
		if s.from != 0 {
			edges = append(edges, edge{s.from, s.pages}, edge{max(s.to, s.from), -s.pages})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.pages, b.pages)) })
	most, now := 0, 0
	for _, e := range edges {
		now += e.pages
		most = max(most, now)
	}
	return most
}
