package crash

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/pdlog/pdlog/events"
)

var errNaiveLoss = errors.New("acknowledged events are missing")

// naive is the control of the tip: it takes the newest root whose frames are
// whole, chained and without a gap, else the one before, as bbolt alone lets one.
func naive(j job) error {
	last, newestErr := newestWalk(j.dir)
	if newestErr != nil {
		if err := dropNewest(j.dir); err != nil {
			return fmt.Errorf("%w, and there is no other", newestErr)
		}
		var err error
		if last, err = newestWalk(j.dir); err != nil {
			return fmt.Errorf("%w; the one before: %w", newestErr, err)
		}
	}
	if last < j.acked {
		return fmt.Errorf("%w: %d of %d", errNaiveLoss, last, j.acked)
	}
	return newestErr
}

func lastSegment(dir string) (string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.db"))
	if err != nil || len(names) == 0 {
		return "", errors.New("no segment")
	}
	return slices.Max(names), nil
}

// newestWalk reads the last segment from the root that bbolt takes and gives its
// last record.
func newestWalk(dir string) (last uint64, err error) {
	path, err := lastSegment(dir)
	if err != nil {
		return 0, nil //nolint:nilerr // an empty log
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("bbolt: %v", p)
		}
	}()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bbolt.Tx) error {
		meta, frames := tx.Bucket([]byte("meta")), tx.Bucket([]byte("frames"))
		if meta == nil || frames == nil || len(meta.Get([]byte("first_seq"))) != 8 || len(meta.Get([]byte("chain_start"))) != 4 {
			return errors.New("no meta")
		}
		at := events.Position{
			Seq:   binary.BigEndian.Uint64(meta.Get([]byte("first_seq"))) - 1,
			Chain: binary.BigEndian.Uint32(meta.Get([]byte("chain_start"))),
		}
		err := frames.ForEach(func(_, v []byte) error {
			in, err := events.DecodeFrame(v, "", nil)
			if err != nil {
				return err
			}
			return at.Advance(in)
		})
		last = at.Seq
		return err
	})
	return last, err
}

// dropNewest makes bbolt take the older of the two meta pages.
func dropNewest(dir string) error {
	path, err := lastSegment(dir)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	const page, txid, sum = 4096, 16 + 48, 16 + 56
	if len(b) < 2*page {
		return errors.New("no second meta page")
	}
	newest := 0
	if binary.LittleEndian.Uint64(b[page+txid:]) > binary.LittleEndian.Uint64(b[txid:]) {
		newest = page
	}
	binary.LittleEndian.PutUint64(b[newest+sum:], 0)
	if err := os.Remove(path); err != nil { // it may be a link that other images have too
		return err
	}
	return os.WriteFile(path, b, 0o600)
}
