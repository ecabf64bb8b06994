package node

import (
	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/projector"
)

// topology is a prefill node's shape: its rank i is tp*(pp*cp) + pp*cp + cp
// (prefill_unique_rank, wire.md 4.3).
type topology struct {
	tp, cp, pp int
	allCP      bool // every CP rank sends
}

func (t topology) unique(tp, pp, cp int) int { return tp*(t.pp*t.cp) + pp*t.cp + cp }

// pairsOf lists who writes to whom in a room that spans all ranks of both
// nodes, decode having `local` TP ranks (wire.md 4.3). Every prefill rank that
// serves a decode rank writes its own part of each page.
func pairsOf(prefill string, t topology, decode string, local int) ([]projector.OpenPair, error) {
	var per, required int
	first := func(r int) int { return r }
	switch {
	case t.tp == local:
		per, required = 1, 1
	case local > t.tp && local%t.tp == 0:
		per, required = 1, local/t.tp
		first = func(r int) int { return r / (local / t.tp) }
	case t.tp > local && t.tp%local == 0:
		per, required = t.tp/local, 1
		first = func(r int) int { return r * (t.tp / local) }
	default:
		return nil, errors.Newf("%d prefill ranks do not divide over %d decode ranks", t.tp, local)
	}
	cps := 1
	if t.allCP {
		cps = t.cp
	}
	var out []projector.OpenPair
	for r := range local {
		for cp := range cps {
			for tp := first(r); tp < first(r)+per; tp++ {
				for pp := t.pp - 1; pp >= 0; pp-- { // contacted from the highest down
					out = append(out, projector.OpenPair{
						Rank: projector.MakeRank(prefill, t.unique(tp, pp, cp)), To: projector.MakeRank(decode, r),
						Required: uint32(required), //nolint:gosec // ranks
					})
				}
			}
		}
	}
	return out, nil
}
