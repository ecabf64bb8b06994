package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/pdlog/pdlog/events"
)

// chainOf is the chain after a record.
func chainOf(t *testing.T, l *Log, seq uint64) uint32 {
	t.Helper()
	c, err := l.chainAfter(seq)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestSnapshotRestsOnTheLog(t *testing.T) {
	dir := t.TempDir()
	l, rec := openLog(t, dir, Options{})
	if s, err := l.LatestSnapshot(); s != nil || err != nil {
		t.Fatalf("a new log has a snapshot: %v, %v", s, err)
	}
	mustAppend(t, l, newSource(l, rec, 1).next(1000), events.Sync)
	mustSync(t, l)
	evs, err := l.ReadFrom(500, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.WriteSnapshot(500, evs[1].PrevHash, []byte("state at 500")); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		seq   uint64
		chain uint32
	}{"other chain": {500, evs[1].PrevHash + 1}, "not durable": {1001, 0}} {
		if err := l.WriteSnapshot(c.seq, c.chain, nil); !errors.Is(err, ErrSnapshot) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, seq := range []uint64{700, 900} {
		if err := l.WriteSnapshot(seq, chainOf(t, l, seq), []byte("later")); err != nil {
			t.Fatal(err)
		}
	}
	if seqs, err := listSnapshots(dir); err != nil || len(seqs) != 2 || seqs[0] != 900 || seqs[1] != 700 {
		t.Errorf("kept: %v, %v", seqs, err)
	}
	mustClose(t, l)

	// A damaged one is passed over, one of another history too.
	b := mustRead(t, snapshotPath(dir, 900))
	b[snapshotHead] ^= 1
	if err := os.WriteFile(snapshotPath(dir, 900), b, 0o644); err != nil {
		t.Fatal(err)
	}
	l, _ = openLog(t, dir, Options{})
	s, err := l.LatestSnapshot()
	if err != nil || s == nil || s.Seq != 700 || string(s.Data) != "later" || s.Chain != chainOf(t, l, 700) {
		t.Errorf("latest: %+v, %v", s, err)
	}
	mustClose(t, l)
	other := t.TempDir()
	l, rec = openLog(t, other, Options{})
	mustAppend(t, l, newSource(l, rec, 2).next(1000), events.Sync)
	mustSync(t, l)
	if err := os.WriteFile(snapshotPath(other, 700), mustRead(t, snapshotPath(dir, 700)), 0o644); err != nil {
		t.Fatal(err)
	}
	if s, err := l.LatestSnapshot(); s != nil || err != nil {
		t.Errorf("a snapshot of another history: %+v, %v", s, err)
	}
	mustClose(t, l)
}

func TestRetentionKeepsWhatIsNeeded(t *testing.T) {
	dir := t.TempDir()
	l, rec := openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
	src := newSource(l, rec, 1)
	for range 50 {
		mustAppend(t, l, src.next(500), events.Sync)
		mustSync(t, l)
	}
	segs, err := listSegments(dir)
	if err != nil || len(segs) < 5 {
		t.Fatal(len(segs), err)
	}
	retain := func(below uint64, maxBytes int64) Retained {
		t.Helper()
		r, err := l.Retain(below, maxBytes)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := retain(src.seq+1, 1); r.Removed != 0 || !r.Over || r.FirstSeq != 1 {
		t.Errorf("without a snapshot: %+v", r)
	}
	snap := segs[4].first + 10
	if err := l.WriteSnapshot(snap, chainOf(t, l, snap), []byte("state")); err != nil {
		t.Fatal(err)
	}
	if r := retain(src.seq+1, 1); r.Removed != 0 || !r.Over {
		t.Errorf("with one snapshot: %+v", r)
	}
	if err := l.WriteSnapshot(src.seq, chainOf(t, l, src.seq), []byte("newer")); err != nil {
		t.Fatal(err)
	}
	if r := retain(segs[1].first, 0); r.Removed != 1 || r.FirstSeq != segs[1].first || r.HoleTo != 0 || r.Over {
		t.Errorf("below the second segment: %+v", r)
	}
	if r := retain(segs[1].first+1, 0); r.Removed != 0 {
		t.Errorf("a segment that is needed in part: %+v", r)
	}
	if _, err := l.ReadFrames(1, 1); !errors.Is(err, ErrBelow) {
		t.Errorf("read of what is gone: %v", err)
	}
	// The cap is stronger than the mirror, not than the snapshot.
	r := retain(segs[2].first, 1)
	if r.Removed != 3 || r.FirstSeq != segs[4].first || r.HoleFrom != segs[2].first || r.HoleTo != segs[4].first-1 || !r.Over {
		t.Errorf("over the cap: %+v, segments %d %d %d", r, segs[2].first, segs[3].first, segs[4].first)
	}
	if evs, err := l.ReadFrom(segs[4].first, 1<<20); err != nil || uint64(len(evs)) != src.seq-segs[4].first+1 {
		t.Errorf("what is kept: %d events, %v", len(evs), err)
	}
	mustClose(t, l)
	l, rec = openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
	if rec.FirstSeq != segs[4].first || rec.LastSeq != src.seq || rec.LostFrom != 0 {
		t.Errorf("reopened: %+v", rec)
	}
	// The newest one is damaged: the one before it has its tail.
	newest := mustRead(t, snapshotPath(dir, src.seq))
	newest[len(newest)/2] ^= 1
	if err := os.WriteFile(snapshotPath(dir, src.seq), newest, 0o644); err != nil {
		t.Fatal(err)
	}
	if s, err := l.LatestSnapshot(); err != nil || s == nil || s.Seq != snap {
		t.Errorf("snapshot: %+v, %v", s, err)
	}
	if _, err := l.ReadFrames(snap+1, 1); err != nil {
		t.Errorf("what is behind the older snapshot: %v", err)
	}
	mustClose(t, l)

	// A salvage of a log that begins later keeps snapshot and beginning.
	moved := filepath.Join(t.TempDir(), "log")
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	l, rec = openLog(t, moved, Options{NotBelow: src.seq + 1, Salvage: true})
	s, err := l.LatestSnapshot()
	if err != nil || s == nil || s.Seq != snap || rec.FirstSeq != segs[4].first || rec.LostFrom != src.seq+1 {
		t.Errorf("salvaged: %+v, %+v, %v", rec, s, err)
	}
	mustClose(t, l)
}

// Retention under a reader gives it the events or ErrBelow, nothing else.
func TestReaderBehindRetentionIsToldSo(t *testing.T) {
	l, rec := openLog(t, t.TempDir(), Options{SegmentBytes: minSegmentBytes})
	src := newSource(l, rec, 1)
	for range 20 {
		mustAppend(t, l, src.next(500), events.Sync)
		mustSync(t, l)
	}
	for _, seq := range []uint64{src.seq - 1, src.seq} {
		if err := l.WriteSnapshot(seq, chainOf(t, l, seq), nil); err != nil {
			t.Fatal(err)
		}
	}
	errs := make(chan error, 4)
	for range 4 {
		go func() {
			for from := uint64(1); ; {
				frames, err := l.ReadFrames(from, 4096)
				if err != nil || len(frames) == 0 {
					if errors.Is(err, ErrBelow) {
						err = nil
					}
					errs <- err
					return
				}
				from = frames[len(frames)-1].Info.LastSeq + 1
			}
		}()
	}
	if r, err := l.Retain(src.seq+1, 0); err != nil || r.Removed == 0 {
		t.Errorf("%+v, %v", r, err)
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestBackupOfALiveLogIsALog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l, rec := openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
	src := newSource(l, rec, 1)
	for range 12 {
		mustAppend(t, l, src.next(500), events.Sync)
		mustSync(t, l)
	}
	if err := l.WriteSnapshot(3000, chainOf(t, l, 3000), []byte("s")); err != nil {
		t.Fatal(err)
	}
	at := src.seq
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() { // a live log goes on meanwhile
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if err := l.Append(src.next(10), events.Group); err != nil {
				stopped <- err
				return
			}
			if err := l.Sync(context.Background()); err != nil {
				stopped <- err
				return
			}
		}
	}()
	to := filepath.Join(t.TempDir(), "copy")
	info, err := l.BackupTo(context.Background(), to)
	close(stop)
	if err := errors.Join(err, <-stopped); err != nil {
		t.Fatal(err)
	}
	if info.FirstSeq != 1 || info.LastSeq < at || info.LogID != l.LogID() || info.Node != "n" || info.Segments < 2 {
		t.Errorf("backup: %+v, at least up to %d", info, at)
	}
	mustReadDir(t, to, info.LastSeq)
	for s, err := range DirSnapshots(to) {
		if err != nil || s.Seq != 3000 {
			t.Errorf("snapshot: %+v, %v", s, err)
		}
	}
	if seqs, err := listSnapshots(to); err != nil || len(seqs) != 1 {
		t.Errorf("snapshots: %v, %v", seqs, err)
	}
	if _, err := l.BackupTo(context.Background(), to); err == nil {
		t.Error("a backup over another one")
	}
	one := filepath.Join(t.TempDir(), "1")
	if err := os.Mkdir(one, 0o755); err != nil {
		t.Fatal(err)
	}
	file, size, err := l.BackupFile(context.Background(), segmentPath(one, 1))
	if err != nil || size == 0 || file.LastSeq != src.seq || file.Segments != 1 {
		t.Errorf("backup into one file: %+v, %d bytes, %v", file, size, err)
	}
	mustReadDir(t, one, src.seq)
	if left, err := os.ReadDir(one); err != nil || len(left) != 1 {
		t.Errorf("it left %v, %v", left, err)
	}
	last := src.seq
	mustClose(t, l)
	mustReadDir(t, dir, last)
	// Put back in the log's place it is an old copy.
	switch old, _, err := Open(context.Background(), to, Options{Node: "n", Boot: 3, NotBelow: last}); {
	case err == nil && info.LastSeq == last: // nothing came after it
		mustClose(t, old)
	case info.LastSeq == last || !errors.Is(err, ErrBehind):
		t.Errorf("old copy up to %d of %d: %v", info.LastSeq, last, err)
	}
	l, rec = openLog(t, to, Options{})
	mustAppend(t, l, newSource(l, rec, 1).next(5), events.Sync)
	mustClose(t, l)
	mustReadDir(t, to, info.LastSeq+5)
}

func TestCopyRefusesWhatDoesNotFit(t *testing.T) {
	l, rec := openLog(t, t.TempDir(), Options{})
	mustAppend(t, l, newSource(l, rec, 1).next(500), events.Sync)
	mustSync(t, l)
	frames, err := l.ReadFrames(1, 1<<20)
	if err != nil || len(frames) < 3 {
		t.Fatal(len(frames), err)
	}
	c, err := NewCopy(filepath.Join(t.TempDir(), "copy"), CopyInfo{Node: "n", LogID: l.LogID()})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Put(frames[0].Data); err != nil {
		t.Fatal(err)
	}
	if err := c.Put(frames[2].Data); !errors.Is(err, events.ErrSeqGap) {
		t.Errorf("gap: %v", err)
	}
	if err := c.Put(frames[1].Data[:20]); !errors.Is(err, events.ErrFrameShort) {
		t.Errorf("short: %v", err)
	}
	if err := c.Put(frames[1].Data); err != nil {
		t.Error(err)
	}
	if info, err := c.Close(); err != nil || info.LastSeq != frames[1].Info.LastSeq {
		t.Errorf("%+v, %v", info, err)
	}
}
