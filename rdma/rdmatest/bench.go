package rdmatest

import (
	"fmt"
	"testing"

	"github.com/pdlog/pdlog/rdma"
)

const (
	benchMem    = 64 << 20
	outstanding = 16 // pages on their way, as in rdma.md 4
)

// PageSizes are those of rdma.md 4, bytes.
var PageSizes = []int{64 << 10, 256 << 10, 1 << 20}

// BenchMemory is a region's worth of memory that holds something.
func BenchMemory(b *testing.B) *rdma.Memfd {
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

// BenchWrite walks a region page by page, for each of PageSizes; every page is
// acknowledged. cfg is that of both domains.
func BenchWrite(b *testing.B, p rdma.Provider, cfg rdma.Config) {
	for _, size := range PageSizes {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) { benchWrite(b, p, cfg, size) })
	}
}

func benchWrite(b *testing.B, p rdma.Provider, cfg rdma.Config, size int) {
	src, dst := BenchMemory(b), BenchMemory(b)
	free := make(chan rdma.Completion, outstanding)
	at, to := cfg, cfg
	to.Self, to.Listen = "d", listenAt(p)
	at.Self, at.OnCompletion = "p", func(c rdma.Completion) { free <- c }
	target, err := p.Open(b.Context(), to)
	if err != nil {
		b.Fatal(err)
	}
	writer, err := p.Open(b.Context(), at)
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
	if _, err := writer.RegisterMemory(b.Context(), src.Memory()); err != nil {
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
}
