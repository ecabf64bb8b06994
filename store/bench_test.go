package store

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/pdlog/pdlog/events"
)

// The log beside its peers is measured by test/bench (make bench-store).

// Append allocates nothing an event: buffers grow and are used again. The
// committer is held, so that only the caller is looked at.
func TestAppendDoesNotAllocate(t *testing.T) {
	hold, held := make(chan struct{}), make(chan struct{}, 1)
	l, rec := openLog(t, t.TempDir(), Options{hooks: hooks{beforeCommit: func(int) error {
		select {
		case held <- struct{}{}:
		default:
		}
		<-hold
		return nil
	}}})
	src := newSource(l, rec, 1)
	mustAppend(t, l, src.next(1), events.Sync)
	<-held
	const n = 20000
	evs := src.next(n + 101)
	i := 0
	if got := testing.AllocsPerRun(n, func() {
		if err := l.Append(evs[i:i+1], events.Group); err != nil {
			t.Fatal(err)
		}
		i++
	}); got != 0 {
		t.Errorf("%v allocations an event", got)
	}
	close(hold)
	if err := l.Sync(context.Background()); err != nil {
		t.Error(err)
	}
}

// BenchmarkOpen is the verified reopen of a log of a million events.
func BenchmarkOpen(b *testing.B) {
	const total = 1_000_000
	dir := filepath.Join(b.TempDir(), "log")
	l, rec := openLog(b, dir, Options{SegmentBytes: defaultSegmentBytes})
	src := newSource(l, rec, 1)
	for src.seq < total {
		mustAppend(b, l, src.next(10000), events.Group)
		mustSync(b, l)
	}
	mustClose(b, l)
	for name, opts := range map[string]Options{"verify=all": {}, "verify=tail": {TrustBelow: total}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				opts.SegmentBytes = defaultSegmentBytes
				l, rec := openLog(b, dir, opts)
				if rec.LastSeq != total {
					b.Fatalf("%+v", rec)
				}
				b.StopTimer()
				mustClose(b, l)
				b.StartTimer()
			}
		})
	}
	b.Run("replay", func(b *testing.B) {
		for b.Loop() {
			if _, err := ReadDir(dir, 0, func(*events.Event) error { return nil }); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(total)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
	})
	b.Run("verify-only", func(b *testing.B) {
		for b.Loop() {
			if _, err := StatDir(dir); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(total)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
	})
}
