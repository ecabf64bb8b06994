package stream

import (
	"bufio"
	"fmt"
	"io"

	"github.com/pdlog/pdlog/rdma"
)

// hushBytes bounds what is answered before a sleeping writer is told: at the
// speed of one copy a completion is late by some 400 µs.
const hushBytes = 8 << 20

// put gives the target a frame by the ring, when there is room for it.
func (o *outbound) put(h *header) error {
	for o.slots == 0 {
		if err := o.findRoom(); err != nil {
			return err
		}
	}
	o.ring.putFrame(h)
	o.slots--
	o.unsaid = true
	return nil
}

// announce tells the target, if it looks at a ring, that the next frame is on
// the socket.
func (o *outbound) announce() error {
	if o.ring == nil {
		return nil
	}
	return o.put(&header{op: opTurn})
}

// publish shows the target what was put, and wakes it if it sleeps and nothing
// on the socket does.
func (o *outbound) publish() error {
	if !o.unsaid {
		return nil
	}
	o.unsaid = false
	o.ring.publish()
	if !o.ring.claim(wordTargetIn) || len(o.bufs) > 0 {
		return nil
	}
	var b [headerLen]byte
	bell := header{op: opBell}
	bell.encode(b[:])
	_, err := o.conn.Write(b[:])
	return err
}

// findRoom waits until the target has taken frames out of a full ring.
func (o *outbound) findRoom() (err error) {
	if o.slots, err = o.ring.free(); o.slots > 0 || err != nil {
		return err
	}
	if err := o.flush(); err != nil { // it may be waiting for what the slots announce
		return err
	}
	o.ring.word(wordRoom).Store(1)
	if o.slots, err = o.ring.free(); o.slots > 0 || err != nil {
		o.ring.word(wordRoom).Store(0)
		return err
	}
	select {
	case <-o.roomy:
		return nil
	case <-o.e.stop:
		return rdma.ErrClosed
	}
}

// wish says from which answer on a sleeping writer is to be woken: the one that
// ends half of what is on its way, so that there is time to send more. The
// target wakes it sooner if it has nothing more to do. endpoint.mu is held.
func (o *outbound) wish() {
	at, bytes := 0, int64(0)
	for ; at < (len(o.window)-1)/2; at++ {
		if bytes += o.window[at].bytes; bytes >= hushBytes {
			break
		}
	}
	if len(o.window) > 0 {
		o.ring.word(wordWakeAt).Store(uint32(o.window[at].seq)) //nolint:gosec // its low bits
	}
}

// ringReplies reads answers out of the ring, and sleeps at the socket.
func (o *outbound) ringReplies() error {
	br := bufio.NewReaderSize(o.conn, 64*replyLen)
	var buf [replyLen]byte
	var r reply
	for {
		n, err := o.harvest()
		if err != nil {
			return err
		}
		if n > 0 || !o.rest() {
			continue
		}
		_, err = io.ReadFull(br, buf[:])
		o.ring.word(wordWriterIn).Store(0)
		if err != nil {
			for n := 1; n > 0; { // what the target has answered before its end
				if n, _ = o.harvest(); n > 0 {
					continue
				}
			}
			return err
		}
		if err := r.decode(buf[:]); err != nil {
			return err
		}
		if r.op != opRang {
			return fmt.Errorf("%w: reply op %d beside a ring", errFrame, r.op)
		}
		select {
		case o.roomy <- struct{}{}:
		default:
		}
	}
}

// rest says to the target that the writer goes to sleep. False: there is an
// answer after all.
func (o *outbound) rest() bool {
	o.e.mu.Lock()
	o.wish()
	o.e.mu.Unlock()
	o.ring.word(wordWriterIn).Store(1)
	if n, err := o.ring.answered(); n > 0 || err != nil {
		o.ring.word(wordWriterIn).Store(0)
		return false
	}
	return true
}

// harvest ends the transfers that are answered, and gives how many answers it
// has read.
func (o *outbound) harvest() (int, error) {
	n, err := o.ring.answered()
	if n == 0 || err != nil {
		return 0, err
	}
	err = o.harvestN(n)
	o.e.ledger.Flush()
	return int(n), err
}

func (o *outbound) harvestN(n uint32) error {
	o.e.mu.Lock()
	defer o.e.mu.Unlock()
	var buf [replyLen]byte
	var r reply
	for range n {
		o.ring.readAnswer(&buf)
		if err := r.decode(buf[:]); err != nil {
			return err
		}
		if err := o.answer(&r); err != nil {
			return err
		}
	}
	return nil
}
