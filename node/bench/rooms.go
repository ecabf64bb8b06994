package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

const (
	manyRooms    = 1_000_000
	fewRooms     = 100
	roomBytesBar = 1024
	roomCostBar  = 1.3 // of an event with many rooms open, to one with few
)

func roomCases() []Case {
	return []Case{
		{Name: "rooms/bytes", Share: 2, Run: roomBytes(manyRooms)},
		{Name: "rooms/event-cost", Share: 3, Run: roomCost(fewRooms, manyRooms)},
	}
}

// core is a decode node's machine with rooms open, stepped by hand.
type core struct {
	m      *projector.Machine
	log    []byte
	opened uint64
}

const benchTime = 1_700_000_000_000

func newCore(pages int) *core {
	c := &core{log: make([]byte, 16)}
	c.log[0] = 1
	cfg := projector.DefaultConfig()
	cfg.Node, cfg.Role, cfg.Pages, cfg.MaxRooms = "d", events.Role_ROLE_DECODE, pages, manyRooms+1
	cfg.Ranks = []projector.LocalRank{{Address: "10.0.0.2:5000"}}
	c.m = projector.New(cfg)
	c.m.ReuseResults() // as the daemon's loop does
	c.step(projector.Start{Boot: 7, Incarnation: 1, LogID: c.log})
	c.step(projector.PeerDiscovered{
		Node: "p", PDLog: true, Boot: 1, Incarnation: 1, LogID: c.log, Fence: events.FenceKind_FENCE_KIND_READER_STOPPED,
		Form: events.AckForm_ACK_FORM_V3, PageSize: 64, Ranks: []projector.PeerRank{{Rank: "p/0", Address: "10.0.0.1:5000"}},
	})
	return c
}

func (c *core) step(cmd projector.Command) projector.Result {
	return c.m.Step(projector.At(benchTime), cmd)
}

// open opens the next room on a page and publishes it.
func (c *core) open(page uint32) (projector.Result, error) {
	c.opened++
	r := c.step(projector.OpenRoom{Room: c.opened, Pages: []uint32{page}, Aux: -1, Pairs: []projector.OpenPair{{Rank: "p/0", To: "d/0"}}})
	if r.Refused != nil {
		return r, errors.Wrapf(r.Refused, "open room %d", c.opened)
	}
	c.step(projector.PublishResult{RoomSeq: r.RoomSeq, Rank: "p/0", To: "d/0"})
	return r, nil
}

func (c *core) fill(rooms int) error {
	for i := range rooms {
		if _, err := c.open(uint32(i)); err != nil { //nolint:gosec // below the pool
			return err
		}
		c.m.Recycle()
	}
	return nil
}

// cycle opens, publishes, aborts and releases n rooms on one page and counts
// the events.
func (c *core) cycle(n int, page uint32) (evs int, err error) {
	rank := uint32(0)
	for range n {
		r, err := c.open(page)
		if err != nil {
			return 0, err
		}
		armed := c.step(projector.AbortRoom{Room: c.opened})
		var generation uint64
		for _, e := range armed.Events {
			if a := e.GetAbortArmed(); a != nil {
				generation = a.Generation
			}
		}
		ack := c.step(projector.WireAck{At: "d/0", Room: c.opened, Rank: &rank, Generation: &generation, Ext: &projector.Ext{
			Node: "p", Boot: 1, Incarnation: 1, RoomSeq: r.RoomSeq, Proof: events.Proof_PROOF_DRAINED, LogID: c.log,
		}})
		evs += len(r.Events) + 1 + len(armed.Events) + len(ack.Events)
		c.m.Recycle()
	}
	return evs, nil
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// roomBytes: the heap of so many open rooms.
func roomBytes(rooms int) func(context.Context, Timing) (Result, error) {
	return func(context.Context, Timing) (Result, error) {
		c := newCore(rooms)
		before := heap()
		if err := c.fill(rooms); err != nil {
			return Result{}, err
		}
		each := float64(heap()-before) / float64(rooms)
		runtime.KeepAlive(c)
		return Result{Value: each, Unit: "B/room", Against: fmt.Sprintf("%d B, %d rooms open", roomBytesBar, rooms), Ratio: each / roomBytesBar, Bar: 1, AtMost: true}, nil
	}
}

// roomCost: an event's cost with many rooms open and with few. The few are
// measured before the many are there: in one process they would share the
// garbage collector's work.
func roomCost(few, many int) func(context.Context, Timing) (Result, error) {
	return func(_ context.Context, t Timing) (Result, error) {
		base, err := eventCost(few, t)
		if err != nil {
			return Result{}, err
		}
		cost, err := eventCost(many, t)
		return Result{
			Value: cost, Unit: "ns/event", Against: fmt.Sprintf("%.0f ns with %d rooms open, not %d", base, few, many),
			Ratio: cost / base, Bar: roomCostBar, AtMost: true,
		}, err
	}
}

// eventCost is the median cost of an event, in ns, with rooms open.
func eventCost(rooms int, t Timing) (float64, error) {
	const batch = 1000 // rooms
	c := newCore(rooms + 1)
	if err := c.fill(rooms); err != nil {
		return 0, err
	}
	runtime.GC() // of the filling
	var costs []float64
	for range t.Rounds {
		began, evs := time.Now(), 0
		for time.Since(began) < t.Slice(2) {
			n, err := c.cycle(batch, uint32(rooms)) //nolint:gosec // below the pool
			if err != nil {
				return 0, err
			}
			evs += n
		}
		costs = append(costs, float64(time.Since(began).Nanoseconds())/float64(evs))
	}
	return Median(costs), nil
}
