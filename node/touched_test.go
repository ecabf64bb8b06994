package node

import (
	"testing"

	"github.com/pdlog/pdlog/rdma"
)

// A landing says which bytes of its pages it was, if it was a part of each.
func TestLandingSaysWhichBytesOfThePages(t *testing.T) {
	r := &receivePlane{regions: map[uint32]regionUse{1: {item: 100}, 2: {item: 8, aux: true}}}
	span := func(region uint32, off, n uint64) rdma.Span {
		return rdma.Span{Region: region, Range: rdma.Range{Off: off, Len: n}}
	}
	for name, c := range map[string]struct {
		spans []rdma.Span
		pages int
		want  rdma.Range
	}{
		"second half of two pages":     {[]rdma.Span{span(1, 350, 50), span(1, 550, 50), span(2, 8, 8)}, 2, rdma.Range{Off: 50, Len: 50}},
		"whole pages":                  {[]rdma.Span{span(1, 300, 100), span(1, 500, 100)}, 2, rdma.Range{}},
		"a run of whole pages":         {[]rdma.Span{span(1, 300, 300)}, 3, rdma.Range{}},
		"other parts of other pages":   {[]rdma.Span{span(1, 300, 50), span(1, 550, 50)}, 2, rdma.Range{}},
		"a part and a page":            {[]rdma.Span{span(1, 300, 50), span(1, 500, 100)}, 2, rdma.Range{}},
		"across the end of a page":     {[]rdma.Span{span(1, 350, 99)}, 2, rdma.Range{}},
		"an aux row alone":             {[]rdma.Span{span(2, 8, 8)}, 0, rdma.Range{}},
		"first byte of the first page": {[]rdma.Span{span(1, 0, 1)}, 1, rdma.Range{Len: 1}},
	} {
		pages, _, part := r.touched(c.spans)
		if len(pages) != c.pages || part != c.want {
			t.Errorf("%s: pages %v, bytes %+v, want %d pages, %+v", name, pages, part, c.pages, c.want)
		}
	}
}
