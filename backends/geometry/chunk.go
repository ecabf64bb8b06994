package geometry

import "fmt"

// Memory is a decode rank's registered memory.
type Memory struct {
	KV    []Buffer
	Aux   []Buffer
	State []Component
}

// Chunk is one step of a room's transfer, as one prefill rank is given it.
type Chunk struct {
	Pages []uint32 // all of the destination's pages, in token order behind the decode prefix
	First int      // index_slice: places [First, First+Count) of Pages
	Count int
	Total int // pages of the whole request (num_kv_indices); 0: as many as Pages
	// Source are the rank's own pages of the slice; nil: each stretch of
	// neighbours on the destination's side counts as one on the source's too.
	Source []uint32
	Last   bool // aux and state go with it
	Aux    *uint32
	State  []Items // by component
}

// Writer is one prefill rank on its way to one decode rank.
type Writer struct {
	Pairing  Pairing
	From     Rank  // prefill
	To       Rank  // decode
	Entries  []int // of each own KV entry, the decode's: see MatchLayers
	Heads    int   // KV heads of the whole model; used when a page is shared by head
	PageSize int   // tokens a page; likewise
	// AuxFromLastPP: only the last stage sends the aux rows, as in Mori.
	AuxFromLastPP bool
}

// Writes lists what the rank writes for a chunk: KV ranges for every entry and,
// with the last chunk, state items and the aux row. Empty for a dummy, and for
// a rank outside the room. It is an error if a single byte of it would be
// outside the memory.
func (w Writer) Writes(m Memory, c Chunk) ([]Write, error) {
	served, err := w.Pairing.Served(w.From)
	if err != nil {
		return nil, err
	}
	reached := false
	for _, d := range served {
		reached = reached || d == w.To
	}
	if !reached || w.Pairing.Model == MLA && !w.Pairing.SendsKV(w.From) {
		return nil, nil
	}
	var out []Write
	if w.Pairing.SendsKV(w.From) {
		if out, err = w.kv(m, c); err != nil {
			return nil, err
		}
	}
	if !c.Last {
		return out, nil
	}
	if w.From.CP == 0 { // replicated state is sent once
		state, err := w.state(m, c)
		if err != nil {
			return nil, err
		}
		out = append(out, state...)
	}
	if c.Aux == nil || w.AuxFromLastPP && w.From.PP != w.Pairing.Prefill.PP-1 {
		return out, nil
	}
	for i, b := range m.Aux {
		r, err := b.Items(*c.Aux, 1)
		if err != nil {
			return nil, fmt.Errorf("aux buffer %d: %w", i, err)
		}
		out = append(out, Write{Kind: Aux, Entry: i, Item: *c.Aux, First: r, Times: 1})
	}
	return out, nil
}

// slice is the chunk's part of the destination list that this rank writes, and
// the sources of it.
func (w Writer) slice(c Chunk) (dst, src []uint32, err error) {
	if c.First < 0 || c.Count < 0 || c.First > len(c.Pages) || len(c.Source) != 0 && len(c.Source) != c.Count {
		return nil, nil, fmt.Errorf("places %d and %d on of %d pages, %d sources", c.First, c.Count, len(c.Pages), len(c.Source))
	}
	// Upstream cuts a slice that is longer than the destination's list.
	first, n := c.First, min(c.Count, len(c.Pages)-c.First)
	if w.Pairing.AllCP && w.Pairing.Prefill.CP > 1 {
		total := c.Total
		if total == 0 {
			total = len(c.Pages)
		}
		at, size, err := CPWindow(total, w.From.CP, w.Pairing.Prefill.CP)
		if err != nil {
			return nil, nil, err
		}
		first, n = cut(first, n, at, size)
	}
	dst = c.Pages[first : first+n]
	if len(c.Source) != 0 {
		src = c.Source[first-c.First : first-c.First+n]
	}
	return dst, src, nil
}

func (w Writer) kv(m Memory, c Chunk) ([]Write, error) {
	dst, src, err := w.slice(c)
	if err != nil || len(dst) == 0 {
		return nil, err
	}
	runs, err := Runs(src, dst)
	if err != nil {
		return nil, err
	}
	out := make([]Write, 0, len(runs)*len(w.Entries))
	for _, e := range w.Entries {
		if e < 0 || e >= len(m.KV) {
			return nil, fmt.Errorf("kv entry %d of %d", e, len(m.KV))
		}
		b := m.KV[e]
		part, err := w.part(b.Item)
		if err != nil {
			return nil, fmt.Errorf("kv entry %d: %w", e, err)
		}
		for _, run := range runs {
			r, err := b.Items(run.Dst, run.Len)
			if err != nil {
				return nil, fmt.Errorf("kv entry %d: %w", e, err)
			}
			x := Write{Kind: KV, Entry: e, Item: run.Dst, First: r, Times: 1}
			if !part.Whole() { // a slice of every token, right through the run
				x.First = Range{Start: r.Start + part.Dst, End: r.Start + part.Dst + part.Len}
				x.Stride, x.Times = part.DstToken, run.Len*w.PageSize
			}
			out = append(out, x)
		}
	}
	return out, nil
}

// part is the rank's share of each token of a page; all of it with equal TP or
// MLA.
func (w Writer) part(item uint64) (Slice, error) {
	p := w.Pairing
	if p.Model != GQA || p.Prefill.TP == p.Decode.TP {
		return Slice{Len: item, SrcToken: item, DstToken: item}, nil
	}
	h := HeadSplit{Heads: w.Heads, PrefillTP: p.Prefill.TP, DecodeTP: p.Decode.TP, PageSize: w.PageSize}
	return h.Slice(w.From.TP, w.To.TP, item)
}
