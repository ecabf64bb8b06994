package geometry

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pdlog/pdlog/events"
)

func place(tp, rank, pp, stage int) *events.NodeStarted {
	return &events.NodeStarted{PageSize: 4, Place: &events.Place{
		TpSize: uint32(tp), TpRank: uint32(rank), PpSize: uint32(pp), PpRank: uint32(stage), CpSize: 1, //nolint:gosec // small
	}}
}

// What is read out of a log for the pools of an SGLang decode is what the rules
// of wire.md 5 give, for any pair of TP sizes, heads that several ranks hold
// included.
func TestLoggedChunkWritesWhatTheRulesSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Pairing{
			Prefill: Sizes{TP: 1 << rapid.IntRange(0, 3).Draw(t, "prefill"), CP: 1, PP: 1},
			Decode:  Sizes{TP: 1 << rapid.IntRange(0, 3).Draw(t, "decode"), CP: 1, PP: 1},
		}
		heads := 1 << rapid.IntRange(0, 5).Draw(t, "heads")
		const headBytes, tokens, layers = 6, 4, 3
		item := func(tp int) uint64 { return uint64(max(1, heads/tp) * headBytes * tokens) } //nolint:gosec // positive
		from := Rank{TP: rapid.IntRange(0, p.Prefill.TP-1).Draw(t, "from")}
		served, err := p.Served(from)
		if err != nil {
			t.Fatal(err)
		}
		to := rapid.SampledFrom(served).Draw(t, "to")
		m := Memory{Aux: []Buffer{{Base: 0x500, Item: 32}}}
		peer := &events.PeerMemory{TpSize: uint32(p.Decode.TP), TpRank: uint32(to.TP), AuxPtrs: []uint64{0x500}} //nolint:gosec // small
		for e := range layers {
			b := Buffer{Base: uint64(e+1) << 32, Item: item(p.Decode.TP)} //nolint:gosec // small
			m.KV = append(m.KV, b)
			peer.KvPtrs, peer.KvItemBytes = append(peer.KvPtrs, b.Base), append(peer.KvItemBytes, b.Item)
		}
		pages := rapid.SliceOfNDistinct(rapid.Uint32Range(0, 20), 1, 8, rapid.ID[uint32]).Draw(t, "pages")
		source := rapid.SliceOfN(rapid.Uint32Range(0, 20), len(pages), len(pages)).Draw(t, "source")
		row := uint32(7)
		want, err := Writer{Pairing: p, From: from, To: to, Entries: []int{0, 1, 2}, Heads: heads, PageSize: tokens}.Writes(m,
			Chunk{Pages: pages, Count: len(pages), Source: source, Last: true, Aux: &row})
		if err != nil {
			t.Fatal(err)
		}
		l := Logged{
			Started: place(p.Prefill.TP, 0, 1, 0), Peer: &events.PeerRegistered{Memory: peer}, Rank: from.TP,
			Source: &events.MemoryRegistered{ItemBytes: layers * item(p.Prefill.TP), AuxBytes: 32},
		}
		have, err := l.Writes(&events.ChunkPosted{Pages: pages, SourcePages: source, Last: true}, &row)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(ranges(have, KV), ranges(want, KV)) || !slices.Equal(ranges(have, Aux), ranges(want, Aux)) {
			t.Fatalf("%+v, %d heads, %v to %v: have %+v, want %+v", p, heads, from, to, have, want)
		}
	})
}

// Between pdlog nodes all prefill ranks and stages of a decode rank together
// write each page wholly, each byte once.
func TestLoggedOpaquePagesAreCoveredOnce(t *testing.T) {
	for _, c := range []struct{ tp, pp, decode int }{{1, 1, 1}, {4, 1, 2}, {4, 2, 1}, {1, 2, 1}, {1, 1, 2}} {
		const dst = 64
		src := uint64(dst / c.pp * c.decode / c.tp) //nolint:gosec // small
		var all []Range
		for tp := range c.tp {
			for pp := range c.pp {
				if tp/max(1, c.tp/c.decode) != 0 { // another decode rank's
					continue
				}
				l := Logged{
					Started: place(c.tp, tp, c.pp, pp), Source: &events.MemoryRegistered{ItemBytes: src},
					Peer: &events.PeerRegistered{PeerBoot: 1, Memory: &events.PeerMemory{
						KvPtrs: []uint64{0}, KvItemBytes: []uint64{dst}, TpSize: uint32(c.decode), //nolint:gosec // small
					}},
				}
				ws, err := l.Writes(&events.ChunkPosted{Pages: []uint32{3, 4, 9}, SourcePages: []uint32{0, 1, 2}}, nil)
				if err != nil {
					t.Fatalf("%+v: %v", c, err)
				}
				all = append(all, ranges(ws, KV)...)
			}
		}
		slices.SortFunc(all, func(a, b Range) int { return int(a.Start) - int(b.Start) }) //nolint:gosec // small
		bytes := uint64(0)
		for i, r := range all {
			bytes += r.Len()
			if i > 0 && r.Start < all[i-1].End {
				t.Errorf("%+v: %v overlaps %v", c, r, all[i-1])
			}
		}
		if bytes != 3*dst || all[0].Start != 3*dst || all[len(all)-1].End != 10*dst {
			t.Errorf("%+v: %v", c, all)
		}
	}
}

// A staged chunk lies in the ring: its pages one behind the other from the place
// it was given on, each writer's part of them.
func TestLoggedStagedChunkLiesInTheRing(t *testing.T) {
	l := Logged{
		Started: place(2, 0, 1, 0), Source: &events.MemoryRegistered{ItemBytes: 32}, Rank: 1,
		Peer: &events.PeerRegistered{PeerBoot: 1, Memory: &events.PeerMemory{
			KvPtrs: []uint64{0}, KvItemBytes: []uint64{64}, TpSize: 1, StagingBase: 1 << 20, StagingBytes: 1000,
		}},
	}
	c := &events.ChunkPosted{Pages: []uint32{9, 3}, SourcePages: []uint32{5, 7}, StagingOffset: 200, StagingEnd: 328}
	ws, err := l.Writes(c, nil)
	if want := []Range{{1<<20 + 232, 1<<20 + 264}, {1<<20 + 296, 1<<20 + 328}}; err != nil || !slices.Equal(ranges(ws, Staging), want) || len(ranges(ws, KV)) != 0 {
		t.Errorf("have %v, %v, want %v", ws, err, want)
	}
	c.StagingEnd = 1001
	if ws, err = l.Writes(c, nil); err == nil {
		t.Errorf("outside the ring: %v", ws)
	}
}

func TestLoggedStageHoldsItsLayers(t *testing.T) {
	l := Logged{
		Started: place(1, 0, 2, 1), Source: &events.MemoryRegistered{ItemBytes: 80},
		Peer: &events.PeerRegistered{Memory: &events.PeerMemory{
			KvPtrs: []uint64{1000, 2000, 3000, 4000}, KvItemBytes: []uint64{40, 40, 40, 40}, KvLayers: []uint32{0, 1, 0, 1},
		}},
	}
	c := &events.ChunkPosted{Pages: []uint32{2}, SourcePages: []uint32{0}}
	ws, err := l.Writes(c, nil)
	if want := []Range{{2080, 2120}, {4080, 4120}}; err != nil || !slices.Equal(ranges(ws, KV), want) {
		t.Errorf("have %v, %v, want %v", ws, err, want)
	}
	l.Peer.Memory.KvLayers = nil
	if ws, err = l.Writes(c, nil); err == nil {
		t.Errorf("no layer ids, and still %v", ws)
	}
}

func TestLoggedWithoutShapesSaysSo(t *testing.T) {
	for name, l := range map[string]Logged{
		"nothing":   {},
		"no source": {Peer: &events.PeerRegistered{Memory: &events.PeerMemory{KvPtrs: []uint64{0}, KvItemBytes: []uint64{4}}}},
		"no length": {Source: &events.MemoryRegistered{ItemBytes: 4}, Peer: &events.PeerRegistered{Memory: &events.PeerMemory{KvPtrs: []uint64{0}}}},
		"a misfit":  {Source: &events.MemoryRegistered{ItemBytes: 3}, Peer: &events.PeerRegistered{Memory: &events.PeerMemory{KvPtrs: []uint64{0}, KvItemBytes: []uint64{4}}}},
	} {
		if ws, err := l.Writes(&events.ChunkPosted{Pages: []uint32{1}, SourcePages: []uint32{1}}, nil); err == nil {
			t.Errorf("%s: %v", name, ws)
		}
	}
}
