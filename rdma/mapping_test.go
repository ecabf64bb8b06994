package rdma_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/rdma"
)

// TestFileBehindAMapping: whichever way the file is found, it is the right one.
func TestFileBehindAMapping(t *testing.T) {
	page := os.Getpagesize()
	m, err := rdma.AllocMemfd("mapping", 4*page)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := os.CreateTemp(t.TempDir(), "a file")
	if err != nil {
		t.Fatal(err)
	}
	if err := disk.Truncate(int64(4 * page)); err != nil {
		t.Fatal(err)
	}
	onDisk, err := unix.Mmap(int(disk.Fd()), int64(page), 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Munmap(onDisk), disk.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	})
	for name, c := range map[string]struct {
		mem  rdma.Memory
		want int64 // -1: not to be had
	}{
		"memfd and its mapping":         {m.Memory(), 0},
		"part of a mapping":             {rdma.Memory{FD: m.FD(), Mapped: m.Bytes()[page+5:]}, int64(page + 5)},
		"descriptor alone":              {rdma.Memory{FD: m.FD(), Offset: int64(page), Len: page}, int64(page)},
		"path":                          {rdma.Memory{FD: -1, Mapped: onDisk[7:]}, int64(page + 7)},
		"path, with another descriptor": {rdma.Memory{FD: m.FD(), Mapped: onDisk}, int64(page)},
		"memfd without a descriptor":    {rdma.Memory{FD: -1, Mapped: m.Bytes()}, -1},
		"memfd with another descriptor": {rdma.Memory{FD: int(disk.Fd()), Mapped: m.Bytes()}, -1},
	} {
		mem, unmap, err := c.mem.Map()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f, off, ok := c.mem.File(mem)
		if ok != (c.want >= 0) || ok && off != c.want {
			t.Errorf("%s: %v at %d, want %d", name, ok, off, c.want)
		}
		if ok {
			mem[0]++ // both see one memory
			var b [1]byte
			if _, err := f.ReadAt(b[:], off); err != nil || b[0] != mem[0] {
				t.Errorf("%s: the file holds %d, the memory %d: %v", name, b[0], mem[0], err)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := unmap(); err != nil {
			t.Error(err)
		}
	}
	if f, _, ok := (rdma.Memory{FD: -1, Mapped: make([]byte, page)}).File(make([]byte, page)); ok {
		t.Errorf("the heap has a file: %v", f.Name())
	}
}
