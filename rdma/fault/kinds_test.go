package fault_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/fault"
	"github.com/pdlog/pdlog/rdma/tcp"
)

const (
	patience = 20 * time.Second // a bound, never a wait
	size     = 64 << 10
)

// bed is a writer that breaks by spec and a target that is well.
type bed struct {
	src, dst []byte
	target   rdma.Domain
	writer   rdma.Domain
	lease    rdma.Lease
	ep       rdma.Endpoint
	notifs   chan rdma.Notif
	ends     chan rdma.Completion
}

func newBed(t *testing.T, spec string) *bed {
	t.Helper()
	t.Parallel() // most of the time is spent in waiting for the late ones
	s, err := fault.ParseSpec(spec)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{notifs: make(chan rdma.Notif, 100), ends: make(chan rdma.Completion, 100)}
	var mem [2]*rdma.Memfd
	for i := range mem {
		if mem[i], err = rdma.AllocMemfd("bed", size); err != nil {
			t.Fatal(err)
		}
	}
	b.src, b.dst = mem[0].Bytes(), mem[1].Bytes()
	for i := range b.src {
		b.src[i] = 0xaa
	}
	if b.target, err = (tcp.Provider{}).Open(t.Context(), rdma.Config{Self: "d", Listen: "127.0.0.1:0", OnNotif: func(n rdma.Notif) { b.notifs <- n }}); err != nil {
		t.Fatal(err)
	}
	p := fault.New(tcp.Provider{}, s, 1)
	if b.writer, err = p.Open(t.Context(), rdma.Config{Self: "p", OnCompletion: func(c rdma.Completion) { b.ends <- c }}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, d := range []rdma.Domain{b.writer, b.target} {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		for _, m := range mem {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	r, err := b.target.RegisterMemory(t.Context(), mem[1].Memory())
	if err != nil {
		t.Fatal(err)
	}
	if b.lease, err = r.Grant(t.Context(), rdma.Grant{Peer: "p", Tag: 7, Ranges: []rdma.Range{{Len: size}}}); err != nil {
		t.Fatal(err)
	}
	if b.ep, err = b.writer.Connect(t.Context(), b.target.Info()); err != nil {
		t.Fatal(err)
	}
	b.notif(t, rdma.PeerConnected)
	return b
}

func (b *bed) post(t *testing.T) rdma.Transfer {
	t.Helper()
	half := size / 2
	x, err := b.ep.PostBatch(rdma.Batch{
		Tag: 1, Token: 99, Meta: 3, Key: b.lease.Desc().Key,
		Writes: []rdma.Write{{Src: b.src[:half]}, {Src: b.src[half:], RemoteOff: uint64(half)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if x.Writes != 2 || x.Bytes != size {
		t.Errorf("transfer %+v", x)
	}
	return x
}

// end waits for the next completion.
func (b *bed) end(t *testing.T, x rdma.Transfer, want rdma.Status, landed int64) rdma.Completion {
	t.Helper()
	select {
	case c := <-b.ends:
		if c.Status != want || c.ID != x.ID || c.Token != 99 || c.Tag != 1 || c.Meta != 3 || c.Peer != "d" || c.Bytes != landed || c.Proven != (want != rdma.Uncertain) {
			t.Fatalf("completion %+v, want %s with %d bytes", c, want, landed)
		}
		return c
	case <-time.After(patience):
		t.Fatalf("waited %s for %s", patience, want)
		return rdma.Completion{}
	}
}

func (b *bed) notif(t *testing.T, want rdma.NotifKind) rdma.Notif {
	t.Helper()
	select {
	case n := <-b.notifs:
		if n.Kind != want {
			t.Fatalf("told %+v, want %s", n, want)
		}
		return n
	case <-time.After(patience):
		t.Fatalf("waited %s for %s", patience, want)
		return rdma.Notif{}
	}
}

// landed demands n bytes of v and zeros behind them.
func (b *bed) landed(t *testing.T, n int, v byte) {
	t.Helper()
	for i, got := range b.dst {
		if want := v; i < n && got != want || i >= n && got != 0 {
			t.Fatalf("byte %d is %#x; %d bytes of %#x should have landed", i, got, n, v)
		}
	}
}

func (b *bed) drain(t *testing.T, want rdma.DrainReport) {
	t.Helper()
	b.ep.Seal(1)
	if r, err := b.ep.Drain(t.Context(), 1); err != nil || r != want {
		t.Errorf("report %+v, %v; want %+v", r, err, want)
	}
}

func TestErrorIsProvenAndNothingLands(t *testing.T) {
	b := newBed(t, "error")
	x := b.post(t)
	if c := b.end(t, x, rdma.Failed, 0); !errors.Is(c.Err, fault.ErrInjected) {
		t.Errorf("error %v", c.Err)
	}
	b.drain(t, rdma.DrainReport{Posted: 1, Failed: 1, Clean: true})
	b.landed(t, 0, 0)
}

func TestLateIsUncertainLandsAndIsDrained(t *testing.T) {
	b := newBed(t, "late:200ms")
	start := time.Now()
	x := b.post(t)
	b.end(t, x, rdma.Uncertain, 0)
	b.drain(t, rdma.DrainReport{Posted: 1, Uncertain: 1}) // unclean
	if err := b.ep.Abort(1); err != nil {                 // does not call it back
		t.Fatal(err)
	}
	for i := range b.src { // the source is used again: what is on its way stays as it was
		b.src[i] = 0xbb
	}
	if n := b.notif(t, rdma.WriteLanded); n.Tag != 7 || n.Meta != 3 || n.Bytes != size {
		t.Errorf("notif %+v", n)
	}
	if c := b.end(t, x, rdma.Drained, size); c.Err != nil {
		t.Errorf("error %v", c.Err)
	}
	if took := time.Since(start); took < 200*time.Millisecond {
		t.Errorf("landed after %s", took)
	}
	b.landed(t, size, 0xaa)
}

func TestLateWriteUnderARevokedLeaseIsThrownAway(t *testing.T) {
	b := newBed(t, "late:1s")
	x := b.post(t)
	b.end(t, x, rdma.Uncertain, 0)
	if f, err := b.lease.Revoke(t.Context()); err != nil || f.Kind != rdma.FenceReaderStopped {
		t.Fatalf("revoke: %+v, %v", f, err)
	}
	if n := b.notif(t, rdma.LateWriteRefused); n.Tag != 7 || n.Meta != 3 || n.Bytes != size || n.Placed != 0 {
		t.Errorf("notif %+v", n)
	}
	if c := b.end(t, x, rdma.Drained, 0); !errors.Is(c.Err, rdma.ErrRefused) {
		t.Errorf("error %v", c.Err)
	}
	b.drain(t, rdma.DrainReport{Posted: 1, Drained: 1, Clean: true})
	b.landed(t, 0, 0)
}

func TestPartialLandsHalf(t *testing.T) {
	b := newBed(t, "partial:50ms")
	x := b.post(t)
	b.end(t, x, rdma.Uncertain, 0)
	if n := b.notif(t, rdma.WriteLanded); !n.Partial || n.Bytes != size/2 || len(n.Ranges) != 1 {
		t.Errorf("notif %+v", n)
	}
	b.end(t, x, rdma.Drained, size/2)
	b.landed(t, size/2, 0xaa)
}

func TestHangStaysOpenUntilAborted(t *testing.T) {
	b := newBed(t, "hang")
	x := b.post(t)
	if c := b.ep.Inflight(1); c.Posted != 1 {
		t.Errorf("count %+v", c)
	}
	if err := b.ep.Abort(1); err != nil {
		t.Fatal(err)
	}
	if c := b.end(t, x, rdma.Uncertain, 0); !errors.Is(c.Err, rdma.ErrAborted) {
		t.Errorf("error %v", c.Err)
	}
	b.drain(t, rdma.DrainReport{Posted: 1, Uncertain: 1})
	if err := b.writer.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case c := <-b.ends:
		t.Errorf("told %+v of what hangs", c)
	default:
	}
	b.notif(t, rdma.PeerGone) // nothing but that
	b.landed(t, 0, 0)
}

func TestDelayLandsAndCompletesLater(t *testing.T) {
	b := newBed(t, "delay:100ms")
	start := time.Now()
	x := b.post(t)
	if c := b.ep.Inflight(1); c.Open() != 1 {
		t.Errorf("count %+v", c)
	}
	b.end(t, x, rdma.Completed, size)
	if took := time.Since(start); took < 100*time.Millisecond {
		t.Errorf("completed after %s", took)
	}
	b.drain(t, rdma.DrainReport{Posted: 1, Completed: 1, Clean: true})
	b.landed(t, size, 0xaa)
}

func TestAbortCallsADelayedWriteBack(t *testing.T) {
	b := newBed(t, "delay:1h")
	x := b.post(t)
	if err := b.ep.Abort(1); err != nil {
		t.Fatal(err)
	}
	b.end(t, x, rdma.Failed, 0)
	b.drain(t, rdma.DrainReport{Posted: 1, Failed: 1, Clean: true})
}

func TestCloseEndsWhatWasHeldBack(t *testing.T) {
	for spec, want := range map[string][]rdma.Status{
		"late:1h":  {rdma.Uncertain, rdma.Drained},
		"delay:1h": {rdma.Failed},
		"hang":     {rdma.Uncertain},
	} {
		t.Run(spec, func(t *testing.T) {
			b := newBed(t, spec)
			x := b.post(t)
			if err := b.ep.Close(); err != nil {
				t.Fatal(err)
			}
			for _, s := range want {
				b.end(t, x, s, 0)
			}
			select {
			case <-b.ep.Done():
			case <-time.After(patience):
				t.Fatal("the endpoint does not end")
			}
			b.notif(t, rdma.PeerGone)
			b.landed(t, 0, 0)
			if _, err := b.ep.PostBatch(rdma.Batch{Tag: 1, Meta: 3}); !errors.Is(err, rdma.ErrClosed) {
				t.Errorf("post after close: %v", err)
			}
		})
	}
}

func TestSealedTagTakesNoFaultyPost(t *testing.T) {
	for _, spec := range []string{"error", "hang", "late:1h", "delay:1h"} {
		t.Run(spec, func(t *testing.T) {
			b := newBed(t, spec)
			b.ep.Seal(1)
			_, err := b.ep.PostBatch(rdma.Batch{Tag: 1, Key: b.lease.Desc().Key, Writes: []rdma.Write{{Src: b.src}}})
			if !errors.Is(err, rdma.ErrSealed) {
				t.Errorf("post after seal: %v", err)
			}
			b.drain(t, rdma.DrainReport{Clean: true})
		})
	}
}

func TestLostLandsAndIsNeverTold(t *testing.T) {
	b := newBed(t, "lost")
	x := b.post(t)
	b.notif(t, rdma.WriteLanded)
	if c := b.ep.Inflight(1); c.Posted != 1 {
		t.Errorf("count %+v", c)
	}
	if err := b.ep.Abort(1); err != nil {
		t.Fatal(err)
	}
	b.end(t, x, rdma.Uncertain, 0)
	b.landed(t, size, 0xaa)
	b.drain(t, rdma.DrainReport{Posted: 1, Uncertain: 1})
}

func TestEarlyCompletesBeforeItLands(t *testing.T) {
	b := newBed(t, "early:200ms")
	x := b.post(t)
	b.end(t, x, rdma.Completed, size)
	b.drain(t, rdma.DrainReport{Posted: 1, Completed: 1, Clean: true}) // which is the lie
	if n := b.notif(t, rdma.WriteLanded); n.Bytes != size {
		t.Errorf("notif %+v", n)
	}
	b.landed(t, size, 0xaa)
}

func TestTwiceCompletesTwiceAndCountsOnce(t *testing.T) {
	b := newBed(t, "twice")
	x := b.post(t)
	b.end(t, x, rdma.Completed, size)
	b.end(t, x, rdma.Completed, size)
	b.drain(t, rdma.DrainReport{Posted: 1, Completed: 1, Clean: true})
}

func TestShortPostsHalf(t *testing.T) {
	b := newBed(t, "short")
	x, err := b.ep.PostBatch(rdma.Batch{
		Tag: 1, Token: 99, Meta: 3, Key: b.lease.Desc().Key,
		Writes: []rdma.Write{{Src: b.src[:10]}, {Src: b.src[10:20], RemoteOff: 10}, {Src: b.src[20:30], RemoteOff: 20}},
	})
	var part *rdma.PartialError
	if !errors.As(err, &part) || part.Posted != 1 || x.Writes != 1 {
		t.Fatalf("posted %+v, %v", x, err)
	}
	b.end(t, x, rdma.Completed, 10)
	b.landed(t, 10, 0xaa)
}

func TestResetLosesTheConnection(t *testing.T) {
	b := newBed(t, "reset@chunk=3")
	b.post(t)
	select {
	case <-b.ep.Done():
	case <-time.After(patience):
		t.Fatal("the endpoint does not end")
	}
	if err := b.ep.Err(); !errors.Is(err, rdma.ErrConnLost) || errors.Is(err, rdma.ErrClosed) {
		t.Errorf("error %v", err)
	}
	if c := <-b.ends; c.Status == rdma.Failed && !c.Proven {
		t.Errorf("completion %+v", c)
	}
}

func TestOnlyNarrowsARuleDown(t *testing.T) {
	s, err := fault.ParseSpec("error@chunk=2&peer=d0,hang@tag=9")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tag  rdma.Tag
		meta uint64
		peer rdma.PeerID
		want fault.Kind
	}{{1, 2, "d0/1", fault.Error}, {1, 2, "d1/1", fault.OK}, {1, 3, "d0/1", fault.OK}, {9, 0, "", fault.Hang}} {
		if got := s.Draw(1, c.tag, c.meta, c.peer); got.Kind != c.want {
			t.Errorf("%+v: %s", c, got.Kind)
		}
	}
}

func TestFencesAreSlowOrProveNothing(t *testing.T) {
	t.Parallel()
	for spec, bad := range map[string]bool{"badfence": true, "slowfence:50ms": false} {
		s, err := fault.ParseSpec(spec)
		if err != nil {
			t.Fatal(err)
		}
		d, err := fault.New(tcp.Provider{}, s, 1).Open(t.Context(), rdma.Config{Self: "d", Listen: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		m, err := rdma.AllocMemfd("fence", size)
		if err != nil {
			t.Fatal(err)
		}
		r, err := d.RegisterMemory(t.Context(), m.Memory())
		if err != nil {
			t.Fatal(err)
		}
		l, err := r.Grant(t.Context(), rdma.Grant{Peer: "p", Tag: 3, Ranges: []rdma.Range{{Len: size}}})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			f, err := l.Revoke(t.Context())
			switch {
			case bad && (!errors.Is(err, fault.ErrInjected) || f.Kind != rdma.FenceNone):
				t.Errorf("%s: %+v, %v", spec, f, err)
			case !bad && (err != nil || f.Kind != rdma.FenceReaderStopped || f.Took < 50*time.Millisecond):
				t.Errorf("%s: %+v, %v", spec, f, err)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}
