package rdmatest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/pdlog/pdlog/rdma"
)

// newSummedPair is newPair with checksums on both sides.
func newSummedPair(t *testing.T, p rdma.Provider, size int) *pair {
	t.Helper()
	dst, src := memory(t, size), memory(t, size)
	w := &pair{src: src.Bytes()}
	w.target = open(t, p, rdma.Config{Self: targetName, Listen: listenAt(p), Checksums: true})
	w.writer = open(t, p, rdma.Config{Self: writerName, Checksums: true})
	w.dst = register(t, w.target, dst.Memory())
	register(t, w.writer, src.Memory())
	w.ep = connect(t, w.writer, w.target.Info())
	for i := range w.src {
		w.src[i] = byte(i*13 + i>>10 + 1)
	}
	return w
}

// testVerify changes bytes after they landed and asks which.
func testVerify(t *testing.T, p rdma.Provider) {
	const size = 4 << 20
	w := newSummedPair(t, p, size)
	l := grant(t, w.dst, 1, all(w.dst))
	verify := func(want ...rdma.Range) {
		t.Helper()
		if bad, err := l.Verify(t.Context()); err != nil || !slices.Equal(bad, want) {
			t.Fatalf("verify: %v, %v; want %v", bad, err, want)
		}
	}
	if bad, err := l.Verify(t.Context()); !errors.Is(err, rdma.ErrNoChecksum) || len(bad) > 0 {
		t.Errorf("verify before anything landed: %v, %v", bad, err)
	}
	for off := 0; off < size; off += page {
		w.write(t, l, 1, off, page)
	}
	for _, c := range w.writer.completions.count(t, "completions", size/page, func(rdma.Completion) bool { return true }) {
		if c.Status != rdma.Completed {
			t.Fatalf("completion %+v", c)
		}
	}
	verify()
	for _, at := range []int{3 * page, 4*page + 1, 40*page - 1} {
		w.dst.Bytes()[at] ^= 0x10
	}
	verify(rdma.Range{Off: 3 * page, Len: 2 * page}, rdma.Range{Off: 39 * page, Len: page})
	for _, at := range []int{3 * page, 4 * page, 39 * page} { // written again, in one of other size
		w.write(t, l, 2, at, page)
	}
	w.writer.completions.count(t, "completions", 3, func(c rdma.Completion) bool { return c.Tag == 2 })
	verify()
	x := w.write(t, l, 3, 0, size) // in frames of the provider's own size
	if c := w.writer.of(t, x); c.Status != rdma.Completed {
		t.Fatalf("completion %+v", c)
	}
	revoke(t, w.target, l)
	verify() // also when it is revoked
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Verify(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("verify with an ended context: %v", err)
	}
	if err := w.dst.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Verify(t.Context()); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("verify of a region that is gone: %v", err)
	}
}

func testVerifyOff(t *testing.T, p rdma.Provider) {
	w := newPair(t, p, page, rdma.Config{Checksums: true}) // the target has it off
	l := grant(t, w.dst, 1, all(w.dst))
	w.works(t, l, 0, page)
	if bad, err := l.Verify(t.Context()); !errors.Is(err, rdma.ErrNoChecksum) || len(bad) > 0 {
		t.Errorf("verify: %v, %v", bad, err)
	}
}
