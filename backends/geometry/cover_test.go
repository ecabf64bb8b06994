package geometry

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// More decode ranks than heads: neighbours share a head, and each copies that
// one, not the one its own number would name (F30).
func TestReplicatedHeadsOnDecode(t *testing.T) {
	h := HeadSplit{Heads: 4, PrefillTP: 2, DecodeTP: 8, PageSize: 4}
	for rank, want := range []uint64{0, 0, 10, 10, 0, 0, 10, 10} {
		s, err := h.Slice(rank/4, rank, 40)
		if err != nil || s.Src != want || s.Len != 10 || s.Dst != 0 || !s.Whole() || s.SrcToken != 20 {
			t.Errorf("decode rank %d: have %+v, %v, want src %d", rank, s, err, want)
		}
	}
}

func TestReplicatedHeadsOnPrefill(t *testing.T) {
	h := HeadSplit{Heads: 2, PrefillTP: 8, DecodeTP: 1, PageSize: 4}
	for rank := range 8 {
		s, err := h.Slice(rank, 0, 80)
		if want := uint64(rank/4) * 10; err != nil || s.Dst != want || s.Len != 10 || s.Whole() {
			t.Errorf("prefill rank %d: have %+v, %v, want dst %d", rank, s, err, want)
		}
	}
}

func TestHeadsThatDoNotFit(t *testing.T) {
	for _, c := range []struct {
		h    HeadSplit
		item uint64
	}{
		{HeadSplit{Heads: 6, PrefillTP: 4, DecodeTP: 2, PageSize: 4}, 48},
		{HeadSplit{Heads: 4, PrefillTP: 2, DecodeTP: 3, PageSize: 4}, 48},
		{HeadSplit{Heads: 4, PrefillTP: 2, DecodeTP: 1, PageSize: 4}, 46},
		{HeadSplit{Heads: 4, PrefillTP: 2, DecodeTP: 1, PageSize: 4}, 8},
		{HeadSplit{Heads: 4, PrefillTP: 2, DecodeTP: 1, PageSize: 4}, 0},
		{HeadSplit{Heads: 0, PrefillTP: 2, DecodeTP: 1, PageSize: 4}, 48},
		{HeadSplit{Heads: 4, PrefillTP: 2, DecodeTP: 1, PageSize: 0}, 48},
		{HeadSplit{Heads: 4, PrefillTP: 1, DecodeTP: 4, PageSize: 1}, 1<<64 - 2},
	} {
		if s, err := c.h.Slice(0, 0, c.item); err == nil {
			t.Errorf("%+v with pages of %d bytes: %+v", c.h, c.item, s)
		}
	}
}

func TestCPWindowsTileTheRequest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total, n := rapid.IntRange(0, 1000).Draw(t, "total"), rapid.IntRange(1, 20).Draw(t, "cp")
		at, least, most := 0, total, 0
		for c := range n {
			first, count, err := CPWindow(total, c, n)
			if err != nil || first != at {
				t.Fatalf("rank %d begins at %d, the one before ends at %d: %v", c, first, at, err)
			}
			at += count
			least, most = min(least, count), max(most, count)
		}
		if at != total || most-least > 1 {
			t.Fatalf("%d of %d pages, shares of %d to %d", at, total, least, most)
		}
	})
}

// All prefill ranks of a decode rank together write each of the room's pages
// wholly, and nothing else; two of them never write the same byte, unless they
// hold the same head and write the very same range.
func TestSlicesCoverEveryPageOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPairing(t)
		pageSize := rapid.IntRange(1, 4).Draw(t, "page size")
		heads := p.Prefill.TP * p.Decode.TP // divides over both
		if h := rapid.SampledFrom([]int{1, min(p.Prefill.TP, p.Decode.TP), max(p.Prefill.TP, p.Decode.TP), heads}).Draw(t, "heads"); h > 0 {
			heads = h
		}
		held := max(1, heads/p.Decode.TP)
		item := uint64(pageSize * held * rapid.IntRange(1, 3).Draw(t, "head bytes"))
		layers := p.Prefill.PP * rapid.IntRange(1, 2).Draw(t, "layers a stage")
		if p.Decode.PP > 1 {
			layers /= p.Prefill.PP
		}
		const pages = 12
		mem := Memory{}
		for e := range layers { // with gaps between, so that a byte too many shows
			mem.KV = append(mem.KV, Buffer{Base: uint64(e+1) << 32, Item: item, Len: item * pages})
		}
		list := rapid.SliceOfNDistinct(rapid.Uint32Range(0, pages-1), 1, pages, rapid.ID[uint32]).Draw(t, "pages")
		source := rapid.SliceOfN(rapid.Uint32Range(0, 30), len(list), len(list)).Draw(t, "source")
		step := rapid.IntRange(1, len(list)).Draw(t, "chunk")
		to := Rank{TP: rapid.IntRange(0, p.Decode.TP-1).Draw(t, "tp"), PP: rapid.IntRange(0, p.Decode.PP-1).Draw(t, "pp")}

		m, err := p.Map(to.TP, to.PP)
		if err != nil {
			t.Fatal(err)
		}
		var all []Range
		seen := map[Range]bool{}
		for _, x := range m.Targets {
			w := Writer{Pairing: p, From: x.Rank, To: to, Heads: heads, PageSize: pageSize}
			mine, start := layers, 0
			if p.Decode.PP == 1 {
				mine = layers / p.Prefill.PP
				start = x.PP * mine
			}
			if w.Entries, err = MatchLayers(Layers{Entries: mine, Start: start}, Layers{Entries: layers}, false); err != nil {
				t.Fatal(err)
			}
			for at := 0; at < len(list); at += step {
				n := min(step, len(list)-at)
				ws, err := w.Writes(mem, Chunk{Pages: list, First: at, Count: n, Source: source[at : at+n]})
				if err != nil {
					t.Fatal(err)
				}
				if x.Dummy && len(ws) != 0 {
					t.Fatalf("dummy %v writes %v", x.Rank, ws)
				}
				for _, wr := range ws {
					bytes, last := uint64(0), uint64(0)
					for r := range wr.Ranges() {
						last = r.End
						bytes += r.Len()
						if !seen[r] { // a copy of the same head otherwise
							seen[r] = true
							all = append(all, r)
						}
					}
					if bytes != wr.Bytes() || wr.Span() != (Range{wr.First.Start, last}) {
						t.Fatalf("%+v is %d bytes and says %d", wr, bytes, wr.Bytes())
					}
				}
			}
		}
		slices.SortFunc(all, func(a, b Range) int { return int(int64(a.Start) - int64(b.Start)) })
		var joined []Range
		for _, r := range all {
			k := len(joined) - 1
			switch {
			case k >= 0 && r.Start < joined[k].End:
				t.Fatalf("%x overlaps what ends at %x", r, joined[k].End)
			case k >= 0 && r.Start == joined[k].End:
				joined[k].End = r.End
			default:
				joined = append(joined, r)
			}
		}
		var want []Range
		sorted := slices.Sorted(slices.Values(list))
		for _, b := range mem.KV {
			for i, pg := range sorted {
				r := Range{b.Base + uint64(pg)*item, b.Base + uint64(pg+1)*item}
				if i > 0 && sorted[i-1]+1 == pg {
					want[len(want)-1].End = r.End
					continue
				}
				want = append(want, r)
			}
		}
		if !slices.Equal(joined, want) {
			t.Fatalf("%+v, %d heads: written %x, want %x", p, heads, joined, want)
		}
	})
}

// Whatever a peer says, a range lies inside the items it names, or there is an
// error.
func TestRangesNeverLeaveTheirItems(t *testing.T) {
	edge := rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, 1<<20), rapid.SampledFrom([]uint64{0, 1, 1 << 31, 1 << 32, 1 << 63, 1<<64 - 1}))
	rapid.Check(t, func(t *rapid.T) {
		p := drawPairing(t)
		b := Buffer{Base: edge.Draw(t, "base"), Item: edge.Draw(t, "item"), Len: edge.Draw(t, "len")}
		w := Writer{
			Pairing: p, Entries: []int{0}, Heads: rapid.IntRange(-1, 64).Draw(t, "heads"), PageSize: rapid.IntRange(-1, 1<<25).Draw(t, "page size"),
			From: Rank{TP: rapid.IntRange(0, p.Prefill.TP-1).Draw(t, "from")}, To: Rank{TP: rapid.IntRange(0, p.Decode.TP-1).Draw(t, "to")},
		}
		row := rapid.Uint32().Draw(t, "row")
		c := Chunk{
			Pages: rapid.SliceOfN(rapid.Uint32(), 0, 6).Draw(t, "pages"), First: rapid.IntRange(-1, 7).Draw(t, "first"),
			Count: rapid.IntRange(-1, 7).Draw(t, "count"), Last: rapid.Bool().Draw(t, "last"), Aux: &row,
		}
		ws, err := w.Writes(Memory{KV: []Buffer{b}, Aux: []Buffer{b}}, c)
		if err != nil {
			return
		}
		for _, x := range ws {
			s := x.Span()
			n := uint64(1)
			if x.Kind == KV {
				n = uint64(len(c.Pages))
			}
			lo := b.Base + uint64(x.Item)*b.Item
			if x.Times < 1 || s.End < s.Start || s.Start < lo || b.Len != 0 && s.End-b.Base > b.Len || s.Start < b.Base || s.End-lo > n*b.Item {
				t.Fatalf("%+v spans %x of %+v", x, s, b)
			}
		}
	})
}
