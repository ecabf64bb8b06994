package store

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
)

// call is a write that reached the file.
type call struct {
	off int64
	n   int
}

// The pinned bbolt can be made to write in runs: an upgrade that it cannot be is
// noticed here, and by nothing else than the log's rate.
func TestPagesGoToTheDiskInRuns(t *testing.T) {
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "a.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	r := gatherWrites(db)
	if r == nil {
		t.Fatal("this bbolt has no db.ops.writeAt of the known type: every page is written by a call of its own")
	}
	disk := errors.New("disk gone")
	var calls []call
	fail := -1
	write := r.write
	r.write = func(b []byte, off int64) (int, error) {
		calls = append(calls, call{off, len(b)})
		if len(calls)-1 == fail {
			return 0, disk
		}
		return write(b, off)
	}
	put := func(seq int) {
		t.Helper()
		if err := db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists(bucketFrames)
			for i := range 60 {
				err = errors.Join(err, b.Put(be64(uint64(seq+i)), bytes.Repeat([]byte{byte(i)}, 1900))) //nolint:gosec // small
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	put(0)
	if len(calls) < 30 {
		t.Errorf("with bbolt's own syncs %d writes: each must go through at once", len(calls))
	}
	db.NoSync = true
	calls = nil
	put(1000)
	if len(calls) > 6 {
		t.Errorf("30 pages went in %d writes: %v", len(calls), calls)
	}
	if last := calls[len(calls)-1]; last.off >= 2*4096 || last.n != 4096 {
		t.Errorf("the meta page is not the last write: %v", calls)
	}
	if err := db.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := db.View(func(tx *bbolt.Tx) error {
		for _, seq := range []int{0, 1000} {
			for i := range 60 {
				if v := tx.Bucket(bucketFrames).Get(be64(uint64(seq + i))); len(v) != 1900 || v[0] != byte(i) { //nolint:gosec // small
					t.Errorf("value %d is not what was put", seq+i)
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}

	// An error of a run ends the commit, whichever page it was met at, and leaves
	// nothing that a later transaction would write.
	for fail = range len(calls) {
		calls = nil
		err := db.Update(func(tx *bbolt.Tx) error {
			return tx.Bucket(bucketFrames).Put(be64(5000), bytes.Repeat([]byte{7}, 100<<10))
		})
		if (len(calls) > fail) != errors.Is(err, disk) || len(r.buf) != 0 {
			t.Errorf("%d writes, of which %d failed: the commit says %v, %d bytes are left over", len(calls), fail, err, len(r.buf))
		}
	}
}
