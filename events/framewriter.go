package events

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// FrameBatch is a run of complete frames, in order, in one buffer.
type FrameBatch struct {
	buf    []byte
	starts []FrameStart
}

// FrameStart names one frame of a batch.
type FrameStart struct {
	Seq    uint64 // first seq
	Last   uint64 // last seq
	Chain  uint32 // chain after the last record
	HLC    uint64 // of the last record
	offset int
}

// Len is the number of frames.
func (b *FrameBatch) Len() int { return len(b.starts) }

// Bytes is the size of all frames together.
func (b *FrameBatch) Bytes() int { return len(b.buf) }

// Frame is frame i and where it stands. The bytes belong to the batch and are
// good until it is handed to FrameWriter.Swap again.
func (b *FrameBatch) Frame(i int) (FrameStart, []byte) {
	s, end := b.starts[i], len(b.buf)
	if i+1 < len(b.starts) {
		end = b.starts[i+1].offset
	}
	return s, b.buf[s.offset:end:end]
}

// keepBuffer is the capacity above which a batch's buffer is let go once it
// was used, so that one burst does not pin its memory for good.
const keepBuffer = 8 << 20

func (b *FrameBatch) reset() {
	if cap(b.buf) > keepBuffer {
		b.buf, b.starts = nil, nil
	}
	b.buf, b.starts = b.buf[:0], b.starts[:0]
}

// FrameWriter encodes events into frames. Events are copied: the caller may
// reuse them. It allocates only to grow its buffer. It is not safe for
// concurrent use. NewFrameWriter is the only way in.
type FrameWriter struct {
	out    FrameBatch
	st     writerState
	rec    Event // scratch: the event without what the frame holds
	prefix [chainPrefixLen]byte
}

type writerState struct {
	pos         Position
	buf, starts int // lengths, for Rollback
	open        bool
	frame       int // offset of the open frame
	count       int
	boot, inc   uint64
}

// NewFrameWriter starts behind at: the next event has seq at.Seq+1.
func NewFrameWriter(at Position) *FrameWriter {
	return &FrameWriter{st: writerState{pos: at}}
}

// Position is behind the last event taken.
func (w *FrameWriter) Position() Position { return w.st.pos }

// Bytes is the size of what Swap would hand out, the open frame's checksum
// not counted.
func (w *FrameWriter) Bytes() int { return len(w.out.buf) }

// Mark is a state to return to with Rollback, good until the next Swap.
func (w *FrameWriter) Mark() FrameMark {
	m := w.st
	m.buf, m.starts = len(w.out.buf), len(w.out.starts)
	return FrameMark{m}
}

// FrameMark is an opaque state of a FrameWriter.
type FrameMark struct{ st writerState }

// Rollback forgets every event taken since the mark.
func (w *FrameWriter) Rollback(m FrameMark) {
	w.st = m.st
	w.out.buf = w.out.buf[:m.st.buf]
	w.out.starts = w.out.starts[:m.st.starts]
}

// Append takes one event: its seq must be the next one, its hlc above the last
// (events.md I9). Node and PrevHash are not looked at. On an error (ErrSeqGap,
// ErrClockOrder, ErrRecordTooBig, or protobuf's own) nothing was taken.
func (w *FrameWriter) Append(e *Event) error {
	st := &w.st
	if e.Seq != st.pos.Seq+1 {
		return fmt.Errorf("%w: have %d, want %d", ErrSeqGap, e.Seq, st.pos.Seq+1)
	}
	if e.Hlc <= st.pos.HLC {
		return fmt.Errorf("%w: event %d has %d after %d", ErrClockOrder, e.Seq, e.Hlc, st.pos.HLC)
	}
	r := &w.rec
	r.Room, r.RoomSeq, r.Rank, r.Cause, r.TimeOffsetMs = e.Room, e.RoomSeq, e.Rank, e.Cause, e.TimeOffsetMs
	r.Payload, r.unknownFields = e.Payload, e.unknownFields
	size := r.SizeVT()
	if size > RecordLimit {
		r.Cause, r.Payload, r.unknownFields = nil, nil, nil
		return fmt.Errorf("%w: event %d (%s) has %d bytes, the limit is %d", ErrRecordTooBig, e.Seq, e.TypeName(), size, RecordLimit)
	}
	const varints = 3 + 10 // length below 2 MiB, any hlc delta
	if st.open && (st.boot != e.Boot || st.inc != e.Incarnation || st.count == maxFrameCount ||
		len(w.out.buf)-st.frame+varints+size+frameTrailLen > FrameLimit) {
		w.closeFrame()
	}
	undo := w.Mark()
	if !st.open {
		w.openFrame(e)
	}
	b := binary.AppendUvarint(w.out.buf, uint64(size)) //nolint:gosec // a size
	delta := uint64(0)
	if st.count > 0 {
		delta = e.Hlc - st.pos.HLC
	}
	b = binary.AppendUvarint(b, delta)
	off := len(b)
	b = grow(b, size)
	_, err := r.MarshalToSizedBufferVT(b[off : off+size])
	r.Cause, r.Payload, r.unknownFields = nil, nil, nil
	w.out.buf = b
	if err != nil {
		w.Rollback(undo)
		return fmt.Errorf("encode event %d: %w", e.Seq, err)
	}
	st.count++
	st.pos = Position{Seq: e.Seq, HLC: e.Hlc, Chain: chainNext(w.prefix[:], st.pos.Chain, e.Seq, e.Hlc, b[off:])}
	return nil
}

// Swap finishes the open frame, puts all frames into b and takes b's old
// memory for the frames to come.
func (w *FrameWriter) Swap(b *FrameBatch) {
	if w.st.open {
		w.closeFrame()
	}
	b.reset()
	*b, w.out = w.out, *b
}

func (w *FrameWriter) openFrame(e *Event) {
	st := &w.st
	st.open, st.frame, st.count, st.boot, st.inc = true, len(w.out.buf), 0, e.Boot, e.Incarnation
	b := grow(w.out.buf, frameHeaderLen)
	h := b[st.frame:]
	le := binary.LittleEndian
	h[0], h[1] = frameVersion, chainCRC32C
	le.PutUint16(h[2:], 0)
	le.PutUint32(h[4:], 0)
	le.PutUint64(h[8:], e.Seq)
	le.PutUint64(h[16:], e.Hlc)
	le.PutUint64(h[24:], e.Boot)
	le.PutUint64(h[32:], e.Incarnation)
	le.PutUint32(h[40:], st.pos.Chain)
	w.out.buf = b
	w.out.starts = append(w.out.starts, FrameStart{Seq: e.Seq, offset: st.frame})
}

func (w *FrameWriter) closeFrame() {
	st := &w.st
	h := w.out.buf[st.frame:]
	le := binary.LittleEndian
	le.PutUint16(h[2:], uint16(st.count))              //nolint:gosec // at most maxFrameCount
	le.PutUint32(h[4:], uint32(len(h)-frameHeaderLen)) //nolint:gosec // a frame is below 1 MiB
	w.out.buf = le.AppendUint32(w.out.buf, crc32.Checksum(h, castagnoli))
	s := &w.out.starts[len(w.out.starts)-1]
	s.Last, s.Chain, s.HLC = st.pos.Seq, st.pos.Chain, st.pos.HLC
	st.open = false
}

func grow(b []byte, n int) []byte {
	if len(b)+n <= cap(b) {
		return b[:len(b)+n]
	}
	return append(b, make([]byte, n)...)
}
