package stream

import (
	"context"
	"hash/crc32"
	"slices"
	"sort"
	"sync"

	"github.com/pdlog/pdlog/rdma"
)

// sum is the checksum of a run of bytes that landed.
type sum struct {
	off, end uint64
	crc      uint32
	known    bool // false: it came without one, or a later write cut into it
}

// sums are those of a lease: sorted, none overlapping the next. The zero value
// is empty.
type sums struct {
	mu  sync.Mutex
	all []sum
}

// add notes what landed last at a place. Of earlier runs that it overlaps the
// rest can not be checked any more.
func (s *sums) add(off uint64, n, crc uint32, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := sum{off: off, end: off + uint64(n), crc: crc, known: known}
	from := sort.Search(len(s.all), func(i int) bool { return s.all[i].end > r.off })
	to := from
	with := make([]sum, 0, 3)
	for to < len(s.all) && s.all[to].off < r.end {
		to++
	}
	if from < to && s.all[from].off < r.off {
		with = append(with, sum{off: s.all[from].off, end: r.off})
	}
	with = append(with, r)
	if from < to && s.all[to-1].end > r.end {
		with = append(with, sum{off: r.end, end: s.all[to-1].end})
	}
	s.all = slices.Replace(s.all, from, to, with...)
}

// verify reads mem again. It gives the runs that differ, joined where they
// touch. Errors: rdma.ErrNoChecksum if a run, or all, came without a checksum.
func (s *sums) verify(ctx context.Context, mem []byte) ([]rdma.Range, error) {
	s.mu.Lock()
	all := slices.Clone(s.all)
	s.mu.Unlock()
	var bad []rdma.Range
	unknown := len(all) == 0
	for _, r := range all {
		if err := ctx.Err(); err != nil {
			return bad, err
		}
		switch {
		case !r.known:
			unknown = true
		case crc32.Checksum(mem[r.off:r.end], castagnoli) == r.crc:
		case len(bad) > 0 && bad[len(bad)-1].End() == r.off:
			bad[len(bad)-1].Len += r.end - r.off
		default:
			bad = append(bad, rdma.Range{Off: r.off, Len: r.end - r.off})
		}
	}
	if unknown {
		return bad, rdma.ErrNoChecksum
	}
	return bad, nil
}
