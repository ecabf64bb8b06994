package stream

import (
	"crypto/tls"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/rdma"
)

const (
	// maxCopy bounds one system call into leased pages, and so how long a
	// Revoke waits for it (rdma.md 7.2).
	maxCopy = 256 << 10
	// scrapLen is the size of the buffer for refused bytes.
	scrapLen = 64 << 10
	// aheadLen is how much is read where headers are expected, on a socket whose
	// frames have their bytes in pools.
	aheadLen = 32 * headerLen
	// Answers are held back while more data is there to read, up to so many
	// transfers or so many bytes placed since the first of them.
	maxHeld      = 8
	maxHeldBytes = 2 << 20
)

// inbound is the target's side of a connection. One goroutine runs it and
// nothing else touches its fields.
type inbound struct {
	d    *domain
	id   uint64
	conn net.Conn
	raw  syscall.RawConn // nil with TLS
	peer rdma.PeerID

	hbuf  [headerLen]byte
	hlen  int // bytes of hbuf that are there
	h     header
	rest  int    // payload bytes of h still to come
	dst   []byte // where they go; nil if they are refused
	lease *lease // of dst
	crc   uint32 // of the frame's bytes so far
	scrap []byte // made when first needed
	iov   [2][]byte
	oob   []byte // of a socket that carries descriptors
	ahead []byte // of such a socket: headers, and what else came with them
	fed   int    // bytes of ahead that were taken
	fds   []int  // received, not named yet
	pools map[uint32]*pool
	in    *lease // the lease of the frame before, most often of the next too

	slot     [headerLen]byte // a frame of the ring, copied
	ring     *ring           // nil: frames and answers go over the socket
	joining  *ring           // accepted, and used once the writer has been told
	turn     bool            // the next frame is on the socket; without a ring of no use
	asleep   bool            // wordTargetIn was set
	idle     bool            // nothing is left to do: the writer is to know all
	crowded  bool            // the writer waits for slots
	unrung   bool            // answers are in the ring that the writer may sleep over
	urgent   bool            // one of them is a refusal
	answered uint64

	x       inTransfer
	lastSeq uint64

	owed      []*lease // whose last frames are placed and not told of yet
	notifs    []rdma.Notif
	replies   []byte
	acked     uint64 // highest seq that is to be acknowledged, 0 if none
	held      int    // transfers that wait for their answer
	heldBytes int
	due       bool // they wait no longer
	err       error
}

func newInbound(d *domain, c net.Conn) (*inbound, error) {
	if err := d.tune(c); err != nil {
		return nil, err
	}
	in := &inbound{d: d, id: d.connID.Add(1), conn: c}
	if d.cfg.TLS != nil {
		in.conn = tls.Server(c, d.cfg.TLS)
		return in, nil
	}
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, err
	}
	in.raw = raw
	if d.transport.pools(c) {
		in.oob = make([]byte, unix.CmsgSpace(4*maxFDs))
		in.ahead = make([]byte, 0, aheadLen)
		in.pools = make(map[uint32]*pool)
	}
	return in, nil
}

// run reads until the connection ends. When it returns nothing more can land
// from this connection.
func (in *inbound) run() {
	defer in.d.dropInbound(in)
	defer in.dropPools()
	debug.SetPanicOnFault(true) // for guarded
	if in.hello() != nil {
		hangUp(in.conn) // it never was a peer: nobody to tell
		return
	}
	err := in.welcome()
	read := in.readRaw
	if in.raw == nil {
		read = in.readDecrypted
	}
	for err == nil {
		err = read()
		if err == nil {
			err = in.err
		}
		if ferr := in.flush(); err == nil {
			err = ferr
		}
	}
	hangUp(in.conn) // ends the connection; what the peer did not get it holds for uncertain
	left := in.d.parted(in.peer)
	in.d.cfg.OnNotif(rdma.Notif{
		Kind: rdma.PeerGone, Peer: in.peer, Conn: in.id,
		Err: err, Fence: rdma.FenceReaderStopped, Left: left,
	})
}

// hello reads who the peer is. It may ask first for the near listener, and is
// no peer by that.
func (in *inbound) hello() error {
	if err := in.conn.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return err
	}
	if err := in.readHello(); err != nil || in.h.flags&flagAsk == 0 {
		return err
	}
	answer := reply{op: opHelloOK}
	if in.d.near != nil {
		answer.seq, answer.placed = in.d.nearToken.words()
	}
	if _, err := in.conn.Write(answer.append(nil)); err != nil {
		return err
	}
	return in.readHello()
}

func (in *inbound) readHello() error {
	if _, err := io.ReadFull(in.conn, in.hbuf[:]); err != nil {
		return err
	}
	if err := in.h.decode(in.hbuf[:]); err != nil {
		return err
	}
	if in.h.op != opHello {
		return fmt.Errorf("%w: op %d before hello", errFrame, in.h.op)
	}
	name := make([]byte, in.h.length)
	if _, err := io.ReadFull(in.conn, name); err != nil {
		return err
	}
	in.peer = rdma.PeerID(name)
	return nil
}

// welcome tells of the peer, then answers its hello.
func (in *inbound) welcome() error {
	in.d.joined(in.peer)
	in.notifs = append(in.notifs, rdma.Notif{Kind: rdma.PeerConnected, Peer: in.peer, Conn: in.id})
	hello := reply{op: opHelloOK}
	if in.d.transport.rings(in.conn) {
		hello.frames = featureRing
	}
	in.replies = hello.append(in.replies)
	if err := in.flush(); err != nil {
		return err
	}
	return in.conn.SetDeadline(time.Time{})
}

func (in *inbound) readRaw() error { return in.raw.Read(in.step) }

// step reads as long as the socket has something, or until answers are due.
// False: wait until it is readable again.
func (in *inbound) step(fd uintptr) bool {
	if in.ring != nil {
		return in.stepRing(int(fd)) //nolint:gosec // file descriptors are small
	}
	for in.err == nil {
		if len(in.ahead) > 0 {
			in.err = in.feedAhead()
		} else if !in.readSocket(int(fd)) { //nolint:gosec // as above
			return in.held > 0
		}
		if in.held >= maxHeld || in.heldBytes >= maxHeldBytes || in.due {
			return true
		}
	}
	return true
}

// readSocket reads once and takes what came. False: there is nothing to read.
func (in *inbound) readSocket(fd int) bool {
	n, err := in.readOnce(fd)
	switch {
	case errors.Is(err, unix.EINTR):
	case errors.Is(err, unix.EAGAIN):
		return false
	case err != nil:
		in.err = fmt.Errorf("%w: %w", rdma.ErrConnLost, err)
	case n == 0:
		in.err = io.EOF
	case in.err != nil: // by what came along with the bytes
	case len(in.ahead) > 0: // taken by the next turns
	default:
		in.err = in.advance(n)
	}
	return true
}

// readOnce makes one system call: into the header, into the pages inside the
// lease's bracket, or into the scrap buffer.
func (in *inbound) readOnce(fd int) (int, error) {
	if in.rest == 0 && in.oob != nil {
		return in.readAhead(fd)
	}
	if in.rest == 0 {
		return in.recv(fd, in.hbuf[in.hlen:], nil)
	}
	if in.dst != nil {
		if in.lease.enter() {
			n, err := in.readv(fd, in.dst[:min(in.rest, maxCopy)])
			if err == nil {
				in.landed(min(n, in.rest))
			}
			in.lease.leave()
			if !errors.Is(err, unix.EFAULT) {
				return n, err
			}
			in.refuse(rdma.RefusedMemory)
		} else {
			in.refuse(rdma.RefusedRevoked)
		}
	}
	if in.scrap == nil {
		in.scrap = make([]byte, scrapLen)
	}
	return in.readv(fd, in.scrap[:min(in.rest, scrapLen)])
}

// readv reads into b and, if b takes all the rest of the payload, the next
// header as well: one system call a frame.
func (in *inbound) readv(fd int, b []byte) (int, error) {
	if len(b) < in.rest || in.ring != nil { // what comes next is for the ring to say
		return in.recv(fd, b, nil)
	}
	return in.recv(fd, b, in.hbuf[:])
}

// recv is one system call into a, then b, and takes the descriptors that come
// along on a socket that carries them.
func (in *inbound) recv(fd int, a, b []byte) (int, error) {
	if in.oob != nil {
		return in.recvmsg(fd, a, b)
	}
	if b == nil {
		return unix.Read(fd, a)
	}
	in.iov[0], in.iov[1] = a, b
	return unix.Readv(fd, in.iov[:])
}

// landed notes n bytes that were put at dst, inside the bracket: their checksum,
// and that news of the transfer is owed if they are its last.
func (in *inbound) landed(n int) {
	if in.summed() {
		in.crc = crc32.Update(in.crc, castagnoli, in.dst[:n])
	}
	if n == in.rest && in.h.flags&flagLast != 0 {
		in.lease.owe()
		in.owed = append(in.owed, in.lease)
	}
}

// summed says whether the frame's bytes are to be checked.
func (in *inbound) summed() bool { return in.h.flags&flagSum != 0 && in.d.cfg.Checksums }

// advance accounts for n bytes that were read.
func (in *inbound) advance(n int) error {
	if in.rest > 0 {
		p := min(n, in.rest)
		if in.dst != nil {
			in.dst = in.dst[p:]
			in.x.placed += uint64(p)
			in.heldBytes += p
		} else {
			in.x.refused += uint64(p)
		}
		in.rest -= p
		n -= p
		if in.rest > 0 {
			return nil
		}
		in.endFrame()
	}
	in.hlen += n
	if in.hlen < headerLen {
		return nil
	}
	in.hlen = 0
	if err := in.h.decode(in.hbuf[:]); err != nil {
		return err
	}
	if in.ring != nil && in.h.op == opBell {
		return nil
	}
	if in.ring != nil && !in.turn {
		return fmt.Errorf("%w: op %d out of turn", errFrame, in.h.op)
	}
	switch in.h.op {
	case opPool:
		in.turn = false
		return in.addPool()
	case opRing:
		return in.addRing()
	}
	if err := in.beginFrame(); err != nil || in.h.op != opCopy {
		return err
	}
	return in.copyFrame()
}

// flush tells the notifs, then sends the answers.
func (in *inbound) flush() error {
	for i := range in.notifs {
		in.d.cfg.OnNotif(in.notifs[i])
		in.notifs[i] = rdma.Notif{}
	}
	in.notifs = in.notifs[:0]
	for i, l := range in.owed {
		l.tell()
		in.owed[i] = nil
	}
	in.owed = in.owed[:0]
	in.ackUpTo()
	in.held, in.heldBytes, in.due = 0, 0, false
	if in.ring != nil {
		if err := in.answerRing(); err != nil {
			return err
		}
	}
	if len(in.replies) == 0 {
		return nil
	}
	_, err := in.conn.Write(in.replies)
	in.replies = in.replies[:0]
	if err != nil {
		return fmt.Errorf("%w: %w", rdma.ErrConnLost, err)
	}
	if in.joining != nil { // the writer has been told
		in.ring, in.joining = in.joining, nil
	}
	return nil
}

// ackUpTo turns the cumulative acknowledgement into a reply.
func (in *inbound) ackUpTo() {
	if in.acked > 0 {
		in.replies = reply{op: opAck, seq: in.acked}.append(in.replies)
		in.answered, in.acked = in.acked, 0
	}
}
