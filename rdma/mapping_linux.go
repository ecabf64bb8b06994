package rdma

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is a line of /proc/self/maps.
type mapping struct {
	lo, hi uint64
	shared bool   // writable and shared
	offset int64  // into the file
	dev    string // "major:minor", hex
	inode  uint64
	path   string
}

// parseMapping reads "7f12-7f34 rw-s 00000000 00:01 12 /memfd:x (deleted)".
func parseMapping(line string) (m mapping, ok bool) {
	f := strings.Fields(line)
	if len(f) < 5 || len(f[1]) < 4 {
		return m, false
	}
	from, to, _ := strings.Cut(f[0], "-")
	var errs [4]error
	m.lo, errs[0] = strconv.ParseUint(from, 16, 64)
	m.hi, errs[1] = strconv.ParseUint(to, 16, 64)
	m.offset, errs[2] = strconv.ParseInt(f[2], 16, 64)
	m.inode, errs[3] = strconv.ParseUint(f[4], 10, 64)
	m.shared, m.dev, m.path = f[1][1] == 'w' && f[1][3] == 's', f[3], strings.Join(f[5:], " ")
	return m, errs == [4]error{}
}

// is says whether st is the mapping's file.
func (m *mapping) is(st *unix.Stat_t) bool {
	return m.inode == st.Ino && m.dev == fmt.Sprintf("%02x:%02x", unix.Major(st.Dev), unix.Minor(st.Dev))
}

// File gives a duplicate of the descriptor of the file behind mem, which Map
// has returned, and where mem starts in it. With Mapped it is m.FD if that is
// the file, or else the file is opened by the path that it was mapped from. The
// caller closes it. Not ok: it can not be had.
func (m Memory) File(mem []byte) (f *os.File, off int64, ok bool) {
	if m.Kind != DRAM || len(mem) == 0 {
		return nil, 0, false
	}
	if m.Mapped == nil {
		f, err := dup(m.FD)
		return f, m.Offset, err == nil
	}
	at := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) //nolint:gosec // only compared
	where, ok := findMapping(at)
	if !ok || at+uint64(len(mem)) > where.hi {
		return nil, 0, false
	}
	off = where.offset + int64(at-where.lo) //nolint:gosec // inside a file
	var st unix.Stat_t
	if m.FD >= 0 && unix.Fstat(m.FD, &st) == nil && where.is(&st) {
		f, err := dup(m.FD)
		return f, off, err == nil
	}
	f, err := os.Open(where.path)
	if err != nil {
		return nil, 0, false
	}
	if unix.Fstat(int(f.Fd()), &st) != nil || !where.is(&st) { //nolint:gosec // file descriptors are small
		_ = f.Close() // another file by now
		return nil, 0, false
	}
	return f, off, true
}

// findMapping finds the shared mapping that has the address.
func findMapping(at uint64) (mapping, bool) {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return mapping{}, false
	}
	defer func() { _ = maps.Close() }() // only read
	for sc := bufio.NewScanner(maps); sc.Scan(); {
		if m, ok := parseMapping(sc.Text()); ok && m.shared && m.lo <= at && at < m.hi {
			return m, true
		}
	}
	return mapping{}, false
}

func dup(fd int) (*os.File, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) //nolint:gosec // a bad one is refused by the kernel
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), "memory"), nil //nolint:gosec // file descriptors are small
}
