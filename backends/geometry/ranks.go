package geometry

import "fmt"

// Model says how the attention of a model spreads its KV over the TP ranks of
// an engine.
type Model uint8

const (
	// GQA (MHA too): each TP rank holds its own heads, a part of every page.
	GQA Model = iota
	// MLA: every TP rank holds the same whole page; all but one of the ranks
	// that a decode rank deals with are dummies.
	MLA
	// HybridMLA: the KV is as in MLA, but other state is the rank's own: there
	// are no dummies, prefill itself skips the KV on all but the first rank.
	HybridMLA
)

// Sizes is the parallel shape of one side; each is at least 1.
type Sizes struct{ TP, CP, PP int }

// maxRanks bounds what a peer's topology can make us list.
const maxRanks = 1 << 16

func (s Sizes) check(side string) error {
	if s.TP < 1 || s.CP < 1 || s.PP < 1 || s.TP > maxRanks || s.CP > maxRanks || s.PP > maxRanks || s.TP*s.CP*s.PP > maxRanks {
		return fmt.Errorf("%s tp %d, cp %d, pp %d: each must be at least 1, the product at most %d", side, s.TP, s.CP, s.PP, maxRanks)
	}
	return nil
}

// Rank is a place in Sizes. The DP group is not part of it: a room lives in one.
type Rank struct{ TP, CP, PP int }

// Unique is prefill_unique_rank, the number an ABORT_ACK and a status carry
// (wire.md 4.3).
func (s Sizes) Unique(r Rank) uint32 {
	return uint32(r.TP*(s.PP*s.CP) + r.PP*s.CP + r.CP) //nolint:gosec // below maxRanks
}

// At is the rank of a unique number; ok is false if there is none.
func (s Sizes) At(unique uint32) (r Rank, ok bool) {
	if s.check("") != nil || int(unique) >= s.TP*s.CP*s.PP {
		return Rank{}, false
	}
	u := int(unique)
	return Rank{TP: u / (s.PP * s.CP), PP: u / s.CP % s.PP, CP: u % s.CP}, true
}

func (s Sizes) has(r Rank) bool {
	return r.TP >= 0 && r.TP < s.TP && r.CP >= 0 && r.CP < s.CP && r.PP >= 0 && r.PP < s.PP
}

// Pairing is what both sides must know to agree on who writes to whom.
type Pairing struct {
	Prefill Sizes
	Decode  Sizes // CP must be 1
	Model   Model
	// AllCP: every CP rank of prefill sends. It is on by
	// SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER, by a hybrid MLA decode, or by
	// prefill's enable_dsa_cache_layer_split.
	AllCP bool
}

// Target is a prefill rank that a decode rank sends metadata to.
type Target struct {
	Rank
	Unique uint32
	Dummy  bool // concludes the room, but writes nothing and sends no status
}

// Mapping is one decode rank's part of a room.
type Mapping struct {
	// Targets are in the order they are contacted in.
	Targets []Target
	// RequiredDst is required_dst_info_num: how many decode ranks each of the
	// targets must hear from.
	RequiredDst int
	// Successes is how many distinct ranks must report success
	// (required_prefill_response_num): the targets that are not dummies.
	Successes int
}

// Acks are the unique ranks of which each must prove its drain, dummies
// included, in the order of Targets.
func (m Mapping) Acks() []uint32 {
	ids := make([]uint32, len(m.Targets))
	for i, t := range m.Targets {
		ids[i] = t.Unique
	}
	return ids
}

// Check reports shapes that do not fit together.
func (p Pairing) Check() error {
	if err := p.Prefill.check("prefill"); err != nil {
		return err
	}
	if err := p.Decode.check("decode"); err != nil {
		return err
	}
	big, small := max(p.Prefill.TP, p.Decode.TP), min(p.Prefill.TP, p.Decode.TP)
	switch {
	case p.Decode.CP != 1:
		return fmt.Errorf("decode cp is %d: it must be 1", p.Decode.CP)
	case big%small != 0:
		return fmt.Errorf("prefill tp %d and decode tp %d: one must divide the other", p.Prefill.TP, p.Decode.TP)
	case p.Decode.PP != 1 && p.Decode.PP != p.Prefill.PP:
		return fmt.Errorf("prefill pp %d and decode pp %d: decode must have 1 or as many", p.Prefill.PP, p.Decode.PP)
	}
	return nil
}

// cps is how many CP ranks of prefill take part, from 0 up.
func (p Pairing) cps() int {
	if p.AllCP {
		return p.Prefill.CP
	}
	return 1
}

// tps is the TP set of a decode rank: n ranks from first on.
func (p Pairing) tps(decodeTP int) (first, n int) {
	if p.Decode.TP >= p.Prefill.TP {
		return decodeTP / (p.Decode.TP / p.Prefill.TP), 1
	}
	n = p.Prefill.TP / p.Decode.TP
	return decodeTP * n, n
}

// requiredDst is how many decode ranks one prefill rank serves.
func (p Pairing) requiredDst() int { return max(1, p.Decode.TP/p.Prefill.TP) }

// Map lists the prefill ranks that a decode rank deals with: CP by TP by PP,
// PP from the highest down. engineRank is taken modulo the decode TP size, pp
// is the decode rank's own pipeline stage (wire.md 4.3).
func (p Pairing) Map(engineRank, pp int) (Mapping, error) {
	if err := p.Check(); err != nil {
		return Mapping{}, err
	}
	if engineRank < 0 || pp < 0 || pp >= p.Decode.PP {
		return Mapping{}, fmt.Errorf("engine rank %d, pp %d: no rank of a decode with tp %d, pp %d", engineRank, pp, p.Decode.TP, p.Decode.PP)
	}
	hi, lo := p.Prefill.PP-1, 0
	if p.Decode.PP == p.Prefill.PP {
		hi, lo = pp, pp
	}
	first, n := p.tps(engineRank % p.Decode.TP)
	m := Mapping{RequiredDst: p.requiredDst(), Targets: make([]Target, 0, p.cps()*n*(hi-lo+1))}
	for cp := range p.cps() {
		for tp := first; tp < first+n; tp++ {
			for st := hi; st >= lo; st-- {
				t := Target{Rank: Rank{TP: tp, CP: cp, PP: st}, Dummy: p.Model == MLA && tp != first}
				t.Unique = p.Prefill.Unique(t.Rank)
				if !t.Dummy {
					m.Successes++
				}
				m.Targets = append(m.Targets, t)
			}
		}
	}
	return m, nil
}

// Served lists the decode ranks that send metadata to a prefill rank: Map seen
// from the other side. None: no room reaches the rank.
func (p Pairing) Served(r Rank) ([]Rank, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	if !p.Prefill.has(r) {
		return nil, fmt.Errorf("tp %d, cp %d, pp %d: no rank of prefill", r.TP, r.CP, r.PP)
	}
	if r.CP >= p.cps() {
		return nil, nil
	}
	pp := 0
	if p.Decode.PP == p.Prefill.PP {
		pp = r.PP
	}
	n := p.requiredDst()
	first := r.TP * n
	if p.Prefill.TP > p.Decode.TP {
		first = r.TP / (p.Prefill.TP / p.Decode.TP)
	}
	out := make([]Rank, n)
	for i := range out {
		out[i] = Rank{TP: first + i, PP: pp}
	}
	return out, nil
}

// SendsKV reports whether a prefill rank writes KV pages to a decode rank that
// it serves: with MLA only the first rank of the TP set does.
func (p Pairing) SendsKV(r Rank) bool {
	if p.Model == GQA || p.Prefill.TP <= p.Decode.TP {
		return true
	}
	return r.TP%(p.Prefill.TP/p.Decode.TP) == 0
}
