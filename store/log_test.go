package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"go.etcd.io/bbolt"

	"github.com/pdlog/pdlog/events"
)

func TestReopenGivesBackWhatWasAppended(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l, rec := openLog(t, dir, Options{})
	if !rec.Empty || !rec.Created || rec.Incarnation != 1 || rec.LastSeq != 0 {
		t.Fatalf("a new log: %+v", rec)
	}
	id := l.LogID()
	src := newSource(l, rec, 1)
	all := src.next(500)
	mustAppend(t, l, all, events.Group)
	mustSync(t, l)
	if l.Durable() != 500 {
		t.Fatalf("durable %d", l.Durable())
	}
	mustClose(t, l)

	l, rec = openLog(t, dir, Options{Boot: 2})
	if rec.Empty || rec.LogID != id || rec.LastSeq != 500 || rec.LastHLC != src.hlc ||
		rec.LastIncarnation != 1 || rec.Incarnation != 2 || rec.FirstSeq != 1 || rec.HeadSeq != 500 {
		t.Fatalf("reopened: %+v", rec)
	}
	more := newSource(l, rec, 2).next(3)
	mustAppend(t, l, more, events.Sync)
	mustSync(t, l)
	have, err := l.ReadFrom(1, 1000)
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, l)
	want := append(all, more...)
	chain := uint32(0)
	if len(have) != len(want) {
		t.Fatalf("have %d events, want %d", len(have), len(want))
	}
	for i, e := range have {
		if i == 0 && e.PrevHash != 0 || i > 0 && e.PrevHash == chain {
			t.Fatalf("event %d has chain %08x after %08x", e.Seq, e.PrevHash, chain)
		}
		chain = e.PrevHash
		want[i].PrevHash = e.PrevHash
		if !proto.Equal(e, want[i]) {
			t.Fatalf("have %v, want %v", e, want[i])
		}
	}
	mustReadDir(t, dir, 503)
}

func TestCallerMayReuseEvents(t *testing.T) {
	l, rec := openLog(t, t.TempDir(), Options{})
	evs := newSource(l, rec, 1).next(1)
	room := evs[0].Room
	mustAppend(t, l, evs, events.Group)
	evs[0].Room = 99
	mustSync(t, l)
	have, err := l.ReadFrom(1, 1)
	if err != nil || len(have) != 1 || have[0].Room != room {
		t.Fatalf("have %v, %v", have, err)
	}
}

func TestAppendRefusesWithoutTaking(t *testing.T) {
	l, rec := openLog(t, t.TempDir(), Options{})
	good := newSource(l, rec, 1).next(4)
	clone := func(change func(*events.Event)) []*events.Event {
		e := proto.CloneOf(good[1])
		change(e)
		return []*events.Event{good[0], e} // the good one before it is not taken either
	}
	for name, c := range map[string]struct {
		evs  []*events.Event
		want error
	}{
		"gap":         {clone(func(e *events.Event) { e.Seq++ }), events.ErrSeqGap},
		"repeat":      {clone(func(e *events.Event) { e.Seq-- }), events.ErrSeqGap},
		"clock":       {clone(func(e *events.Event) { e.Hlc = good[0].Hlc }), events.ErrClockOrder},
		"boot":        {clone(func(e *events.Event) { e.Boot++ }), ErrEnvelope},
		"incarnation": {clone(func(e *events.Event) { e.Incarnation++ }), ErrEnvelope},
		"node":        {clone(func(e *events.Event) { e.Node = "other" }), ErrEnvelope},
		"size":        {clone(func(e *events.Event) { e.Rank = strings.Repeat("r", events.RecordLimit) }), events.ErrRecordTooBig},
	} {
		if err := l.Append(c.evs, events.Sync); !errors.Is(err, c.want) {
			t.Errorf("%s: have %v, want %v", name, err, c.want)
		}
	}
	mustAppend(t, l, good, events.Sync)
	mustSync(t, l)
	mustClose(t, l)
	mustReadDir(t, l.dir, 4)
	if err := l.Append(good, events.Sync); !errors.Is(err, ErrClosed) {
		t.Errorf("append to a closed log: %v", err)
	}
}

// What arrives while a commit runs goes to disk with one more commit.
func TestAppendsDuringACommitShareTheNext(t *testing.T) {
	entered, goOn := make(chan struct{}), make(chan struct{})
	var commits atomic.Int64
	l, rec := openLog(t, t.TempDir(), Options{hooks: hooks{beforeCommit: func(int) error {
		if commits.Add(1) == 1 {
			close(entered)
			<-goOn
		}
		return nil
	}}})
	src := newSource(l, rec, 1)
	mustAppend(t, l, src.next(1), events.Sync)
	<-entered
	for range 1000 {
		mustAppend(t, l, src.next(1), events.Sync)
	}
	if p := l.Pressure(); p <= 0 {
		t.Errorf("pressure %v with 1000 events pending", p)
	}
	close(goOn)
	mustSync(t, l)
	if n := commits.Load(); n != 2 {
		t.Errorf("1001 appends took %d commits, want 2", n)
	}
	if q := l.queued.Load(); q != 0 {
		t.Errorf("%d bytes are queued after sync", q)
	}
}

func TestGroupEventsCommitWithoutAWaiter(t *testing.T) {
	durable := make(chan uint64, 10)
	l, rec := openLog(t, t.TempDir(), Options{OnDurable: func(seq uint64) { durable <- seq }})
	mustAppend(t, l, newSource(l, rec, 1).next(3), events.Group)
	select {
	case seq := <-durable:
		if seq != 3 {
			t.Errorf("durable %d, want 3", seq)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("group events were never committed")
	}
}

// With a linger that never ends by itself, a waiter, a Sync event and Hurry
// each start the commit.
func TestNobodyWhoWaitsLingers(t *testing.T) {
	for name, push := range map[string]func(*Log, *source) error{
		"wait":  func(l *Log, _ *source) error { return l.Sync(context.Background()) },
		"sync":  func(l *Log, s *source) error { return l.Append(s.next(1), events.Sync) },
		"hurry": func(l *Log, _ *source) error { l.Hurry(); return nil },
	} {
		durable := make(chan uint64, 10)
		l, rec := openLog(t, t.TempDir(), Options{Linger: time.Hour, OnDurable: func(seq uint64) { durable <- seq }})
		src := newSource(l, rec, 1)
		mustAppend(t, l, src.next(1), events.Group)
		select {
		case seq := <-durable:
			t.Fatalf("%s: %d was committed before anybody asked", name, seq)
		default:
		}
		if err := push(l, src); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		select {
		case <-durable:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: no commit", name)
		}
		mustClose(t, l)
	}
}

func TestCloseCommitsWhatLingers(t *testing.T) {
	l, rec := openLog(t, t.TempDir(), Options{Linger: time.Hour})
	mustAppend(t, l, newSource(l, rec, 1).next(7), events.Group)
	mustClose(t, l)
	mustReadDir(t, l.dir, 7)
}

func TestSmallSegmentsRollAndStayOneLog(t *testing.T) {
	dir := t.TempDir()
	l, rec := openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
	src := newSource(l, rec, 1)
	for range 60 {
		mustAppend(t, l, src.next(500), events.Sync)
	}
	mustSync(t, l)
	have, err := l.ReadFrom(1, 1<<20)
	if err != nil || len(have) != 30000 || have[29999].Seq != 30000 {
		t.Fatalf("live read: %d events, %v", len(have), err)
	}
	mid, err := l.ReadFrom(12345, 10)
	if err != nil || len(mid) != 10 || mid[0].Seq != 12345 {
		t.Fatalf("read from the middle: %v, %v", mid, err)
	}
	frames, err := l.ReadFrames(20000, 8<<10)
	if err != nil || len(frames) < 2 || frames[0].Info.FirstSeq > 20000 || frames[0].Info.LastSeq < 20000 {
		t.Fatalf("frames from the middle: %d, %v", len(frames), err)
	}
	if none, err := l.ReadFrames(30001, 1<<20); err != nil || len(none) != 0 {
		t.Fatalf("frames behind the end: %d, %v", len(none), err)
	}
	mustClose(t, l)
	segs, err := listSegments(dir)
	if err != nil || len(segs) < 4 {
		t.Fatalf("%d segments, %v", len(segs), err)
	}
	if _, err := os.Stat(filepath.Join(dir, spareName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the prepared segment was left behind: %v", err)
	}
	for _, s := range segs {
		if st, err := os.Stat(s.path); err != nil || st.Size() != minSegmentBytes {
			t.Errorf("%s: %v, %v", s.path, st.Size(), err)
		}
	}
	mustReadDir(t, dir, 30000)
	l, rec = openLog(t, dir, Options{SegmentBytes: minSegmentBytes, Boot: 5})
	if rec.LastSeq != 30000 || rec.Segments != len(segs) || rec.Incarnation != 2 {
		t.Errorf("reopened: %+v", rec)
	}
	mustAppend(t, l, newSource(l, rec, 1).next(1), events.Sync)
	mustClose(t, l)
	mustReadDir(t, dir, 30001)
}

func TestSegmentExplainsItself(t *testing.T) {
	dir := t.TempDir()
	l, _ := openLog(t, dir, Options{})
	err := l.active.view(func(tx *bbolt.Tx) error {
		var set descriptorpb.FileDescriptorSet
		if err := proto.Unmarshal(tx.Bucket(bucketMeta).Get(keyDescriptor), &set); err != nil {
			return err
		}
		if len(set.File) != 1 || set.File[0].GetPackage() != "pdlog.events.v1" {
			t.Errorf("schema in meta: %v", set.File)
		}
		v, err := viewOf(tx)
		if err != nil {
			return err
		}
		m, err := getMeta("x", v.meta)
		if m.Node != "n" || m.LogID != l.LogID() || m.FirstSeq != 1 || m.Boot != 0xb007 || m.Incarnation != 1 {
			t.Errorf("meta: %+v", m)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A reader that keeps up sees each durable event once, in order, while
// segments roll under it.
func TestLiveReaderFollowsTheCommitter(t *testing.T) {
	l, rec := openLog(t, t.TempDir(), Options{SegmentBytes: minSegmentBytes})
	const total = 20000
	done := make(chan error, 1)
	go func() {
		next := uint64(1)
		for next <= total {
			ch := l.Changed()
			evs, err := l.ReadFrom(next, 777)
			if err != nil {
				done <- err
				return
			}
			for _, e := range evs {
				if e.Seq != next || e.Seq > l.Durable() {
					done <- errors.New("reader saw a gap or what is not durable")
					return
				}
				next++
			}
			if len(evs) == 0 {
				<-ch
			}
		}
		done <- nil
	}()
	src := newSource(l, rec, 1)
	for range total / 100 {
		mustAppend(t, l, src.next(100), events.Group)
		if src.seq%1000 == 0 {
			mustSync(t, l)
		}
	}
	mustSync(t, l)
	if err := <-done; err != nil {
		t.Fatal(err)
	}

	// Pages of events begin and end where they are asked to, over segments too.
	for from, to := uint64(7), uint64(total-7); from <= to; {
		next := from
		chain, err := l.ReadEvents(from, to, 100<<10, func(e *events.Event) {
			if e.Seq != next {
				t.Fatalf("event %d, want %d", e.Seq, next)
			}
			next++
		})
		if err != nil || next == from || next > to+1 {
			t.Fatalf("page from %d to %d: ends before %d: %v", from, to, next, err)
		}
		if frames, err := l.ReadFrames(next-1, 1); err != nil || frames[0].Info.Chain != chain {
			t.Errorf("after %d: chain %08x, %v", next-1, chain, err)
		}
		from = next
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	l, _ := openLog(t, t.TempDir(), Options{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Wait(ctx, 5); !errors.Is(err, context.Canceled) {
		t.Errorf("wait: %v", err)
	}
	errc := make(chan error, 1)
	go func() { errc <- l.Wait(context.Background(), 5) }()
	mustClose(t, l)
	if err := <-errc; !errors.Is(err, ErrClosed) {
		t.Errorf("wait on a log that was closed: %v", err)
	}
}

func BenchmarkAppendGroup(b *testing.B) {
	l, rec := openLog(b, b.TempDir(), Options{QueueBytes: 1 << 20})
	src := newSource(l, rec, 1)
	ev := src.next(1)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if err := l.Append(ev, events.Group); err != nil {
			b.Fatal(err)
		}
		ev[0].Seq++
		ev[0].Hlc++
		if n++; n%4096 == 0 && l.Full() { // keep the queue bounded, off the clock
			b.StopTimer()
			mustSync(b, l)
			b.StartTimer()
		}
	}
}

func BenchmarkSyncOneProducer(b *testing.B) {
	l, rec := openLog(b, b.TempDir(), Options{})
	src := newSource(l, rec, 1)
	ctx := context.Background()
	for b.Loop() {
		if err := l.Append(src.next(1), events.Sync); err != nil {
			b.Fatal(err)
		}
		if err := l.Sync(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
