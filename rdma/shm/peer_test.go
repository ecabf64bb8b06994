package shm_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/shm"
)

const (
	patience = 20 * time.Second // a bound, never a wait
	size     = 4 << 20
)

// rig is a target and a writer in one process.
type rig struct {
	target, writer rdma.Domain
	dst            rdma.Region
	lease          rdma.Lease
	ep             rdma.Endpoint
	ends           chan rdma.Completion
}

func newRig(t *testing.T) *rig {
	t.Helper()
	m, err := rdma.AllocMemfd("target", size)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{ends: make(chan rdma.Completion, 1000)}
	if r.target, err = (shm.Provider{}).Open(t.Context(), rdma.Config{Self: "d", Listen: shm.ListenAny}); err != nil {
		t.Fatal(err)
	}
	if r.writer, err = (shm.Provider{}).Open(t.Context(), rdma.Config{Self: "p", OnCompletion: func(c rdma.Completion) { r.ends <- c }}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.writer.Close(), r.target.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	})
	if r.dst, err = r.target.RegisterMemory(t.Context(), m.Memory()); err != nil {
		t.Fatal(err)
	}
	if r.lease, err = r.dst.Grant(t.Context(), rdma.Grant{Peer: "p", Tag: 1, Ranges: []rdma.Range{{Len: size}}}); err != nil {
		t.Fatal(err)
	}
	if r.ep, err = r.writer.Connect(t.Context(), r.target.Info()); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) write(t *testing.T, src []byte) rdma.Completion {
	t.Helper()
	if _, err := r.ep.PostBatch(rdma.Batch{Tag: 1, Key: r.lease.Desc().Key, Writes: []rdma.Write{{Src: src}}}); err != nil {
		t.Fatal(err)
	}
	select {
	case c := <-r.ends:
		return c
	case <-time.After(patience):
		t.Fatal("no completion")
		return rdma.Completion{}
	}
}

// mapping maps size bytes of a file shared, filled with b.
func mapping(t *testing.T, fd int, b byte) []byte {
	t.Helper()
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(m) }) // the test's own
	for i := range m {
		m[i] = b
	}
	return m
}

func refusal(c rdma.Completion) rdma.Refusal {
	var r *rdma.RefusedError
	if c.Status == rdma.Failed && c.Proven && errors.As(c.Err, &r) {
		return r.Reason
	}
	return 0
}

// TestFileThatShrinksIsRefused: a peer cuts the file that its pages are in. The
// target does not fault, and goes on.
func TestFileThatShrinksIsRefused(t *testing.T) {
	r := newRig(t)
	fd, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	src := mapping(t, fd, 0x5a)
	if _, err := r.writer.RegisterMemory(t.Context(), rdma.Memory{FD: fd, Mapped: src}); err != nil {
		t.Fatal(err)
	}
	if c := r.write(t, src); c.Status != rdma.Completed || r.dst.Bytes()[size-1] != 0x5a {
		t.Fatalf("before: %+v", c)
	}
	if err := unix.Ftruncate(fd, size/2+100); err != nil {
		t.Fatal(err)
	}
	if c := r.write(t, src); refusal(c) != rdma.RefusedSource || c.Bytes < size/2-(1<<20) || c.Bytes > size/2+100 {
		t.Errorf("half of it gone: %+v", c)
	}
	if err := unix.Ftruncate(fd, 0); err != nil {
		t.Fatal(err)
	}
	if c := r.write(t, src); refusal(c) != rdma.RefusedSource || c.Bytes != 0 {
		t.Errorf("all of it gone: %+v", c)
	}
	plain := []byte("by the socket, on the same connection")
	if c := r.write(t, plain); c.Status != rdma.Completed || string(r.dst.Bytes()[:len(plain)]) != string(plain) {
		t.Errorf("afterwards: %+v", c)
	}
}

// TestHoleInASealedFileIsZero: the only way left to take pages out of a pool.
func TestHoleInASealedFileIsZero(t *testing.T) {
	r := newRig(t)
	m, err := rdma.AllocMemfd("source", size)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	for i := range m.Bytes() {
		m.Bytes()[i] = 0x77
	}
	if _, err := r.writer.RegisterMemory(t.Context(), m.Memory()); err != nil {
		t.Fatal(err)
	}
	if c := r.write(t, m.Bytes()); c.Status != rdma.Completed || r.dst.Bytes()[size-1] != 0x77 {
		t.Fatalf("before: %+v", c)
	}
	if err := unix.Fallocate(m.FD(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size); err != nil {
		t.Fatal(err)
	}
	if c := r.write(t, m.Bytes()); c.Status != rdma.Completed || r.dst.Bytes()[0] != 0 || r.dst.Bytes()[size-1] != 0 {
		t.Errorf("after: %+v, bytes %d and %d", c, r.dst.Bytes()[0], r.dst.Bytes()[size-1])
	}
}

// TestFilesOnATmpfsAndElsewhere: memory known only by its mapping, on a tmpfs
// and on a file system that no target reads from.
func TestFilesOnATmpfsAndElsewhere(t *testing.T) {
	for name, dir := range map[string]string{"tmpfs": "/dev/shm", "elsewhere": t.TempDir()} {
		r := newRig(t)
		f, err := os.CreateTemp(dir, "pdlog-shm-test")
		if err != nil {
			t.Fatal(err)
		}
		src := mapping(t, int(f.Fd()), 0x33)
		if _, err := r.writer.RegisterMemory(t.Context(), rdma.Memory{FD: -1, Mapped: src}); err != nil {
			t.Fatal(err)
		}
		if c := r.write(t, src[4096:]); c.Status != rdma.Completed || r.dst.Bytes()[size-4097] != 0x33 {
			t.Errorf("%s: %+v", name, c)
		}
		if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
			t.Error(err)
		}
	}
}

// TestUnmappedTargetPagesAreRefused: the caller breaks its promise; nobody dies.
func TestUnmappedTargetPagesAreRefused(t *testing.T) {
	r := newRig(t)
	gone, err := rdma.AllocMemfd("gone", size)
	if err != nil {
		t.Fatal(err)
	}
	region, err := r.target.RegisterMemory(t.Context(), gone.Memory())
	if err != nil {
		t.Fatal(err)
	}
	l, err := region.Grant(t.Context(), rdma.Grant{Peer: "p", Tag: 1, Ranges: []rdma.Range{{Len: size}}})
	if err != nil {
		t.Fatal(err)
	}
	src, err := rdma.AllocMemfd("source", size)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = src.Close() }()
	if _, err := r.writer.RegisterMemory(t.Context(), src.Memory()); err != nil {
		t.Fatal(err)
	}
	if c := r.write(t, src.Bytes()); c.Status != rdma.Completed { // the pool is mapped before its place is free
		t.Fatalf("before: %+v", c)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	good := r.lease
	r.lease = l
	if c := r.write(t, src.Bytes()); refusal(c) != rdma.RefusedMemory || c.Bytes != 0 {
		t.Errorf("completion %+v", c)
	}
	r.lease = good
	if c := r.write(t, src.Bytes()); c.Status != rdma.Completed {
		t.Errorf("afterwards: %+v", c)
	}
}

func TestAddresses(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "unix:", "unix:relative", "/tmp/x", "unix"} {
		if d, err := (shm.Provider{}).Open(t.Context(), rdma.Config{Listen: at}); err == nil {
			t.Errorf("listens at %q", at)
			_ = d.Close()
		}
	}
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := (shm.Provider{}).Open(t.Context(), rdma.Config{Listen: "unix:" + path}); err == nil {
		t.Error("took over a socket that somebody listens at")
		_ = d.Close()
	}
	ln.SetUnlinkOnClose(false) // as a killed process leaves it
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	d, err := (shm.Provider{}).Open(t.Context(), rdma.Config{Listen: "unix:" + path})
	if err != nil {
		t.Fatalf("the socket of a dead process: %v", err)
	}
	if got := d.Info().Endpoint; got != "unix:"+path {
		t.Errorf("endpoint %s", got)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if d, err := (shm.Provider{}).Open(t.Context(), rdma.Config{Listen: "unix:" + path}); err == nil {
		t.Error("replaced a file that is no socket")
		_ = d.Close()
	}
}
