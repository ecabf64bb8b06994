//go:build verbs

package verbs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 60 * time.Second // a bound, never a wait; the device may be emulated
	piece    = 128 << 10
	pieces   = 48
	size     = piece * pieces
)

// device is the host's first one. Queue pairs, regions and devices of these
// tests are left to the process's exit: a broken queue pair of rxe takes up to
// a minute to be destroyed.
func device(t *testing.T) *verbs.Device {
	t.Helper()
	names, err := verbs.Devices()
	if len(names) == 0 {
		t.Skipf("no RDMA device on this host (%v)", err)
	}
	d, err := verbs.OpenDevice(names[0])
	if err != nil {
		t.Fatal(err)
	}
	return d
}

var pattern = func() []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i>>9) | 1
	}
	return b
}()

// lab is a writer and a target on one device.
type lab struct {
	dev            *verbs.Device
	src, dst       []byte
	srcMR, dstMR   *verbs.Region
	writer, target *verbs.QP
	ends           chan verbs.Done
	stop           context.CancelFunc
	wg             sync.WaitGroup
}

func mapped(t *testing.T) []byte {
	t.Helper()
	m, err := rdma.AllocMemfd("verbs", size)
	if err != nil {
		t.Fatal(err)
	}
	return m.Bytes() // mapped until the process ends, as its registration is
}

func newLab(t *testing.T, dev *verbs.Device, remote bool) *lab {
	t.Helper()
	l := &lab{dev: dev, src: mapped(t), dst: mapped(t)}
	copy(l.src, pattern)
	var err error
	if l.srcMR, err = dev.Register(l.src, false); err != nil {
		t.Fatal(err)
	}
	if l.dstMR, err = dev.Register(l.dst, remote); err != nil {
		t.Fatal(err)
	}
	return l
}

// connect gives the lab a fresh pair of queue pairs; depth is the writer's.
func (l *lab) connect(t *testing.T, depth int) {
	t.Helper()
	l.halt()
	var err error
	if l.writer, err = l.dev.NewQP(depth); err != nil {
		t.Fatal(err)
	}
	if l.target, err = l.dev.NewQP(16); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ a, b *verbs.QP }{{l.writer, l.target}, {l.target, l.writer}} {
		wire := c.b.Addr().Append(nil)
		peer, err := verbs.ParseAddr(wire)
		if err != nil || peer != c.b.Addr() {
			t.Fatalf("address %+v over %x: %+v, %v", c.b.Addr(), wire, peer, err)
		}
		if err := c.a.Connect(peer, 14, 3); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	l.stop = stop
	ends := make(chan verbs.Done, 16*pieces)
	l.ends = ends
	for _, q := range []*verbs.QP{l.writer, l.target} {
		l.wg.Go(func() {
			out := make([]verbs.Done, 32)
			for {
				n, err := q.Wait(ctx, out)
				for _, d := range out[:n] {
					select {
					case ends <- d:
					case <-ctx.Done():
						return
					}
				}
				if err != nil {
					return
				}
			}
		})
	}
}

func (l *lab) halt() {
	if l.stop != nil {
		l.stop()
		l.wg.Wait()
	}
}

// stream posts the whole source in pieces.
func (l *lab) stream(t *testing.T, key uint32) {
	t.Helper()
	var list []verbs.Write
	for i := range uint64(pieces) {
		list = append(list, verbs.Write{ID: i, Region: l.srcMR, Off: i * piece, Len: piece, Remote: l.dstMR.Addr(i * piece), Key: key})
	}
	if n, err := l.writer.Post(list); err != nil || n != pieces {
		t.Fatalf("posted %d of %d: %v", n, pieces, err)
	}
}

// trickle posts the source piece by piece beside the test, since rxe sends
// inside the call; it gives how many were posted before the queue pair broke.
func (l *lab) trickle(key uint32) <-chan int {
	posted := make(chan int, 1)
	w := l.writer
	go func() {
		n := 0
		defer func() { posted <- n }()
		for i := range uint64(pieces) {
			k, err := w.Post([]verbs.Write{{ID: i, Region: l.srcMR, Off: i * piece, Len: piece, Remote: l.dstMR.Addr(i * piece), Key: key}})
			n += k
			if err != nil {
				return
			}
		}
	}()
	return posted
}

func (l *lab) end(t *testing.T) verbs.Done {
	t.Helper()
	select {
	case d := <-l.ends:
		return d
	case <-time.After(patience):
		t.Fatal("a completion did not come")
		return verbs.Done{}
	}
}

func (l *lab) bind(t *testing.T) (uint32, *verbs.Window) {
	t.Helper()
	w, err := l.dev.NewWindow()
	if err != nil {
		t.Skipf("the device has no memory windows: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	key, err := l.target.Bind(ctx, w, l.dstMR, 0, size)
	if err != nil {
		t.Fatal(err)
	}
	return key, w
}

func TestWriteThroughAWindowReadsBack(t *testing.T) {
	l := newLab(t, device(t), false)
	l.connect(t, 2*pieces)
	defer l.halt()
	key, _ := l.bind(t)
	l.stream(t, key)
	for range pieces {
		if d := l.end(t); d.Status != verbs.OK {
			t.Fatalf("write %d: %s", d.ID, d.Status)
		}
	}
	if !bytes.Equal(l.src, l.dst) {
		t.Error("bytes differ")
	}
}

// TestRegionKeyOpensNothing: only a window's key does.
func TestRegionKeyOpensNothing(t *testing.T) {
	l := newLab(t, device(t), false)
	l.connect(t, 2*pieces)
	defer l.halt()
	l.stream(t, l.dstMR.Key())
	if d := l.end(t); d.Status != verbs.RefusedAccess {
		t.Errorf("write %d: %s", d.ID, d.Status)
	}
	if !bytes.Equal(l.dst, make([]byte, size)) {
		t.Error("bytes landed")
	}
}

// TestPartialPost: a queue takes what fits of a list; exactly that completes.
func TestPartialPost(t *testing.T) {
	const depth = 8
	l := newLab(t, device(t), false)
	l.connect(t, depth)
	defer l.halt()
	key, _ := l.bind(t)
	list := make([]verbs.Write, 64)
	for i := range list {
		list[i] = verbs.Write{ID: uint64(i), Region: l.srcMR, Len: size, Remote: l.dstMR.Addr(0), Key: key}
	}
	n, err := l.writer.Post(list)
	if err == nil || n < depth || n >= len(list) {
		t.Fatalf("posted %d of %d: %v", n, len(list), err)
	}
	for i := range n {
		if d := l.end(t); d.ID != uint64(i) || d.Status != verbs.OK {
			t.Fatalf("completion %d is of write %d: %s", i, d.ID, d.Status)
		}
	}
	t.Logf("posted %d of %d on a queue of %d: %v", n, len(list), depth, err)
}

// TestWaitEndsWithItsContext also checks that a later Wait works.
func TestWaitEndsWithItsContext(t *testing.T) {
	l := newLab(t, device(t), false)
	q, err := l.dev.NewQP(8)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		end := make(chan error, 1)
		go func() {
			_, err := q.Wait(ctx, make([]verbs.Done, 1))
			end <- err
		}()
		cancel()
		select {
		case err := <-end:
			if err != context.Canceled {
				t.Errorf("wait: %v", err)
			}
		case <-time.After(patience):
			t.Fatal("Wait outlives its context")
		}
	}
}

// packet is the largest that Soft-RoCE sends, bytes.
const packet = 4096

// TestRevokeMidTransfer fences a stream that is part way in, by each method,
// and clears the memory when the fence says so. After the exact ones not a byte
// may come; after the others at most the packet that was being copied.
func TestRevokeMidTransfer(t *testing.T) {
	dev := device(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	for _, m := range []struct {
		name   string
		window bool
		late   int  // bytes that may come after a fence
		dereg  bool // the fence ends the registration too
		fence  func(l *lab, w *verbs.Window, key uint32) error
	}{
		{"LOCAL_INV", true, packet, false, func(l *lab, _ *verbs.Window, key uint32) error { return l.target.Invalidate(ctx, key) }},
		{"LOCAL_INV+DEREG_MR", true, 0, true, func(l *lab, w *verbs.Window, key uint32) error {
			_ = l.target.Invalidate(ctx, key) // the queue pair may be broken
			return errors.Join(w.Close(), l.dstMR.Close())
		}},
		{"DEREG_MR", false, 0, true, func(l *lab, _ *verbs.Window, _ uint32) error { return l.dstMR.Close() }},
		{"QP_ERR", true, packet, false, func(l *lab, _ *verbs.Window, _ uint32) error { return l.target.Fail() }},
		{"ACCESS_OFF", true, packet, false, func(l *lab, _ *verbs.Window, _ uint32) error { return l.target.AccessOff() }},
	} {
		t.Run(m.name, func(t *testing.T) {
			var took []time.Duration
			late, most, cut, broken := 0, 0, 0, 0
			fresh := false
			l := newLab(t, dev, !m.window)
			defer func() { l.halt() }()
			for round := range rounds(t) {
				if fresh {
					var err error
					if l.dstMR, err = dev.Register(l.dst, !m.window); err != nil {
						t.Fatal(err)
					}
				}
				l.connect(t, 2*pieces)
				fresh = m.dereg
				key := l.dstMR.Key()
				var w *verbs.Window
				if m.window {
					key, w = l.bind(t)
				}
				posted := l.trickle(key)
				for range 1 + round%8 { // from little landed to a part
					if d := l.end(t); d.Status != verbs.OK {
						t.Fatalf("write %d before the fence: %s", d.ID, d.Status)
					}
				}
				start := time.Now()
				switch err := m.fence(l, w, key); {
				case err == nil:
				case m.name == "LOCAL_INV": // the queue pair broke first: the window and its region go
					broken++
					fresh = true
					if err := errors.Join(w.Close(), l.dstMR.Close()); err != nil {
						t.Fatalf("round %d: %v", round, err)
					}
				default:
					t.Fatalf("round %d: %v", round, err)
				}
				took = append(took, time.Since(start))
				clear(l.dst)
				ok := 1 + round%8
				for range <-posted - ok {
					if d := l.end(t); d.Status == verbs.OK {
						ok++
					}
				}
				if ok < pieces {
					cut++
				}
				n := nonZero(l.dst)
				late, most = late+n, max(most, n)
			}
			slices.Sort(took)
			t.Logf("RESULT %s: %d revocations, %d cut a stream, %d late bytes (at most %d in a round), %d by deregistration after a broken queue pair, p50 %s, max %s",
				m.name, len(took), cut, late, most, broken, took[len(took)/2], took[len(took)-1])
			if most > m.late {
				t.Errorf("%d bytes landed after a fence, at most %d may", most, m.late)
			}
			if cut < len(took)/2 {
				t.Errorf("only %d of %d rounds cut a stream: the test has not tested", cut, len(took))
			}
		})
	}
}

// envRounds sets how many fences of each method are made; 100 are the bar of
// rdma.md 9.4.
const envRounds = "PDLOG_VERBS_ROUNDS"

func rounds(t *testing.T) int {
	t.Helper()
	v := os.Getenv(envRounds)
	if v == "" {
		return 100
	}
	n, err := strconv.Atoi(v)
	if err != nil || n <= 0 {
		t.Fatalf("%s=%s: want a number of rounds", envRounds, v)
	}
	return n
}

// nonZero counts bytes that are not zero, by words.
func nonZero(b []byte) int {
	n := 0
	for i := 0; i < len(b); i += 8 {
		if binary.NativeEndian.Uint64(b[i:]) == 0 {
			continue
		}
		for _, v := range b[i : i+8] {
			if v != 0 {
				n++
			}
		}
	}
	return n
}
