package node

import (
	"github.com/pdlog/pdlog/backends/geometry"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// topology is a prefill instance's shape (wire.md 2, 4.3).
type topology struct {
	tp, cp, pp, dp int
	allCP          bool // every CP rank sends
	follow         bool // a room's DP group is its number modulo dp
}

// place is a rank's place in its instance.
type place struct{ dp, tp, pp, cp int }

func (t topology) sizes() geometry.Sizes { return geometry.Sizes{TP: t.tp, CP: t.cp, PP: t.pp} }

// unique is prefill_unique_rank, which does not count DP groups: a room lives
// in one (wire.md 4.3).
func (t topology) unique(p place) int {
	return int(t.sizes().Unique(geometry.Rank{TP: p.tp, PP: p.pp, CP: p.cp}))
}

// index counts on over the DP groups.
func (t topology) index(p place) int { return p.dp*t.tp*t.pp*t.cp + t.unique(p) }

// source is the rank's number in NIXL's notifications, pp_rank*tp_size +
// engine_rank (wire.md 1.10). That an engine rank counts DP groups, then CP
// ranks, then TP ranks is inferred.
func (t topology) source(p place) int {
	return p.pp*t.dp*t.cp*t.tp + (p.dp*t.cp+p.cp)*t.tp + p.tp
}

// places lists all ranks, DP group by DP group.
func (t topology) places() []place {
	var out []place
	for dp := range t.dp {
		for tp := range t.tp {
			for pp := range t.pp {
				for cp := range t.cp {
					out = append(out, place{dp: dp, tp: tp, pp: pp, cp: cp})
				}
			}
		}
	}
	return out
}

// group is the DP group of a room, if its number says it.
func (t topology) group(room uint64) (dp int, ok bool) {
	switch {
	case t.dp <= 1:
		return 0, true
	case t.follow:
		return int(room % uint64(t.dp)), true //nolint:gosec // below dp
	}
	return 0, false
}

// place is that of local rank i.
func (c TopologyConfig) place(i int) place {
	return place{dp: c.DPRank, tp: c.TPRank + i, pp: c.PPRank, cp: c.CPRank}
}

// record is the place of local rank 0, for the log.
func (c TopologyConfig) record() *events.Place {
	n := func(i int) uint32 { return uint32(max(i, 0)) } //nolint:gosec // ranks
	return &events.Place{
		TpSize: n(c.TPSize), TpRank: n(c.TPRank), PpSize: n(c.PPSize), PpRank: n(c.PPRank), CpSize: n(c.CPSize), CpRank: n(c.CPRank),
	}
}

func (c TopologyConfig) shape() topology {
	return topology{tp: c.TPSize, cp: c.CPSize, pp: c.PPSize, dp: c.DPSize}
}

// sourceOf is a local rank's number in NIXL's notifications.
func (n *Node) sourceOf(rank projector.RankID) int32 {
	t := n.cfg.topology()
	return int32(t.shape().source(t.place(rank.Index()))) //nolint:gosec // ranks
}

// pairsOf lists who writes to whom in a room of one DP group that spans all
// local ranks, decode having `local` TP ranks (wire.md 4.3). The pages are
// opaque here, so every prefill rank that serves a decode rank writes its own
// part of each page and none is a dummy; a caller who knows the model names its
// pairs itself. ranks are the names of the instance's ranks by index.
func pairsOf(ranks map[int]projector.RankID, t topology, dp int, decode string, local int) ([]projector.OpenPair, error) {
	p := geometry.Pairing{Prefill: t.sizes(), Decode: geometry.Sizes{TP: local, CP: 1, PP: 1}, AllCP: t.allCP}
	var out []projector.OpenPair
	for r := range local {
		m, err := p.Map(r, 0)
		if err != nil {
			return nil, err
		}
		for _, x := range m.Targets {
			out = append(out, projector.OpenPair{
				Rank: ranks[dp*t.tp*t.pp*t.cp+int(x.Unique)], To: projector.MakeRank(decode, r),
				Required: uint32(m.RequiredDst), //nolint:gosec // ranks
			})
		}
	}
	return out, nil
}
