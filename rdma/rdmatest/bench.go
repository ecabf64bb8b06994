package rdmatest

import (
	"fmt"
	"testing"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/rdmabench"
)

// PageSizes are those of rdma.md 4, bytes.
var PageSizes = []int{64 << 10, 256 << 10, 1 << 20}

// BenchWrite walks a region page by page, for each of PageSizes; every page is
// acknowledged. cfg is that of both domains.
func BenchWrite(b *testing.B, p rdma.Provider, cfg rdma.Config) {
	BenchPages(b, func(b *testing.B, size int) {
		s, err := rdmabench.Open(b.Context(), p, cfg)
		if err != nil {
			b.Fatal(err)
		}
		defer Closed(b, s)
		b.ReportAllocs()
		b.ResetTimer()
		if err := s.Write(b.Context(), b.N, size, 0); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
	})
}

// BenchPages runs a benchmark for each of PageSizes.
func BenchPages(b *testing.B, run func(b *testing.B, size int)) {
	for _, size := range PageSizes {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			b.SetBytes(int64(size))
			run(b, size)
		})
	}
}

// Closed closes what a benchmark has opened.
func Closed(b *testing.B, c interface{ Close() error }) {
	b.Helper()
	if err := c.Close(); err != nil {
		b.Error(err)
	}
}
