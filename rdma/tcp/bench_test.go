package tcp_test

import (
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/tcp"
)

const (
	benchMem    = 64 << 20
	outstanding = 16 // pages on their way, as in rdma.md 4
)

func benchMemory(b *testing.B) *rdma.Memfd {
	b.Helper()
	m, err := rdma.AllocMemfd("bench", benchMem)
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; i < benchMem; i += 4096 {
		m.Bytes()[i] = byte(i >> 12)
	}
	b.Cleanup(func() {
		if err := m.Close(); err != nil {
			b.Error(err)
		}
	})
	return m
}

var pageSizes = []int{64 << 10, 256 << 10, 1 << 20}

// BenchmarkWrite walks a region page by page; every page is acknowledged.
func BenchmarkWrite(b *testing.B) {
	for _, size := range pageSizes {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			src, dst := benchMemory(b), benchMemory(b)
			free := make(chan rdma.Completion, outstanding)
			target, err := tcp.Provider{}.Open(b.Context(), rdma.Config{Self: "d", Listen: "127.0.0.1:0"})
			if err != nil {
				b.Fatal(err)
			}
			writer, err := tcp.Provider{}.Open(b.Context(), rdma.Config{Self: "p", OnCompletion: func(c rdma.Completion) { free <- c }})
			if err != nil {
				b.Fatal(err)
			}
			defer func() {
				if err := writer.Close(); err != nil {
					b.Error(err)
				}
				if err := target.Close(); err != nil {
					b.Error(err)
				}
			}()
			r, err := target.RegisterMemory(b.Context(), dst.Memory())
			if err != nil {
				b.Fatal(err)
			}
			l, err := r.Grant(b.Context(), rdma.Grant{Peer: "p", Ranges: []rdma.Range{{Len: benchMem}}})
			if err != nil {
				b.Fatal(err)
			}
			ep, err := writer.Connect(b.Context(), target.Info())
			if err != nil {
				b.Fatal(err)
			}
			k := l.Desc().Key
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			out := 0
			wait := func() {
				if c := <-free; c.Status != rdma.Completed {
					b.Fatal(c)
				}
				out--
			}
			writes := make([]rdma.Write, 1)
			for i := range b.N {
				if out == outstanding {
					wait()
				}
				off := i * size % benchMem
				writes[0] = rdma.Write{Src: src.Bytes()[off : off+size], RemoteOff: uint64(off)}
				if _, err := ep.PostBatch(rdma.Batch{Tag: 1, Key: k, Writes: writes}); err != nil {
					b.Fatal(err)
				}
				out++
			}
			for out > 0 {
				wait()
			}
		})
	}
}

// BenchmarkRawTCP is the bar: the same pages by Write and ReadFull, with no
// frames and no acknowledgements but one at the end.
func BenchmarkRawTCP(b *testing.B) {
	for _, size := range pageSizes {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			src, dst := benchMemory(b), benchMemory(b)
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
