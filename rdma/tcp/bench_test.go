package tcp_test

import (
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/rdmatest"
	"github.com/pdlog/pdlog/rdma/tcp"
)

const benchMem = 64 << 20

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
	for _, size := range rdmatest.PageSizes {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			src, dst := rdmatest.BenchMemory(b), rdmatest.BenchMemory(b)
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			done := make(chan error, 1)
			n := b.N
			go func() {
				c, err := ln.Accept()
				if err != nil {
					done <- err
					return
				}
				for i := 0; i < n && err == nil; i++ {
					off := i * size % benchMem
					_, err = io.ReadFull(c, dst.Bytes()[off:off+size])
				}
				if err == nil {
					_, err = c.Write([]byte{1})
				}
				done <- err
				_ = c.Close()
			}()
			c, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(size))
			b.ResetTimer()
			for i := range n {
				off := i * size % benchMem
				if _, err := c.Write(src.Bytes()[off : off+size]); err != nil {
					b.Fatal(err)
				}
			}
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if err := <-done; err != nil {
				b.Fatal(err)
			}
			_ = c.Close()
			_ = ln.Close()
		})
	}
}
