package bench

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/cockroachdb/errors"
	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node"
	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/rdmabench"
	"github.com/pdlog/pdlog/rdma/tcp"
	"github.com/pdlog/pdlog/store"
)

const (
	transferBar      = 0.98                               // of the bare provider, chunks of 256 KiB and more
	transferSmallBar = 0.95                               // chunks of 64 KiB
	transferRooms    = 4                                  // at once
	transferBytes    = rdmabench.MemBytes / transferRooms // of a room, so that both sides walk as much memory
	chunkCostBar     = 1000                               // ns of the caller's CPU for one chunk's event
)

func transferCases() []Case {
	return []Case{
		{Name: "transfer/64KiB", Share: 2, Run: transfer(64*kib, transferSmallBar)},
		{Name: "transfer/256KiB", Share: 2, Run: transfer(256*kib, transferBar)},
		{Name: "transfer/1MiB", Share: 2, Run: transfer(1024*kib, transferBar)},
		{Name: "transfer/chunk-log-cost", Run: chunkCost},
	}
}

// transfer is what two whole nodes move, logs and mirrors on, beside the same
// provider driven bare over as much memory, as many bytes a write.
func transfer(size int, bar float64) measure {
	return func(ctx context.Context, t Timing) (Result, error) {
		return stream(ctx, tcp.Provider{}, rdma.Config{}, func(s *rdmabench.Stream) (r Result, err error) {
			shape := node.PairShape{Rooms: transferRooms, RoomPages: transferBytes / size, PageBytes: size, Mirror: true}
			err = pair(ctx, shape, func(_ string, b *node.PairBench) error {
				whole := func(ctx context.Context, d time.Duration) (float64, error) {
					v, err := b.Transfer(ctx, d)
					return v / megabyte, err
				}
				v, a, q, err := Compare(ctx, t, whole, throughput(s, size))
				r = Result{Value: v, Unit: "MB/s", Against: fmt.Sprintf("the provider alone, %.0f MB/s", a), Ratio: q, Bar: bar}
				return err
			})
			return r, err
		})
	}
}

// chunkCost is the CPU time of the goroutine that appends a chunk's event.
func chunkCost(ctx context.Context, t Timing) (r Result, err error) {
	dir, err := os.MkdirTemp("", "pdbench")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.CombineErrors(err, os.RemoveAll(dir)) }()
	l, _, err := store.Open(ctx, dir, store.Options{Node: "p", Boot: 1})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.CombineErrors(err, l.Close()) }()
	const batch = 20000
	chunk := &events.ChunkPosted{Token: 1, Chunk: 1, Pages: []uint32{7}, Bytes: 256 * kib, To: "d/0"}
	one := []*events.Event{{
		Node: "p", Boot: 1, Incarnation: l.Incarnation(), Room: 4242, RoomSeq: 1, Rank: "p/0",
		Payload: &events.Event_ChunkPosted{ChunkPosted: chunk},
	}}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var costs []float64
	seq, began := l.Appended(), time.Now()
	for round := 0; round < t.Rounds && (round < 2 || time.Since(began) < t.Budget); round++ {
		before := threadTime()
		for range batch {
			seq++
			chunk.Token = seq
			one[0].Seq, one[0].Hlc = seq, uint64(events.MakeHLC(benchTime+seq>>16, uint16(seq))) //nolint:gosec // its low bits
			if err := l.Append(one, events.Group); err != nil {
				return r, err
			}
		}
		cost := float64((threadTime() - before).Nanoseconds()) / batch
		if err := l.Sync(ctx); err != nil {
			return r, err
		}
		if round > 0 {
			costs = append(costs, cost)
		}
	}
	v := Median(costs)
	return Result{Value: v, Unit: "ns", Against: fmt.Sprintf("%d ns of the caller's CPU a chunk", chunkCostBar), Ratio: v / chunkCostBar, Bar: 1, AtMost: true}, nil
}

// threadTime is the CPU time of this thread.
func threadTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
