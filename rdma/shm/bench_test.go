package shm_test

import (
	"fmt"
	"testing"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/rdmatest"
	"github.com/pdlog/pdlog/rdma/shm"
)

func BenchmarkWrite(b *testing.B) { rdmatest.BenchWrite(b, shm.Provider{}, rdma.Config{}) }

// BenchmarkWriteChecksums has the source and the target count CRC32C.
func BenchmarkWriteChecksums(b *testing.B) {
	rdmatest.BenchWrite(b, shm.Provider{}, rdma.Config{Checksums: true})
}

// BenchmarkMemcpy is the bar: the same pages by one copy in one process.
func BenchmarkMemcpy(b *testing.B) {
	for _, size := range rdmatest.PageSizes {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			src, dst := rdmatest.BenchMemory(b).Bytes(), rdmatest.BenchMemory(b).Bytes()
			copy(dst, src) // every page is there
			b.SetBytes(int64(size))
			b.ResetTimer()
			for i := range b.N {
				off := i * size % len(src)
				copy(dst[off:off+size], src[off:off+size])
			}
		})
	}
}
