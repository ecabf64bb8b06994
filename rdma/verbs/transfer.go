//go:build verbs

package verbs

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/internal/span"
)

// maxWrite is the longest message that every device takes.
const maxWrite = 1 << 30

// fate is what is known of a piece.
type fate uint8

const (
	waiting fate = iota // not posted, or flushed with a broken queue pair
	posted
	placed
	refused
)

// source is one write of a transfer.
type source struct {
	mr    *Region
	at    uint64 // bytes into mr
	len   uint64
	off   uint64 // at the target
	key   key
	bytes []byte // nil of device memory
	fate  fate
}

// set finds where a write's bytes are registered. Bytes that are not are copied
// into memory that is, for as long as the transfer lasts.
func (s *source) set(d *domain, w *rdma.Write, batchKey []byte) error {
	k := w.Key
	if len(k) == 0 {
		k = batchKey
	}
	var ok bool
	if s.key, ok = parseKey(k); !ok {
		return fmt.Errorf("%w: key of %d bytes, want %d", rdma.ErrBatch, len(k), keyLen)
	}
	s.off = w.RemoteOff
	if r, ours := w.Region.(*region); ours && r.mem == nil { // device memory: nothing to look at
		if w.Off > r.size || w.Len > r.size-w.Off || w.Len == 0 || w.RemoteOff+w.Len < w.Len {
			return fmt.Errorf("%w: source %d+%d outside its region of %d bytes", rdma.ErrBatch, w.Off, w.Len, r.size)
		}
		s.mr, s.at, s.len = r.mr, w.Off, w.Len
		return nil
	}
	src, err := w.Bytes()
	if err != nil {
		return err
	}
	if len(src) > maxWrite {
		return fmt.Errorf("%w: %d bytes, at most %d", rdma.ErrBatch, len(src), maxWrite)
	}
	s.bytes, s.len = src, uint64(len(src))
	s.mr, s.at, ok = d.locate(src)
	if !ok {
		return s.bounce(d)
	}
	return nil
}

// locate finds the registration that a run of bytes lies in.
func (d *domain) locate(b []byte) (*Region, uint64, bool) {
	at := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) //nolint:gosec // only compared
	d.mu.Lock()
	defer d.mu.Unlock()
	for r := range d.regions {
		if r.mem == nil || at < r.mr.base || at-r.mr.base > r.size || uint64(len(b)) > r.size-(at-r.mr.base) {
			continue
		}
		return r.mr, at - r.mr.base, true
	}
	return nil, 0, false
}

// bounce copies the bytes into registered memory of the transfer's own.
func (s *source) bounce(d *domain) error {
	m, err := unix.Mmap(-1, 0, len(s.bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("copy a source that is not registered: %w", err)
	}
	copy(m, s.bytes)
	if s.mr, err = d.dev.Register(m, false); err != nil {
		_ = unix.Munmap(m) // was never used
		return fmt.Errorf("copy a source that is not registered: %w", err)
	}
	s.mr.own, s.bytes, s.at = m, m, 0
	return nil
}

// release frees what bounce made. The device is done with it.
func (t *transfer) release() {
	for i := range t.pieces {
		if mr := t.pieces[i].mr; mr != nil && mr.own != nil && mr.Close() == nil {
			_ = unix.Munmap(mr.own)
		}
		t.pieces[i].mr = nil
	}
}

// transfer is a posted batch on its way.
type transfer struct {
	id        rdma.TransferID
	token     uint64
	tag       rdma.Tag
	meta      uint64
	user      uint32
	partial   bool
	pieces    []source
	bytes     int64
	seq       uint64
	left      bool // at least one request was given to a device
	flushing  bool // the read that follows the last write is under way
	flushed   bool // and has ended well: all is in memory
	told      bool // the target was told, its answer is awaited
	uncertain bool // told as such by Abort
}

func (t *transfer) completion(e *endpoint, s rdma.Status, landed int64, err error) rdma.Completion {
	return rdma.Completion{
		ID: t.id, Token: t.token, Peer: e.peer, Tag: t.tag, Meta: t.meta,
		Status: s, Err: err, Bytes: landed, Proven: s != rdma.Uncertain,
	}
}

// count gives how many pieces have the fate, and their bytes.
func (t *transfer) count(f fate) (n int, bytes int64) {
	for i := range t.pieces {
		if t.pieces[i].fate == f {
			n++
			bytes += int64(t.pieces[i].len)
		}
	}
	return n, bytes
}

// news is what the target is told of an ended transfer.
func (t *transfer) news(sums bool) *message {
	m := &message{
		Op: opTold, Seq: t.seq, Tag: uint64(t.tag), Meta: t.meta, Flags: t.user, Partial: t.partial,
		Pieces: make([]piece, len(t.pieces)),
	}
	for i := range t.pieces {
		s := &t.pieces[i]
		m.Pieces[i] = piece{Key: s.key[:], Off: s.off, Len: s.len, Refused: s.fate != placed}
		if sums && s.bytes != nil && s.fate == placed {
			v := span.Checksum(s.bytes)
			m.Pieces[i].Sum = &v
		}
	}
	return m
}
