package bench

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cockroachdb/errors"
	zmq "github.com/pebbe/zmq4"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node"
	"github.com/pdlog/pdlog/store"
)

const (
	abortP50Bar  = 1.5    // times two hops and a commit on each side
	abortP99Bar  = 3.0    // the same
	burstBar     = 3.0    // times faster than the stand-in
	burstRooms   = 1000   // aborted at once
	controlRate  = 150000 // messages a second and core
	controlRooms = 2000   // aborted at once in a round of the rate
	decodeBar    = 20.0   // times the stand-in

	inFlight = 10 * time.Millisecond // that a write takes which an abort meets
)

func controlCases() []Case {
	return []Case{
		{Name: "control/messages", Share: 2, Run: controlMessages},
		{Name: "control/decode", Run: controlDecode},
		{Name: "control/abort-p50", Share: 2, Run: abortLatency(0.5, abortP50Bar)},
		{Name: "control/abort-p99", Share: 2, Run: abortLatency(0.99, abortP99Bar)},
		{Name: "control/abort-writing-p50", Share: 2, Run: abortWriting},
		{Name: "control/abort-1000-p99", Share: 2, Run: abortBurst},
	}
}

// quantile of the values, which it sorts; of none 0.
func quantile(v []time.Duration, q float64) time.Duration {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[min(int(q*float64(len(v))), len(v)-1)]
}

// pair starts two nodes in a folder of their own, for work to use.
func pair(ctx context.Context, shape node.PairShape, work func(dir string, b *node.PairBench) error) (err error) {
	dir, err := os.MkdirTemp("", "pdbench")
	if err != nil {
		return err
	}
	defer func() { err = errors.CombineErrors(err, os.RemoveAll(dir)) }()
	b, err := node.NewPairBench(ctx, dir, shape)
	if err != nil {
		return err
	}
	defer func() { err = errors.CombineErrors(err, b.Close()) }()
	return work(dir, b)
}

// controlMessages: ABORT and ABORT_ACK through two whole nodes but their
// sockets, by the CPU time of both.
func controlMessages(ctx context.Context, t Timing) (Result, error) {
	var rates []float64
	err := pair(ctx, node.PairShape{Rooms: controlRooms, Memory: true}, func(_ string, b *node.PairBench) error {
		began := time.Now()
		for round := 0; round < t.Rounds && (round < 2 || time.Since(began) < t.Budget); round++ {
			if err := b.Open(ctx, controlRooms); err != nil {
				return err
			}
			run, err := b.AbortAll(ctx)
			if err != nil {
				return err
			}
			rates = append(rates, 2*controlRooms/run.CPU.Seconds())
		}
		return nil
	})
	rate := Median(rates)
	return Result{
		Value: rate, Unit: "messages/s/core", Against: fmt.Sprintf("%d, ABORT and ACK, decoded to durable to encoded", controlRate),
		Ratio: rate / controlRate, Bar: 1,
	}, err
}

// controlDecode: an ABORT decoded by the dialect, beside the engines' handler,
// which takes it from pyzmq, decodes it and marks the room.
func controlDecode(ctx context.Context, t Timing) (Result, error) {
	d, err := backends.Lookup("mooncake")
	if err != nil {
		return Result{}, err
	}
	frames := backends.Frames{[]byte("ABORT"), []byte("4242"), []byte("10.0.0.1"), []byte("5000"), []byte("7")}
	ours := Rate(1, 10000, func(_ context.Context, n int) error {
		for range n {
			if m := d.Decode(backends.AtPrefill, frames); m.Kind() != backends.KindAbort {
				return errors.Newf("an ABORT was read as %v", m.Kind())
			}
		}
		return nil
	})
	theirs := func(ctx context.Context, d time.Duration) (float64, error) {
		return standinHandles(ctx, int(d.Seconds()*100_000)+1)
	}
	value, theirRate, ratio, err := Compare(ctx, t, ours, theirs)
	return Result{Value: value, Unit: "ABORT/s", Against: fmt.Sprintf("Python handler over pyzmq, %.0f/s", theirRate), Ratio: ratio, Bar: decodeBar}, err
}

// abortLatency: one abort after the other with nothing in flight, beside the
// sum of its parts, each measured alone.
func abortLatency(q, bar float64) func(context.Context, Timing) (Result, error) {
	return func(ctx context.Context, t Timing) (Result, error) {
		var value, parts, ratios []float64
		err := pair(ctx, node.PairShape{Rooms: 64}, func(dir string, b *node.PairBench) error {
			p, err := newParts(ctx, dir)
			if err != nil {
				return err
			}
			defer p.close()
			began := time.Now()
			for round := 0; round < t.Rounds && (round < 2 || time.Since(began) < t.Budget); round++ {
				const n = 64
				if err := b.Open(ctx, n); err != nil {
					return err
				}
				run, err := b.AbortEach(ctx, n)
				if err != nil {
					return err
				}
				sum, err := p.sum(ctx, n, q)
				if err != nil {
					return err
				}
				if round == 0 {
					continue // warm now
				}
				x := quantile(run.Latency, q)
				value, parts = append(value, float64(x)), append(parts, float64(sum))
				ratios = append(ratios, float64(x)/float64(sum))
			}
			return nil
		})
		return Result{
			Value: Median(value) / 1e3, Unit: "us", Against: fmt.Sprintf("2 hops + 1 commit on each side, %.0f us", Median(parts)/1e3),
			Ratio: Median(ratios), Bar: bar, AtMost: true,
		}, err
	}
}

// abortWriting: the same while a write is in flight that lands after inFlight,
// beside the drain and the bound of an abort with nothing in flight.
func abortWriting(ctx context.Context, t Timing) (Result, error) {
	var value, limit, ratios []float64
	err := pair(ctx, node.PairShape{Rooms: 1, Fault: fmt.Sprintf("late:%v:100%%", inFlight)}, func(dir string, b *node.PairBench) error {
		p, err := newParts(ctx, dir)
		if err != nil {
			return err
		}
		defer p.close()
		began := time.Now()
		for round := 0; round < t.Rounds && (round < 2 || time.Since(began) < t.Budget); round++ {
			const n = 16
			beyond, err := b.AbortInFlight(ctx, n, inFlight)
			if err != nil {
				return err
			}
			sum, err := p.sum(ctx, n, 0.5)
			if err != nil {
				return err
			}
			if round == 0 {
				continue // warm now
			}
			x, most := float64(quantile(beyond, 0.5)+inFlight), float64(inFlight)+abortP50Bar*float64(sum)
			value, limit, ratios = append(value, x), append(limit, most), append(ratios, x/most)
		}
		return nil
	})
	return Result{
		Value: Median(value) / 1e3, Unit: "us", Against: fmt.Sprintf("a drain of %v + %.1f x the parts, %.0f us", inFlight, abortP50Bar, Median(limit)/1e3),
		Ratio: Median(ratios), Bar: 1, AtMost: true,
	}, err
}

// parts measures what an abort cannot do without: two hops of a control message
// and a durable commit on each side.
type parts struct {
	log        *store.Log
	ping, pong *zmq.Socket // PUSH and the PULL it is connected to
	ctx        *zmq.Context
}

func newParts(ctx context.Context, dir string) (*parts, error) {
	l, _, err := store.Open(ctx, dir+"/parts", store.Options{Node: "parts", Boot: 1})
	if err != nil {
		return nil, err
	}
	p := &parts{log: l}
	if p.ctx, err = zmq.NewContext(); err == nil {
		p.pong, err = p.ctx.NewSocket(zmq.PULL)
	}
	if err == nil {
		err = p.pong.Bind("tcp://127.0.0.1:*")
	}
	var at string
	if err == nil {
		at, err = p.pong.GetLastEndpoint()
	}
	if err == nil {
		p.ping, err = p.ctx.NewSocket(zmq.PUSH)
	}
	if err == nil {
		err = p.ping.Connect(at)
	}
	if err != nil {
		p.close()
		return nil, errors.Wrap(err, "make a pair of sockets")
	}
	return p, nil
}

// sum is a quantile of the hops and one of the commits, two of each.
func (p *parts) sum(ctx context.Context, n int, q float64) (time.Duration, error) {
	var hops, commits []time.Duration
	for i := range n {
		began := time.Now()
		if _, err := p.ping.SendMessage("ABORT", "4242", "10.0.0.1", "5000", "7"); err != nil {
			return 0, errors.Wrap(err, "send")
		}
		if _, err := p.pong.RecvMessageBytes(0); err != nil {
			return 0, errors.Wrap(err, "receive")
		}
		hops = append(hops, time.Since(began))
		began = time.Now()
		seq := p.log.Appended() + 1
		e := &events.Event{
			Seq: seq, Hlc: uint64(events.MakeHLC(uint64(began.UnixMilli()), uint16(i))), Node: "parts", Boot: 1, Incarnation: p.log.Incarnation(), Room: 4242, RoomSeq: 1, //nolint:gosec // after 1970, few
			Payload: &events.Event_AbortArmed{AbortArmed: &events.AbortArmed{Generation: seq}},
		}
		if err := p.log.Append([]*events.Event{e}, events.Sync); err != nil {
			return 0, err
		}
		if err := p.log.Sync(ctx); err != nil {
			return 0, err
		}
		commits = append(commits, time.Since(began))
	}
	return 2*quantile(hops, q) + 2*quantile(commits, q), nil
}

func (p *parts) close() {
	for _, s := range []*zmq.Socket{p.ping, p.pong} {
		if s != nil {
			_ = s.SetLinger(0)
			_ = s.Close()
		}
	}
	if p.ctx != nil {
		_ = p.ctx.Term()
	}
	_ = p.log.Close()
}

// abortBurst: 1,000 rooms aborted at once, beside the engines' handler.
func abortBurst(ctx context.Context, t Timing) (Result, error) {
	theirs, err := startStandins(ctx, burstRooms)
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = theirs.close() }()
	var value, ratios []float64
	err = pair(ctx, node.PairShape{Rooms: burstRooms}, func(_ string, b *node.PairBench) error {
		for round := -1; round < t.Rounds; round++ {
			if err := b.Open(ctx, burstRooms); err != nil {
				return err
			}
			run, err := b.AbortAll(ctx)
			if err != nil {
				return err
			}
			other, err := theirs.burst()
			if err != nil {
				return err
			}
			if round < 0 {
				continue
			}
			x, y := quantile(run.Latency, 0.99), quantile(other, 0.99)
			value, ratios = append(value, float64(x)), append(ratios, float64(y)/float64(x))
		}
		return nil
	})
	return Result{
		Value: Median(value) / 1e6, Unit: "ms", Against: "Python handler over pyzmq, 1,000 aborts at once, p99",
		Ratio: Median(ratios), Bar: burstBar,
	}, err
}
