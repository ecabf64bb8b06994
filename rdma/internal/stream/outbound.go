package stream

import (
	"bufio"
	"fmt"
	"hash/crc32"
	"io"
	"net"

	"github.com/pdlog/pdlog/rdma"
)

const (
	// A burst is what the sender takes from the queue at once: enough to fill
	// a writev, little enough that Abort finds the rest still queued.
	burstBytes = 1 << 20
	// maxIov is how many buffers go into one writev; the kernel takes 1024.
	maxIov = 512
	// maxWindow bounds the bytes that descriptors stand for: a socket full of
	// them would leave Abort nothing to take back.
	maxWindow = 32 << 20
)

// piece is one write: a source and where it goes.
type piece struct {
	src []byte
	off uint64
	key key
}

func (p *piece) set(w *rdma.Write, batchKey []byte) error {
	src, err := w.Bytes()
	if err != nil {
		return err
	}
	k := w.Key
	if len(k) == 0 {
		k = batchKey
	}
	if len(k) != keyLen {
		return fmt.Errorf("%w: key of %d bytes, want %d", rdma.ErrBatch, len(k), keyLen)
	}
	p.src, p.off = src, w.RemoteOff
	copy(p.key[:], k)
	return nil
}

// transfer is a posted batch on its way.
type transfer struct {
	id        rdma.TransferID
	token     uint64
	tag       rdma.Tag
	meta      uint64
	user      uint32
	partial   bool
	pieces    []piece
	bytes     int64
	seq       uint64 // given when it is sent
	uncertain bool   // told as such by Abort
}

func (t *transfer) completion(e *endpoint, s rdma.Status, landed int64, err error) rdma.Completion {
	return rdma.Completion{
		ID: t.id, Token: t.token, Peer: e.peer, Tag: t.tag, Meta: t.meta,
		Status: s, Err: err, Bytes: landed, Proven: s != rdma.Uncertain,
	}
}

// outbound is one connection of an endpoint. Fields of the first group belong
// to endpoint.mu, those of the second to the sender.
type outbound struct {
	e    *endpoint
	conn net.Conn
	wake chan struct{}

	pools bool          // conn carries descriptors
	ring  *ring         // nil: frames and answers go over conn
	roomy chan struct{} // cap 1: the target has rung, there may be slots again

	queue  []*transfer // accepted, not sent
	queued int         // writes in queue
	window []*transfer // sent or being sent, not answered, by seq
	bytes  int64       // of the window
	seq    uint64      // last given

	bufs    net.Buffers
	headers []byte
	burst   []*transfer
	passed  map[*share]uint32 // pools that the target has, by name
	slots   uint32            // of the ring, known to be free
	unsaid  bool              // frames are in the ring and not published
}

func newOutbound(e *endpoint, l *link) *outbound {
	return &outbound{
		e: e, conn: l.conn, wake: make(chan struct{}, 1),
		pools: e.d.transport.pools(l.conn), ring: l.ring, roomy: make(chan struct{}, 1),
	}
}

func (o *outbound) kick() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// take moves a burst from the queue into the window.
func (o *outbound) take() []*transfer {
	o.e.mu.Lock()
	defer o.e.mu.Unlock()
	if o.e.err != nil {
		return nil // the rest of the queue never leaves
	}
	burst := o.burst[:0]
	var bytes int64
	for len(o.queue) > 0 && (len(burst) == 0 || bytes+o.queue[0].bytes <= burstBytes) {
		t := o.queue[0]
		if o.pools && len(o.window) > 0 && o.bytes+t.bytes > maxWindow {
			break // an answer wakes the sender
		}
		if o.ring != nil && len(o.window) == ringSlots {
			break // there must be room for every answer
		}
		o.bytes += t.bytes
		o.queue[0] = nil
		o.queue = o.queue[1:]
		o.queued -= len(t.pieces)
		o.seq++
		t.seq = o.seq
		bytes += t.bytes
		o.window = append(o.window, t)
		o.e.ledger.Sent(t.tag)
		burst = append(burst, t)
	}
	if o.ring != nil && len(burst) > 0 {
		o.wish()
	}
	o.burst = burst
	return burst
}

// send is the sender's goroutine.
func (o *outbound) send() {
	for {
		select {
		case <-o.wake:
		case <-o.e.stop:
			return
		}
		for burst := o.take(); len(burst) > 0; burst = o.take() {
			if err := o.write(burst); err != nil {
				o.e.end(fmt.Errorf("%w: send to %s: %w", rdma.ErrConnLost, o.e.peer, err))
				return
			}
			clear(burst)
		}
	}
}

// write sends the frames of a burst, as many in a writev as fit.
func (o *outbound) write(burst []*transfer) error {
	for _, t := range burst {
		pieces := t.pieces
		h := header{tag: uint64(t.tag), seq: t.seq, meta: t.meta, user: t.user}
		if t.partial {
			h.flags = flagPartial
		}
		if o.e.d.cfg.Checksums {
			h.flags |= flagSum
		}
		for i := range pieces {
			h.key = pieces[i].key
			h.offset = pieces[i].off
			if err := o.locate(&h, pieces[i].src); err != nil {
				return err
			}
			for src := pieces[i].src; len(src) > 0; {
				n := min(len(src), maxFrame)
				h.length = uint32(n)
				if i == len(pieces)-1 && n == len(src) {
					h.flags |= flagLast
				}
				if len(o.bufs)+2 > maxIov {
					if err := o.flush(); err != nil {
						return err
					}
				}
				if h.flags&flagSum != 0 {
					h.sum = crc32.Checksum(src[:n], castagnoli)
				}
				if err := o.add(&h, src[:n]); err != nil {
					return err
				}
				src = src[n:]
				h.offset += uint64(n)
				if h.op == opCopy {
					h.source += uint64(n)
				}
			}
		}
	}
	return o.flush()
}

// add puts a frame into the ring, or into the next writev. The header's bytes
// stay where they are until flush has returned.
func (o *outbound) add(h *header, payload []byte) error {
	if o.ring != nil && h.op == opCopy {
		return o.put(h)
	}
	if err := o.announce(); err != nil {
		return err
	}
	if o.headers == nil {
		o.headers = make([]byte, 0, maxIov*headerLen)
	}
	at := len(o.headers)
	o.headers = o.headers[:at+headerLen]
	h.encode(o.headers[at:])
	o.bufs = append(o.bufs, o.headers[at:])
	if h.op == opWrite {
		o.bufs = append(o.bufs, payload)
	}
	return nil
}

func (o *outbound) flush() error {
	if err := o.publish(); err != nil || len(o.bufs) == 0 {
		return err
	}
	bufs := o.bufs // WriteTo cuts the sent ones off; o.bufs keeps the array
	_, err := bufs.WriteTo(o.conn)
	clear(o.bufs)
	o.bufs = o.bufs[:0]
	o.headers = o.headers[:0]
	return err
}

// receive is the goroutine that reads the target's answers.
func (o *outbound) receive() {
	read := o.replies
	if o.ring != nil {
		read = o.ringReplies
	}
	err := read()
	o.e.end(fmt.Errorf("%w: answers of %s: %w", rdma.ErrConnLost, o.e.peer, err))
}

func (o *outbound) replies() error {
	br := bufio.NewReaderSize(o.conn, 64*replyLen)
	var buf [replyLen]byte
	var r reply
	for {
		if _, err := io.ReadFull(br, buf[:]); err != nil {
			return err
		}
		if err := r.decode(buf[:]); err != nil {
			return err
		}
		o.e.mu.Lock()
		err := o.answer(&r)
		o.e.mu.Unlock()
		if br.Buffered() < replyLen || err != nil {
			o.e.ledger.Flush()
		}
		if err != nil {
			return err
		}
	}
}

// answer ends the transfers that a reply speaks of. endpoint.mu is held.
func (o *outbound) answer(r *reply) error {
	if r.seq == 0 || len(o.window) == 0 || r.seq < o.window[0].seq || r.seq > o.seq {
		return fmt.Errorf("%w: answer to transfer %d", errFrame, r.seq)
	}
	switch r.op {
	case opAck:
		for len(o.window) > 0 && o.window[0].seq <= r.seq {
			t := o.pop()
			o.ended(t, rdma.Completed, t.bytes, nil)
		}
	case opNak:
		if o.window[0].seq != r.seq {
			return fmt.Errorf("%w: refusal of transfer %d before an answer to %d", errFrame, r.seq, o.window[0].seq)
		}
		t := o.pop()
		landed := int64(min(r.placed, uint64(t.bytes))) //nolint:gosec // bytes is not negative
		o.ended(t, rdma.Failed, landed, &rdma.RefusedError{Reason: r.reason, Writes: int(r.frames)})
	default:
		return fmt.Errorf("%w: reply op %d after the handshake", errFrame, r.op)
	}
	return nil
}

func (o *outbound) pop() *transfer {
	t := o.window[0]
	o.window[0] = nil
	o.window = o.window[1:]
	o.bytes -= t.bytes
	if o.pools && len(o.queue) > 0 {
		o.kick()
	}
	return t
}

func (o *outbound) ended(t *transfer, s rdma.Status, landed int64, err error) {
	if t.uncertain {
		s = rdma.Drained
	}
	o.e.ledger.Report(t.completion(o.e, s, landed, err), false)
}

// abort ends the transfers of a tag by force. endpoint.mu is held.
func (o *outbound) abort(tag rdma.Tag) {
	o.cancel(tag)
	for _, t := range o.window {
		if t.tag == tag && !t.uncertain {
			t.uncertain = true
			o.e.ledger.Report(t.completion(o.e, rdma.Uncertain, 0, rdma.ErrAborted), false)
		}
	}
}

// cancel takes back what has not begun to leave. endpoint.mu is held.
func (o *outbound) cancel(tag rdma.Tag) {
	kept := o.queue[:0]
	for _, t := range o.queue {
		if t.tag != tag {
			kept = append(kept, t)
			continue
		}
		o.queued -= len(t.pieces)
		o.e.ledger.Report(t.completion(o.e, rdma.Failed, 0, rdma.ErrAborted), true)
	}
	clear(o.queue[len(kept):])
	o.queue = kept
}

// bury ends what is left of a dead connection. endpoint.mu is held.
func (o *outbound) bury(why error) {
	for _, t := range o.window {
		if !t.uncertain {
			o.e.ledger.Report(t.completion(o.e, rdma.Uncertain, 0, why), false)
		}
	}
	for _, t := range o.queue {
		o.e.ledger.Report(t.completion(o.e, rdma.Failed, 0, why), true)
	}
	o.window, o.queue, o.queued, o.bytes = nil, nil, 0, 0
}
