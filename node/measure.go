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

// PairBench is a prefill and a decode node in this process, with their real
// logs, loops and sockets, which can be timed from the inside: from the command
// to the notice that the pages are free, without the engine API's own cost. It
// is what `pdnode bench control` and `pdnode bench transfer` measure.
type PairBench struct {
	shape           PairShape
	prefill, decode *Node
	memory          []*rdma.Memfd
	ready, freed    *subscriber // what prefill and decode tell their engines
	next            uint64
}

// PairShape says what a PairBench is made of.
type PairShape struct {
	Rooms     int    // that can be open at once
	RoomPages int    // pages of a room; 0: 1
	PageBytes int    // bytes of a page; 0: 64
	Memory    bool   // control messages go through memory: what is left is decoding, deciding, the log and encoding
	Mirror    bool   // both nodes mirror their logs to a JetStream server of their own
	Provider  string // rdma.provider; empty: tcp
	Fault     string // rdma.fault of prefill
}

func (s *PairShape) defaults() {
	s.RoomPages, s.PageBytes = max(s.RoomPages, 1), max(s.PageBytes, benchPageBytes)
	if s.Provider == "" {
		s.Provider = "tcp"
	}
}

func (s *PairShape) pages() int { return s.Rooms * s.RoomPages }

// AbortRun is what aborting some rooms came to.
type AbortRun struct {
	CPU     time.Duration   // of the whole process, both nodes
	Wall    time.Duration   // from the first command to the last page
	Latency []time.Duration // of each room, from its own command, in the order of release
}

const benchPageBytes = 64

// NewPairBench starts the pair below dir.
func NewPairBench(ctx context.Context, dir string, shape PairShape) (_ *PairBench, err error) {
	shape.defaults()
	b := &PairBench{shape: shape}
	defer func() {
		if err != nil {
			err = errors.CombineErrors(err, b.Close())
		}
	}()
	var control transport
	if shape.Memory {
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

func (b *PairBench) start(ctx context.Context, dir, role string, peers []string, control transport) (*Node, error) {
	c := DefaultConfig()
	c.Node, c.Role, c.DataDir, c.Peers = role, role, filepath.Join(dir, role), peers
	c.Pages, c.AuxRows = b.shape.pages(), max(b.shape.Rooms, 64)
	c.NATS.Embedded, c.NATS.Port, c.RDMA.Provider = b.shape.Mirror, -1, b.shape.Provider
	if role == "prefill" {
		c.Bootstrap, c.RDMA.Fault = "127.0.0.1:0", b.shape.Fault
	}
	n, err := startOn(ctx, c, slog.New(slog.DiscardHandler), control)
	if err != nil {
		return nil, err
	}
	m, err := rdma.AllocMemfd("bench-"+role, b.shape.pages()*b.shape.PageBytes+c.AuxRows*8)
	if err != nil {
		return n, err
	}
	b.memory = append(b.memory, m)
	return n, n.registerMemory(ctx, 0, layout{
		path: fmt.Sprintf("/proc/self/fd/%d", m.FD()), pageBytes: uint64(b.shape.PageBytes), pages: uint64(b.shape.pages()), //nolint:gosec // positive
		auxOffset: uint64(b.shape.pages() * b.shape.PageBytes), auxBytes: 8, auxRows: uint64(c.AuxRows), //nolint:gosec // positive
	}, nil)
}

// listen subscribes to what a node tells its engine.
func listen(n *Node) *subscriber {
	s := &subscriber{ch: make(chan *enginepb.Notice, watchBuffer)}
	n.hub.join(s, nil)
	return s
}

// meet opens and aborts one room, as soon as the nodes know each other.
func (b *PairBench) meet(ctx context.Context) error {
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

// slot lists the pages of the i-th room that is open at a time.
func (b *PairBench) slot(i int) []uint32 {
	pages := make([]uint32, b.shape.RoomPages)
	for k := range pages {
		pages[k] = uint32(i*b.shape.RoomPages + k) //nolint:gosec // below pages
	}
	return pages
}

var benchPair = []projector.OpenPair{{Rank: projector.MakeRank("prefill", 0), To: projector.MakeRank("decode", 0)}}

// openSlot opens the next room on the pages of a slot.
func (b *PairBench) openSlot(ctx context.Context, i int) error {
	_, err := b.decode.loop.ask(ctx, task{cmd: projector.OpenRoom{Room: b.next + 1, Pages: b.slot(i), Aux: -1, Pairs: benchPair}})
	if err != nil {
		return errors.Wrapf(err, "open room %d", b.next+1)
	}
	b.next++
	return nil
}

// Open opens n rooms and waits until prefill has the metadata of all.
func (b *PairBench) Open(ctx context.Context, n int) error {
	for i := range n {
		if err := b.openSlot(ctx, i); err != nil {
			return err
		}
	}
	for range n {
		if _, err := await(ctx, b.ready, enginepb.Notice_KIND_READY); err != nil {
			return err
		}
	}
	return nil
}

// AbortAll aborts every open room at once and waits until all pages are free.
func (b *PairBench) AbortAll(ctx context.Context) (AbortRun, error) {
	var rooms int
	if err := b.decode.loop.see(func(m *projector.Machine, _ uint64) { rooms = m.Rooms() }); err != nil {
		return AbortRun{}, err
	}
	return b.abort(ctx, rooms, rooms)
}

// AbortEach aborts the open rooms, the next when the pages of the last are free.
func (b *PairBench) AbortEach(ctx context.Context, n int) (AbortRun, error) {
	return b.abort(ctx, n, 1)
}

// abort aborts the newest n rooms, oldest first, so many at once.
func (b *PairBench) abort(ctx context.Context, n, atOnce int) (AbortRun, error) {
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
				return nil, errNotices
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
func (b *PairBench) Close() error {
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
