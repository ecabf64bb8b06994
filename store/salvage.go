package store

import (
	"crypto/rand"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/errors"
	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/events"
)

// A log that lost acknowledged events is never repaired in place. What
// verifies, from its start up to the first damage, is copied into a log of its
// own with a new log id; both directories change names in one step; the old
// one stays as <dir>.damaged-<time> for whoever looks into the incident. A new
// id, because the numbers of lost events will be used again: nobody must take
// one for the other (events.md, identity).
const (
	salvagingExt  = ".salvaging"
	salvagingMark = "SALVAGING" // in a directory that is not the log yet
	lossName      = "LOSS"
)

// loss is the file that says that the log lost events. It stays until the
// caller has it on record (Log.LossRecorded): a crash in between must not make
// the past look known.
type loss struct {
	LostFrom    uint64 `json:"lost_from"`
	Reason      string `json:"reason"`
	Damaged     string `json:"damaged,omitempty"` // directory set aside, by its name
	Incarnation uint64 `json:"incarnation"`       // highest one seen, in what was lost too
}

func isLoss(err error) bool {
	return errors.IsAny(err, ErrCorrupt, ErrHeadAhead, ErrHeadMismatch, ErrBehind)
}

// settleSalvage ends a salvage that a crash cut short. The directory is locked.
func settleSalvage(dir string) error {
	aside := dir + salvagingExt
	if _, err := os.Lstat(aside); err == nil {
		if _, err := os.Lstat(filepath.Join(aside, salvagingMark)); err == nil {
			if err := os.RemoveAll(aside); err != nil {
				return errors.Wrap(err, "remove a salvage that was not finished")
			}
		} else if _, err := nameDamaged(dir); err != nil {
			return err
		}
	}
	return removeIfThere(filepath.Join(dir, salvagingMark))
}

// nameDamaged gives the directory that was set aside its name for good.
func nameDamaged(dir string) (string, error) {
	to := dir + ".damaged-" + time.Now().UTC().Format("20060102T150405.000000000Z")
	if err := os.Rename(dir+salvagingExt, to); err != nil {
		return "", errors.Wrap(err, "name the damaged log")
	}
	return to, syncDir(filepath.Dir(dir))
}

// salvage sets the log aside and puts in its place what verifies of it. On an
// error nothing was moved.
func (l *Log) salvage(cause error) error {
	aside := l.dir + salvagingExt
	if err := os.Mkdir(aside, 0o755); err != nil {
		return errors.Wrap(err, "salvage log")
	}
	lock, err := l.salvageInto(aside, cause)
	if err != nil {
		return errors.CombineErrors(errors.Wrap(err, "salvage log"), os.RemoveAll(aside))
	}
	if err := unix.Renameat2(unix.AT_FDCWD, l.dir, unix.AT_FDCWD, aside, unix.RENAME_EXCHANGE); err != nil {
		return errors.CombineErrors(errors.Wrapf(err, "salvage log: exchange %s and %s", l.dir, aside),
			errors.CombineErrors(lock.Close(), os.RemoveAll(aside)))
	}
	old := l.lock
	l.lock = lock
	if err := errors.CombineErrors(syncDir(filepath.Dir(l.dir)), old.Close()); err != nil {
		return err
	}
	to, err := nameDamaged(l.dir)
	if err != nil {
		return err
	}
	lost, _, err := readLoss(l.dir)
	if err != nil {
		return err
	}
	lost.Damaged = filepath.Base(to)
	if err := writeLoss(l.dir, lost); err != nil {
		return err
	}
	l.log.Error("the log lost events: it was set aside, what verifies was copied; the past is unknown",
		"dir", l.dir, "damaged", to, "lost_from", lost.LostFrom, "err", cause)
	return errors.CombineErrors(removeIfThere(filepath.Join(l.dir, salvagingMark)), syncDir(l.dir))
}

func (l *Log) salvageInto(aside string, cause error) (lock *os.File, err error) {
	if err := os.WriteFile(filepath.Join(aside, salvagingMark), nil, 0o644); err != nil {
		return nil, err
	}
	if lock, err = takeLock(aside, LockInfo{PID: os.Getpid(), Since: time.Now(), Node: l.opts.Node, Socket: l.opts.Socket}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.CombineErrors(err, lock.Close())
		}
	}()
	pos, incarnation, err := copyVerified(l.dir, aside, l.opts.SegmentBytes, l.descriptor)
	if err != nil {
		return nil, err
	}
	if err := copySnapshots(l.dir, aside, pos); err != nil {
		return nil, err
	}
	if err := writeSynced(headPath(aside), encodeHead(head{seq: pos.Seq, chain: pos.Chain})); err != nil {
		return nil, err
	}
	if err := writeLoss(aside, loss{LostFrom: pos.Seq + 1, Reason: cause.Error(), Incarnation: incarnation}); err != nil {
		return nil, err
	}
	return lock, syncDir(aside)
}

// copyVerified copies the log in from, up to the first damage, and says where
// that is and which incarnations the whole directory speaks of. Its error is
// one of writing.
func copyVerified(from, to string, segmentBytes int64, descriptor []byte) (pos events.Position, incarnation uint64, err error) {
	segs, err := listSegments(from)
	if err != nil {
		return pos, 0, err
	}
	var id LogID
	if _, err := rand.Read(id[:]); err != nil {
		return pos, 0, errors.Wrap(err, "draw log id")
	}
	h, haveHead, err := readHead(from)
	if err != nil {
		haveHead = false // it cannot be read: it says nothing
	}
	chk := newChecker(h, haveHead)
	damaged := false
	for i, s := range segs {
		p, err := openPages(s.path)
		if err != nil {
			damaged = true
			continue
		}
		if i == len(segs)-1 && !damaged {
			longerRoot(p, s, *chk, i == 0)
		}
		v, err := p.view()
		if err != nil {
			damaged = true
			continue
		}
		m, err := getMeta(s.path, v.meta)
		if err != nil {
			damaged = true
			continue
		}
		incarnation = max(incarnation, m.Incarnation)
		if !damaged {
			if damaged, err = copySegment(chk, s, v, m, id, i == 0, i == len(segs)-1, to, segmentBytes, descriptor); err != nil {
				return pos, 0, err
			}
		}
	}
	return chk.pos, max(incarnation, chk.incarnation), nil
}

// longerRoot goes to the root of the last segment that more records verify
// under: the newest, or the one before it.
func longerRoot(p *pages, s *segment, chk checker, isFirst bool) {
	reach := func() uint64 {
		c := chk
		v, err := p.view()
		if err == nil {
			err = c.scan(s, v, isFirst, nil)
		}
		if err == nil {
			return math.MaxUint64
		}
		return c.pos.Seq
	}
	if n := reach(); n == math.MaxUint64 || !p.older() || reach() <= n {
		p.newest()
	}
}

// errHeadDiffers ends a salvage before the record that head and log disagree on.
var errHeadDiffers = errors.New("head has another chain")

func copySegment(chk *checker, s *segment, v segmentView, m segmentMeta, id LogID, isFirst, isLast bool,
	to string, segmentBytes int64, descriptor []byte) (damaged bool, err error) {
	m.LogID = id
	w, err := newSegmentWriter(segmentPath(to, s.first), segmentBytes, m, descriptor)
	if err != nil {
		return false, err
	}
	before := chk.pos
	var writing error
	reading := chk.scan(s, v, isFirst, func(b []byte) error {
		if chk.headSeen && chk.headChain != chk.head.chain && chk.pos.Seq == chk.head.seq {
			return errHeadDiffers
		}
		if writing = w.put(b); writing == nil {
			before = chk.pos
		}
		return writing
	})
	if writing != nil {
		return false, errors.CombineErrors(writing, w.drop())
	}
	if reading != nil {
		chk.pos = before // behind the last frame that was copied
		if !w.any {
			return true, w.drop()
		}
		return true, w.finish(chk.pos, false)
	}
	return false, w.finish(chk.pos, m.Sealed && !isLast)
}

// rewrite replaces a segment of a log that was not closed by a copy of itself.
// After a sync that failed, what reads well may be in the page cache alone,
// and a second sync would say that all is well (store.md 5).
func (l *Log) rewrite(s *segment, v segmentView, m segmentMeta) error {
	path := filepath.Join(l.dir, spareName)
	w, err := newSegmentWriter(path, l.opts.SegmentBytes, m, l.descriptor)
	if err != nil {
		return err
	}
	if err := v.frames(func(_, b []byte) error { return w.put(b) }); err != nil {
		return errors.CombineErrors(err, w.drop())
	}
	if err := w.finish(l.pos, m.Sealed); err != nil {
		return errors.CombineErrors(err, removeIfThere(path))
	}
	if !m.Sealed {
		if err := pregrow(path, l.opts.SegmentBytes); err != nil && !isNoSpace(err) {
			return errors.CombineErrors(err, removeIfThere(path))
		}
	}
	if err := os.Rename(path, s.path); err != nil {
		return errors.Wrapf(err, "replace %s", s.path)
	}
	return syncDir(l.dir)
}

func lossPath(dir string) string { return filepath.Join(dir, lossName) }

func readLoss(dir string) (lo loss, ok bool, err error) {
	b, err := os.ReadFile(lossPath(dir))
	if errors.Is(err, os.ErrNotExist) {
		return loss{}, false, nil
	}
	if err != nil {
		return loss{}, false, errors.Wrap(err, "read loss file")
	}
	if err := json.Unmarshal(b, &lo); err != nil { // it is there, so events were lost
		return loss{Reason: "the file " + lossName + " is damaged"}, true, nil //nolint:nilerr // said in Reason
	}
	return lo, true, nil
}

func writeLoss(dir string, lo loss) error {
	b, err := json.Marshal(lo)
	if err != nil {
		return errors.Wrap(err, "write loss file")
	}
	return replaceSynced(lossPath(dir), append(b, '\n'))
}

// LossRecorded forgets that the log lost events (Recovered.LostFrom). Call it
// when the event that says so is durable: until then every Open says it again.
func (l *Log) LossRecorded() error {
	if err := removeIfThere(lossPath(l.dir)); err != nil {
		return err
	}
	return syncDir(l.dir)
}

func writeSynced(path string, parts ...[]byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return errors.Wrap(err, "write file")
	}
	for _, b := range parts {
		if err == nil {
			_, err = f.Write(b)
		}
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.CombineErrors(errors.Wrapf(err, "write %s", path), f.Close())
}

// replaceSynced puts a file in place as a whole, durably.
func replaceSynced(path string, parts ...[]byte) error {
	tmp := path + ".tmp"
	if err := writeSynced(tmp, parts...); err != nil {
		return errors.CombineErrors(err, removeIfThere(tmp))
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Wrapf(err, "write %s", path)
	}
	return syncDir(filepath.Dir(path))
}
