package store

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/pdlog/pdlog/events"
)

// tear leaves a log as a power loss may in the middle of a commit with one sync:
// of the last commit only the meta page reached the disk. It gives what was
// acknowledged before that commit, and the head file after it.
func tear(t *testing.T, dir string, mode CommitMode) (acked uint64, after []byte) {
	t.Helper()
	l, rec := openLog(t, dir, Options{SegmentBytes: minSegmentBytes, Commit: mode})
	src := newSource(l, rec, 1)
	for range 12 {
		mustAppend(t, l, src.next(9), events.Sync)
		mustSync(t, l)
	}
	acked = l.Durable()
	path := segmentPath(dir, l.First())
	before, head := mustRead(t, path), mustRead(t, headPath(dir))
	mustAppend(t, l, src.next(9), events.Sync)
	mustSync(t, l)
	torn, after := mustRead(t, path), mustRead(t, headPath(dir))
	mustClose(t, l)
	copy(torn[2*4096:], before[2*4096:])
	if bytes.Equal(torn, before) {
		t.Fatal("the commit changed no meta page")
	}
	if err := errors.Join(os.WriteFile(path, torn, 0o644), os.WriteFile(headPath(dir), head, 0o644)); err != nil {
		t.Fatal(err)
	}
	return acked, after
}

func TestTornCommitIsTakenBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	acked, _ := tear(t, dir, OneSync)
	mustReadDir(t, dir, acked) // a reader takes the root before, too
	l, rec := openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
	if rec.LastSeq != acked || rec.LostFrom != 0 || !strings.Contains(rec.Root, "torn") {
		t.Fatalf("%d were acknowledged: %+v", acked, rec)
	}
	mustAppend(t, l, newSource(l, rec, 2).next(30), events.Sync)
	mustClose(t, l)
	l, rec = openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
	if rec.LastSeq != acked+30 || rec.Root != "newest" {
		t.Errorf("the life after: %+v", rec)
	}
	mustClose(t, l)

	// When the head knows of the commit it was acknowledged, and is damaged.
	dir = filepath.Join(t.TempDir(), "log")
	acked, after := tear(t, dir, OneSync)
	if err := os.WriteFile(headPath(dir), after, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := StatDir(dir); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a torn commit that was acknowledged: %v", err)
	}
	if _, _, err := Open(context.Background(), dir, Options{Node: "n", Boot: 2}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a torn commit that was acknowledged: %v", err)
	}
	l, rec = openLog(t, dir, Options{SegmentBytes: minSegmentBytes, Salvage: true})
	if rec.LastSeq != acked || rec.LostFrom != acked+1 {
		t.Errorf("salvaged %+v, the root before the damaged one ends at %d", rec, acked)
	}
	mustClose(t, l)
}

// With two syncs no power loss tears a commit: such a root is damage. So it is
// in a log that was closed, and below what a snapshot or the mirror knows.
func TestDamageIsNotTakenForATornCommit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	tear(t, dir, TwoSync)
	if _, err := StatDir(dir); !errors.Is(err, ErrCorrupt) {
		t.Errorf("two syncs: %v", err)
	}

	dir = filepath.Join(t.TempDir(), "log")
	tear(t, dir, OneSync)
	h, ok, err := readHead(dir)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	h.clean = true
	if err := os.WriteFile(headPath(dir), encodeHead(h), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := StatDir(dir); !errors.Is(err, ErrCorrupt) {
		t.Errorf("closed: %v", err)
	}

	dir = filepath.Join(t.TempDir(), "log")
	acked, _ := tear(t, dir, OneSync)
	if _, _, err := Open(context.Background(), dir, Options{Node: "n", Boot: 2, NotBelow: acked + 9}); !errors.Is(err, ErrBehind) {
		t.Errorf("the mirror knows more: %v", err)
	}
}

// asFormat1 rewrites a closed log as an older build wrote it.
func asFormat1(t *testing.T, dir string, sum bool) {
	t.Helper()
	segs, err := listSegments(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range segs {
		db, err := openWritable(s.path, minSegmentBytes)
		if err != nil {
			t.Fatal(err)
		}
		err = db.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket(bucketMeta)
			total := uint32(0)
			for _, k := range summed {
				v := bytes.Clone(b.Get(k))
				if bytes.Equal(k, keyFormat) {
					v = be32(1)
				}
				total = metaSum(total, v)
			}
			err := errors.Join(b.Put(keyFormat, be32(1)), tx.DeleteBucket(bucketTip))
			if sum {
				return errors.Join(err, b.Put(keySum, be32(total)))
			}
			return errors.Join(err, b.Delete(keySum))
		})
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// The format before is read, with and without the checksum its later builds
// wrote, and written on in the present one.
func TestOlderFormatIsRead(t *testing.T) {
	for _, sum := range []bool{true, false} {
		dir := filepath.Join(t.TempDir(), "log")
		last := fill(t, dir, 2)
		asFormat1(t, dir, sum)
		mustReadDir(t, dir, last)
		l, rec := openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
		if rec.LastSeq != last || rec.LostFrom != 0 {
			t.Errorf("checksum %v: %+v", sum, rec)
		}
		mustAppend(t, l, newSource(l, rec, 1).next(5), events.Sync)
		mustClose(t, l)
		mustReadDir(t, dir, last+5)
		p, err := openPages(segmentPath(dir, rec.FirstSeq))
		if err != nil {
			t.Fatal(err)
		}
		if v, err := p.view(); err != nil || v.tip == nil {
			t.Errorf("checksum %v: the segment that is written to has no tip: %v", sum, err)
		}
	}
	// A later format is refused, and said.
	dir := filepath.Join(t.TempDir(), "log")
	fill(t, dir, 1)
	db, err := openWritable(segmentPath(dir, 1), minSegmentBytes)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyFormat, be32(formatVersion+1)) })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(context.Background(), dir, Options{Node: "n", Boot: 2, Salvage: true}); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "version 3") {
		t.Errorf("a later format: %v", err)
	}
}
