package shm_test

import (
	"testing"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/rdmabench"
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
	rdmatest.BenchPages(b, func(b *testing.B, size int) {
		m, err := rdmabench.OpenMemcpy()
		if err != nil {
			b.Fatal(err)
		}
		defer rdmatest.Closed(b, m)
		b.ResetTimer()
		m.Copy(b.N, size)
		b.StopTimer()
	})
}
