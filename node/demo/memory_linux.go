package demo

import (
	"fmt"
	"os"

	"github.com/cockroachdb/errors"
	"golang.org/x/sys/unix"
)

// memory is one rank's KV memory: a memfd that the node maps too, pages first,
// aux rows behind them. It lives as long as the stand-in's process.
type memory struct {
	f         *os.File
	data      []byte
	pageBytes int
	pages     int
	auxRows   int
}

func newMemory(name string, pageBytes, pages, auxRows int) (*memory, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, errors.Wrap(err, "memfd_create")
	}
	m := &memory{f: os.NewFile(uintptr(fd), name), pageBytes: pageBytes, pages: pages, auxRows: auxRows}
	size := pageBytes*pages + auxBytes*auxRows
	if err := m.f.Truncate(int64(size)); err != nil {
		return nil, errors.Wrapf(err, "size memory of %d bytes", size)
	}
	m.data, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return m, errors.Wrapf(err, "map memory of %d bytes", size)
}

// path is where the node finds the memory: another process of the same user.
func (m *memory) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), m.f.Fd()) }

func (m *memory) page(n uint32) []byte {
	at := int(n) * m.pageBytes
	return m.data[at : at+m.pageBytes : at+m.pageBytes]
}
