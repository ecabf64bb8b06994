package stream

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/internal/span"
)

func newTestLease(tag rdma.Tag) *lease {
	d := &domain{leases: leaseTable{byKey: make(map[key]*lease)}}
	l := &lease{tag: tag, id: 1, region: &region{id: 1, domain: d}, left: make(chan struct{}, 1), told: make(chan struct{}, 1)}
	l.region.leases.Add(1)
	if err := d.leases.add(l); err != nil {
		panic(err)
	}
	return l
}

func TestRevokeWaitsForTheCopyThatIsUnderWay(t *testing.T) {
	l := newTestLease(1)
	if !l.enter() {
		t.Fatal("a fresh lease lets nobody in")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f, err := l.Revoke(ctx)
	if !errors.Is(err, context.Canceled) || f.Kind != rdma.FenceNone {
		t.Fatalf("revoke with a copy under way and an ended context: %+v, %v", f, err)
	}
	if l.enter() {
		t.Fatal("a second copy was let in after Revoke was called")
	}
	const callers = 4 // all of them must hear of the last one leaving
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			if f, err := l.Revoke(t.Context()); err != nil || f.Kind != rdma.FenceReaderStopped || !f.Exact {
				t.Errorf("revoke: %+v, %v", f, err)
			}
		})
	}
	l.leave()
	wg.Wait()
	if n := l.region.leases.Load(); n != 0 {
		t.Errorf("the region counts %d open leases", n)
	}
}

// TestRevokeReturnsAfterItsNews: what was placed before the revocation is known
// to the owner when Revoke returns, so that a log never shows a landing after
// the fence that came later.
func TestRevokeReturnsAfterItsNews(t *testing.T) {
	l := newTestLease(1)
	if !l.enter() {
		t.Fatal("a fresh lease lets nobody in")
	}
	l.owe()
	l.leave()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Revoke(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("revoke with news not delivered: %v, want it to wait", err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if f, err := l.Revoke(t.Context()); err != nil || f.Kind != rdma.FenceReaderStopped {
				t.Errorf("revoke: %+v, %v", f, err)
			}
		})
	}
	l.tell()
	wg.Wait()
}

func TestLateWriteIsNamedUntilItsTombstoneGoes(t *testing.T) {
	first := newTestLease(1)
	d := first.region.domain
	if _, err := first.Revoke(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range tombstones {
		grave := d.leases.find(&first.key)
		if grave == nil || grave.tag != 1 || grave.enter() {
			t.Fatalf("after %d later revocations: %+v", i, grave)
		}
		l := &lease{tag: 2, region: first.region, left: make(chan struct{}, 1), told: make(chan struct{}, 1)}
		if err := d.leases.add(l); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Revoke(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if grave := d.leases.find(&first.key); grave != nil {
		t.Errorf("still there: %+v", grave)
	}
	if n := len(d.leases.byKey); n != tombstones {
		t.Errorf("%d keys are kept, want %d", n, tombstones)
	}
}

// A frame is placed if and only if each of its bytes was granted.
func TestPlaceTakesExactlyWhatWasGranted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 64
		granted := [size]bool{}
		in := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) rdma.Range {
			off := rapid.Uint64Range(0, size-1).Draw(t, "off")
			return rdma.Range{Off: off, Len: rapid.Uint64Range(1, size-off).Draw(t, "len")}
		}), 1, 6).Draw(t, "ranges")
		for _, r := range in {
			for i := r.Off; i < r.End(); i++ {
				granted[i] = true
			}
		}
		ranges, err := span.Merge(in, size)
		if err != nil {
			t.Fatal(err)
		}
		l := &lease{ranges: ranges, region: &region{mem: make([]byte, size)}}
		off := rapid.OneOf(rapid.Uint64Range(0, size+2), rapid.Just(uint64(math.MaxUint64))).Draw(t, "frame off")
		n := rapid.Uint32Range(1, size+2).Draw(t, "frame len")
		want := true
		for i := range uint64(n) {
			want = want && off+i >= off && off+i < size && granted[off+i]
		}
		dst, ok := l.place(off, n)
		if ok != want || ok && (len(dst) != int(n) || cap(dst) != int(n) || &dst[0] != &l.region.mem[off]) {
			t.Fatalf("place %d+%d in %v: %v, want %v", off, n, ranges, ok, want)
		}
	})
}
