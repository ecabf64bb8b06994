package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
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
	// Answers are held back while more data is there to read, up to so many
	// transfers or so many bytes placed since the first of them.
	maxHeld      = 16
	maxHeldBytes = 1 << 20
)

// inbound is the target's side of a connection. One goroutine runs it and
// nothing else touches its fields.
type inbound struct {
	d    *domain
	id   uint64
	conn *net.TCPConn
	raw  syscall.RawConn
	peer rdma.PeerID

	hbuf  [headerLen]byte
	hlen  int // bytes of hbuf that are there
	h     header
	rest  int    // payload bytes of h still to come
	dst   []byte // where they go; nil if they are refused
	lease *lease // of dst
	scrap []byte // made when first needed
	iov   [2][]byte
	in    *lease // the lease of the frame before, most often of the next too

	x       inTransfer
	lastSeq uint64

	owed      []*lease // whose last frames are placed and not told of yet
	notifs    []rdma.Notif
	replies   []byte
	acked     uint64 // highest seq that is to be acknowledged, 0 if none
	held      int    // transfers that wait for their answer
	heldBytes int
	drained   bool // the socket had nothing more when step returned
	err       error
}

func newInbound(d *domain, c *net.TCPConn) (*inbound, error) {
	if err := tune(c); err != nil {
		return nil, err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &inbound{d: d, id: d.connID.Add(1), conn: c, raw: raw}, nil
}

// run reads until the connection ends. When it returns nothing more can land
// from this connection.
func (in *inbound) run() {
	defer in.d.dropInbound(in)
	if in.hello() != nil {
		_ = in.conn.Close() // it never was a peer: nobody to tell
		return
	}
	err := in.welcome()
	for err == nil {
		err = in.raw.Read(in.step)
		if err == nil {
			err = in.err
		}
		if ferr := in.flush(); err == nil {
			err = ferr
		}
	}
	_ = in.conn.Close() // ends the connection; what the peer did not get it holds for uncertain
	left := in.d.parted(in.peer)
	in.d.cfg.OnNotif(rdma.Notif{
		Kind: rdma.PeerGone, Peer: in.peer, Conn: in.id,
		Err: err, Fence: rdma.FenceReaderStopped, Left: left,
	})
}

// hello reads who the peer is.
func (in *inbound) hello() error {
	if err := in.conn.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return err
	}
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
	in.replies = reply{op: opHelloOK}.append(in.replies)
	if err := in.flush(); err != nil {
		return err
	}
	return in.conn.SetDeadline(time.Time{})
}

// step reads as long as the socket has something, or until answers are due.
// False: wait until it is readable again.
func (in *inbound) step(fd uintptr) bool {
	in.drained = false
	for in.err == nil {
		n, err := in.readOnce(int(fd)) //nolint:gosec // file descriptors are small
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			in.drained = true
			return in.held > 0
		case err != nil:
			in.err = fmt.Errorf("%w: %w", rdma.ErrConnLost, err)
		case n == 0:
			in.err = io.EOF
		default:
			in.err = in.advance(n)
		}
		if in.held >= maxHeld || in.heldBytes >= maxHeldBytes {
			return true
		}
	}
	return true
}

// readOnce makes one system call: into the header, into the pages inside the
// lease's bracket, or into the scrap buffer.
func (in *inbound) readOnce(fd int) (int, error) {
	if in.rest == 0 {
		return unix.Read(fd, in.hbuf[in.hlen:])
	}
	if in.dst != nil {
		if in.lease.enter() {
			n, err := in.readv(fd, in.dst[:min(in.rest, maxCopy)])
			if err == nil && n >= in.rest && in.h.flags&flagLast != 0 {
				in.lease.owe()
				in.owed = append(in.owed, in.lease)
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
	if len(b) < in.rest {
		return unix.Read(fd, b)
	}
	in.iov[0], in.iov[1] = b, in.hbuf[:]
	return unix.Readv(fd, in.iov[:])
}

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
	return in.beginFrame()
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
	in.held, in.heldBytes = 0, 0
	if len(in.replies) == 0 {
		return nil
	}
	_, err := in.conn.Write(in.replies)
	in.replies = in.replies[:0]
	if err != nil {
		return fmt.Errorf("%w: %w", rdma.ErrConnLost, err)
	}
	return nil
}

// ackUpTo turns the cumulative acknowledgement into a reply.
func (in *inbound) ackUpTo() {
	if in.acked > 0 {
		in.replies = reply{op: opAck, seq: in.acked}.append(in.replies)
		in.acked = 0
	}
}
