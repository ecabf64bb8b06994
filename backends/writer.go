package backends

import (
	"encoding/binary"
	"fmt"
	"strconv"
)

// Writer builds the frames of one message, in order. The first value outside
// its form makes the message unsendable: Done then returns an error and no
// frames (conformance rules, section 6).
type Writer struct {
	kind Kind
	f    Frames
	buf  []byte // frames are slices of it
	err  error
}

// NewWriter starts a message of about n frames.
func NewWriter(k Kind, n int) Writer {
	if n > messageFrames {
		return Writer{kind: k, f: make(Frames, 0, n), buf: make([]byte, 0, messageBytes)}
	}
	m := new(messageMemory)
	return Writer{kind: k, f: m.frames[:0], buf: m.bytes[:0]}
}

// messageMemory is the frames of a short message and their bytes in one
// allocation: those that abort a room and acknowledge that fit, extension included.
type messageMemory struct {
	frames [messageFrames][]byte
	bytes  [messageBytes]byte
}

const (
	messageFrames = 6
	messageBytes  = 256
)

// Done returns the message, or the first error.
func (w *Writer) Done() (Frames, error) {
	if w.err != nil {
		return nil, fmt.Errorf("encode %s: %w", w.kind, w.err)
	}
	return w.f, nil
}

// Fail makes the message unsendable. The text names the rule.
func (w *Writer) Fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// push ends the frame that b, grown from w.buf, holds behind what w.buf held.
func (w *Writer) push(b []byte) {
	n := len(w.buf)
	w.f = append(w.f, b[n:len(b):len(b)])
	w.buf = b
}

// Empty writes an empty frame: absent.
func (w *Writer) Empty() { w.push(w.buf) }

// Tag writes a tag, guard or other fixed text.
func (w *Writer) Tag(s string) { w.push(append(w.buf, s...)) }

// Room writes a room number.
func (w *Writer) Room(room uint64) { w.U63("room", room) }

// U63 writes a number 0 … 2^63-1.
func (w *Writer) U63(key string, v uint64) {
	if v > MaxRoom {
		w.Fail("%s %d is above 2^63-1", key, v)
	}
	w.push(strconv.AppendUint(w.buf, v, 10))
}

// IntFrom writes a number low … 2^31-1.
func (w *Writer) IntFrom(key string, v, low int32) {
	if v < low {
		w.Fail("%s %d is below %d", key, v, low)
	}
	w.push(strconv.AppendInt(w.buf, int64(v), 10))
}

// I31 writes a number 0 … 2^31-1.
func (w *Writer) I31(key string, v int32) { w.IntFrom(key, v, 0) }

// N31 writes a number 1 … 2^31-1.
func (w *Writer) N31(key string, v int32) { w.IntFrom(key, v, 1) }

// OptU63 writes an optional number, empty if absent.
func (w *Writer) OptU63(key string, v Opt[uint64]) {
	if !v.Set {
		w.Empty()
		return
	}
	w.U63(key, v.V)
}

// OptI31 writes an optional number, empty if absent.
func (w *Writer) OptI31(key string, v Opt[int32]) {
	if !v.Set {
		w.Empty()
		return
	}
	w.I31(key, v.V)
}

// Need writes a number low … 2^31-1 that this dialect requires.
func (w *Writer) Need(key string, v Opt[int32], low int32) {
	if !v.Set {
		w.Fail("%s is missing", key)
	}
	w.IntFrom(key, v.V, low)
}

// Endpoint writes ip and port.
func (w *Writer) Endpoint(e Endpoint) {
	if !e.valid() {
		w.Fail("no usable address: ip %q port %d", e.IP, e.Port)
	}
	w.Tag(e.IP)
	w.push(strconv.AppendUint(w.buf, uint64(e.Port), 10))
}

// Name writes one or more bytes 0x21-0x7e.
func (w *Writer) Name(key, v string) {
	if !isName(v) {
		w.Fail("%s %q is not a name", key, v)
	}
	w.Tag(v)
}

// Session writes a Mooncake session id.
func (w *Writer) Session(v string) {
	if !isSession(v) {
		w.Fail("session_id %q is not host:port", v)
	}
	w.Tag(v)
}

// Bytes writes an opaque frame; the bytes are copied.
func (w *Writer) Bytes(v []byte) { w.push(append(w.buf, v...)) }

// OptPointer writes an optional address as 8 bytes.
func (w *Writer) OptPointer(v Opt[uint64]) {
	if !v.Set {
		w.Empty()
		return
	}
	w.push(binary.LittleEndian.AppendUint64(w.buf, v.V))
}

// U64s writes a u64[] frame.
func (w *Writer) U64s(v []uint64) { writeArray(w, "", v) }

// U32s writes a u32[] frame.
func (w *Writer) U32s(v []uint32) { writeArray(w, "", v) }

// Pages writes page numbers, none negative.
func (w *Writer) Pages(key string, v []int32) { writeArray(w, key, v) }

// U64Lists writes a lol(Q) frame.
func (w *Writer) U64Lists(key string, v [][]uint64) { writeLists(w, key, v) }

// U32Lists writes a lol(I) frame.
func (w *Writer) U32Lists(key string, v [][]uint32) { writeLists(w, key, v) }

// IndexLists writes a lol(i) frame, no value negative.
func (w *Writer) IndexLists(key string, v [][]int32) { writeLists(w, key, v) }

func writeArray[T item](w *Writer, key string, v []T) {
	b, ok := appendArray(w.buf, v)
	if !ok {
		w.Fail("%s: negative index", key)
	}
	w.push(b)
}

func writeLists[T item](w *Writer, key string, v [][]T) {
	b, ok := appendLists(w.buf, v)
	if !ok {
		w.Fail("%s: negative index or a list too long", key)
	}
	w.push(b)
}

// Ext writes the extension, if there is one, at `place` or behind what is
// already there; frames up to the place are empty (wire.md 9.4).
func (w *Writer) Ext(place int, e *Extension) {
	if e == nil {
		return
	}
	for len(w.f) < place {
		w.Empty()
	}
	b, err := e.appendFrame(w.buf)
	if err != nil {
		w.Fail("%w", err)
		return
	}
	w.push(b)
}
