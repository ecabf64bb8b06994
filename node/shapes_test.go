package node

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/pdlog/pdlog/backends/geometry"
)

// What a node cuts out of opaque pages is what the heads in them ask for, also
// where several ranks hold the same head (F30).
func TestCutIsTheShareOfTheHeads(t *testing.T) {
	const headBytes = 10
	rapid.Check(t, func(t *rapid.T) {
		prefill, decode := 1<<rapid.IntRange(0, 4).Draw(t, "prefill"), 1<<rapid.IntRange(0, 4).Draw(t, "decode")
		h := geometry.HeadSplit{Heads: 1 << rapid.IntRange(0, 5).Draw(t, "heads"), PrefillTP: prefill, DecodeTP: decode, PageSize: 1}
		theirs := rapid.IntRange(0, decode-1).Draw(t, "decode rank")
		ours := rapid.IntRange(0, prefill-1).Draw(t, "rank")
		p := geometry.Pairing{Prefill: geometry.Sizes{TP: prefill, CP: 1, PP: 1}, Decode: geometry.Sizes{TP: decode, CP: 1, PP: 1}}
		served, err := p.Served(geometry.Rank{TP: ours})
		if err != nil {
			t.Fatal(err)
		}
		theirs = served[theirs%len(served)].TP
		src, dst := uint64(max(1, h.Heads/prefill)*headBytes), uint64(max(1, h.Heads/decode)*headBytes)
		want, err := h.Slice(ours, theirs, dst)
		if err != nil {
			t.Fatal(err)
		}
		s := newShapes(TopologyConfig{TPSize: prefill, PPSize: 1})
		s.put("d", shape{pageBytes: dst, ranks: decode, rank: theirs})
		have, err := s.cut("d", src, ours)
		if err != nil {
			t.Fatal(err)
		}
		if have != (geometry.Cut{SrcOff: want.Src, Len: want.Len, DstOff: want.Dst, DestPage: dst}) {
			t.Fatalf("%+v, rank %d to %d: have %+v, want %+v", h, ours, theirs, have, want)
		}
	})
}

func TestPagesThatDoNotFitAreRefused(t *testing.T) {
	s := newShapes(TopologyConfig{TPSize: 2, PPSize: 1})
	for _, sh := range []shape{{300, 1, 0}, {400, 1, 0}, {200, 2, 0}, {50, 2, 0}, {50, 0, 0}, {25, 4, 0}, {70, 4, 0}, {200, 3, 0}} {
		s.put("d", sh)
		if c, err := s.cut("d", 100, 0); err == nil {
			t.Errorf("pages of 100 bytes on 2 ranks to %+v: %+v", sh, c)
		}
	}
}
