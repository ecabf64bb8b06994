package replay

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/cockroachdb/errors"
	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

const segmentExt = ".db" // store.md 6.2

func hasSegments(dir string) bool {
	names, err := filepath.Glob(filepath.Join(dir, strings.Repeat("[0-9]", 20)+segmentExt))
	return err == nil && len(names) > 0
}

// dirLog is a log folder. What is sealed is read from its files; the segment
// that a node has open, through the node's socket, which the lock file names.
func dirLog(dir string) *Log {
	if _, live := store.Locked(dir); live {
		return &Log{Source: dir, Kind: FromLive, read: selecting(func(ctx context.Context) iter.Seq2[*events.Event, error] {
			return dirEvents(ctx, dir)
		})}
	}
	return &Log{Source: dir, Kind: FromDir, progress: progress{last: store.LastSeq(dir)}, read: func(_ context.Context, want Want, got *Spans) iter.Seq2[*events.Event, error] {
		s := &salvage{node: filepath.Base(filepath.Dir(dir)), want: want, got: got, headed: true}
		return s.events(func() []string { return segmentsIn(dir) }, func() iter.Seq2[*events.Event, error] { return s.proper(dir) })
	}}
}

const (
	stoppingWait = 5 * time.Second // a node that has closed its socket lets go of its files within it
	stoppingPoll = 50 * time.Millisecond
)

// dirEvents goes from the files to the socket where a node holds a segment, and
// back to the files when the node ends meanwhile: between the end of its socket
// and of its lock there is neither.
func dirEvents(ctx context.Context, dir string) iter.Seq2[*events.Event, error] {
	return func(yield func(*events.Event, error) bool) {
		next, until := uint64(0), time.Now().Add(stoppingWait)
		pass := func(seq iter.Seq2[*events.Event, error]) (failed error, more bool) {
			for e, err := range seq {
				if err != nil {
					return err, true
				}
				if !yield(e, nil) {
					return nil, false
				}
				next, until = e.Seq+1, time.Now().Add(stoppingWait)
			}
			return nil, true
		}
		for {
			err, more := pass(fileEvents(dir, next))
			var inUse *store.InUseError
			if !more || !errors.As(err, &inUse) {
				if more && err != nil {
					yield(nil, storeError(err))
				}
				return
			}
			if socket := socketOf(dir, inUse.Lock); socket != "" {
				if err, more = pass(liveEvents(ctx, "unix:"+socket, inUse.Next)); !more || err == nil {
					return
				}
			}
			if inUse.Lock.Socket == "" || !errors.IsAny(err, ErrUnavailable, store.ErrInUse) || time.Now().After(until) {
				yield(nil, storeError(err))
				return
			}
			select {
			case <-ctx.Done():
				yield(nil, mark(ctx.Err(), ErrUnavailable))
				return
			case <-time.After(stoppingPoll):
			}
		}
	}
}

// fileEvents reads what can be read from the files alone.
func fileEvents(dir string, from uint64) iter.Seq2[*events.Event, error] {
	return func(yield func(*events.Event, error) bool) {
		_, err := store.ReadDir(dir, from, func(e *events.Event) error {
			if !yield(e, nil) {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			yield(nil, err)
		}
	}
}

// socketOf is the socket of the node that has the log open; "" if none is there.
func socketOf(dir string, holder store.LockInfo) string {
	if holder.Socket != "" {
		if _, err := os.Stat(holder.Socket); err == nil {
			return holder.Socket
		}
	}
	return besideSocket(dir) // the lock's may be relative to the node's own directory
}

// besideSocket finds a socket in the data directory of a log folder.
func besideSocket(dir string) string {
	names, err := filepath.Glob(filepath.Join(filepath.Dir(dir), "*.sock"))
	if err != nil || len(names) == 0 {
		return ""
	}
	return names[0]
}

// storeError gives the store's errors the kinds of this package.
func storeError(err error) error {
	var inUse *store.InUseError
	switch {
	case err == nil:
		return nil
	case errors.IsAny(err, ErrUnavailable, ErrDamaged, ErrBadSource): // of the socket
		return err
	case errors.As(err, &inUse):
		how := "give the node's socket as the source (unix:PATH)"
		if inUse.Lock.Socket != "" {
			how = "give unix:" + inUse.Lock.Socket + " as the source"
		}
		return mark(errors.Newf("a live node writes this log (%s): %s", inUse.Lock, how), ErrUnavailable)
	case errors.IsAny(err, store.ErrCorrupt, store.ErrHeadAhead, store.ErrHeadMismatch, berrors.ErrInvalid, berrors.ErrChecksum, berrors.ErrVersionMismatch):
		return mark(err, ErrDamaged)
	case errors.IsAny(err, store.ErrNotALog, store.ErrFormat):
		return mark(err, ErrBadSource)
	default:
		return mark(err, ErrUnavailable)
	}
}

// fileLog is one segment file, wherever it lies and whatever it is called: it
// is read in a folder of its own, through a link under its proper name.
func fileLog(path string) *Log {
	node := strings.TrimSuffix(filepath.Base(path), segmentExt)
	if dir := filepath.Dir(path); filepath.Base(dir) == "log" {
		node = filepath.Base(filepath.Dir(dir))
	}
	return &Log{Source: path, Kind: FromFile, read: func(ctx context.Context, want Want, got *Spans) iter.Seq2[*events.Event, error] {
		if holder, live := store.Locked(filepath.Dir(path)); live {
			// A sealed segment of a live node can be read; the active one not.
			if _, err := firstSeq(path); err != nil && holder.Socket != "" {
				return liveLog("unix:"+holder.Socket, path).read(ctx, want, got)
			}
		}
		s := &salvage{node: node, want: want, got: got}
		return s.events(func() []string { return []string{path} }, func() iter.Seq2[*events.Event, error] {
			return func(yield func(*events.Event, error) bool) {
				dir, err := linkDir(path)
				if err != nil {
					yield(nil, err)
					return
				}
				defer os.RemoveAll(dir)
				s.proper(dir)(yield)
			}
		})
	}}
}

// isSegment looks for the magic number of a bbolt file, whatever its name is.
func isSegment(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var b [20]byte
	_, err = f.ReadAt(b[:], 0)
	return err == nil && binary.LittleEndian.Uint32(b[16:]) == 0xED0CDAED
}

func linkDir(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", mark(err, ErrUnavailable)
	}
	first, err := firstSeq(abs)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "pdreplay-")
	if err != nil {
		return "", mark(err, ErrUnavailable)
	}
	if err := os.Symlink(abs, filepath.Join(dir, fmt.Sprintf("%020d%s", first, segmentExt))); err != nil {
		return "", mark(errors.CombineErrors(err, os.RemoveAll(dir)), ErrUnavailable)
	}
	return dir, nil
}

// firstSeq is the key of the segment's first frame (store.md 6.2).
func firstSeq(path string) (first uint64, err error) {
	// A file that is cut short faults where its pages are mapped and are not there.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			first, err = 0, mark(errors.Newf("read segment: %v", p), ErrBadSource)
		}
	}()
	db, err := bbolt.Open(path, 0o400, &bbolt.Options{ReadOnly: true, Timeout: lockWait})
	if err != nil {
		if errors.Is(err, bbolt.ErrTimeout) { //nolint:staticcheck // the name bbolt itself returns
			return 0, mark(errors.New("a live node writes this segment: give its socket as the source (unix:PATH)"), ErrUnavailable)
		}
		return 0, mark(errors.Wrap(err, "open segment"), ErrBadSource)
	}
	defer func() { err = errors.CombineErrors(err, db.Close()) }()
	err = db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte("frames"))
		if b == nil {
			return errors.Wrap(ErrBadSource, "not a segment of a log")
		}
		k, _ := b.Cursor().First()
		if len(k) != 8 {
			return errors.Wrap(ErrBadSource, "segment is empty")
		}
		first = binary.BigEndian.Uint64(k)
		return nil
	})
	return first, err
}
