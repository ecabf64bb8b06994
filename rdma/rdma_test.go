package rdma_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFenceKindWordsAreThoseOfTheLog(t *testing.T) {
	for k, word := range map[rdma.FenceKind]string{rdma.FenceNone: "none", rdma.FenceHard: "hard", rdma.FenceReaderStopped: "reader_stopped"} {
		got, err := rdma.ParseFenceKind(word)
		if k.String() != word || err != nil || got != k {
			t.Errorf("%d is %s, %s reads as %d, %v", k, k, word, got, err)
		}
	}
	if k, err := rdma.ParseFenceKind("soft"); err == nil {
		t.Errorf("soft reads as %s", k)
	}
}

func TestAllocMemfdIsSealedAndShared(t *testing.T) {
	m, err := rdma.AllocMemfd("test", 5000)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	if n := len(m.Bytes()); n%page != 0 || n < 5000 || cap(m.Bytes()) != n {
		t.Errorf("%d bytes, capacity %d", n, cap(m.Bytes()))
	}
	for _, size := range []int64{0, 1 << 20} {
		if err := unix.Ftruncate(m.FD(), size); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncate to %d: %v", size, err)
		}
	}
	again, unmap, err := rdma.Memory{FD: m.FD(), Len: page}.Map()
	if err != nil {
		t.Fatal(err)
	}
	m.Bytes()[17] = 42
	if again[17] != 42 {
		t.Error("a second mapping does not see the write")
	}
	if err := errors.Join(unmap(), m.Close(), m.Close()); err != nil {
		t.Error(err)
	}
	if _, err := rdma.AllocMemfd("test", 0); !errors.Is(err, rdma.ErrMemory) {
		t.Errorf("no bytes: %v", err)
	}
}

// A completion's callback posts, aborts and asks without a deadlock, and is
// told of things in order.
func TestLedgerTellsInOrderAlsoFromItsCallback(t *testing.T) {
	var l *rdma.Ledger
	var told []uint64
	l = rdma.NewLedger(func(c rdma.Completion) {
		told = append(told, c.Token)
		if c.Token < 5 {
			if got := l.Inflight(1).Open(); got != 1 {
				t.Errorf("in the callback %d are open", got)
			}
			if err := l.Begin(1); err != nil {
				t.Error(err)
			}
			l.Report(rdma.Completion{Token: c.Token + 1, Tag: 1, Status: rdma.Completed, Proven: true}, true)
			l.Flush()
		}
	})
	if err := l.Begin(1); err != nil {
		t.Fatal(err)
	}
	l.Report(rdma.Completion{Token: 1, Tag: 1, Status: rdma.Completed, Proven: true}, true)
	l.Flush()
	if want := []uint64{1, 2, 3, 4, 5}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
	if c := l.Inflight(1); c != (rdma.Count{Completed: 5}) {
		t.Errorf("count %+v", c)
	}
}

func TestDrainWaitsUntilTheLastIsTold(t *testing.T) {
	var mu sync.Mutex
	told := 0
	l := rdma.NewLedger(func(rdma.Completion) { mu.Lock(); told++; mu.Unlock() })
	const n = 100
	for range n {
		if err := l.Begin(1); err != nil {
			t.Fatal(err)
		}
		l.Sent(1)
	}
	l.Seal(1)
	if err := l.Begin(1); !errors.Is(err, rdma.ErrSealed) {
		t.Errorf("begin after seal: %v", err)
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			r, err := l.Drain(context.Background(), 1)
			mu.Lock()
			defer mu.Unlock()
			if want := (rdma.DrainReport{Posted: n, Completed: n / 2, Uncertain: n / 2}); err != nil || r != want || told != n {
				t.Errorf("drained as %+v, %v with %d told", r, err, told)
			}
		})
	}
	for i := range n {
		wg.Go(func() {
			c := rdma.Completion{Tag: 1, Status: rdma.Completed}
			if i%2 == 0 {
				c.Status = rdma.Uncertain
			}
			l.Report(c, false)
			l.Flush()
		})
	}
	wg.Wait()
	for range n / 2 {
		l.Report(rdma.Completion{Tag: 1, Status: rdma.Drained}, false)
	}
	l.Flush()
	if r, err := l.Drain(context.Background(), 1); err != nil || !r.Clean || r.Drained != n/2 {
		t.Errorf("at the end %+v, %v", r, err)
	}
}

func TestCancelledPostLeavesNothingBehind(t *testing.T) {
	l := rdma.NewLedger(func(rdma.Completion) {})
	if err := l.Begin(1); err != nil {
		t.Fatal(err)
	}
	l.Sent(1)
	l.Cancel(1)
	if c := l.Inflight(1); c != (rdma.Count{}) {
		t.Errorf("count %+v", c)
	}
	if _, err := l.Drain(t.Context(), 1); !errors.Is(err, rdma.ErrNotSealed) {
		t.Errorf("drain: %v", err)
	}
}
