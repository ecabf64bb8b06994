package rdmatest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/pdlog/pdlog/rdma"
)

// stall makes a target that stops reading at its first landed write until let
// go, so that a writer's window and queue fill up behind it.
type stall struct {
	reached, release chan struct{}
	once             sync.Once
}

func (s *stall) notif(v rdma.Notif) {
	if v.Kind == rdma.WriteLanded {
		select {
		case <-s.reached:
		default:
			close(s.reached)
		}
		<-s.release
	}
}

func (s *stall) letGo() { s.once.Do(func() { close(s.release) }) }

// stalledPair is a pair whose target stands still with one write landed and
// not answered. The cleanup order lets it go before the domains close.
func stalledPair(t *testing.T, p rdma.Provider, cfg rdma.Config) (*pair, *stall, rdma.Lease, rdma.Transfer) {
	t.Helper()
	dst, src := memory(t, page), memory(t, 8<<20)
	s := &stall{reached: make(chan struct{}), release: make(chan struct{})}
	w := &pair{src: src.Bytes()}
	w.target = open(t, p, rdma.Config{Self: targetName, Listen: listenAt(p), OnNotif: s.notif})
	cfg.Self = writerName
	w.writer = open(t, p, cfg)
	t.Cleanup(s.letGo)
	w.dst = register(t, w.target, dst.Memory())
	register(t, w.writer, src.Memory())
	w.ep = connect(t, w.writer, w.target.Info())
	l := grant(t, w.dst, 1, all(w.dst))
	x := post(t, w.ep, rdma.Batch{Tag: 1, Key: l.Desc().Key, Writes: []rdma.Write{{Src: w.src[:8]}}})
	<-s.reached
	return w, s, l, x
}

// testPartial posts a batch that is longer than the queue.
func testPartial(t *testing.T, p rdma.Provider) {
	const queue = 8
	w, s, l, first := stalledPair(t, p, rdma.Config{Queue: queue})
	b := rdma.Batch{Tag: 1, Key: l.Desc().Key, Meta: 1, Writes: make([]rdma.Write, queue+3)}
	for i := range b.Writes {
		b.Writes[i] = rdma.Write{Src: w.src[i*100 : i*100+50], RemoteOff: uint64(i * 100)}
	}
	x, err := w.ep.PostBatch(b)
	var part *rdma.PartialError
	if !errors.As(err, &part) || !errors.Is(err, rdma.ErrQueueFull) {
		t.Fatalf("post of %d writes on a queue of %d: %v", len(b.Writes), queue, err)
	}
	if part.Posted <= 0 || part.Posted > queue || x.Writes != part.Posted || x.Bytes != int64(50*part.Posted) {
		t.Fatalf("posted %+v, error %+v", x, part)
	}
	// With the target standing still the queue fills for good, and never blocks.
	full := false
	var posted []rdma.Transfer
	for i := 0; i < 1000 && !full; i++ {
		big := rdma.Batch{Tag: 1, Key: l.Desc().Key, Meta: 2, Writes: make([]rdma.Write, queue)}
		for i := range big.Writes {
			big.Writes[i] = rdma.Write{Src: w.src[:1<<20], RemoteOff: 1 << 30} // refused: nothing lands
		}
		y, err := w.ep.PostBatch(big)
		switch {
		case err == nil || errors.As(err, &part):
			posted = append(posted, y)
		case errors.Is(err, rdma.ErrQueueFull):
			full = true
		default:
			t.Fatal(err)
		}
	}
	if !full {
		t.Error("the queue never filled")
	}
	s.letGo()
	for _, tr := range []rdma.Transfer{first, x} {
		if c := w.writer.of(t, tr); c.Status != rdma.Completed || c.Bytes != tr.Bytes {
			t.Errorf("completion %+v of %+v", c, tr)
		}
	}
	for _, tr := range posted {
		if c := w.writer.of(t, tr); c.Status != rdma.Failed || !c.Proven {
			t.Errorf("completion %+v", c)
		}
	}
	if v := w.target.notifs.find(t, "landed", func(v rdma.Notif) bool { return v.Meta == 1 }); !v.Partial || len(v.Ranges) != x.Writes {
		t.Errorf("notif %+v of %+v", v, x)
	}
	for i := range b.Writes {
		got, want := w.dst.Bytes()[i*100+8:i*100+50], w.src[i*100+8:i*100+50]
		if i >= x.Writes {
			want = zeros[:42]
		}
		if sum(got) != sum(want) {
			t.Errorf("write %d of %d posted: bytes differ", i, x.Writes)
		}
	}
}

func testCleanDrain(t *testing.T, p rdma.Provider) {
	w := newPair(t, p, 4<<20, rdma.Config{})
	l := grant(t, w.dst, 1, all(w.dst))
	if _, err := w.ep.Drain(t.Context(), 1); !errors.Is(err, rdma.ErrNotSealed) {
		t.Errorf("drain of an open tag: %v", err)
	}
	posted := w.stream(t, l, 1, 0)
	w.write(t, l, 2, 0, 10) // of another tag: not waited for, not counted
	w.ep.Seal(1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := w.ep.Drain(ctx, 1)
	if want := (rdma.DrainReport{Posted: posted, Completed: posted, Clean: true}); err != nil || r != want {
		t.Fatalf("report %+v, %v; want %+v", r, err, want)
	}
	if got, _ := w.writer.completions.list(); len(got) < posted {
		t.Errorf("drained after %d of %d completions were told", len(got), posted)
	}
	if c := w.ep.Inflight(1); c.Open() != 0 || c.Completed != posted {
		t.Errorf("count %+v", c)
	}
	if err := w.ep.Forget(1); err != nil {
		t.Error(err)
	}
	if c := w.ep.Inflight(1); c != (rdma.Count{}) {
		t.Errorf("count after forget %+v", c)
	}
	if sum(w.dst.Bytes()) != sum(w.src) {
		t.Error("bytes differ")
	}
}

func testSealed(t *testing.T, p rdma.Provider) {
	w := newPair(t, p, page, rdma.Config{})
	l := grant(t, w.dst, 1, all(w.dst))
	w.ep.Seal(1)
	if _, err := w.ep.PostBatch(w.batch(l, 1, 0, page)); !errors.Is(err, rdma.ErrSealed) {
		t.Errorf("post after seal: %v", err)
	}
	if r, err := w.ep.Drain(t.Context(), 1); err != nil || r != (rdma.DrainReport{Clean: true}) {
		t.Errorf("drain of nothing: %+v, %v", r, err)
	}
	w.works(t, l, 0, page)
}

// testAbort aborts a tag that has one transfer out and others behind it.
func testAbort(t *testing.T, p rdma.Provider) {
	w, s, l, first := stalledPair(t, p, rdma.Config{})
	other := rdma.Batch{Tag: 2, Key: l.Desc().Key, Writes: []rdma.Write{{Src: w.src[100:200], RemoteOff: 100}}}
	beside := post(t, w.ep, other)
	var mine []rdma.Transfer
	for range 64 { // more than sockets hold, so that some have not left
		mine = append(mine, post(t, w.ep, rdma.Batch{Tag: 1, Key: l.Desc().Key, Writes: []rdma.Write{{Src: w.src, RemoteOff: 1 << 30}}}))
	}
	w.ep.Seal(1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := w.ep.Drain(ctx, 1); !errors.Is(err, context.Canceled) || r.Clean || r.Posted != 65 {
		t.Errorf("drain of open writes with an ended context: %+v, %v", r, err)
	}
	if err := w.ep.Forget(1); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("forget with open writes: %v", err)
	}
	if err := w.ep.Abort(1); err != nil {
		t.Fatal(err)
	}
	r, err := w.ep.Drain(t.Context(), 1)
	if err != nil || r.Clean || r.Uncertain == 0 || r.Failed == 0 || r.Uncertain+r.Failed != 65 {
		t.Fatalf("drain after abort: %+v, %v", r, err)
	}
	if c := w.writer.of(t, first); c.Status != rdma.Uncertain || c.Proven || !errors.Is(c.Err, rdma.ErrAborted) {
		t.Errorf("the write that is out: %+v", c)
	}
	last := mine[len(mine)-1]
	if c := w.writer.of(t, last); c.Status != rdma.Failed || !c.Proven || !errors.Is(c.Err, rdma.ErrAborted) {
		t.Errorf("the write that never left: %+v", c)
	}
	s.letGo()
	ended := w.writer.completions.count(t, "true ends", r.Uncertain, func(c rdma.Completion) bool { return c.Status == rdma.Drained })
	for _, c := range ended {
		if !c.Proven || c.Tag != 1 || c.ID == first.ID && (c.Err != nil || c.Bytes != 8) {
			t.Errorf("drained %+v", c)
		}
	}
	if c := w.writer.of(t, beside); c.Status != rdma.Completed {
		t.Errorf("the other tag: %+v", c)
	}
	if r, err := w.ep.Drain(t.Context(), 1); err != nil {
		t.Error(err)
	} else if r.Posted != 65 || r.Failed+r.Drained+r.Uncertain != 65 {
		t.Errorf("report at the end %+v", r)
	}
}

// testClose closes an endpoint with writes in every state.
func testClose(t *testing.T, p rdma.Provider) {
	w, s, l, first := stalledPair(t, p, rdma.Config{})
	for range 32 {
		post(t, w.ep, rdma.Batch{Tag: 3, Key: l.Desc().Key, Writes: []rdma.Write{{Src: w.src, RemoteOff: 1 << 30}}})
	}
	if err := w.ep.Err(); err != nil {
		t.Errorf("error of a running endpoint: %v", err)
	}
	if err := w.ep.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, w.ep.Done(), "the endpoint's end")
	if err := w.ep.Err(); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("error of a closed endpoint: %v", err)
	}
	ends, _ := w.writer.completions.list()
	var uncertain, failed int
	for _, c := range ends {
		switch {
		case c.Status == rdma.Uncertain && !c.Proven:
			uncertain++
		case c.Status == rdma.Failed && c.Proven && c.Bytes == 0:
			failed++
		default:
			t.Errorf("completion %+v", c)
		}
	}
	if uncertain+failed != 33 || uncertain == 0 || failed == 0 {
		t.Errorf("%d uncertain and %d failed of 33", uncertain, failed)
	}
	if c := w.writer.of(t, first); c.Status != rdma.Uncertain {
		t.Errorf("the write that is out: %+v", c)
	}
	if _, err := w.ep.PostBatch(w.batch(l, 1, 0, 8)); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("post after close: %v", err)
	}
	s.letGo()
	w.target.notifs.find(t, "peer gone", func(v rdma.Notif) bool { return v.Kind == rdma.PeerGone && v.Fence != rdma.FenceNone })
	w.ep = connect(t, w.writer, w.target.Info()) // and it can be had again
	if c := w.writer.of(t, w.write(t, l, 9, 0, 16)); c.Status != rdma.Completed {
		t.Errorf("after reconnecting: %+v", c)
	}
}
