package node

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
)

// maxTimelines bounds the counters an engine may move: far more than it has
// streams and layers.
const maxTimelines = 1 << 16

// gate holds chunks that the engine handed over before they may leave: until
// timelines of its own have moved far enough. All of it but used belongs to the
// loop. Chunks of one rank and room leave in the order they came in.
type gate struct {
	used atomic.Bool // something has ever waited: from then on every chunk comes by here
	most int         // chunks that may wait

	points map[uint32]uint64
	lanes  map[lane][]heldChunk
	heads  map[uint32]map[lane]struct{} // by the timeline that a lane's first chunk waits for
	held   int
}

// lane is what keeps its order.
type lane struct {
	roomSeq uint64
	rank    projector.RankID
}

type heldChunk struct {
	cmd   projector.SendChunk
	after []*enginepb.Point
}

func newGate(most int) *gate {
	return &gate{most: most, points: map[uint32]uint64{}, lanes: map[lane][]heldChunk{}, heads: map[uint32]map[lane]struct{}{}}
}

// take lets a chunk through (the command to decide), or keeps it (none).
func (g *gate) take(m *projector.Machine, c projector.SendChunk, after []*enginepb.Point) ([]projector.Command, *projector.Refusal) {
	key := lane{roomSeq: c.RoomSeq, rank: c.Rank}
	if key.roomSeq == 0 {
		key.roomSeq = m.State().PCurrent[c.Room]
	}
	_, open := g.unmet(after)
	if !open && len(g.lanes[key]) == 0 {
		return []projector.Command{c}, nil
	}
	r := m.State().PRooms[key.roomSeq]
	switch {
	case r == nil || r.Room != c.Room:
		return nil, &projector.Refusal{Word: "unknown_room", Detail: fmt.Sprintf("room %d is not open: a chunk that waits needs OpenSend before it", c.Room)}
	case r.Outcome != projector.OutcomeNone:
		return []projector.Command{c}, nil // the core says what becomes of it
	case g.held >= g.most:
		return nil, &projector.Refusal{Word: "limit", Detail: fmt.Sprintf("%d chunks wait for their timelines, which is the limit", g.held)}
	}
	c.RoomSeq = key.roomSeq
	g.held++
	g.lanes[key] = append(g.lanes[key], heldChunk{cmd: c, after: after})
	if len(g.lanes[key]) == 1 {
		g.watch(key)
	}
	return nil, nil
}

// unmet is the first timeline that has not come as far as a chunk needs.
func (g *gate) unmet(after []*enginepb.Point) (timeline uint32, ok bool) {
	for _, p := range after {
		if g.points[p.Timeline] < p.Value {
			return p.Timeline, true
		}
	}
	return 0, false
}

// watch files a lane under what its first chunk waits for.
func (g *gate) watch(key lane) {
	t, _ := g.unmet(g.lanes[key][0].after)
	if g.heads[t] == nil {
		g.heads[t] = map[lane]struct{}{}
	}
	g.heads[t][key] = struct{}{}
}

// signal moves timelines and gives the chunks that may leave.
func (g *gate) signal(points []*enginepb.Point) ([]projector.Command, *projector.Refusal) {
	for _, p := range points {
		if _, known := g.points[p.Timeline]; !known && len(g.points) >= maxTimelines {
			return nil, &projector.Refusal{Word: "limit", Detail: fmt.Sprintf("%d timelines are known, which is the limit", len(g.points))}
		}
		g.points[p.Timeline] = max(g.points[p.Timeline], p.Value)
	}
	var out []projector.Command
	for _, p := range points {
		moved := make([]lane, 0, len(g.heads[p.Timeline]))
		for key := range g.heads[p.Timeline] {
			moved = append(moved, key)
		}
		slices.SortFunc(moved, func(a, b lane) int {
			return cmp.Or(cmp.Compare(a.roomSeq, b.roomSeq), cmp.Compare(a.rank, b.rank))
		})
		for _, key := range moved {
			delete(g.heads[p.Timeline], key)
			out = append(out, g.advance(key)...)
		}
		if len(g.heads[p.Timeline]) == 0 {
			delete(g.heads, p.Timeline)
		}
	}
	return out, nil
}

// advance takes what may leave off the front of a lane.
func (g *gate) advance(key lane) []projector.Command {
	var out []projector.Command
	for len(g.lanes[key]) > 0 {
		h := g.lanes[key][0]
		if _, open := g.unmet(h.after); open {
			g.watch(key)
			return out
		}
		out = append(out, h.cmd)
		g.held--
		g.lanes[key] = g.lanes[key][1:]
	}
	delete(g.lanes, key)
	return out
}

// drop gives everything that waits for a room that has ended (0: of every
// room): the core records what became of it.
func (g *gate) drop(roomSeq uint64) []projector.Command {
	var out []projector.Command
	for key, held := range g.lanes {
		if roomSeq != 0 && key.roomSeq != roomSeq {
			continue
		}
		if t, open := g.unmet(held[0].after); open {
			delete(g.heads[t], key)
			if len(g.heads[t]) == 0 {
				delete(g.heads, t)
			}
		}
		for _, h := range held {
			out = append(out, h.cmd)
		}
		g.held -= len(held)
		delete(g.lanes, key)
	}
	if roomSeq == 0 {
		clear(g.points) // the engine they belonged to is gone
	}
	return out
}

// waiting counts the chunks that wait in a room.
func (g *gate) waiting(roomSeq uint64) (n uint64) {
	if g.held == 0 {
		return 0
	}
	for key, held := range g.lanes {
		if key.roomSeq == roomSeq {
			n += uint64(len(held))
		}
	}
	return n
}
