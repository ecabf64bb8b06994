package node

import (
	"github.com/pdlog/pdlog/backends/geometry"
	"github.com/pdlog/pdlog/projector"
)

// topology is a prefill node's shape: its rank i is prefill_unique_rank
// (wire.md 4.3).
type topology struct {
	tp, cp, pp int
	allCP      bool // every CP rank sends
}

func (t topology) sizes() geometry.Sizes { return geometry.Sizes{TP: t.tp, CP: t.cp, PP: t.pp} }

func (t topology) unique(tp, pp, cp int) int {
	return int(t.sizes().Unique(geometry.Rank{TP: tp, PP: pp, CP: cp}))
}

// pairsOf lists who writes to whom in a room that spans all ranks of both
// nodes, decode having `local` TP ranks (wire.md 4.3). The pages are opaque
// here, so every prefill rank that serves a decode rank writes its own part of
// each page and none is a dummy; a caller who knows the model names its pairs
// itself.
func pairsOf(prefill string, t topology, decode string, local int) ([]projector.OpenPair, error) {
	p := geometry.Pairing{Prefill: t.sizes(), Decode: geometry.Sizes{TP: local, CP: 1, PP: 1}, AllCP: t.allCP}
	var out []projector.OpenPair
	for r := range local {
		m, err := p.Map(r, 0)
		if err != nil {
			return nil, err
		}
		for _, x := range m.Targets {
			out = append(out, projector.OpenPair{
				Rank: projector.MakeRank(prefill, int(x.Unique)), To: projector.MakeRank(decode, r),
				Required: uint32(m.RequiredDst), //nolint:gosec // ranks
			})
		}
	}
	return out, nil
}
