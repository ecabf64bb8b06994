package store

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/errors"
	"golang.org/x/sys/unix"
)

// LockInfo says who has a log open.
type LockInfo struct {
	PID    int       `json:"pid"`
	Since  time.Time `json:"since"`
	Node   string    `json:"node"`
	Socket string    `json:"socket,omitempty"`
}

// String is e.g. "node d0, pid 4711, since 2026-01-02T15:04:05Z".
func (i LockInfo) String() string {
	if i.PID == 0 {
		return "an unknown process"
	}
	return fmt.Sprintf("node %s, pid %d, since %s", i.Node, i.PID, i.Since.UTC().Format(time.RFC3339))
}

func lockPath(dir string) string { return filepath.Join(dir, "LOCK") }

// takeLock locks the directory for this process, at once or not at all. The
// kernel drops the lock when the process dies, so a stale file is no obstacle.
func takeLock(dir string, info LockInfo) (*os.File, error) {
	for {
		f, err := tryLock(dir, info)
		if err != nil {
			return nil, err
		}
		mine, err := f.Stat()
		if err == nil {
			var now os.FileInfo
			if now, err = os.Stat(lockPath(dir)); err == nil && os.SameFile(mine, now) {
				return f, nil
			}
		}
		_ = f.Close() // a salvage put another directory here meanwhile
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, errors.Wrap(err, "lock log")
		}
	}
}

func tryLock(dir string, info LockInfo) (*os.File, error) {
	f, err := os.OpenFile(lockPath(dir), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, errors.Wrap(err, "open lock file")
	}
	if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := readLock(f)
		_ = f.Close() // the lock is somebody else's
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Wrapf(ErrLocked, "held by %s; stop that process or use another data directory", holder)
		}
		return nil, errors.Wrapf(err, "lock %s", lockPath(dir))
	}
	b, err := json.Marshal(info)
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(append(b, '\n'), 0)
	}
	if err != nil {
		return nil, errors.CombineErrors(errors.Wrap(err, "write lock file"), f.Close())
	}
	return f, nil
}

// Locked says whether a live process has the log in dir open, and which.
func Locked(dir string) (LockInfo, bool) {
	f, err := os.Open(lockPath(dir))
	if err != nil {
		return LockInfo{}, false
	}
	defer f.Close()
	if err := flock(f, unix.LOCK_SH|unix.LOCK_NB); err == nil {
		return LockInfo{}, false
	}
	return readLock(f), true
}

func readLock(f *os.File) LockInfo {
	var info LockInfo
	b := make([]byte, 4096)
	n, _ := f.ReadAt(b, 0) // io.EOF is the usual case; what is missing is unknown
	if json.Unmarshal(b[:n], &info) != nil {
		return LockInfo{}
	}
	return info
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how) //nolint:gosec // a descriptor
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// syncDir makes names in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return errors.Wrap(err, "open directory")
	}
	return errors.CombineErrors(errors.Wrapf(d.Sync(), "sync directory %s", dir), d.Close())
}
