package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/pdlog/pdlog/events"
)

const (
	pagesOfPool = 64
	peersOf     = 8 // prefill nodes that one decode node knows, at most
)

// build makes the fleet: about as many prefill as decode nodes, with one to
// three ranks, and now and then SGLang peers of earlier versions.
func (w *world) build() {
	pick3 := func() events.FenceKind {
		return pick(w, events.FenceKind_FENCE_KIND_HARD, events.FenceKind_FENCE_KIND_HARD, events.FenceKind_FENCE_KIND_READER_STOPPED, events.FenceKind_FENCE_KIND_NONE)
	}
	count := max(w.cfg.Nodes, 2)
	for i := range count {
		n := &node{w: w, idx: i, prefill: i%2 == 0, ranks: 1 + w.rng.IntN(3), policy: events.Policy_POLICY_FENCE}
		if n.prefill {
			n.name, n.fence = fmt.Sprintf("p%d", len(w.prefills)), pick3()
			n.engine = prefillEngine{rooms: map[uint64]*sending{}, freed: map[uint64]bool{}, metas: map[metaKey]uint64{}}
			w.prefills = append(w.prefills, n)
		} else {
			n.name, n.pages = fmt.Sprintf("d%d", len(w.decodes)), pagesOfPool
			n.ranks = 1 + w.rng.IntN(2)
			if w.rng.IntN(4) == 0 {
				n.policy = events.Policy_POLICY_HOLD
			}
			n.leases, n.tags, n.uses = map[uint64]*lease{}, map[uint64]*lease{}, map[uint64]*use{}
			n.owner, n.usedAt = make([]*use, n.pages), map[uint64]time.Duration{}
			for i := range n.recent {
				n.recent[i] = uint64(1 + i) //nolint:gosec // small
			}
			w.decodes = append(w.decodes, n)
		}
		n.cfg = n.config()
		w.nodes = append(w.nodes, n)
		for r := range n.ranks {
			w.at[n.address(r)] = place{node: n, rank: r}
		}
	}
	if w.rng.IntN(3) == 0 {
		for i := range 1 + w.rng.IntN(2) {
			o := &oldPrefill{w: w, idx: i, name: fmt.Sprintf("o%d", i), v1: w.rng.IntN(2) == 0, fence: pick3(), rooms: map[uint64]*oldRoom{}, count: map[uint64]int{}}
			w.olds = append(w.olds, o)
			w.at[o.address()] = place{old: o}
		}
	}
	for i, d := range w.decodes {
		for k := range min(peersOf, len(w.prefills)) {
			d.peers = append(d.peers, w.prefills[(i+k)%len(w.prefills)])
		}
		slices.SortFunc(d.peers, func(a, b *node) int { return a.idx - b.idx })
		d.olds = w.olds
	}
}
