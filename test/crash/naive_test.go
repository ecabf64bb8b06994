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
	if err := isTree(path); err != nil {
		return 0, err
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

// isTree looks at the branches below the newest root: on pages that point back up
// bbolt's cursor goes round, and takes memory each time, until there is none left.
func isTree(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	const (
		page, head, element              = 4096, 16, 16
		metaRoot, metaTxid               = head + 16, head + 48
		isBranch, isLeaf, holdsBucket    = 1, 2, 1
		deepest                          = 32
		flagsAt, countAt, posAt, childAt = 8, 10, 0, 8
	)
	le := binary.LittleEndian
	if len(b) < 2*page {
		return errors.New("no second meta page")
	}
	meta := b[:page]
	if newer := b[page : 2*page]; le.Uint64(newer[metaTxid:]) > le.Uint64(meta[metaTxid:]) {
		meta = newer
	}
	left := len(b) / page // pages that may still be visited
	var walk func(id uint64, depth int) error
	walk = func(id uint64, depth int) error {
		if left--; left < 0 || depth > deepest || id >= uint64(len(b)/page) {
			return fmt.Errorf("page %d at depth %d: not a tree", id, depth)
		}
		p := b[id*page:]
		flags := le.Uint16(p[flagsAt:])
		for i := range int(le.Uint16(p[countAt:])) {
			e := head + i*element
			if e+element > len(p) {
				return fmt.Errorf("page %d: element %d is outside", id, i)
			}
			switch {
			case flags == isBranch:
				if err := walk(le.Uint64(p[e+childAt:]), depth+1); err != nil {
					return err
				}
			case flags == isLeaf && le.Uint32(p[e+posAt:])&holdsBucket != 0:
				at := uint64(e) + uint64(le.Uint32(p[e+4:])) + uint64(le.Uint32(p[e+8:]))
				if at+8 > uint64(len(p)) {
					return fmt.Errorf("page %d: bucket %d is outside", id, i)
				}
				if root := le.Uint64(p[at:]); root != 0 {
					if err := walk(root, depth+1); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	return walk(le.Uint64(meta[metaRoot:]), 0)
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
