package rdma

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wantSeals must be on a memfd that is registered: without SHRINK its other
// holders could cut it and the next touch of a page would be a SIGBUS.
const wantSeals = unix.F_SEAL_SHRINK

// Memfd is memory that can be registered and passed to other processes.
type Memfd struct {
	file *os.File
	mem  []byte
}

// AllocMemfd makes a memfd of at least size bytes (rounded up to whole pages),
// sealed against shrinking, growing and further seals, and maps it shared.
func AllocMemfd(name string, size int) (*Memfd, error) {
	if size <= 0 {
		return nil, fmt.Errorf("allocate memfd %s: size %d: %w", name, size, ErrMemory)
	}
	page := os.Getpagesize()
	size = (size + page - 1) / page * page
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("create memfd %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, closing(f, fmt.Errorf("size memfd %s to %d bytes: %w", name, size, err))
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, closing(f, fmt.Errorf("seal memfd %s: %w", name, err))
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, closing(f, fmt.Errorf("map memfd %s, %d bytes: %w", name, size, err))
	}
	return &Memfd{file: f, mem: mem}, nil
}

func closing(f *os.File, err error) error {
	if cerr := f.Close(); cerr != nil {
		return fmt.Errorf("%w (and close: %w)", err, cerr)
	}
	return err
}

// FD is the file descriptor; it is closed by Close.
func (m *Memfd) FD() int { return int(m.file.Fd()) } //nolint:gosec // file descriptors are small

// Bytes is the mapping; it must not be appended to, nor used after Close.
func (m *Memfd) Bytes() []byte { return m.mem[:len(m.mem):len(m.mem)] }

// Memory is the mapping as RegisterMemory takes it.
func (m *Memfd) Memory() Memory { return Memory{FD: m.FD(), Mapped: m.Bytes()} }

// Close unmaps the memory and closes the descriptor. Nothing may be registered
// on it any more.
func (m *Memfd) Close() error {
	mem := m.mem
	m.mem = nil
	if mem == nil {
		return nil
	}
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("unmap memfd: %w", err)
	}
	return m.file.Close()
}

// Map gives the bytes of host memory that may be registered, and how to undo
// it. Errors: ErrMemory.
func (m Memory) Map() (mem []byte, unmap func() error, err error) {
	if m.Kind != DRAM {
		return nil, nil, fmt.Errorf("%w: device memory", ErrMemory)
	}
	if m.Mapped != nil {
		mem = m.Mapped
		if m.Len < 0 || m.Len > len(mem) {
			return nil, nil, fmt.Errorf("%w: length %d of a mapping of %d bytes", ErrMemory, m.Len, len(mem))
		}
		if m.Len > 0 {
			mem = mem[:m.Len]
		}
		if err := checkShared(mem); err != nil {
			return nil, nil, err
		}
		return mem[:len(mem):len(mem)], func() error { return nil }, nil
	}
	if err := m.checkFD(); err != nil {
		return nil, nil, err
	}
	mem, err = unix.Mmap(m.FD, m.Offset, m.Len, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: map %d bytes at %d: %w", ErrMemory, m.Len, m.Offset, err)
	}
	return mem[:len(mem):len(mem)], func() error { return unix.Munmap(mem) }, nil
}

func (m Memory) checkFD() error {
	seals, err := unix.FcntlInt(uintptr(m.FD), unix.F_GET_SEALS, 0) //nolint:gosec // a bad one is refused by the kernel
	if err != nil {
		return fmt.Errorf("%w: descriptor %d has no seals: %w", ErrMemory, m.FD, err)
	}
	if seals&wantSeals != wantSeals {
		return fmt.Errorf("%w: memfd is not sealed against shrinking", ErrMemory)
	}
	var st unix.Stat_t
	if err := unix.Fstat(m.FD, &st); err != nil {
		return fmt.Errorf("%w: %w", ErrMemory, err)
	}
	if m.Len <= 0 || m.Offset < 0 || m.Offset > st.Size || int64(m.Len) > st.Size-m.Offset {
		return fmt.Errorf("%w: %d bytes at %d of a memfd of %d", ErrMemory, m.Len, m.Offset, st.Size)
	}
	return nil
}

// checkShared refuses memory that is not wholly inside shared writable
// mappings. The Go heap is private memory, so it is refused by the same test.
func checkShared(b []byte) error {
	if len(b) == 0 {
		return fmt.Errorf("%w: empty", ErrMemory)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMemory, err)
	}
	at := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) //nolint:gosec // only compared
	end := at + uint64(len(b))
	sc := bufio.NewScanner(bytes.NewReader(maps)) // sorted by address
	for sc.Scan() && at < end {
		m, ok := parseMapping(sc.Text())
		if ok && m.shared && m.lo <= at && at < m.hi {
			at = m.hi
		}
	}
	if at < end {
		return fmt.Errorf("%w: not inside a shared mapping", ErrMemory)
	}
	return nil
}
