package stream

import (
	"fmt"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/rdma"
)

// maxPools bounds the pools that a connection carries, on both sides.
const maxPools = 1024

// share is registered memory that can be passed to a target: the file behind
// it, and where the region starts in it.
type share struct {
	mem  []byte
	file *os.File
	off  int64
}

// newShare gives nil for memory whose file is not known or of a kind that no
// target takes; its bytes go over the socket.
func newShare(m rdma.Memory, mem []byte) *share {
	f, off, ok := m.File(mem)
	if !ok {
		return nil
	}
	if _, err := poolKind(int(f.Fd())); err != nil {
		_ = f.Close() // only looked at
		return nil
	}
	return &share{mem: mem, file: f, off: off}
}

func (s *share) close() {
	if s != nil {
		_ = s.file.Close() // a duplicate that nothing was written through
	}
}

// find gives where in the file b starts, if b is wholly in the share.
func (s *share) find(b []byte) (uint64, bool) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))       //nolint:gosec // only compared
	base := uintptr(unsafe.Pointer(unsafe.SliceData(s.mem))) //nolint:gosec // only compared
	if at < base || at-base > uintptr(len(s.mem)) || uintptr(len(b)) > uintptr(len(s.mem))-(at-base) {
		return 0, false
	}
	return uint64(s.off) + uint64(at-base), true
}

// reshare publishes the shares of the regions; domain.mu is held.
func (d *domain) reshare() {
	var all []*share
	for r := range d.regions {
		if r.share != nil {
			all = append(all, r.share)
		}
	}
	d.shares.Store(&all)
}

// locate decides how src travels: as a place in a pool, which the target is
// given first if it does not have it, or as payload.
func (o *outbound) locate(h *header, src []byte) error {
	h.op, h.pool, h.source = opWrite, 0, 0
	shares := o.e.d.shares.Load()
	if !o.pools || shares == nil {
		return nil
	}
	for _, s := range *shares {
		at, ok := s.find(src)
		if !ok {
			continue
		}
		id, ok := o.passed[s]
		if !ok {
			var err error
			if id, err = o.pass(s); err != nil || id == 0 {
				return err
			}
		}
		h.op, h.pool, h.source = opCopy, id, at
		return nil
	}
	return nil
}

// pass gives the target a pool; 0 if it can not be given.
func (o *outbound) pass(s *share) (uint32, error) {
	fd := int(s.file.Fd())
	if fd < 0 || len(o.passed) == maxPools {
		return 0, nil
	}
	id := uint32(len(o.passed) + 1)
	h := header{op: opPool, pool: id}
	if err := o.announce(); err != nil {
		return 0, err
	}
	if err := o.flush(); err != nil { // what is gathered comes first
		return 0, err
	}
	if err := sendFile(o.conn.(*net.UnixConn), &h, fd); err != nil {
		return 0, fmt.Errorf("pass a pool: %w", err)
	}
	if o.passed == nil {
		o.passed = make(map[*share]uint32)
	}
	o.passed[s] = id
	return id, nil
}

// sendFile sends a frame that a descriptor goes with.
func sendFile(c *net.UnixConn, h *header, fd int) error {
	var b [headerLen]byte
	h.encode(b[:])
	n, _, err := c.WriteMsgUnix(b[:], unix.UnixRights(fd), nil)
	if err == nil && n < len(b) {
		_, err = c.Write(b[n:])
	}
	return err
}
