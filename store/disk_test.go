package store

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/errors"
	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store/disktest"
)

// On a disk that fills up, admission closes while there is still a segment to
// end open rooms in; then the log fails closed, and nothing acknowledged is lost.
// An ext4 gives blocks out when they are written, not when a file grows.
func TestFullDisk(t *testing.T) {
	for name, make := range map[string]func(testing.TB, string, int64) *disktest.Disk{"tmpfs": disktest.Tmpfs, "ext4": disktest.Ext4} {
		t.Run(name, func(t *testing.T) {
			mount := make(t, t.TempDir(), 24<<20)
			testFullDisk(t, mount, filepath.Join(mount.Dir, "log"))
		})
	}
}

func testFullDisk(t *testing.T, disk *disktest.Disk, dir string) {
	free := disk.Leave(t, 2<<20)
	l, rec := openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
	src := newSource(l, rec, 1)
	spare := 0 // commits between "open no rooms" and the end
	for l.Err() == nil {
		if l.Full() {
			spare++
		}
		if err := l.Append(src.next(100), events.Sync); err != nil {
			break
		}
		if l.Sync(context.Background()) != nil {
			break
		}
	}
	acked := l.Durable()
	if err := l.Err(); !errors.Is(err, ErrPoisoned) || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("the end: %v", err)
	}
	if spare < 10 {
		t.Errorf("%d commits after admission closed: no room was left to end what was open", spare)
	}
	if err := l.Close(); !errors.Is(err, ErrPoisoned) {
		t.Errorf("close: %v", err)
	}
	_, _, err := Open(context.Background(), dir, Options{Node: "n", Boot: 2, SegmentBytes: minSegmentBytes, Salvage: true})
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), dir) || len(damagedDirs(t, dir)) != 0 {
		t.Errorf("open on a full disk: %v", err)
	}
	free()
	l, rec = openLog(t, dir, Options{SegmentBytes: minSegmentBytes, Salvage: true})
	if rec.LastSeq < acked || !rec.Unclean || rec.LostFrom != 0 {
		t.Errorf("with room again: %+v, %d were acknowledged", rec, acked)
	}
	mustAppend(t, l, newSource(l, rec, 1).next(500), events.Sync)
	mustClose(t, l)
	mustReadDir(t, dir, rec.LastSeq+500)
}

func TestReadOnlyDiskIsNamed(t *testing.T) {
	mount := disktest.Tmpfs(t, t.TempDir(), 4<<20).Dir
	dir := filepath.Join(mount, "log")
	last := fill(t, dir, 2)
	if err := unix.Mount("tmpfs", mount, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, "size=4m"); err != nil {
		t.Fatal(err)
	}
	_, _, err := Open(context.Background(), dir, Options{Node: "n", Boot: 2, Salvage: true})
	if !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), dir) {
		t.Errorf("open: %v", err)
	}
	mustReadDir(t, dir, last)
}

// The kernel finds an error in the file system under an open log and makes it
// read-only: the log fails closed, and says what of. What was acknowledged is there
// when the disk is mounted again.
func TestDiskThatBecomesReadOnlyEndsTheLog(t *testing.T) {
	disk := disktest.Ext4(t, t.TempDir(), 16<<20)
	dir := filepath.Join(disk.Dir, "log")
	l, rec := openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
	src := newSource(l, rec, 1)
	mustAppend(t, l, src.next(500), events.Sync)
	disk.Break(t)
	for l.Err() == nil { // what is prepared may take some more
		if l.Append(src.next(100), events.Sync) != nil || l.Sync(context.Background()) != nil {
			break
		}
	}
	acked := l.Durable()
	if err := l.Err(); !errors.Is(err, ErrPoisoned) || !errors.IsAny(err, unix.EROFS, unix.EIO) || !strings.Contains(err.Error(), dir) {
		t.Errorf("the end: %v", err)
	}
	if err := l.Append(src.next(1), events.Sync); !errors.Is(err, ErrPoisoned) {
		t.Errorf("it takes more: %v", err)
	}
	if err := l.Close(); !errors.Is(err, ErrPoisoned) {
		t.Errorf("close: %v", err)
	}
	if _, _, err := Open(context.Background(), dir, Options{Node: "n", Boot: 2, Salvage: true}); !errors.IsAny(err, unix.EROFS, unix.EIO) || !strings.Contains(err.Error(), dir) {
		t.Errorf("open: %v", err)
	}
	disk.Repair(t)
	l, rec = openLog(t, dir, Options{SegmentBytes: minSegmentBytes, Salvage: true})
	if rec.LastSeq < acked || rec.LostFrom != 0 || len(damagedDirs(t, dir)) != 0 {
		t.Errorf("mounted again: %+v, %d were acknowledged", rec, acked)
	}
	mustAppend(t, l, newSource(l, rec, 1).next(500), events.Sync)
	mustClose(t, l)
	mustReadDir(t, dir, rec.LastSeq+500)
}

func TestUnwritableDirectoryIsNamed(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("needs a user whom permissions bind; TestReadOnlyDiskIsNamed stands for it")
	}
	dir := filepath.Join(t.TempDir(), "log")
	fill(t, dir, 1)
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	_, _, err := Open(context.Background(), dir, Options{Node: "n", Boot: 2, Salvage: true})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), dir) {
		t.Errorf("open: %v", err)
	}
}
