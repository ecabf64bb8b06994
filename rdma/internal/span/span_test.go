package span

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pdlog/pdlog/rdma"
)

func TestMergeRanges(t *testing.T) {
	const size = 100
	for _, c := range []struct{ in, want []rdma.Range }{
		{[]rdma.Range{{Off: 0, Len: 100}}, []rdma.Range{{Off: 0, Len: 100}}},
		{[]rdma.Range{{Off: 50, Len: 10}, {Off: 0, Len: 10}}, []rdma.Range{{Off: 0, Len: 10}, {Off: 50, Len: 10}}},
		{[]rdma.Range{{Off: 10, Len: 10}, {Off: 0, Len: 10}}, []rdma.Range{{Off: 0, Len: 20}}},
		{[]rdma.Range{{Off: 0, Len: 50}, {Off: 10, Len: 5}, {Off: 51, Len: 1}}, []rdma.Range{{Off: 0, Len: 50}, {Off: 51, Len: 1}}},
		{[]rdma.Range{{Off: 0, Len: 0}}, nil},
		{[]rdma.Range{{Off: 1, Len: 100}}, nil},
		{[]rdma.Range{{Off: math.MaxUint64, Len: 2}}, nil},
		{nil, nil},
	} {
		got, err := Merge(c.in, size)
		if (err != nil) != (c.want == nil) || err != nil && !errors.Is(err, rdma.ErrRange) {
			t.Errorf("%v: %v", c.in, err)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%v: %s", c.in, d)
		}
	}
}
