package node

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/rdma"
)

// AbortBench is a prefill and a decode node in this process, with their real
// logs, loops and sockets, whose aborts can be timed from the inside: from the
// command to the notice that the pages are free, without the engine API's own
// cost. It is what `pdnode bench control` measures.
type AbortBench struct {
	prefill, decode *Node
	memory          []*rdma.Memfd
	ready, freed    *subscriber
	rooms           int
	next            uint64
}

// AbortRun is what aborting some rooms came to.
type AbortRun struct {
	CPU     time.Duration   // of the whole process, both nodes
	Wall    time.Duration   // from the first command to the last page
	Latency []time.Duration // of each room, from its own command, in the order of release
}

const benchPageBytes = 64

// NewAbortBench starts the pair below dir; a decode pool of so many pages is as
// many rooms as can be open. Without sockets the control messages go through
// memory: what is left is decoding, deciding, the log and encoding.
func NewAbortBench(ctx context.Context, dir string, rooms int, sockets bool) (_ *AbortBench, err error) {
	b := &AbortBench{rooms: rooms}
	defer func() {
		if err != nil {
			err = errors.CombineErrors(err, b.Close())
		}
	}()
	var control transport
	if !sockets {
		control = newMemoryTransport()
	}
	if b.prefill, err = b.start(ctx, dir, "prefill", nil, control); err != nil {
		return nil, err
	}
	if b.decode, err = b.start(ctx, dir, "decode", []string{b.prefill.bootAddr}, control); err != nil {
		return nil, err
	}
	b.ready, b.freed = listen(b.prefill), listen(b.decode)
	return b, b.meet(ctx)
}

func (b *AbortBench) start(ctx context.Context, dir, role string, peers []string, control transport) (*Node, error) {
	c := DefaultConfig()
	c.Node, c.Role, c.DataDir, c.Peers = role, role, filepath.Join(dir, role), peers
	c.Pages, c.AuxRows = b.rooms, max(b.rooms, 64)
	c.NATS.Embedded, c.RDMA.Provider = false, "tcp"
	if role == "prefill" {
		c.Bootstrap = "127.0.0.1:0"
	}
	n, err := startOn(ctx, c, slog.New(slog.DiscardHandler), control)
	if err != nil {
		return nil, err
	}
	m, err := rdma.AllocMemfd("bench-"+role, b.rooms*benchPageBytes+c.AuxRows*8)
	if err != nil {
		return n, err
	}
	b.memory = append(b.memory, m)
	return n, n.registerMemory(ctx, 0, layout{
		path: fmt.Sprintf("/proc/self/fd/%d", m.FD()), pageBytes: benchPageBytes, pages: uint64(b.rooms), //nolint:gosec // positive
		auxOffset: uint64(b.rooms * benchPageBytes), auxBytes: 8, auxRows: uint64(c.AuxRows), //nolint:gosec // positive
	}, nil)
}

// listen subscribes to what a node tells its engine.
func listen(n *Node) *subscriber {
	s := &subscriber{ch: make(chan *enginepb.Notice, watchBuffer)}
	n.hub.join(s, nil)
	return s
}

// meet opens and aborts one room, as soon as the nodes know each other.
func (b *AbortBench) meet(ctx context.Context) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		err := b.Open(ctx, 1)
		var no *projector.Refusal
		switch {
		case errors.As(err, &no) && no.Word == "not_ready":
		case err != nil:
			return err
		default:
			_, err := b.AbortAll(ctx)
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Wrap(ctx.Err(), "the nodes did not meet")
		}
	}
}

// Open opens n rooms of one page each and waits until prefill has the metadata
// of all.
func (b *AbortBench) Open(ctx context.Context, n int) error {
	pair := []projector.OpenPair{{Rank: projector.MakeRank("prefill", 0), To: projector.MakeRank("decode", 0)}}
	for i := range n {
		_, err := b.decode.loop.ask(ctx, task{cmd: projector.OpenRoom{
			Room: b.next + 1, Pages: []uint32{uint32(i)}, Aux: -1, Pairs: pair, //nolint:gosec // below rooms
		}})
		if err != nil {
			return errors.Wrapf(err, "open room %d", b.next+1)
		}
		b.next++
	}
	for range n {
		if _, err := await(ctx, b.ready, enginepb.Notice_KIND_READY); err != nil {
			return err
		}
	}
	return nil
}

// AbortAll aborts every open room at once and waits until all pages are free.
func (b *AbortBench) AbortAll(ctx context.Context) (AbortRun, error) {
	var rooms int
	if err := b.decode.loop.see(func(m *projector.Machine, _ uint64) { rooms = m.Rooms() }); err != nil {
		return AbortRun{}, err
	}
	return b.abort(ctx, rooms, rooms)
}

// AbortEach aborts the open rooms, the next when the pages of the last are free.
func (b *AbortBench) AbortEach(ctx context.Context, n int) (AbortRun, error) {
	return b.abort(ctx, n, 1)
}

// abort aborts the newest n rooms, oldest first, so many at once.
func (b *AbortBench) abort(ctx context.Context, n, atOnce int) (AbortRun, error) {
	run := AbortRun{Latency: make([]time.Duration, 0, n)}
	sent := make(map[uint64]time.Time, atOnce)
	first := b.next + 1 - uint64(n) //nolint:gosec // positive
	cpu, began := cpuTime(), time.Now()
	for done := 0; done < n; {
		for range min(atOnce, n-done) {
			sent[first] = time.Now()
			if err := b.decode.loop.submit(task{cmd: projector.AbortRoom{Room: first}}); err != nil {
				return run, err
			}
			first++
		}
		for len(sent) > 0 {
			m, err := await(ctx, b.freed, enginepb.Notice_KIND_RELEASED)
			if err != nil {
				return run, err
			}
			run.Latency = append(run.Latency, time.Since(sent[m.Room]))
			delete(sent, m.Room)
			done++
		}
	}
	run.CPU, run.Wall = cpuTime()-cpu, time.Since(began)
	return run, nil
}

func await(ctx context.Context, s *subscriber, kind enginepb.Notice_Kind) (*enginepb.Notice, error) {
	for {
		select {
		case m, ok := <-s.ch:
			switch {
			case !ok:
				return nil, errors.New("the node has ended, or its notices were not read in time")
			case m.Kind == kind:
				return m, nil
			}
		case <-ctx.Done():
			return nil, errors.Wrapf(ctx.Err(), "waiting for %v", kind)
		}
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Close ends both nodes.
func (b *AbortBench) Close() error {
	var err error
	for _, n := range []*Node{b.decode, b.prefill} {
		if n != nil {
			err = errors.CombineErrors(err, n.Close())
		}
	}
	for _, m := range b.memory {
		err = errors.CombineErrors(err, m.Close())
	}
	return err
}
