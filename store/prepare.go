package store

import (
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/errors"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/events"
)

// spareRetry is how often a full disk is tried again.
const spareRetry = time.Second

// prepareLoop prepares the next segment off the commit path and closes the
// writable handles of sealed ones.
func (l *Log) prepareLoop() {
	defer close(l.preparerDone)
	var retry <-chan time.Time
	for {
		select {
		case <-l.stopPrepare:
			l.dropSpare()
			return
		case s := <-l.demote:
			if err := s.close(); err != nil {
				l.fail(err)
			}
			continue
		case <-l.needSpare:
		case <-retry:
		}
		retry = nil
		s, err := l.prepare()
		switch {
		case err == nil:
			l.noSpace.Store(false)
			l.spare <- s // has room: a spare is asked for once per one taken
			continue
		case isNoSpace(err):
			if !l.noSpace.Swap(true) {
				l.log.Warn("no room for the next log segment: open no rooms", "dir", l.dir, "err", err)
			}
			retry = time.After(spareRetry)
		default:
			l.fail(err)
		}
		select {
		case l.spareTried <- struct{}{}:
		default:
		}
	}
}

func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// prepare creates the next segment under a temporary name, its space written
// and synced.
func (l *Log) prepare() (*segment, error) {
	path := filepath.Join(l.dir, spareName)
	s, err := l.createFile(path)
	if err != nil {
		return nil, errors.CombineErrors(errors.Wrap(err, "prepare segment"), removeIfThere(path))
	}
	return s, nil
}

func (l *Log) createFile(path string) (*segment, error) {
	if h := l.opts.hooks.prepare; h != nil {
		if err := h(); err != nil {
			return nil, err
		}
	}
	if err := removeIfThere(path); err != nil {
		return nil, err
	}
	db, err := openWritable(path, l.opts.SegmentBytes)
	if err != nil {
		return nil, err
	}
	if err := pregrow(path, l.opts.SegmentBytes); err != nil {
		return nil, errors.CombineErrors(err, db.Close())
	}
	return &segment{path: path, db: db}, nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errors.Wrap(err, "remove temporary segment")
	}
	return nil
}

// pregrow writes zeroes behind the end of the file up to size: a full disk
// shows here and not in a commit, and commits need not grow the file.
func pregrow(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return errors.Wrap(err, "grow segment")
	}
	err = func() error {
		end, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return err
		}
		zero := make([]byte, 1<<20)
		for end < size {
			n, err := f.WriteAt(zero[:min(int64(len(zero)), size-end)], end)
			if err != nil {
				return err
			}
			end += int64(n)
		}
		return f.Sync()
	}()
	return errors.CombineErrors(errors.Wrap(err, "grow segment"), f.Close())
}

// startSegment turns a prepared file into the segment behind at: its meta is
// committed first, then it gets its name, then the name is synced.
func (l *Log) startSegment(s *segment, at events.Position) error {
	s.first = at.Seq + 1
	err := guard(s.path, func() error {
		if err := putMeta(s.db, segmentMeta{
			Node: l.opts.Node, LogID: l.id, FirstSeq: s.first, ChainStart: at.Chain,
			Boot: l.opts.Boot, Incarnation: l.incarnation, OneSync: l.oneSync(),
		}, l.descriptor); err != nil {
			return err
		}
		return s.db.View(func(tx *bbolt.Tx) error {
			l.activeUsed = tx.Size()
			return nil
		})
	})
	if err != nil {
		return errors.Wrapf(err, "start segment %s", segmentPath(l.dir, s.first))
	}
	path := segmentPath(l.dir, s.first)
	if err := os.Rename(s.path, path); err != nil {
		return errors.Wrapf(err, "start segment %s", segmentPath(l.dir, s.first))
	}
	s.path = path
	return syncDir(l.dir)
}

// takeSpare waits for the segment that is being prepared; nil when the disk
// has no room for one or the log is poisoned.
func (l *Log) takeSpare() *segment {
	for {
		select {
		case s := <-l.spare:
			return s
		default:
		}
		if l.noSpace.Load() {
			return nil
		}
		select {
		case s := <-l.spare:
			return s
		case <-l.spareTried:
		case <-l.failed:
			return nil
		}
	}
}

func (l *Log) dropSpare() {
	select {
	case s := <-l.spare:
		if err := errors.CombineErrors(s.close(), removeIfThere(s.path)); err != nil {
			l.log.Warn("could not remove the prepared segment", "path", s.path, "err", err)
		}
	default:
	}
	for {
		select {
		case s := <-l.demote:
			if err := s.close(); err != nil {
				l.log.Warn("could not close a sealed segment", "path", s.path, "err", err)
			}
		default:
			return
		}
	}
}
