package geometry

import (
	"fmt"
	"iter"
	"math/bits"
)

// Range is bytes [Start, End) of the destination's memory.
type Range struct{ Start, End uint64 }

// Len is the number of bytes.
func (r Range) Len() uint64 { return r.End - r.Start }

// Buffer is one entry of a registration: item p stands at Base + p*Item.
type Buffer struct {
	Base uint64
	Item uint64 // bytes of a page, row or state item
	Len  uint64 // bytes in all; 0: the peer did not say
}

// Items is the bytes of n items from item first on. An item outside the buffer
// or an address past 2^64 is an error.
func (b Buffer) Items(first uint32, n int) (Range, error) {
	if n < 0 {
		return Range{}, fmt.Errorf("%d items", n)
	}
	hi, end := bits.Mul64(uint64(first)+uint64(n), b.Item) // first < 2^32, n < 2^63: no carry
	if hi != 0 || b.Len != 0 && end > b.Len {
		return Range{}, fmt.Errorf("items %d to %d of %d bytes are outside the buffer of %d bytes", first, uint64(first)+uint64(n), b.Item, b.Len)
	}
	return b.bytes(uint64(first)*b.Item, end)
}

// bytes is [from, to) of the buffer, as addresses.
func (b Buffer) bytes(from, to uint64) (Range, error) {
	end, carry := bits.Add64(b.Base, to, 0)
	if carry != 0 || from > to {
		return Range{}, fmt.Errorf("bytes %d to %d behind %#x are past the end of memory", from, to, b.Base)
	}
	return Range{Start: b.Base + from, End: end}, nil
}

// StagedRange is the part of the staging ring that an answer [offset, end)
// gives to a chunk (wire.md 1.7); decode's own scatter then writes the pages.
func StagedRange(ring Buffer, offset, end uint64) (Range, error) {
	if offset > end || end > ring.Len {
		return Range{}, fmt.Errorf("bytes %d to %d are outside the ring of %d bytes", offset, end, ring.Len)
	}
	return ring.bytes(offset, end)
}

// TokenRange is one token's part of an entry: decode context parallelism
// relays out by token, not by page (wire.md 5).
func TokenRange(b Buffer, token uint64, pageSize int) (Range, error) {
	if pageSize < 1 || b.Item%uint64(pageSize) != 0 {
		return Range{}, fmt.Errorf("a page of %d bytes does not hold %d tokens", b.Item, pageSize)
	}
	size := b.Item / uint64(pageSize)
	hi, from := bits.Mul64(token, size)
	to, carry := bits.Add64(from, size, 0)
	if hi != 0 || carry != 0 || b.Len != 0 && to > b.Len {
		return Range{}, fmt.Errorf("token %d of %d bytes is outside the buffer of %d bytes", token, size, b.Len)
	}
	return b.bytes(from, to)
}

// Run is Len pages that are neighbours on both sides.
type Run struct {
	Src, Dst uint32 // first page; Src counts from 0 if the sources are not known
	Len      int
}

// Runs groups pages into the writes of an equal-TP transfer: one per stretch in
// which source and destination both go up by one. Without sources every
// stretch of destinations counts as one. Both lists must be of one length.
func Runs(src, dst []uint32) ([]Run, error) {
	if len(src) != 0 && len(src) != len(dst) {
		return nil, fmt.Errorf("%d source pages for %d pages", len(src), len(dst))
	}
	var out []Run
	for i, d := range dst {
		if i > 0 && follows(dst[i-1], d) && (len(src) == 0 || follows(src[i-1], src[i])) { //nolint:gosec // of one length
			out[len(out)-1].Len++
			continue
		}
		r := Run{Dst: d, Len: 1}
		if len(src) != 0 {
			r.Src = src[i]
		}
		out = append(out, r)
	}
	return out, nil
}

func follows(page, next uint32) bool { return uint64(page)+1 == uint64(next) }

// CPWindow is the part of a request's total pages that CP rank c of n owns when
// all CP ranks send: by position, not by page number (wire.md 5).
func CPWindow(total, c, n int) (first, count int, err error) {
	if total < 0 || n < 1 || c < 0 || c >= n {
		return 0, 0, fmt.Errorf("cp rank %d of %d, %d pages", c, n, total)
	}
	base, rem := total/n, total%n
	first = c*base + min(c, rem)
	if c < rem {
		base++
	}
	return first, base, nil
}

// cut is the part of [first, first+count) inside [at, at+n).
func cut(first, count, at, n int) (int, int) {
	lo, hi := max(first, at), min(first+count, at+n)
	if hi <= lo {
		return first, 0
	}
	return lo, hi - lo
}

// Write is what one prefill rank writes for one chunk into one buffer: Times
// pieces, each as long as the first and Stride behind the one before.
type Write struct {
	Kind      Kind
	Component int    // of the state; else 0
	Entry     int    // place in the registration's list of that kind
	Item      uint32 // first page, row or state item
	First     Range
	Stride    uint64
	Times     int
}

// Kind says what a write is for.
type Kind uint8

// The kinds.
const (
	KV Kind = iota + 1
	Aux
	State
	Staging // into decode's staging ring; decode copies it into the pages
)

// Ranges are the address ranges of the write, in order.
func (w Write) Ranges() iter.Seq[Range] {
	return func(yield func(Range) bool) {
		r := w.First
		for i := range w.Times {
			if i > 0 {
				r.Start += w.Stride
				r.End += w.Stride
			}
			if !yield(r) {
				return
			}
		}
	}
}

// Bytes is the size of the write.
func (w Write) Bytes() uint64 { return w.First.Len() * uint64(w.Times) } //nolint:gosec // not negative

// Span is from the first byte to the last; between the pieces of a strided
// write are bytes of other ranks.
func (w Write) Span() Range {
	if w.Times < 1 {
		return Range{Start: w.First.Start, End: w.First.Start}
	}
	return Range{Start: w.First.Start, End: w.First.End + w.Stride*uint64(w.Times-1)}
}
