package bootstrap

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// maxRanks bounds the ranks kept of one topology. The largest deployments
// have some thousands; a million is out of reach but for a flood.
const maxRanks = 1 << 20

var errTooManyRanks = errors.New("too many ranks are registered")

// place is a rank's place in the topology.
type place struct{ dp, cp, tp, pp int }

// pullAddr is where a rank listens, as it was registered.
type pullAddr struct {
	ip   string
	port uint16
}

// shape is what all ranks of one topology agree on (http.md 3).
type shape struct {
	tpSize, cpSize, dpSize, ppSize int
	pageSize                       int
	kvCacheDType                   string
}

// expected is the number of ranks of a complete topology. Four sizes of 65536
// make 2^64, so it saturates: a product that wrapped to 0 would be ready.
func (s shape) expected() uint64 {
	n := uint64(1)
	for _, size := range [...]int{s.dpSize, s.cpSize, s.tpSize, s.ppSize} {
		hi, lo := bits.Mul64(n, uint64(size)) //nolint:gosec // 1 … 65536
		if hi != 0 {
			return math.MaxUint64
		}
		n = lo
	}
	return n
}

// table holds the ranks of the current topology; one without ranks is empty.
type table struct {
	limit int // of ranks
	shape shape
	first Registration // the one that started the topology
	ranks map[place]pullAddr
}

func shapeAndPlace(r Registration) (shape, place) {
	dpSize, dp := r.SystemDPSize, r.SystemDPRank
	if r.SystemDPSize == 1 {
		dpSize, dp = r.AttnDPSize, r.AttnDPRank
	}
	return shape{r.AttnTPSize, r.AttnCPSize, dpSize, r.PPSize, r.PageSize, r.KVCacheDType},
		place{dp, r.AttnCPRank, r.AttnTPRank, r.PPRank}
}

// put enters a valid registration. changed reports that it dropped another
// topology; the very first one changes nothing.
func (t *table) put(r Registration) (changed bool, err error) {
	s, p := shapeAndPlace(r)
	if t.ranks == nil || s != t.shape {
		changed = t.ranks != nil
		*t = table{limit: t.limit, shape: s, first: r, ranks: make(map[place]pullAddr)}
	}
	if _, known := t.ranks[p]; !known && len(t.ranks) >= t.limit {
		return false, errTooManyRanks
	}
	t.ranks[p] = pullAddr{r.RankIP, r.RankPort}
	return changed, nil
}

// ready reports that every rank of the topology is there, each counted once
// (F32).
func (t *table) ready() bool {
	return t.ranks != nil && uint64(len(t.ranks)) == t.shape.expected()
}

// String is for log lines; a long dtype, which anyone may send, is cut.
func (s shape) String() string {
	dtype := s.kvCacheDType
	if len(dtype) > 64 {
		dtype = dtype[:64]
	}
	return fmt.Sprintf("tp=%d cp=%d dp=%d pp=%d page_size=%d kv_cache_dtype=%q",
		s.tpSize, s.cpSize, s.dpSize, s.ppSize, s.pageSize, dtype)
}
