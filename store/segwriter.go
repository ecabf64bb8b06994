package store

import (
	"github.com/cockroachdb/errors"
	"go.etcd.io/bbolt"

	"github.com/pdlog/pdlog/events"
)

// segmentWriter writes a segment that nobody reads yet, from verified frames:
// large transactions, one sync at the end.
type segmentWriter struct {
	path string
	db   *bbolt.DB
	tx   *bbolt.Tx
	inc  uint64
	size int64 // of the frames in tx
	any  bool
}

func newSegmentWriter(path string, segmentBytes int64, m segmentMeta, descriptor []byte) (*segmentWriter, error) {
	if err := removeIfThere(path); err != nil {
		return nil, err
	}
	db, err := openWritable(path, segmentBytes)
	if err != nil {
		return nil, err
	}
	db.NoSync = true
	if err := putMeta(db, m, descriptor); err != nil {
		return nil, errors.CombineErrors(errors.Wrapf(err, "write %s", path), db.Close())
	}
	return &segmentWriter{path: path, db: db, inc: m.Incarnation}, nil
}

func (w *segmentWriter) put(frame []byte) (err error) {
	in, err := events.FramePeek(frame)
	if err != nil {
		return err
	}
	if err := w.begin(); err != nil {
		return err
	}
	if err := w.tx.Bucket(bucketFrames).Put(be64(in.FirstSeq), frame); err != nil {
		return errors.Wrapf(err, "write %s", w.path)
	}
	w.any = true
	if w.size += int64(len(frame)); w.size >= maxTxBytes {
		return w.flush()
	}
	return nil
}

func (w *segmentWriter) begin() (err error) {
	if w.tx != nil {
		return nil
	}
	if w.tx, err = w.db.Begin(true); err != nil {
		return errors.Wrapf(err, "write %s", w.path)
	}
	w.tx.Bucket(bucketFrames).FillPercent = 1
	return nil
}

func (w *segmentWriter) flush() error {
	if w.tx == nil {
		return nil
	}
	tx := w.tx
	w.tx, w.size = nil, 0
	return errors.Wrapf(tx.Commit(), "write %s", w.path)
}

// finish says that the segment ends at a record, seals it if asked to, syncs
// and closes it.
func (w *segmentWriter) finish(at events.Position, seal bool) error {
	err := w.begin()
	switch {
	case err != nil:
	case seal:
		err = errors.Wrapf(putSeal(w.tx, at.Seq, at.Chain, w.inc), "seal %s", w.path)
	default:
		err = errors.Wrapf(putTip(w.tx, tip{seq: at.Seq, chain: at.Chain, incarnation: w.inc}), "write %s", w.path)
	}
	if err == nil {
		err = w.flush()
	} else if w.tx != nil {
		err = errors.CombineErrors(err, w.tx.Rollback())
	}
	if err == nil {
		err = errors.Wrapf(w.db.Sync(), "sync %s", w.path)
	}
	return errors.CombineErrors(err, w.db.Close())
}

// drop gives up the file.
func (w *segmentWriter) drop() error {
	var err error
	if w.tx != nil {
		err = w.tx.Rollback()
	}
	return errors.CombineErrors(errors.CombineErrors(err, w.db.Close()), removeIfThere(w.path))
}
