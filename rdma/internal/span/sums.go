package span

import (
	"context"
	"hash/crc32"
	"slices"
	"sort"
	"sync"

	"github.com/pdlog/pdlog/rdma"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is the CRC32C of b, by the processor's own instruction where it has one.
func Checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// sum is the checksum of a run of bytes that landed.
type sum struct {
	off, end uint64
	crc      uint32
	known    bool // false: it came without one, or a later write cut into it
}

// Sums are those of a lease: sorted, none overlapping the next. The zero value
// is empty.
type Sums struct {
	mu  sync.Mutex
	all []sum
}

// Add notes what landed last at a place. Of earlier runs that it overlaps the
// rest can not be checked any more.
func (s *Sums) Add(off uint64, n, crc uint32, known bool) {
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

// Verify reads mem again. It gives the runs that differ, joined where they
// touch. Errors: rdma.ErrNoChecksum if a run, or all, came without a checksum.
func (s *Sums) Verify(ctx context.Context, mem []byte) ([]rdma.Range, error) {
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
		case Checksum(mem[r.off:r.end]) == r.crc:
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
