//go:build verbs

package verbs

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/internal/span"
)

const (
	handshakeTime = 10 * time.Second
	targetDepth   = 4 * ownDepth // binds and invalidations under way on a target's queue pair
	fenceTime     = time.Minute  // for closing what a dead connection had open; a device that is well takes milliseconds
	// An unanswered packet is sent again after 4.096 µs * 2^ackTimeout, at most
	// retries times: about half a second until a peer counts as dead.
	ackTimeout = 14
	retries    = 7
)

// inbound is the target's side of a connection. Its goroutine reads the control
// connection; what the peer's device writes, no code here sees.
type inbound struct {
	d      *domain
	id     uint64
	ctl    *control
	peer   rdma.PeerID
	qp     *QP
	stop   context.CancelFunc // ends the goroutine inside qp.Wait
	wg     sync.WaitGroup
	opened map[key]*lease // on qp

	revoked chan key // to be told to the writer
}

// revokedKept is how many revocations wait to be told to a writer that does not
// read. The others it learns by a refusal.
const revokedKept = 256

// closed tells the writer that a key is revoked, so that it posts nothing more
// under it, which would break the queue pair. Nobody waits for that.
func (in *inbound) closed(k key) {
	select {
	case in.revoked <- k:
	default:
	}
}

func (in *inbound) tellClosed(stop <-chan struct{}) {
	for {
		select {
		case k := <-in.revoked:
			if in.ctl.send(&message{Op: opClosed, Key: k[:]}) != nil {
				return // its reader ends as well
			}
		case <-stop:
			return
		}
	}
}

func (in *inbound) run() {
	defer func() {
		in.d.mu.Lock()
		delete(in.d.inbounds, in)
		in.d.mu.Unlock()
	}()
	defer in.ctl.close()
	if in.hello() != nil {
		_ = in.drop() // it had opened nothing
		return        // it never was a peer: nobody to tell
	}
	in.d.joined(in.peer)
	in.d.cfg.OnNotif(rdma.Notif{Kind: rdma.PeerConnected, Peer: in.peer, Conn: in.id})
	err := in.welcome()
	stop := make(chan struct{})
	in.d.wg.Go(func() { in.tellClosed(stop) })
	for err == nil {
		var m *message
		if m, err = in.ctl.receive(); err == nil {
			err = in.handle(m)
		}
	}
	in.ctl.close()
	close(stop)
	evidence := rdma.FenceHard
	if ferr := in.drop(); ferr != nil {
		evidence, err = rdma.FenceNone, fmt.Errorf("%w (and its access could not be taken back: %w)", err, ferr)
	}
	if err != io.EOF { //nolint:errorlint // as receive gives it
		err = fmt.Errorf("%w: %w", rdma.ErrConnLost, err)
	}
	left := in.d.parted(in.peer)
	in.d.cfg.OnNotif(rdma.Notif{Kind: rdma.PeerGone, Peer: in.peer, Conn: in.id, Err: err, Fence: evidence, Left: left})
}

func (in *inbound) hello() error {
	if err := in.ctl.conn.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return err
	}
	m, err := in.ctl.receive()
	if err != nil {
		return err
	}
	if m.Op != opHello || m.Version != controlVersion || len(m.Peer) > maxPeerLen {
		return fmt.Errorf("%w: %s, version %d", errMessage, m.Op, m.Version)
	}
	in.peer = m.Peer
	if err := in.join(m.QP); err != nil {
		return err
	}
	return in.ctl.conn.SetDeadline(time.Time{})
}

// join makes a queue pair towards the peer's.
func (in *inbound) join(addr []byte) error {
	peer, err := ParseAddr(addr)
	if err != nil {
		return err
	}
	q, err := in.d.dev.NewQP(targetDepth)
	if err != nil {
		return err
	}
	if err := q.Connect(peer, ackTimeout, retries); err != nil {
		in.d.bury(q)
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	in.qp, in.stop, in.opened = q, stop, map[key]*lease{}
	in.wg.Go(func() {
		out := make([]Done, 8)
		for {
			if _, err := q.Wait(ctx, out); err != nil { // it posts nothing but requests of its own
				return
			}
		}
	})
	return nil
}

func (in *inbound) welcome() error {
	f := in.d.flush
	return in.ctl.send(&message{Op: opWelcome, QP: in.qp.Addr().Append(nil), Flush: &window{Len: 8, Addr: f.Addr(0), Key: f.Key()}})
}

// drop takes back all that the peer could write through the queue pair. Without
// an error nothing of it can land any more.
func (in *inbound) drop() error {
	if in.qp == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), fenceTime)
	defer cancel()
	var err error
	for _, l := range in.opened {
		if cerr := l.closeOn(ctx, in.qp); cerr != nil {
			err = cerr
		}
	}
	in.stop()
	in.wg.Wait()
	_ = in.qp.Fail() // it may be in error already
	in.d.bury(in.qp)
	in.qp, in.opened = nil, nil
	return err
}

func (in *inbound) handle(m *message) error {
	switch m.Op {
	case opRepair:
		if err := in.drop(); err != nil {
			return err
		}
		if err := in.join(m.QP); err != nil {
			return err
		}
		return in.welcome()
	case opOpen:
		return in.open(m.Key)
	case opTold:
		return in.tell(m)
	default:
		return fmt.Errorf("%w: %q", errMessage, m.Op)
	}
}

func (in *inbound) open(b []byte) error {
	out := &message{Op: opOpened, Key: b, Reason: rdma.RefusedUnknownKey}
	if k, ok := parseKey(b); ok {
		if l := in.d.find(k); l != nil {
			o, why, err := l.openOn(in)
			if err != nil { // most often the queue pair broke under it: the writer joins another and asks again
				_ = in.qp.Fail()
				return in.ctl.send(&message{Op: opOpened, Key: b})
			}
			out.Reason = why
			if o != nil {
				out.Windows = o.open
				in.opened[k] = l
			}
		}
	}
	return in.ctl.send(out)
}

// news gathers what a told transfer comes to.
type news struct {
	tag             rdma.Tag
	landed, thrown  []rdma.Span
	placed, refused int64
	pieces          int // refused
	reason          rdma.Refusal
	owed            []*lease
	stale           bool // landed under a lease that was revoked since
}

// tell passes the news of a transfer on and acknowledges it. Where it went and
// what it was is the writer's word; whose pages it concerns, and whether it was
// in its right, is looked up here.
func (in *inbound) tell(m *message) error {
	var n news
	for i := range m.Pieces {
		in.look(&m.Pieces[i], &n)
	}
	v := rdma.Notif{
		Kind: rdma.WriteLanded, Peer: in.peer, Conn: in.id, Tag: n.tag, WriterTag: rdma.Tag(m.Tag),
		Meta: m.Meta, Flags: m.Flags, Partial: m.Partial, Ranges: n.landed, Bytes: n.placed,
	}
	if n.pieces > 0 {
		v.Kind = rdma.LateWriteRefused
		if n.reason == rdma.RefusedChecksum {
			v.Kind = rdma.ChecksumFailed
		}
		v.Ranges, v.Bytes, v.Placed = n.thrown, n.refused, n.placed
		v.Err = &rdma.RefusedError{Reason: n.reason, Writes: n.pieces}
	}
	if n.pieces > 0 || !n.stale {
		in.d.cfg.OnNotif(v)
	}
	for _, l := range n.owed {
		l.tell()
	}
	return in.ctl.send(&message{Op: opNoted, Seq: m.Seq, Reason: n.reason})
}

func (in *inbound) look(p *piece, n *news) {
	s := rdma.Span{Range: rdma.Range{Off: p.Off, Len: p.Len}}
	why := rdma.RefusedUnknownKey
	var l *lease
	if k, ok := parseKey(p.Key); ok {
		l = in.d.find(k)
	}
	if l != nil {
		s.Region, n.tag = l.region.id, l.tag
		switch {
		case l.peer != "" && l.peer != in.peer:
			why = rdma.RefusedPeer
		case !span.Inside(l.ranges, p.Off, p.Len):
			why = rdma.RefusedRange
		case p.Refused:
			why = rdma.RefusedRevoked
		case !l.owe(): // it landed before the revocation: else the device had refused it
			n.stale, n.placed = true, n.placed+int64(p.Len)
			return
		default:
			n.owed = append(n.owed, l)
			if why = in.check(l, p); why == 0 {
				n.landed = span.Add(n.landed, s)
				n.placed += int64(p.Len)
				return
			}
		}
	}
	n.thrown = span.Add(n.thrown, s)
	n.pieces++
	n.refused += int64(p.Len)
	if n.reason == 0 {
		n.reason = why
	}
}

// check keeps the checksum that the writer sent along and compares it with the
// bytes that are there.
func (in *inbound) check(l *lease, p *piece) rdma.Refusal {
	if !in.d.cfg.Checksums || l.region.mem == nil {
		return 0
	}
	if p.Sum == nil {
		l.sums.Add(p.Off, uint32(p.Len), 0, false)
		return 0
	}
	l.sums.Add(p.Off, uint32(p.Len), *p.Sum, true)
	if span.Checksum(l.region.mem[p.Off:p.Off+p.Len]) != *p.Sum {
		return rdma.RefusedChecksum
	}
	return 0
}
