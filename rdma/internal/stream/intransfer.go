package stream

import (
	"fmt"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/internal/span"
)

// maxSpans bounds what a transfer can make the target remember; merged spans
// count. A batch of pages that do not touch has one each.
const maxSpans = 1 << 20

// inTransfer gathers the frames of a transfer that is coming in. The frames of
// one transfer follow each other on a connection.
type inTransfer struct {
	open    bool
	tag     rdma.Tag // of the last lease that was found
	spans   []rdma.Span
	thrown  []rdma.Span // of frames that were refused
	frames  uint32      // refused
	reason  rdma.Refusal
	placed  uint64
	refused uint64
}

// beginFrame decides where the payload of the frame goes.
func (in *inbound) beginFrame() error {
	h := &in.h
	if h.op != opWrite && (h.op != opCopy || in.pools == nil) {
		return fmt.Errorf("%w: op %d after hello", errFrame, h.op)
	}
	if want := in.lastSeq + 1; !in.x.open && h.seq != want || in.x.open && h.seq != in.lastSeq {
		return fmt.Errorf("%w: transfer %d, the last was %d", errFrame, h.seq, in.lastSeq)
	}
	in.x.open, in.lastSeq = true, h.seq
	in.rest = int(h.length)
	in.dst, in.lease, in.crc = nil, nil, 0

	l := in.in
	if l == nil || l.key != h.key {
		l = in.d.leases.find(&h.key)
	}
	if l == nil {
		in.refuse(rdma.RefusedUnknownKey)
		return nil
	}
	in.in, in.lease = l, l
	in.x.tag = l.tag
	switch {
	case l.peer != "" && l.peer != in.peer:
		in.refuse(rdma.RefusedPeer)
	case l.state.Load()&revokedBit != 0:
		in.refuse(rdma.RefusedRevoked)
	default:
		dst, ok := l.place(h.offset, h.length)
		if !ok {
			in.refuse(rdma.RefusedRange)
			return nil
		}
		in.dst = dst
	}
	return nil
}

// refuse sends the rest of the frame to the scrap buffer.
func (in *inbound) refuse(why rdma.Refusal) {
	in.dst = nil
	in.x.frames++
	if in.x.reason == 0 {
		in.x.reason = why
	}
	thrown := rdma.Span{Range: rdma.Range{Off: in.h.offset, Len: uint64(in.h.length)}}
	if in.lease != nil {
		thrown.Region = in.lease.id
	}
	in.x.thrown = span.Add(in.x.thrown, thrown)
}

// endFrame books a frame whose payload is all read, and the transfer with it
// if it was the last.
func (in *inbound) endFrame() {
	in.turn = false
	if in.dst != nil && in.d.cfg.Checksums && !in.checked() {
		in.refuse(rdma.RefusedChecksum) // its bytes are there; Verify names them
		in.x.placed -= uint64(in.h.length)
		in.x.refused += uint64(in.h.length)
	}
	if in.dst != nil {
		in.x.spans = span.Add(in.x.spans, rdma.Span{
			Region: in.lease.id,
			Range:  rdma.Range{Off: in.h.offset, Len: uint64(in.h.length)},
		})
		in.dst = nil
	}
	if len(in.x.spans)+len(in.x.thrown) > maxSpans {
		in.err = fmt.Errorf("%w: transfer %d has more than %d pieces", errFrame, in.h.seq, maxSpans)
		return
	}
	if in.h.flags&flagLast == 0 {
		return
	}
	x := &in.x
	n := rdma.Notif{
		Kind: rdma.WriteLanded, Peer: in.peer, Conn: in.id,
		Tag: x.tag, WriterTag: rdma.Tag(in.h.tag), Meta: in.h.meta, Flags: in.h.user,
		Partial: in.h.flags&flagPartial != 0,
		Ranges:  x.spans, Bytes: int64(x.placed), //nolint:gosec // fewer bytes than 2^63 were read
	}
	if x.frames > 0 {
		n.Kind = rdma.LateWriteRefused
		if x.reason == rdma.RefusedChecksum {
			n.Kind = rdma.ChecksumFailed
		}
		n.Ranges = x.thrown
		n.Bytes, n.Placed = int64(x.refused), int64(x.placed) //nolint:gosec // as above
		n.Err = &rdma.RefusedError{Reason: x.reason, Writes: int(x.frames)}
		in.ackUpTo() // answers leave in the order of transfers
		in.replies = reply{op: opNak, reason: x.reason, frames: x.frames, seq: in.h.seq, placed: x.placed}.append(in.replies)
		in.answered, in.urgent = in.h.seq, true
	} else {
		in.acked = in.h.seq
	}
	in.notifs = append(in.notifs, n)
	in.held++
	in.x = inTransfer{}
}

// checked keeps the frame's checksum with the lease and says whether the bytes
// that landed have it.
func (in *inbound) checked() bool {
	in.lease.sums.Add(in.h.offset, in.h.length, in.h.sum, in.summed())
	return !in.summed() || in.crc == in.h.sum
}
