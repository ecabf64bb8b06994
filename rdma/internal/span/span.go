package span

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pdlog/pdlog/rdma"
)

// Merge checks ranges against a region of size bytes, sorts them and
// joins those that touch or overlap.
func Merge(in []rdma.Range, size uint64) ([]rdma.Range, error) {
	if len(in) == 0 {
		return nil, fmt.Errorf("%w: none given", rdma.ErrRange)
	}
	out := slices.Clone(in)
	slices.SortFunc(out, func(a, b rdma.Range) int { return cmp.Compare(a.Off, b.Off) })
	n := 0
	for i, r := range out {
		if r.Len == 0 || r.Len > size || r.Off > size-r.Len {
			return nil, fmt.Errorf("%w: %d bytes at %d of %d", rdma.ErrRange, r.Len, r.Off, size)
		}
		if i > 0 && r.Off <= out[n-1].End() {
			out[n-1].Len = max(out[n-1].End(), r.End()) - out[n-1].Off
			continue
		}
		out[n] = r
		n++
	}
	return slices.Clip(out[:n]), nil
}

// Inside says whether n bytes at off lie in one of the ranges, as Merge gives
// them.
func Inside(ranges []rdma.Range, off, n uint64) bool {
	end := off + n
	if end < off {
		return false
	}
	i, found := slices.BinarySearchFunc(ranges, off, func(r rdma.Range, off uint64) int { return cmp.Compare(r.Off, off) })
	if !found {
		i--
	}
	return i >= 0 && end <= ranges[i].End()
}

// Add appends s, or lengthens the last span if s follows it.
func Add(spans []rdma.Span, s rdma.Span) []rdma.Span {
	if n := len(spans); n > 0 {
		last := &spans[n-1]
		if last.Region == s.Region && last.End() == s.Off && s.Off+s.Len > s.Off {
			last.Len += s.Len
			return spans
		}
	}
	return append(spans, s)
}
