package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/pdlog/pdlog/events"
)

// damageFrame flips a bit in every copy of the i-th frame of a segment and
// gives the sequence the frame begins with.
func damageFrame(t *testing.T, s *segment, i int) uint64 {
	t.Helper()
	frame := framesOf(t, s)[i]
	b := mustRead(t, s.path)
	for at := 0; ; {
		j := bytes.Index(b[at:], frame)
		if j < 0 {
			break
		}
		b[at+j+len(frame)/2] ^= 1
		at += j + len(frame)
	}
	if err := os.WriteFile(s.path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	in, err := events.FramePeek(frame)
	if err != nil {
		t.Fatal(err)
	}
	return in.FirstSeq
}

func damagedDirs(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(dir + ".damaged-*")
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		if e.Name() != "LOCK" {
			all[e.Name()] = string(mustRead(t, filepath.Join(dir, e.Name())))
		}
	}
	return all
}

func TestDamagedLogIsSetAsideAndItsStartSalvaged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	fill(t, dir, 20)
	before, err := StatDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	segs, err := listSegments(dir)
	if err != nil || len(segs) < 3 {
		t.Fatal(len(segs), err)
	}
	bad := damageFrame(t, segs[1], 5)
	damaged := contents(t, dir)

	if _, _, err := Open(context.Background(), dir, Options{Node: "n", Boot: 1}); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("without salvage: %v", err)
	}
	if len(damagedDirs(t, dir)) != 0 {
		t.Fatal("a log was set aside though nobody asked for it")
	}
	l, rec := openLog(t, dir, Options{Salvage: true, SegmentBytes: minSegmentBytes})
	if !rec.Salvaged || rec.LostFrom != bad || rec.LastSeq != bad-1 || rec.Reason == "" || rec.LogID == before.LogID ||
		rec.LogID != l.LogID() || rec.Incarnation != 2 || rec.FirstSeq != 1 {
		t.Fatalf("salvaged: %+v, damaged at %d", rec, bad)
	}
	if dirs := damagedDirs(t, dir); len(dirs) != 1 || dirs[0] != rec.Damaged {
		t.Fatalf("set aside: %v, %q", dirs, rec.Damaged)
	}
	for name, want := range damaged {
		if have := contents(t, rec.Damaged)[name]; have != want {
			t.Errorf("%s was changed in the damaged log", name)
		}
	}
	mustAppend(t, l, newSource(l, rec, 9).next(100), events.Sync)
	mustClose(t, l)
	mustReadDir(t, dir, bad+99)

	// A crash before the loss is on record must not make the past look known.
	l, rec = openLog(t, dir, Options{Salvage: true})
	if rec.Salvaged || rec.LostFrom != bad || rec.Reason == "" || len(damagedDirs(t, dir)) != 1 {
		t.Fatalf("opened again: %+v", rec)
	}
	if err := l.LossRecorded(); err != nil {
		t.Fatal(err)
	}
	mustClose(t, l)
	l, rec = openLog(t, dir, Options{Salvage: true})
	if rec.LostFrom != 0 || rec.Reason != "" {
		t.Errorf("after the loss is on record: %+v", rec)
	}
	mustClose(t, l)
}

// Whatever part is damaged, an Open with Salvage gives a log that works.
func TestNothingVerifiesAndTheLogBeginsAnew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	fill(t, dir, 1)
	b := mustRead(t, segmentPath(dir, 1))
	clear(b[:8192])
	if err := os.WriteFile(segmentPath(dir, 1), b, 0o644); err != nil {
		t.Fatal(err)
	}
	l, rec := openLog(t, dir, Options{Salvage: true})
	if !rec.Salvaged || !rec.Empty || !rec.Created || rec.LostFrom != 1 || rec.Incarnation != 1 {
		t.Fatalf("%+v", rec)
	}
	mustAppend(t, l, newSource(l, rec, 1).next(3), events.Sync)
	mustClose(t, l)
	mustReadDir(t, dir, 3)
}

func TestOlderLogIsNoticed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	last := fill(t, dir, 2)
	info, err := StatDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	opts := Options{Node: "n", Boot: 1, NotBelow: last + 1}
	if _, _, err := Open(context.Background(), dir, opts); !errors.Is(err, ErrBehind) {
		t.Fatalf("older than the mirror: %v", err)
	}
	opts.NotBelowID = LogID{1}
	l, rec := openLog(t, dir, opts) // another log was meant
	mustClose(t, l)
	if rec.LostFrom != 0 {
		t.Errorf("%+v", rec)
	}
	opts.NotBelowID, opts.Salvage = info.LogID, true
	l, rec = openLog(t, dir, opts)
	if !rec.Salvaged || rec.LostFrom != last+1 || rec.LogID == info.LogID || rec.LastSeq != last {
		t.Errorf("old copy: %+v", rec)
	}
	mustClose(t, l)
	mustReadDir(t, dir, last)

	wiped := filepath.Join(t.TempDir(), "log")
	if _, _, err := Open(context.Background(), wiped, Options{Node: "n", Boot: 1, NotBelow: 7}); !errors.Is(err, ErrBehind) {
		t.Errorf("wiped: %v", err)
	}
	l, rec = openLog(t, wiped, Options{NotBelow: 7, Salvage: true})
	if !rec.Created || rec.Salvaged || rec.LostFrom != 1 || rec.Damaged != "" {
		t.Errorf("wiped: %+v", rec)
	}
	mustClose(t, l)
}

func TestHeadAheadIsSalvaged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	last := fill(t, dir, 2)
	if err := os.WriteFile(headPath(dir), encodeHead(head{seq: last + 5, chain: 1}), 0o644); err != nil {
		t.Fatal(err)
	}
	l, rec := openLog(t, dir, Options{Salvage: true})
	if !rec.Salvaged || rec.LostFrom != last+1 || rec.LastSeq != last {
		t.Errorf("head ahead: %+v", rec)
	}
	mustClose(t, l)
	mustReadDir(t, dir, last)

	if err := os.WriteFile(headPath(dir), encodeHead(head{seq: last, chain: 1}), 0o644); err != nil {
		t.Fatal(err)
	}
	l, rec = openLog(t, dir, Options{Salvage: true})
	if !rec.Salvaged || rec.LostFrom > last || rec.LastSeq != rec.LostFrom-1 {
		t.Errorf("head and log differ on record %d: %+v", last, rec)
	}
	mustClose(t, l)
}

// A page that is in use and on the free list reads well today and is
// overwritten tomorrow: only bbolt's own check sees it, in the child.
func TestPageBothFreeAndInUseIsFoundBeforeItIsOverwritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	last := fill(t, dir, 1)
	path := segmentPath(dir, 1)
	p, err := openPages(path)
	if err != nil {
		t.Fatal(err)
	}
	free := int64(binary.LittleEndian.Uint64(p.data[16+16+16:])) * p.pageSize // of meta 0
	if p.txid%2 == 1 {
		free = int64(binary.LittleEndian.Uint64(p.data[p.pageSize+16+16+16:])) * p.pageSize
	}
	b := bytes.Clone(p.data)
	count := binary.LittleEndian.Uint16(b[free+10:])
	if count == 0 {
		t.Fatal("the free list is empty")
	}
	binary.LittleEndian.PutUint64(b[free+16+8*int64(count-1):], p.root)
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	mustReadDir(t, dir, last) // a reader has no use for the free list
	if _, _, err := Open(context.Background(), dir, Options{Node: "n", Boot: 1}); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("open: %v", err)
	}
	l, rec := openLog(t, dir, Options{Salvage: true})
	if !rec.Salvaged || rec.LastSeq != last {
		t.Errorf("%+v", rec)
	}
	mustAppend(t, l, newSource(l, rec, 1).next(2000), events.Sync)
	mustClose(t, l)
	mustReadDir(t, dir, last+2000)
}

func TestSalvageCutShortIsSettled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	last := fill(t, dir, 1)
	half := dir + salvagingExt // before the exchange: the half copy goes
	if err := errors.Join(os.Mkdir(half, 0o755), os.WriteFile(filepath.Join(half, salvagingMark), nil, 0o644),
		os.WriteFile(segmentPath(half, 1), []byte("half"), 0o644)); err != nil {
		t.Fatal(err)
	}
	l, _ := openLog(t, dir, Options{})
	mustClose(t, l)
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) || len(damagedDirs(t, dir)) != 0 {
		t.Errorf("half a salvage is left: %v, %v", err, damagedDirs(t, dir))
	}
	// behind the exchange: the damaged one has the other's name, the log the mark
	if err := errors.Join(os.Mkdir(half, 0o755), os.WriteFile(segmentPath(half, 1), []byte("damaged"), 0o644),
		os.WriteFile(filepath.Join(dir, salvagingMark), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	l, rec := openLog(t, dir, Options{})
	mustClose(t, l)
	dirs := damagedDirs(t, dir)
	if rec.LastSeq != last || len(dirs) != 1 || string(mustRead(t, segmentPath(dirs[0], 1))) != "damaged" {
		t.Errorf("%+v, set aside: %v", rec, dirs)
	}
	if _, err := os.Stat(filepath.Join(dir, salvagingMark)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mark is left: %v", err)
	}
}

// The tail of a log that was not closed is written anew before it is trusted.
func TestUncleanTailIsCopied(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	last := fill(t, dir, 2)
	was, err := os.Stat(segmentPath(dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	l, rec := openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
	if rec.Unclean {
		t.Errorf("closed in order: %+v", rec)
	}
	now, err := os.Stat(segmentPath(dir, 1))
	if err != nil || !os.SameFile(was, now) {
		t.Errorf("a clean tail was copied: %v", err)
	}
	id := l.LogID()
	if h, ok, err := readHead(dir); err != nil || !ok || h.clean {
		t.Errorf("head of an open log: %+v, %v, %v", h, ok, err)
	}
	mustClose(t, l)
	if err := os.WriteFile(headPath(dir), encodeHead(head{seq: last - 1}), 0o644); err != nil { // as a crash leaves it
		t.Fatal(err)
	}
	l, rec = openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
	if !rec.Unclean || rec.LastSeq != last || rec.LogID != id || rec.LostFrom != 0 {
		t.Errorf("not closed: %+v", rec)
	}
	if now, err = os.Stat(segmentPath(dir, 1)); err != nil || os.SameFile(was, now) {
		t.Errorf("the tail is the old file: %v", err)
	}
	mustAppend(t, l, newSource(l, rec, 1).next(10), events.Sync)
	mustClose(t, l)
	mustReadDir(t, dir, last+10)
}

// What bbolt writes, pages reads: same pairs, same order.
func TestPagesReadsWhatBboltReads(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, 12)
	segs, err := listSegments(dir)
	if err != nil || len(segs) < 2 {
		t.Fatal(len(segs), err)
	}
	for _, s := range segs {
		p, err := openPages(s.path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range [][]byte{bucketFrames, bucketMeta} {
			var have, want []byte
			if ok, err := p.bucket(name, false, func(k, v []byte) error { have = append(append(have, k...), v...); return nil }); !ok || err != nil {
				t.Fatal(ok, err)
			}
			err = s.view(func(tx *bbolt.Tx) error {
				return tx.Bucket(name).ForEach(func(k, v []byte) error { want = append(append(want, k...), v...); return nil })
			})
			if err != nil || len(want) == 0 || !bytes.Equal(have, want) {
				t.Errorf("%s of %s: %d bytes, want %d, %v", name, s.path, len(have), len(want), err)
			}
		}
		if ok, err := p.bucket([]byte("other"), false, nil); ok || err != nil {
			t.Errorf("a bucket that is not there: %v, %v", ok, err)
		}
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzPages(f *testing.F) {
	dir := f.TempDir()
	db, err := bbolt.Open(filepath.Join(dir, "x.db"), 0o644, &bbolt.Options{PageSize: 1024})
	if err != nil {
		f.Fatal(err)
	}
	err = errors.Join(putMeta(db, segmentMeta{Node: "n", FirstSeq: 1}, make([]byte, 3000)), db.Close())
	if err != nil {
		f.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "x.db"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[:16<<10])
	f.Fuzz(func(t *testing.T, b []byte) {
		p := &pages{path: "fuzz", data: b, size: int64(len(b))}
		if p.findMeta() != nil {
			return
		}
		v, err := p.view()
		if err != nil {
			return
		}
		err = newChecker(head{}, false).scan(&segment{path: "fuzz", first: 1}, v, true, nil)
		if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrFormat) {
			t.Errorf("damage without its name: %v", err)
		}
	})
}
