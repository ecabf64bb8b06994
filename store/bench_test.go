package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/events"
)

// The peers of BenchmarkCommit write the same frames in the same run, in turns
// (store.md, targets): run it with -count=1 -benchtime=1x, as make bench-store
// does. Figures are medians over the rounds; the ratios are the medians of each
// round's ratio.
type peer struct {
	name  string
	start func(b *testing.B) (commit func(frames []byte, starts []uint64) error, stop func() error)
}

func peers() []peer {
	return []peer{
		{"raw pwrite+fdatasync", func(b *testing.B) (func([]byte, []uint64) error, func() error) {
			f, err := os.Create(filepath.Join(b.TempDir(), "raw"))
			if err == nil {
				err = pregrow(f.Name(), 64<<20)
			}
			if err != nil {
				b.Fatal(err)
			}
			at := int64(0)
			return func(frames []byte, _ []uint64) error {
				if at+int64(len(frames)) > 64<<20 {
					at = 0
				}
				if _, err := f.WriteAt(frames, at); err != nil {
					return err
				}
				at += int64(len(frames))
				return unix.Fdatasync(int(f.Fd()))
			}, f.Close
		}},
		{"db.Batch", func(b *testing.B) (func([]byte, []uint64) error, func() error) {
			db, err := openWritable(filepath.Join(b.TempDir(), "batch.db"), 64<<20)
			if err == nil {
				err = db.Update(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket(bucketFrames); return err })
			}
			if err != nil {
				b.Fatal(err)
			}
			return func(frames []byte, starts []uint64) error {
				return db.Batch(func(tx *bbolt.Tx) error {
					rest := frames
					for _, seq := range starts {
						in, err := events.FramePeek(rest)
						if err != nil {
							return err
						}
						if err := tx.Bucket(bucketFrames).Put(be64(seq), rest[:in.Size]); err != nil {
							return err
						}
						rest = rest[in.Size:]
					}
					return nil
				})
			}, db.Close
		}},
	}
}

// framesFor encodes n events behind *seq.
func framesFor(w *events.FrameWriter, src *source, n int) ([]byte, []uint64, error) {
	for _, e := range src.next(n) {
		if err := w.Append(e); err != nil {
			return nil, nil, err
		}
	}
	var batch events.FrameBatch
	w.Swap(&batch)
	var all []byte
	var starts []uint64
	for i := range batch.Len() {
		s, f := batch.Frame(i)
		all, starts = append(all, f...), append(starts, s.Seq)
	}
	return all, starts, nil
}

func median(v []time.Duration) time.Duration {
	slices.Sort(v)
	return v[len(v)/2]
}

// BenchmarkCommit is one producer that waits for each batch.
func BenchmarkCommit(b *testing.B) {
	const rounds, commits = 7, 60
	for _, batch := range []int{1, 16, 128, 1024} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			var own []time.Duration
			ratios := map[string][]float64{}
			ctx := context.Background()
			for b.Loop() {
				l, rec := openLog(b, b.TempDir(), Options{SegmentBytes: defaultSegmentBytes})
				src := newSource(l, rec, 1)
				var commit []func([]byte, []uint64) error
				var stop []func() error
				for _, p := range peers() {
					c, s := p.start(b)
					commit, stop = append(commit, c), append(stop, s)
				}
				other := &source{node: "n", boot: 1, inc: 1}
				w := events.NewFrameWriter(events.Position{})
				for range rounds {
					var mine []time.Duration
					for range commits {
						evs := src.next(batch)
						began := time.Now()
						if err := l.Append(evs, events.Sync); err != nil {
							b.Fatal(err)
						}
						if err := l.Sync(ctx); err != nil {
							b.Fatal(err)
						}
						mine = append(mine, time.Since(began))
					}
					own = append(own, median(mine))
					for i, p := range peers() {
						var theirs []time.Duration
						n := commits
						if p.name == "db.Batch" {
							n = 10 // its delay is the latency
						}
						for range n {
							frames, starts, err := framesFor(w, other, batch)
							if err != nil {
								b.Fatal(err)
							}
							began := time.Now()
							if err := commit[i](frames, starts); err != nil {
								b.Fatal(err)
							}
							theirs = append(theirs, time.Since(began))
						}
						ratios[p.name] = append(ratios[p.name], float64(median(mine))/float64(median(theirs)))
					}
				}
				mustClose(b, l)
				for _, s := range stop {
					if err := s(); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(median(own).Microseconds()), "p50-µs")
			for name, unit := range map[string]string{"raw pwrite+fdatasync": "p50/raw", "db.Batch": "p50/db.Batch"} {
				r := ratios[name]
				slices.Sort(r)
				b.ReportMetric(r[len(r)/2], unit)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkProducers is many producers of Sync events that wait for each, as
// commits per second of all; the peer is bbolt's own db.Batch.
func BenchmarkProducers(b *testing.B) {
	for _, n := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("producers=%d", n), func(b *testing.B) {
			for b.Loop() {
				l, rec := openLog(b, b.TempDir(), Options{SegmentBytes: defaultSegmentBytes})
				src := newSource(l, rec, 1)
				var mu sync.Mutex
				own := rate(b, n, func() error {
					mu.Lock()
					evs := src.next(1)
					err := l.Append(evs, events.Sync)
					seq := evs[0].Seq
					mu.Unlock()
					if err != nil {
						return err
					}
					return l.Wait(context.Background(), seq)
				})
				mustClose(b, l)
				commit, stop := peers()[1].start(b)
				w, other := events.NewFrameWriter(events.Position{}), &source{node: "n", boot: 1, inc: 1}
				theirs := rate(b, n, func() error {
					mu.Lock()
					frames, starts, err := framesFor(w, other, 1)
					mu.Unlock()
					if err != nil {
						return err
					}
					return commit(frames, starts)
				})
				if err := stop(); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(own, "events/s")
				b.ReportMetric(own/theirs, "x-db.Batch")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// rate runs n producers for half a second and gives operations per second.
func rate(b *testing.B, n int, op func() error) float64 {
	var mu sync.Mutex
	var wg sync.WaitGroup
	total := 0
	began := time.Now()
	for range n {
		wg.Go(func() {
			done := 0
			for time.Since(began) < 500*time.Millisecond {
				if err := op(); err != nil {
					b.Error(err)
					break
				}
				done++
			}
			mu.Lock()
			total += done
			mu.Unlock()
		})
	}
	wg.Wait()
	return float64(total) / time.Since(began).Seconds()
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
