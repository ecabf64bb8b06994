package store

import (
	"reflect"
	"unsafe"

	"go.etcd.io/bbolt"
)

// runBytes is what pages that lie behind each other are gathered to at most
// before they are written.
const runBytes = 1 << 20

// runs gathers the pages of a transaction: bbolt writes them in the order of
// their numbers, with a call for each, and a call of 4 KiB costs some 5 µs, as much
// as one of 100 KiB. Pages that lie behind each other go in one call. The meta
// page comes last and takes everything with it, so that nothing is left over when
// Commit returns.
//
// It gathers only in a transaction that bbolt itself does not sync (DB.NoSync):
// there the sync comes behind Commit, and no order of writes before it is relied
// upon (onesync.md). Otherwise every write goes through at once.
type runs struct {
	db      *bbolt.DB
	metaEnd int64 // behind the two meta pages
	write   func([]byte, int64) (int, error)
	at      int64 // where buf belongs
	buf     []byte
}

// gatherWrites makes db write in runs. bbolt has no option for it, so the function
// it writes with is exchanged, which bbolt keeps for hooks of tests; nil if this
// bbolt has none of that name and type: then it writes as it always did.
func gatherWrites(db *bbolt.DB) *runs {
	type writer = func([]byte, int64) (int, error)
	ops := reflect.ValueOf(db).Elem().FieldByName("ops")
	if ops.Kind() != reflect.Struct {
		return nil
	}
	field := ops.FieldByName("writeAt")
	if !field.IsValid() || field.Type() != reflect.TypeFor[writer]() || field.IsNil() {
		return nil
	}
	write := (*writer)(unsafe.Pointer(field.UnsafeAddr())) //nolint:gosec // name and type were looked up
	r := &runs{db: db, metaEnd: 2 * int64(db.Info().PageSize), write: *write}
	*write = r.writeAt
	return r
}

// writeAt takes a page, or a few that are one; bbolt uses its memory again.
func (r *runs) writeAt(b []byte, off int64) (int, error) {
	meta := off < r.metaEnd
	if len(r.buf) > 0 && (meta || !r.db.NoSync || off != r.at+int64(len(r.buf)) || len(r.buf)+len(b) > runBytes) {
		if err := r.flush(); err != nil {
			return 0, err
		}
	}
	if meta || !r.db.NoSync || len(b) > runBytes {
		return r.write(b, off)
	}
	if len(r.buf) == 0 {
		r.at = off
	}
	r.buf = append(r.buf, b...)
	return len(b), nil
}

func (r *runs) flush() error {
	_, err := r.write(r.buf, r.at)
	r.buf = r.buf[:0]
	return err
}
