package stream

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/rdma"
)

// maxFDs is how many descriptors one message may carry; a pool has one.
const maxFDs = 4

// pool is a writer's memory as the target has it. mem is nil if the peer could
// take pages away from under a mapping; then it is read by pread.
type pool struct {
	fd   int
	size uint64
	mem  []byte
}

// poolKind says how a pool may be read. Only files that live in memory are
// taken: a read of another kind (FUSE, a pipe) could stand still for as long as
// the peer likes, inside a lease's bracket. A mapping is safe only if its file
// can not be cut (F_SEAL_SHRINK), and if a hole in it can always be filled,
// which huge pages do not promise.
func poolKind(fd int) (mappable bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, fmt.Errorf("look at a pool: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG { // devices can live on a tmpfs
		return false, fmt.Errorf("a pool of mode %#o", st.Mode)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return false, fmt.Errorf("look at a pool: %w", err)
	}
	switch int64(fs.Type) {
	case unix.TMPFS_MAGIC:
	case unix.HUGETLBFS_MAGIC:
		return false, nil
	default:
		return false, fmt.Errorf("a pool on a file system of type %#x", fs.Type)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return err == nil && seals&unix.F_SEAL_SHRINK != 0, nil
}

// newPool takes the descriptor over.
func newPool(fd int) (*pool, error) {
	mappable, err := poolKind(fd)
	if err != nil {
		_ = unix.Close(fd) // refused
		return nil, err
	}
	p := &pool{fd: fd, size: math.MaxInt64}
	if !mappable {
		return p, nil // the file's end is found by reading
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size <= 0 {
		_ = unix.Close(fd)
		return nil, errors.Join(fmt.Errorf("a pool of %d bytes", st.Size), err)
	}
	p.size = uint64(st.Size)
	if p.mem, err = unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		p.mem = nil // no address space, or not readable by mapping: pread finds out
	}
	return p, nil
}

func (p *pool) close() {
	if p.mem != nil {
		_ = unix.Munmap(p.mem) // mapped by newPool and not touched since
	}
	_ = unix.Close(p.fd)
}

// has says whether n bytes at off are in the pool, as far as it is known.
func (p *pool) has(off uint64, n uint32) bool { return off <= p.size && uint64(n) <= p.size-off }

// read fills dst from off on; how copies from a mapping. It never faults.
func (p *pool) read(dst []byte, off uint64, how func(dst, src []byte)) rdma.Refusal {
	if p.mem != nil {
		if !guarded(how, dst, p.mem[off:off+uint64(len(dst))]) {
			return rdma.RefusedMemory
		}
		return 0
	}
	for len(dst) > 0 {
		n, err := unix.Pread(p.fd, dst, int64(off))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EFAULT):
			return rdma.RefusedMemory
		case err != nil || n == 0: // the peer has cut its file
			return rdma.RefusedSource
		}
		dst, off = dst[n:], off+uint64(n)
	}
	return 0
}

// faulter is what the runtime panics with at a bad address outside the heap.
type faulter interface {
	error
	Addr() uintptr
}

// pastMin is how long a run of bytes is at least that copyPages takes past the
// caches: of less, a reader that comes soon finds some there.
const pastMin = 64 << 10

func copyCached(dst, src []byte) { copy(dst, src) }

// guarded copies src to the start of dst. False: a page of either is not there.
// The goroutine must have debug.SetPanicOnFault on.
func guarded(how func(dst, src []byte), dst, src []byte) (ok bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, fault := r.(faulter); !fault {
				panic(r)
			}
			ok = false
		}
	}()
	how(dst, src)
	return true
}

// recvmsg is recv with descriptors.
func (in *inbound) recvmsg(fd int, a, b []byte) (int, error) {
	in.iov[0], in.iov[1] = a, b
	iov := in.iov[:]
	if b == nil {
		iov = iov[:1]
	}
	n, oobn, flags, _, err := unix.RecvmsgBuffers(fd, iov, in.oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return n, err
	}
	if oobn == 0 && flags&unix.MSG_CTRUNC == 0 {
		return n, nil
	}
	if err := in.takeFDs(in.oob[:oobn]); err != nil && in.err == nil {
		in.err = err
	}
	if flags&unix.MSG_CTRUNC != 0 && in.err == nil {
		in.err = fmt.Errorf("%w: more than %d descriptors in one message", errFrame, maxFDs)
	}
	return n, nil
}

func (in *inbound) takeFDs(oob []byte) error {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("%w: control message: %w", errFrame, err)
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return fmt.Errorf("%w: control message: %w", errFrame, err)
		}
		in.fds = append(in.fds, fds...)
	}
	if len(in.fds) > maxFDs {
		return fmt.Errorf("%w: %d descriptors without a name", errFrame, len(in.fds))
	}
	return nil
}

// addPool gives a received descriptor its name.
func (in *inbound) addPool() error {
	if in.pools == nil || len(in.fds) == 0 || in.pools[in.h.pool] != nil || len(in.pools) == maxPools {
		return fmt.Errorf("%w: pool %d, %d descriptors, %d pools", errFrame, in.h.pool, len(in.fds), len(in.pools))
	}
	fd := in.fds[0]
	in.fds = in.fds[1:]
	p, err := newPool(fd)
	if err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	in.pools[in.h.pool] = p
	return nil
}

// dropPools lets go of everything the peer has passed.
func (in *inbound) dropPools() {
	for _, fd := range in.fds {
		_ = unix.Close(fd)
	}
	for _, p := range in.pools {
		p.close()
	}
	in.ring.close()
	in.joining.close()
	in.fds, in.pools, in.ring, in.joining = nil, nil, nil, nil
}

// copyFrame copies a whole frame out of its pool, a bracket for each maxCopy
// bytes, and books it.
func (in *inbound) copyFrame() error {
	p := in.pools[in.h.pool]
	if p == nil || !p.has(in.h.source, in.h.length) {
		return fmt.Errorf("%w: %d bytes at %d of pool %d", errFrame, in.h.length, in.h.source, in.h.pool)
	}
	at := in.h.source
	how := copyPages
	if in.summed() {
		how = copyCached // they are read again at once
	}
	for in.rest > 0 {
		if in.dst == nil {
			in.x.refused += uint64(in.rest)
			in.rest = 0
			break
		}
		if !in.lease.enter() {
			in.refuse(rdma.RefusedRevoked)
			continue
		}
		n := min(in.rest, maxCopy)
		why := p.read(in.dst[:n], at, how)
		if why == 0 {
			in.landed(n)
		}
		in.lease.leave()
		if why != 0 {
			in.refuse(why)
			continue
		}
		at += uint64(n)
		in.dst = in.dst[n:]
		in.rest -= n
		in.x.placed += uint64(n)
		in.heldBytes += n
	}
	in.endFrame()
	return in.err
}
