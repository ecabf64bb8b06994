// Package disktest gives tests file systems of their own, that fill up and fail.
// It needs the right to mount; a test that may not is skipped.
package disktest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/errors"
	"golang.org/x/sys/unix"
)

// Disk is a file system that is mounted for one test.
type Disk struct {
	Dir   string
	image string // of an ext4; "" = tmpfs
}

// Tmpfs mounts a tmpfs of some bytes on dir.
func Tmpfs(t testing.TB, dir string, size int64) *Disk {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+strconv.FormatInt(size, 10)); err != nil {
		t.Skipf("needs the right to mount a tmpfs: %v", err)
	}
	d := &Disk{Dir: dir}
	t.Cleanup(func() { d.unmount(t) })
	return d
}

// Ext4 mounts an ext4 of some bytes on dir, in an image on a loop device. An error
// makes it read-only, as Debian's installer and most clouds mount it.
func Ext4(t testing.TB, dir string, size int64) *Disk {
	t.Helper()
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		if mkfs = "/usr/sbin/mkfs.ext4"; unix.Access(mkfs, unix.X_OK) != nil {
			t.Skip("needs mkfs.ext4 (apt-get install e2fsprogs)")
		}
	}
	d := &Disk{Dir: dir, image: filepath.Join(t.TempDir(), "image")}
	if err := os.WriteFile(d.image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(d.image, size); err != nil {
		t.Fatal(err)
	}
	run(t, mkfs, "-q", "-F", "-b", "1024", "-m", "0", d.image)
	d.mount(t)
	t.Cleanup(func() { d.unmount(t) })
	return d
}

func (d *Disk) mount(t testing.TB) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", "loop,errors=remount-ro", d.image, d.Dir).CombinedOutput(); err != nil {
		t.Skipf("needs the right to mount a loop device: %v: %s", err, out)
	}
}

func (d *Disk) unmount(t testing.TB) {
	if err := unix.Unmount(d.Dir, unix.MNT_DETACH); err != nil {
		t.Error(err)
	}
}

// Leave fills the disk with a file of nobody's until at most some bytes are free;
// free takes the file away.
func (d *Disk) Leave(t testing.TB, bytes int64) (free func()) {
	t.Helper()
	f, err := os.CreateTemp(d.Dir, "ballast")
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		var st unix.Statfs_t
		if err := unix.Statfs(d.Dir, &st); err != nil {
			t.Fatal(err)
		}
		n := int64(st.Bavail)*st.Bsize - bytes //nolint:gosec // a small disk
		if n <= 0 {
			break
		}
		_, err = f.Write(make([]byte, min(n, 64<<10)))
	}
	if err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(f.Name()); err != nil {
			t.Error(err)
		}
	}
}

// Break lets the kernel find an error in the ext4: it is read-only from then on.
func (d *Disk) Break(t testing.TB) {
	t.Helper()
	device := filepath.Base(strings.TrimSpace(run(t, "findmnt", "-no", "SOURCE", d.Dir)))
	if err := os.WriteFile(filepath.Join("/sys/fs/ext4", device, "trigger_fs_error"), []byte("1"), 0); err != nil {
		t.Skipf("needs a kernel that can be told of an error in ext4: %v", err)
	}
}

// Repair mounts a broken ext4 again, once nobody has a file of it open.
func (d *Disk) Repair(t testing.TB) {
	t.Helper()
	if err := unix.Unmount(d.Dir, 0); err != nil {
		t.Fatal(err)
	}
	d.mount(t)
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	var errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", name, err, errs.String())
	}
	return string(out)
}
