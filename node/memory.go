package node

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/cockroachdb/errors"
	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/rdma"
)

// layout says where an engine keeps one rank's pages and aux rows in a shared
// file. All sizes in bytes.
type layout struct {
	path          string
	pageOffset    uint64
	pageBytes     uint64
	pages         uint64
	auxOffset     uint64
	auxBytes      uint64
	auxRows       uint64
	stagingOffset uint64 // decode: the staging ring (wire.md 1.7)
	stagingBytes  uint64 // 0 = none
}

const maxBuffer = 1 << 46 // bytes of one rank's memory; keeps every sum below 2^63

func (l *layout) check() error {
	switch {
	case l.pageBytes == 0 || l.pages == 0:
		return errors.New("page_bytes and pages must not be 0")
	case l.pageBytes > maxBuffer/l.pages:
		return errors.Newf("%d pages of %d bytes are too much", l.pages, l.pageBytes)
	case l.auxRows > 0 && (l.auxBytes == 0 || l.auxBytes > maxBuffer/l.auxRows):
		return errors.Newf("%d aux rows of %d bytes: no such buffer", l.auxRows, l.auxBytes)
	case l.pageOffset > maxBuffer || l.auxOffset > maxBuffer:
		return errors.New("offset is too large")
	}
	if l.auxRows > 0 && l.auxOffset == 0 {
		l.auxOffset = l.pageOffset + l.pages*l.pageBytes
	}
	if l.auxRows > 0 && l.auxOffset < l.pageOffset+l.pages*l.pageBytes && l.pageOffset < l.auxOffset+l.auxRows*l.auxBytes {
		return errors.New("aux rows overlap the pages")
	}
	return l.checkStaging()
}

func (l *layout) checkStaging() error {
	switch {
	case l.stagingBytes == 0:
		l.stagingOffset = 0
		return nil
	case l.stagingBytes > maxBuffer || l.stagingOffset > maxBuffer:
		return errors.Newf("a staging ring of %d bytes at %d is too large", l.stagingBytes, l.stagingOffset)
	case l.stagingOffset == 0:
		l.stagingOffset = max(l.pageOffset+l.pages*l.pageBytes, l.auxOffset+l.auxRows*l.auxBytes)
	}
	for _, b := range [][2]uint64{{l.pageOffset, l.pages * l.pageBytes}, {l.auxOffset, l.auxRows * l.auxBytes}} {
		if l.stagingOffset < b[0]+b[1] && b[0] < l.stagingOffset+l.stagingBytes {
			return errors.New("the staging ring overlaps pages or aux rows")
		}
	}
	return nil
}

// record is the layout for the log.
func (l *layout) record(rank int) *events.MemoryRegistered {
	return &events.MemoryRegistered{
		Name: memoryName(rank), LocalRank: uint32(rank), Kind: "kv", Bytes: l.bytes(), //nolint:gosec // ranks
		Pages: l.pages, ItemBytes: l.pageBytes, PageOffset: l.pageOffset,
		AuxOffset: l.auxOffset, AuxBytes: l.auxBytes, AuxRows: l.auxRows,
		StagingOffset: l.stagingOffset, StagingBytes: l.stagingBytes,
	}
}

func (l *layout) bytes() uint64 { return l.pages*l.pageBytes + l.auxRows*l.auxBytes + l.stagingBytes }

// rankMemory is one rank's memory, mapped, and on decode registered with the
// provider: pages and aux rows as a region each, since their keys differ.
type rankMemory struct {
	layout
	file                               os.FileInfo
	open                               *os.File // the file behind mapping
	mapping                            []byte
	kv, aux, staging                   []byte
	kvRegion, auxRegion, stagingRegion rdma.Region
}

// mapMemory maps the file at the layout's path, or the one given, shared; it
// takes the file over in any case. The file must be long enough, and stay so: a
// touch behind its end would be a SIGBUS. A memfd that allows seals gets the one
// against shrinking.
func mapMemory(l layout, f *os.File) (*rankMemory, error) {
	if f == nil {
		if l.path == "" {
			return nil, errors.New("path is empty, and no descriptor was passed")
		}
		var err error
		if f, err = os.OpenFile(l.path, os.O_RDWR, 0); err != nil {
			return nil, errors.Wrap(err, "open shared memory")
		}
	}
	keep := false
	defer func() {
		if !keep {
			_ = f.Close()
		}
	}()
	if err := l.check(); err != nil {
		return nil, err
	}
	lo, hi := l.pageOffset, l.pageOffset+l.pages*l.pageBytes
	if l.auxRows > 0 {
		lo, hi = min(lo, l.auxOffset), max(hi, l.auxOffset+l.auxRows*l.auxBytes)
	}
	if l.stagingBytes > 0 {
		lo, hi = min(lo, l.stagingOffset), max(hi, l.stagingOffset+l.stagingBytes)
	}
	_, _ = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK) // other files have no seals
	st, err := f.Stat()
	if err != nil {
		return nil, errors.Wrap(err, "look at shared memory")
	}
	if uint64(st.Size()) < hi { //nolint:gosec // a size
		return nil, errors.Newf("%s has %d bytes, the layout needs %d", l.path, st.Size(), hi)
	}
	lo -= lo % uint64(os.Getpagesize())                                                                      //nolint:gosec // positive
	m, err := unix.Mmap(int(f.Fd()), int64(lo), int(hi-lo), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED) //nolint:gosec // bounded by check
	if err != nil {
		return nil, errors.Wrapf(err, "map %d bytes of %s", hi-lo, l.path)
	}
	keep = true
	r := &rankMemory{layout: l, file: st, open: f, mapping: m}
	at := l.pageOffset - lo
	r.kv = m[at : at+l.pages*l.pageBytes : at+l.pages*l.pageBytes]
	if l.auxRows > 0 {
		at = l.auxOffset - lo
		r.aux = m[at : at+l.auxRows*l.auxBytes : at+l.auxRows*l.auxBytes]
	}
	if l.stagingBytes > 0 {
		at = l.stagingOffset - lo
		r.staging = m[at : at+l.stagingBytes : at+l.stagingBytes]
	}
	return r, nil
}

// scatter copies whole pages, one behind the other from offset of the staging
// ring on, to their places.
func (r *rankMemory) scatter(offset uint64, pages []uint32) error {
	n := uint64(len(pages)) * r.pageBytes
	if offset > r.stagingBytes || n > r.stagingBytes-offset {
		return errors.Newf("%d bytes at %d of a ring of %d", n, offset, r.stagingBytes)
	}
	for i, p := range pages {
		dst, ok := r.page(p)
		if !ok {
			return errors.Newf("page %d of %d", p, r.pages)
		}
		at := offset + uint64(i)*r.pageBytes //nolint:gosec // an index
		copy(dst, r.staging[at:at+r.pageBytes])
	}
	return nil
}

func (r *rankMemory) page(p uint32) ([]byte, bool) {
	if uint64(p) >= r.pages {
		return nil, false
	}
	at := uint64(p) * r.pageBytes
	return r.kv[at : at+r.pageBytes : at+r.pageBytes], true
}

func (r *rankMemory) row(i uint32) ([]byte, bool) {
	if uint64(i) >= r.auxRows {
		return nil, false
	}
	at := uint64(i) * r.auxBytes
	return r.aux[at : at+r.auxBytes : at+r.auxBytes], true
}

// register makes the memory writable by leases of domain.
func (r *rankMemory) register(ctx context.Context, d rdma.Domain) (err error) {
	if r.kvRegion, err = d.RegisterMemory(ctx, rdma.Memory{FD: int(r.open.Fd()), Mapped: r.kv}); err != nil {
		return errors.Wrap(err, "register pages")
	}
	if len(r.aux) > 0 {
		if r.auxRegion, err = d.RegisterMemory(ctx, rdma.Memory{FD: int(r.open.Fd()), Mapped: r.aux}); err != nil {
			return errors.Wrap(err, "register aux rows")
		}
	}
	if len(r.staging) > 0 {
		if r.stagingRegion, err = d.RegisterMemory(ctx, rdma.Memory{FD: int(r.open.Fd()), Mapped: r.staging}); err != nil {
			return errors.Wrap(err, "register the staging ring")
		}
	}
	return nil
}

func (r *rankMemory) deregister(ctx context.Context) error {
	var err error
	for _, g := range []rdma.Region{r.kvRegion, r.auxRegion, r.stagingRegion} {
		if g != nil {
			err = errors.CombineErrors(err, g.Deregister(ctx))
		}
	}
	return err
}

func (r *rankMemory) unmap() error {
	m := r.mapping
	r.mapping, r.kv, r.aux, r.staging = nil, nil, nil, nil
	if m == nil {
		return nil
	}
	return errors.Wrap(errors.CombineErrors(unix.Munmap(m), r.open.Close()), "unmap shared memory")
}

// memoryTable holds the memory of the local ranks. A replaced mapping is kept
// until the node ends: a write that reads from it may be under way.
type memoryTable struct {
	mu      sync.RWMutex
	ranks   []*rankMemory
	retired []*rankMemory
}

func newMemoryTable(ranks int) *memoryTable { return &memoryTable{ranks: make([]*rankMemory, ranks)} }

// rank is the memory of a local rank; nil before it was registered.
func (t *memoryTable) rank(i int) *rankMemory {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if i < 0 || i >= len(t.ranks) {
		return nil
	}
	return t.ranks[i]
}

// ready: every local rank has its memory.
func (t *memoryTable) ready() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return !slices.Contains(t.ranks, nil)
}

// put takes a rank's memory and gives back what it had, which stays mapped.
func (t *memoryTable) put(i int, m *rankMemory) (old *rankMemory) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old, t.ranks[i] = t.ranks[i], m
	if old != nil {
		t.retired = append(t.retired, old)
	}
	return old
}

// letGo unmaps everything, for memory that nobody writes to or reads from any
// more.
func (t *memoryTable) letGo() error { return t.close() }

// close unmaps everything. The provider's domain must have ended.
func (t *memoryTable) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	for _, m := range append(t.retired, t.ranks...) {
		if m != nil {
			err = errors.CombineErrors(err, m.unmap())
		}
	}
	clear(t.ranks)
	t.retired = nil
	return err
}

// memoryName is a rank's memory in events.
func memoryName(rank int) string { return fmt.Sprintf("rank%d", rank) }
