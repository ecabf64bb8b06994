package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/events"
)

// smallDisk mounts a file system of its own.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("needs the right to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// On a disk that fills up, admission closes while there is still a segment to
// end open rooms in; then the log fails closed, and nothing acknowledged is lost.
func TestFullDisk(t *testing.T) {
	mount := smallDisk(t, "2m")
	dir := filepath.Join(mount, "log")
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
	if err := unix.Mount("tmpfs", mount, "tmpfs", unix.MS_REMOUNT, "size=8m"); err != nil {
		t.Fatal(err)
	}
	l, rec = openLog(t, dir, Options{SegmentBytes: minSegmentBytes, Salvage: true})
	if rec.LastSeq < acked || !rec.Unclean || rec.LostFrom != 0 {
		t.Errorf("with room again: %+v, %d were acknowledged", rec, acked)
	}
	mustAppend(t, l, newSource(l, rec, 1).next(500), events.Sync)
	mustClose(t, l)
	mustReadDir(t, dir, rec.LastSeq+500)
}

func TestReadOnlyDiskIsNamed(t *testing.T) {
	mount := smallDisk(t, "4m")
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
