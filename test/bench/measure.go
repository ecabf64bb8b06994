package main

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdlog/pdlog/events"
)

// event is a chunk's, as most of a node's are: room numbers have 63 bits, pools
// some 100,000 pages, and the log is not new.
func event(room uint64) *events.Event {
	pages := make([]uint32, 8)
	for i := range pages {
		pages[i] = uint32(51_207 + i) //nolint:gosec // eight
	}
	return &events.Event{Room: 1<<62 + room, RoomSeq: 40_000_000 + room, Rank: "p0/1", Payload: &events.Event_ChunkPosted{ChunkPosted: &events.ChunkPosted{
		Token: 40_000_003 + room, To: "d0/0", Pages: pages, Bytes: 262144,
	}}}
}

// turns runs one measurement of every engine in each round, each round begun by
// another one, and gives the results by engine, a value per round.
func turns(engines map[string]engine, order []string, rounds int, measure func(engine) (float64, error)) (map[string][]float64, error) {
	out := map[string][]float64{}
	for r := -1; r < rounds; r++ { // the first warms up
		for i := range order {
			name := order[(i+max(r, 0))%len(order)]
			v, err := measure(engines[name])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if r >= 0 {
				out[name] = append(out[name], v)
			}
		}
	}
	return out, nil
}

// over divides round by round.
func over(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}

// commits is one producer that waits for each event: the p50 of a commit.
func commits(dir string, rounds int) ([]row, error) {
	order := []string{ownOne, ownTwo, raw, etcdWAL, pebbleDB}
	all, stop, err := startAll(dir, order...)
	if err != nil {
		return nil, err
	}
	got, err := turns(all, order, rounds, func(e engine) (float64, error) {
		const n = 200
		took := make([]float64, 0, n)
		for i := range uint64(n) {
			began := time.Now()
			seq, err := e.put(event(i), events.Sync)
			if err == nil {
				err = e.wait(seq)
			}
			if err != nil {
				return 0, err
			}
			took = append(took, float64(time.Since(began).Nanoseconds()))
		}
		return median(took), nil
	})
	if err != nil {
		return nil, err
	}
	own := fmt.Sprintf("p50 %.0f µs", median(got[ownOne])/1000)
	line := func(against string, bar float64) row {
		return row{what: "durable commit, one producer", own: own, against: against, ratios: over(got[ownOne], got[against]), bar: bar, atMost: true}
	}
	return []row{line(raw, 1.5), line(ownTwo, 0.75), line(etcdWAL, 0), line(pebbleDB, 0)}, stop()
}

// producers each append a Sync event and wait for it: durable events a second.
func producers(dir string, rounds int, slice time.Duration) ([]row, error) {
	var rows []row
	for _, n := range []int{1, 16, 128} {
		order := []string{ownOne, ownTwo, raw, etcdWAL, pebbleDB, dbBatch}
		if n == 128 {
			order = append(order, natsLog)
		}
		all, stop, err := startAll(dir, order...)
		if err != nil {
			return nil, err
		}
		got, err := turns(all, order, rounds, func(e engine) (float64, error) {
			return rate(n, slice, func(room uint64) (int, error) {
				seq, err := e.put(event(room), events.Sync)
				if err == nil {
					err = e.wait(seq)
				}
				return 1, err
			})
		})
		if err != nil {
			return nil, err
		}
		for _, p := range []struct {
			against string
			bar     float64 // store.md, targets
		}{{raw, map[int]float64{1: 0.38}[n]}, {ownTwo, 0}, {etcdWAL, 0}, {pebbleDB, 0.45}, {dbBatch, map[int]float64{16: 5, 128: 5}[n]}, {natsLog, 10}} {
			if got[p.against] == nil {
				continue
			}
			rows = append(rows, row{
				what: fmt.Sprintf("durable events/s, %d producers", n), own: perSecond(median(got[ownOne])), against: p.against,
				ratios: over(got[ownOne], got[p.against]), bar: p.bar,
			})
		}
		if err := stop(); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// rooms is 128 rooms at a time of 17 Group and 3 Sync events each.
func rooms(dir string, rounds int, slice time.Duration) ([]row, error) {
	order := []string{ownOne, ownTwo, raw, etcdWAL, pebbleDB}
	all, stop, err := startAll(dir, order...)
	if err != nil {
		return nil, err
	}
	got, err := turns(all, order, rounds, func(e engine) (float64, error) {
		return rate(128, slice, func(room uint64) (int, error) {
			const life = 20
			for i := range life {
				class := events.Group
				if i%7 == 5 { // 5, 12, 19
					class = events.Sync
				}
				seq, err := e.put(event(room), class)
				if err == nil && class == events.Sync {
					err = e.wait(seq)
				}
				if err != nil {
					return i, err
				}
			}
			return life, nil
		})
	})
	if err != nil {
		return nil, err
	}
	own := perSecond(median(got[ownOne]))
	line := func(against string, bar float64) row {
		return row{what: "durable events/s, 128 rooms of 17 Group + 3 Sync", own: own, against: against, ratios: over(got[ownOne], got[against]), bar: bar}
	}
	return []row{line(pebbleDB, 1.2), line(etcdWAL, 0.7), line(raw, 0), line(ownTwo, 0)}, stop()
}

func perSecond(v float64) string {
	if v >= 1e6 {
		return fmt.Sprintf("%.2f M/s", v/1e6)
	}
	return fmt.Sprintf("%.0f k/s", v/1e3)
}

// rate runs n goroutines of op for a while and gives what they did a second.
func rate(n int, slice time.Duration, op func(room uint64) (int, error)) (float64, error) {
	var wg sync.WaitGroup
	var total atomic.Int64
	errs := make(chan error, n)
	began := time.Now()
	for i := range n {
		wg.Go(func() {
			for time.Since(began) < slice {
				done, err := op(uint64(i))
				total.Add(int64(done))
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	select {
	case err := <-errs:
		return 0, err
	default:
		return float64(total.Load()) / took.Seconds(), nil
	}
}
