package tcp_test

import (
	"testing"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/rdmabench"
	"github.com/pdlog/pdlog/rdma/rdmatest"
	"github.com/pdlog/pdlog/rdma/tcp"
)

func BenchmarkWrite(b *testing.B) { rdmatest.BenchWrite(b, tcp.Provider{}, rdma.Config{}) }

// BenchmarkWriteChecksums has the source and the target count CRC32C.
func BenchmarkWriteChecksums(b *testing.B) {
	rdmatest.BenchWrite(b, tcp.Provider{}, rdma.Config{Checksums: true})
}

// BenchmarkWriteTLS encrypts with TLS 1.3.
func BenchmarkWriteTLS(b *testing.B) {
	cert, trust := identity(b, 1)
	rdmatest.BenchWrite(b, tcp.Provider{}, rdma.Config{TLS: mutual(cert, trust)})
}

// BenchmarkRawTCP is the bar: the same pages by Write and ReadFull, with no
// frames and no acknowledgements but one at the end.
func BenchmarkRawTCP(b *testing.B) {
	rdmatest.BenchPages(b, func(b *testing.B, size int) {
		raw, err := rdmabench.OpenRawTCP()
		if err != nil {
			b.Fatal(err)
		}
		defer rdmatest.Closed(b, raw)
		b.ResetTimer()
		if err := raw.Copy(b.N, size); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
	})
}
