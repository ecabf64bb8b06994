package store

import (
	"testing"

	"go.etcd.io/bbolt"
)

func readSegmentFrames(s *segment, visit func([]byte)) error {
	defer s.close() //nolint:errcheck // read-only
	return s.view(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketFrames).ForEach(func(_, v []byte) error {
			visit(v)
			return nil
		})
	})
}

func putFrame(t *testing.T, path string, key uint64, frame []byte) {
	t.Helper()
	db, err := openWritable(path, minSegmentBytes)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketFrames).Put(be64(key), frame) })
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}
