package geometry

import (
	"slices"
	"testing"
)

// ranges lists every address range of the writes of one kind, in order.
func ranges(ws []Write, kind Kind) []Range {
	var out []Range
	for _, w := range ws {
		if w.Kind == kind {
			out = slices.AppendSeq(out, w.Ranges())
		}
	}
	return out
}

var (
	single   = Pairing{Prefill: Sizes{1, 1, 1}, Decode: Sizes{1, 1, 1}}
	kvMemory = Memory{
		KV:  []Buffer{{Base: 0x7f0000000000, Item: 65536, Len: 16 * 65536}, {Base: 0x7f0000100000, Item: 65536, Len: 16 * 65536}},
		Aux: []Buffer{{Base: 0x560000001000, Item: 128}},
	}
)

// The worked example of wire.md 5.
func TestWorkedExample(t *testing.T) {
	w := Writer{Pairing: single, Entries: []int{0, 1}}
	row := uint32(9)
	ws, err := w.Writes(kvMemory, Chunk{
		Pages: []uint32{2, 3, 4, 9}, Count: 4, Source: []uint32{20, 21, 22, 7}, Last: true, Aux: &row,
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []Range{
		{0x7f0000020000, 0x7f0000050000}, {0x7f0000090000, 0x7f00000a0000},
		{0x7f0000120000, 0x7f0000150000}, {0x7f0000190000, 0x7f00001a0000},
	}
	if got := ranges(ws, KV); !slices.Equal(got, want) {
		t.Errorf("have %x, want %x", got, want)
	}
	if got := ranges(ws, Aux); !slices.Equal(got, []Range{{0x560000001480, 0x560000001500}}) {
		t.Errorf("aux: have %x", got)
	}
}

func TestSourceThatJumpsSplitsARun(t *testing.T) {
	runs, err := Runs([]uint32{5, 6, 9, 10}, []uint32{1, 2, 3, 4})
	if want := []Run{{5, 1, 2}, {9, 3, 2}}; err != nil || !slices.Equal(runs, want) {
		t.Errorf("have %v, %v, want %v", runs, err, want)
	}
	if runs, _ = Runs(nil, []uint32{1<<32 - 1, 0}); len(runs) != 2 {
		t.Errorf("page 2^32-1 and page 0 are neighbours: %v", runs)
	}
	if _, err := Runs([]uint32{1}, []uint32{1, 2}); err == nil {
		t.Error("one source for two pages is taken")
	}
}

func TestChunkIsItsSliceOfTheList(t *testing.T) {
	w := Writer{Pairing: single, Entries: []int{0}}
	pages := []uint32{1, 2, 3, 4, 5}
	item := func(p uint64) Range { return Range{0x7f0000000000 + p*65536, 0x7f0000000000 + (p+1)*65536} }
	for _, c := range []struct {
		first, count int
		want         []Range
	}{
		{0, 1, []Range{item(1)}},
		{3, 1, []Range{item(4)}},
		{3, 9, []Range{{item(4).Start, item(5).End}}}, // cut at the end of the list
		{5, 2, nil},
	} {
		ws, err := w.Writes(kvMemory, Chunk{Pages: pages, First: c.first, Count: c.count})
		if err != nil {
			t.Fatal(err)
		}
		if got := ranges(ws, KV); !slices.Equal(got, c.want) {
			t.Errorf("slice %d+%d: have %x, want %x", c.first, c.count, got, c.want)
		}
	}
}

func TestBadChunksAreRefused(t *testing.T) {
	w := Writer{Pairing: single, Entries: []int{0, 1}}
	row := uint32(1 << 31)
	for name, c := range map[string]Chunk{
		"page outside the buffer": {Pages: []uint32{16}, Count: 1},
		"first behind the list":   {Pages: []uint32{1}, First: 2, Count: 1},
		"negative first":          {Pages: []uint32{1}, First: -1, Count: 1},
		"negative count":          {Pages: []uint32{1}, Count: -1},
		"sources do not fit":      {Pages: []uint32{1, 2}, Count: 2, Source: []uint32{1}},
		"state without component": {Last: true, State: []Items{{Dst: []uint32{1}}}},
	} {
		if ws, err := w.Writes(kvMemory, c); err == nil {
			t.Errorf("%s: %v", name, ws)
		}
	}
	m := Memory{Aux: []Buffer{{Base: 1 << 63, Item: 1 << 62}}}
	if ws, err := (Writer{Pairing: single}).Writes(m, Chunk{Last: true, Aux: &row}); err == nil {
		t.Errorf("an address past 2^64: %v", ws)
	}
	if ws, err := (Writer{Pairing: single, Entries: []int{2}}).Writes(kvMemory, Chunk{Pages: []uint32{1}, Count: 1}); err == nil {
		t.Errorf("entry 2 of 2: %v", ws)
	}
}

func TestAuxOfMoriComesFromTheLastStage(t *testing.T) {
	p := Pairing{Prefill: Sizes{1, 1, 2}, Decode: Sizes{1, 1, 1}}
	row := uint32(3)
	c := Chunk{Last: true, Aux: &row}
	for pp, want := range []int{0, 1} {
		ws, err := Writer{Pairing: p, From: Rank{PP: pp}, AuxFromLastPP: true}.Writes(kvMemory, c)
		if err != nil || len(ws) != want {
			t.Errorf("stage %d: %v, %v", pp, ws, err)
		}
		if ws, err = (Writer{Pairing: p, From: Rank{PP: pp}}).Writes(kvMemory, c); err != nil || len(ws) != 1 {
			t.Errorf("stage %d of the other dialects: %v, %v", pp, ws, err)
		}
	}
}

func TestDummiesAndStrangersWriteNothing(t *testing.T) {
	p := Pairing{Prefill: Sizes{4, 1, 1}, Decode: Sizes{2, 1, 1}, Model: MLA}
	row := uint32(1)
	c := Chunk{Pages: []uint32{1}, Count: 1, Last: true, Aux: &row}
	w := Writer{Pairing: p, To: Rank{TP: 1}, Entries: []int{0}}
	for tp, want := range []int{0, 0, 2, 0} {
		w.From.TP = tp
		ws, err := w.Writes(kvMemory, c)
		if err != nil || len(ws) != want {
			t.Errorf("tp %d: %v, %v", tp, ws, err)
		}
	}
	w.Pairing.Model, w.From.TP = HybridMLA, 3 // no KV, but its aux
	if ws, err := w.Writes(kvMemory, c); err != nil || len(ws) != 1 || ws[0].Kind != Aux {
		t.Errorf("hybrid MLA, second rank: %v, %v", ws, err)
	}
}

func TestStateItems(t *testing.T) {
	mem := Memory{State: []Component{
		{Kind: StateMamba, Buffers: []Buffer{{Base: 1000, Item: 10}}},
		{Kind: StateSWA, Buffers: []Buffer{{Base: 2000, Item: 10}}},
		{Kind: StateSWARing, Buffers: []Buffer{{Base: 3000, Item: 10}, {Base: 4000, Item: 20}}, Entries: []int{1}},
	}}
	w := Writer{Pairing: single}
	c := Chunk{Last: true, State: []Items{{[]uint32{3}, 1}, {[]uint32{1, 2, 5}, 2}, {[]uint32{7, 8}, -1}}}
	ws, err := w.Writes(mem, c)
	want := []Range{{1030, 1040}, {2010, 2030}, {4140, 4180}}
	if got := ranges(ws, State); err != nil || !slices.Equal(got, want) {
		t.Errorf("have %v, %v, want %v", got, err, want)
	}
	c.Last = false
	if ws, err = w.Writes(mem, c); err != nil || len(ws) != 0 {
		t.Errorf("not the last chunk: %v, %v", ws, err)
	}
	both := single
	both.Prefill.CP, both.AllCP = 2, true
	c.Last = true
	if ws, err = (Writer{Pairing: both, From: Rank{CP: 1}}).Writes(mem, c); err != nil || len(ws) != 0 {
		t.Errorf("state is replicated over cp, and rank 1 sends it again: %v, %v", ws, err)
	}
	wide := single
	wide.Prefill.TP = 2
	for name, x := range map[string]struct {
		p     Pairing
		kind  StateKind
		items Items
	}{
		"two mamba items":      {single, StateMamba, Items{[]uint32{1, 2}, 2}},
		"ring of other length": {single, StateSWARing, Items{[]uint32{1, 2}, 1}},
		"pages cut by head":    {wide, StateSWA, Items{[]uint32{1}, 1}},
		"index with other tp":  {wide, StateMinimaxIndexK, Items{[]uint32{1}, 1}},
		"a kind not known":     {single, "other", Items{[]uint32{1}, 1}},
		"an item far outside":  {single, StateDSA, Items{[]uint32{1 << 31}, 1}},
	} {
		m := Memory{State: []Component{{Kind: x.kind, Buffers: []Buffer{{Base: 1000, Item: 10, Len: 100}}}}}
		if ws, err := (Writer{Pairing: x.p}).Writes(m, Chunk{Last: true, State: []Items{x.items}}); err == nil {
			t.Errorf("%s: %v", name, ws)
		}
	}
	wide.Model = HybridMLA
	m := Memory{State: []Component{{Kind: StateSWA, Buffers: []Buffer{{Base: 1000, Item: 10}}}}}
	if ws, err := (Writer{Pairing: wide}).Writes(m, Chunk{Last: true, State: []Items{{[]uint32{1}, 1}}}); err != nil || len(ws) != 1 {
		t.Errorf("pages of MLA with another tp: %v, %v", ws, err)
	}
}

func TestStagingAndTokens(t *testing.T) {
	ring := Buffer{Base: 0x1000, Len: 0x100}
	if r, err := StagedRange(ring, 0x40, 0x80); err != nil || r != (Range{0x1040, 0x1080}) {
		t.Errorf("have %x, %v", r, err)
	}
	for _, x := range [][2]uint64{{0x40, 0x101}, {2, 1}, {1 << 63, 1<<63 + 1}} {
		if r, err := StagedRange(ring, x[0], x[1]); err == nil {
			t.Errorf("%x gives %x", x, r)
		}
	}
	b := Buffer{Base: 1 << 20, Item: 640, Len: 6400}
	if r, err := TokenRange(b, 65, 64); err != nil || r != (Range{1<<20 + 650, 1<<20 + 660}) {
		t.Errorf("have %v, %v", r, err)
	}
	for _, x := range []struct {
		token uint64
		page  int
	}{{640, 64}, {1 << 63, 64}, {1<<64 - 1, 64}, {0, 63}, {0, 0}} {
		if r, err := TokenRange(b, x.token, x.page); err == nil {
			t.Errorf("token %d of pages of %d gives %v", x.token, x.page, r)
		}
	}
}

func TestMatchLayers(t *testing.T) {
	for _, c := range []struct {
		name            string
		prefill, decode Layers
		split           bool
		want            []int
	}{
		{"as many", Layers{Entries: 3, Start: 7}, Layers{Entries: 3}, true, []int{0, 1, 2}},
		{"MHA stage", Layers{Entries: 4, Start: 2}, Layers{Entries: 8}, true, []int{2, 3, 6, 7}},
		{"MLA stage", Layers{Entries: 2, Start: 2}, Layers{Entries: 4}, false, []int{2, 3}},
		{"by id", Layers{Entries: 4, IDs: []uint32{1, 2, 1, 2}}, Layers{Entries: 6, IDs: []uint32{0, 1, 2, 0, 1, 2}}, true, []int{1, 2, 4, 5}},
		{"ids on one side only", Layers{Entries: 2, IDs: []uint32{5, 5}}, Layers{Entries: 2}, true, []int{0, 1}},
	} {
		if got, err := MatchLayers(c.prefill, c.decode, c.split); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: have %v, %v, want %v", c.name, got, err, c.want)
		}
	}
	for name, c := range map[string][2]Layers{
		"odd":              {{Entries: 3}, {Entries: 8}},
		"behind the end":   {{Entries: 4, Start: 3}, {Entries: 8}},
		"far behind":       {{Entries: 4, Start: 1<<63 - 1}, {Entries: 8}},
		"layer not there":  {{Entries: 1, IDs: []uint32{4}}, {Entries: 1, IDs: []uint32{3}}},
		"ids do not fit":   {{Entries: 2, IDs: []uint32{4}}, {Entries: 1, IDs: []uint32{4}}},
		"negative entries": {{Entries: -2}, {Entries: 8}},
	} {
		if got, err := MatchLayers(c[0], c[1], true); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}
