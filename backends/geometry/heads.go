package geometry

import "fmt"

// HeadSplit cuts a page between TP sizes that differ, for models whose heads
// are spread over the ranks (wire.md 5). With more ranks than heads each head
// is held by several ranks in a row.
type HeadSplit struct {
	Heads     int // KV heads of the whole model
	PrefillTP int
	DecodeTP  int
	PageSize  int // tokens a page
}

// Slice is one prefill rank's part of each token of one decode rank's page.
type Slice struct {
	Src, Dst uint64 // bytes into the token, on each side
	Len      uint64
	SrcToken uint64 // bytes a token has in the page of one rank
	DstToken uint64
}

// Whole reports that the rank writes the destination's page as a whole.
func (s Slice) Whole() bool { return s.Dst == 0 && s.Len == s.DstToken }

const maxPageSize = 1 << 24 // tokens

// replicas is how many neighbours hold the same head; held is how many heads
// each rank holds.
func replicas(heads, tp int) (held, ranks int, ok bool) {
	return max(1, heads/tp), max(1, tp/heads), heads%tp == 0 || tp%heads == 0
}

// Slice is the part that prefill's TP rank writes of a page of dstItem bytes of
// decode's TP rank. Ranks are taken modulo their TP size.
func (h HeadSplit) Slice(prefill, decode int, dstItem uint64) (Slice, error) {
	if h.Heads < 1 || h.PrefillTP < 1 || h.DecodeTP < 1 || h.PageSize < 1 || h.PageSize > maxPageSize || prefill < 0 || decode < 0 {
		return Slice{}, fmt.Errorf("%d heads, tp %d to %d, pages of %d tokens, rank %d to %d: out of range",
			h.Heads, h.PrefillTP, h.DecodeTP, h.PageSize, prefill, decode)
	}
	srcHeads, srcCopies, okSrc := replicas(h.Heads, h.PrefillTP)
	dstHeads, dstCopies, okDst := replicas(h.Heads, h.DecodeTP)
	if !okSrc || !okDst {
		return Slice{}, fmt.Errorf("%d heads do not divide over tp %d and tp %d", h.Heads, h.PrefillTP, h.DecodeTP)
	}
	tokens := uint64(h.PageSize)
	if dstItem == 0 || dstItem%tokens != 0 || dstItem/tokens%uint64(dstHeads) != 0 {
		return Slice{}, fmt.Errorf("a page of %d bytes does not hold %d tokens of %d heads", dstItem, h.PageSize, dstHeads)
	}
	dstToken := dstItem / tokens
	perHead := dstToken / uint64(dstHeads)
	if perHead > (1<<63)/uint64(srcHeads) {
		return Slice{}, fmt.Errorf("heads of %d bytes are too large", perHead)
	}
	s := Slice{Len: perHead * uint64(min(srcHeads, dstHeads)), SrcToken: perHead * uint64(srcHeads), DstToken: dstToken}
	local, remote := prefill%h.PrefillTP, decode%h.DecodeTP
	switch {
	case h.PrefillTP > h.DecodeTP:
		s.Dst = uint64(local/srcCopies*srcHeads%dstHeads) * perHead
	case h.PrefillTP < h.DecodeTP: // the division is what Mori lacks (F30)
		s.Src = uint64(remote/dstCopies*dstHeads%srcHeads) * perHead
	}
	return s, nil
}
