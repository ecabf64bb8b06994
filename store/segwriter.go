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
	return &segmentWriter{path: path, db: db}, nil
}

func (w *segmentWriter) put(frame []byte) (err error) {
	in, err := events.FramePeek(frame)
	if err != nil {
		return err
	}
	if w.tx == nil {
		if w.tx, err = w.db.Begin(true); err != nil {
			return errors.Wrapf(err, "write %s", w.path)
		}
		w.tx.Bucket(bucketFrames).FillPercent = 1
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

func (w *segmentWriter) flush() error {
	if w.tx == nil {
		return nil
	}
	tx := w.tx
	w.tx, w.size = nil, 0
	return errors.Wrapf(tx.Commit(), "write %s", w.path)
}

// finish seals the segment if asked to, syncs and closes it.
func (w *segmentWriter) finish(seal *events.Position) error {
	err := w.flush()
	if err == nil && seal != nil {
		err = errors.Wrapf(putSeal(w.db, seal.Seq, seal.Chain), "seal %s", w.path)
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
