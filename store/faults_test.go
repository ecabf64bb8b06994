package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/pdlog/pdlog/events"
)

func TestSecondProcessIsToldWhoHasTheLog(t *testing.T) {
	dir := t.TempDir()
	cmd := childCmd("hold", dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("child: %q, %v", line, err)
	}
	began := time.Now()
	_, _, err = Open(context.Background(), dir, Options{Node: "n", Boot: 1})
	if took := time.Since(began); took > time.Second {
		t.Errorf("the answer took %v", took)
	}
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "pid "+strconv.Itoa(cmd.Process.Pid)) || strings.Contains(err.Error(), "\n") {
		t.Errorf("second open: %v", err)
	}
	if info, live := Locked(dir); !live || info.PID != cmd.Process.Pid || info.Node != "n" || time.Since(info.Since) > time.Minute {
		t.Errorf("lock: %+v, %v", info, live)
	}
	_, err = ReadDir(dir, 0, nil)
	var inUse *InUseError
	if !errors.Is(err, ErrInUse) || !errors.As(err, &inUse) || inUse.Lock.PID != cmd.Process.Pid || !strings.Contains(err.Error(), "socket") {
		t.Errorf("read of a live log: %v", err)
	}
	if _, err := io.WriteString(in, "\n"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("child: %v", err)
	}
	if _, live := Locked(dir); live {
		t.Error("the lock outlived its process")
	}
	l, _ := openLog(t, dir, Options{})
	mustClose(t, l)
}

// Sealed segments of a live log are readable by others, up to the active one.
func TestSealedSegmentsOfALiveLogAreReadable(t *testing.T) {
	dir := t.TempDir()
	l, rec := openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
	src := newSource(l, rec, 1)
	for range 30 {
		mustAppend(t, l, src.next(500), events.Sync)
		mustSync(t, l)
	}
	var last uint64
	_, err := ReadDir(dir, 0, func(e *events.Event) error { last = e.Seq; return nil })
	var inUse *InUseError
	if !errors.As(err, &inUse) || inUse.Next != last+1 || last == 0 || inUse.Next != l.active.first {
		t.Fatalf("read up to %d, active starts at %d: %v", last, l.active.first, err)
	}
	rest, err := l.ReadFrom(inUse.Next, 1<<20)
	if err != nil || len(rest) == 0 || rest[len(rest)-1].Seq != src.seq {
		t.Fatalf("the rest: %d events, %v", len(rest), err)
	}
}

func TestCommitErrorPoisonsForGood(t *testing.T) {
	boom := errors.New("injected EIO")
	for name, arm := range map[string]func(*hooks, *atomic.Bool){
		"before": func(h *hooks, on *atomic.Bool) {
			h.beforeCommit = func(int) error {
				if on.Load() {
					return boom
				}
				return nil
			}
		},
		// The meta sync fails: bbolt shows the events, they are not acknowledged.
		"after": func(h *hooks, on *atomic.Bool) {
			h.afterCommit = func() error {
				if on.Load() {
					return boom
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var on atomic.Bool
			var acked atomic.Uint64
			opts := Options{OnDurable: func(seq uint64) { acked.Store(seq) }}
			arm(&opts.hooks, &on)
			l, rec := openLog(t, t.TempDir(), opts)
			src := newSource(l, rec, 1)
			mustAppend(t, l, src.next(10), events.Sync)
			mustSync(t, l)
			on.Store(true)
			changed := l.Changed()
			mustAppend(t, l, src.next(10), events.Sync)
			err := l.Wait(context.Background(), 20)
			if !errors.Is(err, ErrPoisoned) || !errors.Is(err, boom) {
				t.Errorf("waiter: %v", err)
			}
			<-l.Failed()
			on.Store(false) // the disk is well again, the log is not
			if err := l.Append(src.next(1), events.Sync); !errors.Is(err, ErrPoisoned) {
				t.Errorf("append: %v", err)
			}
			if err := l.Wait(context.Background(), 20); !errors.Is(err, ErrPoisoned) {
				t.Errorf("wait: %v", err)
			}
			if err := l.Wait(context.Background(), 10); err != nil {
				t.Errorf("wait for what is durable: %v", err)
			}
			if l.Durable() != 10 || acked.Load() != 10 {
				t.Errorf("durable %d, acknowledged %d, want 10", l.Durable(), acked.Load())
			}
			if evs, err := l.ReadFrom(1, 100); err != nil || len(evs) != 10 {
				t.Errorf("reader sees %d events, %v; want the 10 durable ones", len(evs), err)
			}
			<-changed // a reader behind the committer is told
			select {
			case <-l.Changed():
				t.Error("a poisoned log keeps waking its readers")
			default:
			}
			if err := l.Close(); !errors.Is(err, ErrPoisoned) {
				t.Errorf("close: %v", err)
			}
			<-l.Changed()
			if _, err := l.ReadFrames(1, 1); !errors.Is(err, ErrClosed) {
				t.Errorf("read of a closed log: %v", err)
			}
		})
	}
}

// A full disk shows at the segment prepared ahead: no new rooms, the open ones
// end in what is left; with space back, life goes on.
func TestFullDiskClosesAdmissionOnly(t *testing.T) {
	var full atomic.Bool
	tried := make(chan struct{}, 100)
	l, rec := openLog(t, t.TempDir(), Options{SegmentBytes: minSegmentBytes, hooks: hooks{prepare: func() error {
		if full.Load() {
			tried <- struct{}{}
			return &os.PathError{Op: "write", Path: spareName, Err: syscall.ENOSPC}
		}
		return nil
	}}})
	src := newSource(l, rec, 1)
	mustAppend(t, l, src.next(1), events.Sync)
	mustSync(t, l)
	full.Store(true)
	for !l.Full() { // the first spare is there already: use it up
		mustAppend(t, l, src.next(500), events.Sync)
		mustSync(t, l)
	}
	for range 10 { // a segment more than fits: the file grows
		mustAppend(t, l, src.next(500), events.Sync)
		mustSync(t, l)
	}
	<-tried
	full.Store(false)
	deadline := time.Now().Add(20 * time.Second)
	for l.Full() && time.Now().Before(deadline) {
		mustAppend(t, l, src.next(1), events.Sync)
		mustSync(t, l)
	}
	if l.Full() {
		t.Fatal("the disk has room again, the log still says full")
	}
	mustAppend(t, l, src.next(500), events.Sync)
	mustClose(t, l)
	mustReadDir(t, l.dir, src.seq)
}

func TestPrepareErrorPoisons(t *testing.T) {
	boom := errors.New("injected EIO")
	var calls atomic.Int64
	l, _ := openLog(t, t.TempDir(), Options{hooks: hooks{prepare: func() error {
		if calls.Add(1) > 1 { // the first one is the segment of Open
			return boom
		}
		return nil
	}}})
	<-l.Failed()
	if err := l.Err(); !errors.Is(err, ErrPoisoned) || !errors.Is(err, boom) {
		t.Errorf("err: %v", err)
	}
}

// fill writes a closed log of a few segments and gives the number of events.
func fill(t *testing.T, dir string, batches int) uint64 {
	t.Helper()
	l, rec := openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
	src := newSource(l, rec, 1)
	for range batches {
		mustAppend(t, l, src.next(500), events.Sync)
		mustSync(t, l)
	}
	mustClose(t, l)
	return src.seq
}

// Bytes of a record flipped on disk are found, with the file and the sequence.
func TestFlippedBytesAreFound(t *testing.T) {
	dir := t.TempDir()
	last := fill(t, dir, 20)
	segs, err := listSegments(dir)
	if err != nil || len(segs) < 2 {
		t.Fatal(len(segs), err)
	}
	for _, s := range segs {
		orig, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		// Frames that are live in the tree: found through bbolt, damaged in the file.
		var victims [][]byte
		if _, err := ReadDir(dir, s.first, nil); err != nil {
			t.Fatal(err)
		}
		frames := framesOf(t, s)
		for _, i := range []int{0, len(frames) / 2, len(frames) - 1} {
			victims = append(victims, frames[i])
		}
		for _, v := range victims {
			info, err := events.DecodeFrame(v, "", nil)
			if err != nil {
				t.Fatal(err)
			}
			bad := bytes.Clone(orig)
			n := 0
			for at := 0; ; n++ { // every copy: bbolt leaves older ones on free pages
				i := bytes.Index(bad[at:], v)
				if i < 0 {
					break
				}
				bad[at+i+len(v)/2] ^= 0x10
				at += i + len(v)
			}
			if n == 0 {
				t.Fatalf("frame %d is not in the file", info.FirstSeq)
			}
			if err := os.WriteFile(s.path, bad, 0o644); err != nil {
				t.Fatal(err)
			}
			var seen uint64
			_, err = ReadDir(dir, 0, func(e *events.Event) error { seen = e.Seq; return nil })
			var c *CorruptError
			if !errors.As(err, &c) || !errors.Is(err, ErrCorrupt) || !errors.Is(err, events.ErrFrameCRC) ||
				c.File != s.path || c.Seq != info.FirstSeq || seen != info.FirstSeq-1 {
				t.Fatalf("record %d of %s: read up to %d, %v", info.FirstSeq, s.path, seen, err)
			}
			if err := os.WriteFile(s.path, orig, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustReadDir(t, dir, last)
}

func framesOf(t *testing.T, s *segment) [][]byte {
	t.Helper()
	var frames [][]byte
	_, err := ReadDir(filepath.Dir(s.path), s.first, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = readSegmentFrames(s, func(v []byte) { frames = append(frames, bytes.Clone(v)) })
	if err != nil || len(frames) == 0 {
		t.Fatal(len(frames), err)
	}
	return frames
}

// A frame whose checksum fits but that is not the next one breaks the chain.
func TestForgedFrameBreaksTheChain(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, 1)
	l, _ := openLog(t, dir, Options{})
	frames, err := l.ReadFrames(1, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	victim := frames[3].Info
	mustClose(t, l)
	w := events.NewFrameWriter(events.Position{Seq: victim.FirstSeq - 1, HLC: victim.FirstHLC - 1, Chain: victim.PrevChain})
	_, err = events.DecodeFrame(frames[3].Data, "n", func(e *events.Event) error {
		e.Room++ // history rewritten
		return w.Append(e)
	})
	if err != nil {
		t.Fatal(err)
	}
	var forged events.FrameBatch
	w.Swap(&forged)
	_, b := forged.Frame(0)
	putFrame(t, segmentPath(dir, 1), victim.FirstSeq, b)

	want := victim.LastSeq + 1
	check := func(what string, err error) {
		var c *CorruptError
		if !errors.As(err, &c) || !errors.Is(err, events.ErrChain) || c.Seq != want ||
			!strings.Contains(err.Error(), "chain broken") || !strings.Contains(err.Error(), "want") {
			t.Errorf("%s: have %v, want a broken chain at %d", what, err, want)
		}
	}
	_, err = ReadDir(dir, 0, nil)
	check("read", err)
	_, _, err = Open(context.Background(), dir, Options{Node: "n", Boot: 1})
	check("open", err)
}

func TestLostEventsAreRefused(t *testing.T) {
	dir := t.TempDir()
	last := fill(t, dir, 2)
	h := head{seq: last + 5, chain: 1}
	if err := os.WriteFile(headPath(dir), encodeHead(h), 0o644); err != nil {
		t.Fatal(err)
	}
	_, rec, err := Open(context.Background(), dir, Options{Node: "n", Boot: 1})
	if !errors.Is(err, ErrHeadAhead) || rec == nil || !rec.HeadAhead || rec.HeadSeq != last+5 || rec.LastSeq != last {
		t.Errorf("head ahead: %+v, %v", rec, err)
	}
	if _, err := ReadDir(dir, 0, nil); !errors.Is(err, ErrHeadAhead) {
		t.Errorf("read: %v", err)
	}
	if err := os.WriteFile(headPath(dir), encodeHead(head{seq: last, chain: 1}), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(context.Background(), dir, Options{Node: "n", Boot: 1}); !errors.Is(err, ErrHeadMismatch) {
		t.Errorf("other chain: %v", err)
	}
	for _, torn := range [][]byte{nil, encodeHead(h)[:7], append(encodeHead(h)[:19], 0xff)} { // says nothing
		if err := os.WriteFile(headPath(dir), torn, 0o644); err != nil {
			t.Fatal(err)
		}
		l, rec := openLog(t, dir, Options{})
		if rec.LastSeq != last || rec.HeadSeq != 0 {
			t.Errorf("torn head: %+v", rec)
		}
		mustClose(t, l)
	}
	if err := os.WriteFile(headPath(dir), encodeHead(head{seq: last}), 0o644); err != nil {
		t.Fatal(err)
	}
	segs, err := filepath.Glob(filepath.Join(dir, "*.db"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range segs {
		if err := os.Remove(s); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := Open(context.Background(), dir, Options{Node: "n", Boot: 1}); !errors.Is(err, ErrHeadAhead) {
		t.Errorf("segments gone: %v", err)
	}
}

func TestMissingSegmentIsFound(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, 30)
	segs, err := listSegments(dir)
	if err != nil || len(segs) < 3 {
		t.Fatal(len(segs), err)
	}
	if err := os.Remove(segs[1].path); err != nil {
		t.Fatal(err)
	}
	_, _, err = Open(context.Background(), dir, Options{Node: "n", Boot: 1})
	var c *CorruptError
	if !errors.As(err, &c) || !errors.Is(err, events.ErrSeqGap) || c.File != segs[2].path {
		t.Errorf("open: %v", err)
	}
}

func TestLogOfAnotherNodeIsRefused(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, 1)
	if _, _, err := Open(context.Background(), dir, Options{Node: "other", Boot: 1}); !errors.Is(err, ErrWrongNode) {
		t.Errorf("open: %v", err)
	}
	if _, err := ReadDir(t.TempDir(), 0, nil); !errors.Is(err, ErrNotALog) {
		t.Errorf("read of nothing: %v", err)
	}
}

// Crashes inside a roll: after the seal, and with a prepared file left over.
func TestCrashInARollGoesOn(t *testing.T) {
	dir := t.TempDir()
	last := fill(t, dir, 1)
	segs, err := listSegments(dir)
	if err != nil {
		t.Fatal(err)
	}
	info, err := StatDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	db, err := openWritable(segs[0].path, minSegmentBytes)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(func(tx *bbolt.Tx) error { return putSeal(tx, info.LastSeq, info.LastChain, 1) }), db.Close()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, spareName), []byte("half a segment"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, rec := openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
	if rec.LastSeq != last || rec.LastHLC == 0 || rec.LastIncarnation != 1 {
		t.Errorf("recovered: %+v", rec)
	}
	src := newSource(l, rec, 1)
	mustClose(t, l) // nothing was written to the new segment
	l, rec = openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
	if rec.LastSeq != last || rec.LastHLC != src.hlc || rec.LastIncarnation != 1 || rec.Segments != 2 {
		t.Errorf("recovered with an empty active segment: %+v", rec)
	}
	mustAppend(t, l, newSource(l, rec, 1).next(5), events.Sync)
	mustClose(t, l)
	mustReadDir(t, dir, last+5)
}

// kill -9 at random points: whatever was acknowledged is there, without a gap,
// and the log goes on.
func TestKilledWriterLosesNothingAcknowledged(t *testing.T) {
	dir := t.TempDir()
	rounds := 8
	if testing.Short() {
		rounds = 4
	}
	for round := range rounds {
		cmd := childCmd("write", dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		kill := 1 + rand.IntN(120) // after so many acknowledgements
		var acked uint64
		sc := bufio.NewScanner(out)
		for n := 0; sc.Scan(); n++ {
			if acked, err = strconv.ParseUint(sc.Text(), 10, 64); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			if n == kill {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			} // and read on: what is in the pipe was acknowledged too
		}
		if err := cmd.Wait(); err == nil || acked == 0 {
			t.Fatalf("round %d: the child ended by itself after %d", round, acked)
		}
		info, err := StatDir(dir)
		if err != nil {
			t.Fatalf("round %d, killed after %d: %v", round, kill, err)
		}
		if info.LastSeq < acked || info.FirstSeq != 1 {
			t.Fatalf("round %d: %d was acknowledged, the log is %+v", round, acked, info)
		}
		mustReadDir(t, dir, info.LastSeq)
	}
	_, rec := openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
	if rec.LastIncarnation != uint64(rounds) {
		t.Errorf("%d lives, the log counts %d", rounds, rec.LastIncarnation)
	}
}
