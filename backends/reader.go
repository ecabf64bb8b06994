package backends

import (
	"bytes"
	"encoding/binary"
	"strconv"
)

// Reader reads the frames of one claimed message by position. The first frame
// that breaks its form makes the message malformed; what is read after that
// has no meaning. A frame that is not there reads as an empty one.
//
// A method named Opt… reads an optional frame: empty or missing is absent, and
// anything else must be good.
type Reader struct {
	f    Frames
	kind Kind
	bad  string // key of the first bad frame, "" = none
	at   int    // its position
}

// NewReader starts reading f as a message of kind k that needs at least
// `required` frames.
func NewReader(k Kind, f Frames, required int) Reader {
	r := Reader{f: f, kind: k}
	if len(f) < required {
		r.fail(len(f), "too few frames")
	}
	return r
}

// Bad returns the Malformed result if a frame was bad, else nil.
func (r *Reader) Bad() *Malformed {
	if r.bad == "" {
		return nil
	}
	return &Malformed{Of: r.kind, Reason: r.kind.String() + ": frame " + strconv.Itoa(r.at) + ": " + r.bad}
}

// Fail marks the message malformed because of the frame at position i; what
// names the rule.
func (r *Reader) Fail(i int, what string) { r.fail(i, what) }

func (r *Reader) fail(i int, what string) {
	if r.bad == "" {
		r.bad, r.at = what, i
	}
}

// Frame returns the frame at position i, nil if there is none. The caller must
// not keep it.
func (r *Reader) Frame(i int) []byte {
	if i < len(r.f) {
		return r.f[i]
	}
	return nil
}

// Empty reports that the frame at position i is absent: missing or empty.
func (r *Reader) Empty(i int) bool { return len(r.Frame(i)) == 0 }

func (r *Reader) uint(i int, limit uint64, what string) uint64 {
	v, ok := parseUint(r.Frame(i), limit)
	if !ok {
		r.fail(i, what)
	}
	return v
}

// Room reads a room number.
func (r *Reader) Room(i int) uint64 { return r.uint(i, MaxRoom, "bad room") }

// U63 reads a number 0 … 2^63-1.
func (r *Reader) U63(i int, what string) uint64 { return r.uint(i, MaxRoom, what) }

// I31 reads a number 0 … 2^31-1.
func (r *Reader) I31(i int, what string) int32 { return int32(r.uint(i, maxI31, what)) }

// N31 reads a number 1 … 2^31-1.
func (r *Reader) N31(i int, what string) int32 {
	v := r.I31(i, what)
	if v == 0 {
		r.fail(i, what)
	}
	return v
}

// IntFrom reads a number low … 2^31-1.
func (r *Reader) IntFrom(i int, low int32, what string) int32 {
	mag, neg, ok := parseDec(r.Frame(i))
	if !ok || mag > maxI31 {
		r.fail(i, what)
		return 0
	}
	v := int32(mag)
	if neg {
		v = -v
	}
	if v < low {
		r.fail(i, what)
	}
	return v
}

// OptU63 reads an optional U63.
func (r *Reader) OptU63(i int, what string) Opt[uint64] {
	if r.Empty(i) {
		return Opt[uint64]{}
	}
	return Some(r.U63(i, what))
}

// OptI31 reads an optional I31.
func (r *Reader) OptI31(i int, what string) Opt[int32] {
	if r.Empty(i) {
		return Opt[int32]{}
	}
	return Some(r.I31(i, what))
}

// DefI31 reads an optional I31 that has a default.
func (r *Reader) DefI31(i int, def int32, what string) int32 {
	if r.Empty(i) {
		return def
	}
	return r.I31(i, what)
}

// DefN31 reads an optional N31 that has a default.
func (r *Reader) DefN31(i int, def int32, what string) int32 {
	if r.Empty(i) {
		return def
	}
	return r.N31(i, what)
}

// Endpoint reads an ip and the port behind it.
func (r *Reader) Endpoint(i int) Endpoint {
	ip, ok := readIP(r.Frame(i))
	if !ok {
		r.fail(i, "bad ip")
	}
	port, ok := parsePort(r.Frame(i + 1))
	if !ok {
		r.fail(i+1, "bad port")
	}
	return Endpoint{IP: ip, Port: port}
}

// Name reads one or more bytes 0x21-0x7e.
func (r *Reader) Name(i int, what string) string {
	if b := r.Frame(i); isName(b) {
		return string(b)
	}
	r.fail(i, what)
	return ""
}

// Session reads a Mooncake session id.
func (r *Reader) Session(i int) string {
	if b := r.Frame(i); isSession(b) {
		return string(b)
	}
	r.fail(i, "bad session id")
	return ""
}

// Bytes copies an opaque frame; never nil.
func (r *Reader) Bytes(i int) []byte {
	return append([]byte{}, r.Frame(i)...)
}

// U64s reads a u64[] frame; an empty one is an empty list.
func (r *Reader) U64s(i int, what string) []uint64 { return readArray[uint64](r, i, what) }

// U32s reads a u32[] frame; an empty one is an empty list.
func (r *Reader) U32s(i int, what string) []uint32 { return readArray[uint32](r, i, what) }

// Pages reads a list of page numbers, none negative.
func (r *Reader) Pages(i int, what string) []int32 { return readArray[int32](r, i, what) }

// U64Lists reads a lol(Q) frame.
func (r *Reader) U64Lists(i int, what string) [][]uint64 { return readLists[uint64](r, i, what) }

// U32Lists reads a lol(I) frame.
func (r *Reader) U32Lists(i int, what string) [][]uint32 { return readLists[uint32](r, i, what) }

// IndexLists reads a lol(i) frame, no value negative.
func (r *Reader) IndexLists(i int, what string) [][]int32 { return readLists[int32](r, i, what) }

func readArray[T item](r *Reader, i int, what string) []T {
	v, ok := parseArray[T](r.Frame(i))
	if !ok {
		r.fail(i, what)
	}
	return v
}

func readLists[T item](r *Reader, i int, what string) [][]T {
	v, ok := parseLists[T](r.Frame(i))
	if !ok {
		r.fail(i, what)
	}
	return v
}

// OptPointer reads an optional address of exactly 8 bytes.
func (r *Reader) OptPointer(i int, what string) Opt[uint64] {
	b := r.Frame(i)
	switch len(b) {
	case 0:
		return Opt[uint64]{}
	case 8:
		return Some(binary.LittleEndian.Uint64(b))
	}
	r.fail(i, what)
	return Opt[uint64]{}
}

// OptFlag reads an optional `0` or `1`.
func (r *Reader) OptFlag(i int, what string) Opt[bool] {
	b := r.Frame(i)
	switch {
	case len(b) == 0:
		return Opt[bool]{}
	case len(b) == 1 && (b[0] == '0' || b[0] == '1'):
		return Some(b[0] == '1')
	}
	r.fail(i, what)
	return Opt[bool]{}
}

// OptWords reads an optional comma-joined list of words, each one of allowed.
// The result is never nil; its words are those of allowed, not of the frame.
func (r *Reader) OptWords(i int, what string, allowed ...string) []string {
	words := []string{}
	b := r.Frame(i)
	if len(b) == 0 {
		return words
	}
next:
	for part := range bytes.SplitSeq(b, []byte{','}) {
		for _, w := range allowed {
			if string(part) == w {
				words = append(words, w)
				continue next
			}
		}
		r.fail(i, what)
		return words
	}
	return words
}
