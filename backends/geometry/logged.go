package geometry

import (
	"errors"
	"fmt"
	"slices"

	"github.com/pdlog/pdlog/events"
)

// Logged is what the log of a prefill node says of one of its ranks on the way
// to one decode rank: enough to turn a chunk of the log into addresses. Each is
// the newest of its kind before the chunk.
type Logged struct {
	Started *events.NodeStarted      // of the prefill node
	Source  *events.MemoryRegistered // of the local prefill rank
	Peer    *events.PeerRegistered   // of the decode rank, with that prefill rank
	Rank    int                      // local prefill rank
}

var errNoShape = errors.New("the log does not say how the memory of both sides is laid out")

// Writes lists the bytes that a posted chunk writes, as addresses of the decode
// rank's registration: of a pdlog rank they count from the start of its pages
// and of its aux rows. aux is the row of MetadataReceived; it goes with a last
// chunk. How long an aux row is the wire does not say: it is taken from the
// prefill's own rows, and of several aux buffers nothing is listed.
//
// Between pdlog nodes a page is one run of bytes, cut by Opaque. In the pools of
// an SGLang decode each entry of a page is cut at every token (wire.md 5).
func (l Logged) Writes(c *events.ChunkPosted, aux *uint32) ([]Write, error) {
	m := l.Peer.GetMemory()
	if m == nil || l.Source.GetItemBytes() == 0 {
		return nil, errNoShape
	}
	out, err := l.pages(m, c)
	if err != nil || !c.GetLast() || aux == nil || len(m.GetAuxPtrs()) != 1 || l.Source.GetAuxBytes() == 0 {
		return out, err
	}
	r, err := Buffer{Base: m.GetAuxPtrs()[0], Item: l.Source.GetAuxBytes()}.Items(*aux, 1)
	if err != nil {
		return nil, fmt.Errorf("aux row: %w", err)
	}
	return append(out, Write{Kind: Aux, Item: *aux, First: r, Times: 1}), nil
}

func (l Logged) pages(m *events.PeerMemory, c *events.ChunkPosted) ([]Write, error) {
	if len(c.GetPages()) == 0 {
		return nil, nil
	}
	o, entries, err := l.pairing(m)
	if err != nil {
		return nil, err
	}
	cut, err := o.Cut(int(l.Started.GetPlace().GetTpRank())+l.Rank, int(m.GetTpRank()))
	if err != nil {
		return nil, err
	}
	kind, pages := KV, c.GetPages()
	base := slices.Clone(m.GetKvPtrs())
	if c.GetStagingEnd() > 0 { // one behind the other, in the ring
		kind, pages = Staging, make([]uint32, len(pages))
		for i := range pages {
			pages[i] = uint32(i) //nolint:gosec // pages
		}
		if _, err := StagedRange(Buffer{Base: m.GetStagingBase(), Len: m.GetStagingBytes()}, c.GetStagingOffset(), c.GetStagingEnd()); err != nil {
			return nil, err
		}
		for _, e := range entries {
			base[e] = m.GetStagingBase() + c.GetStagingOffset()
		}
	}
	runs, err := Runs(c.GetSourcePages(), pages)
	if err != nil {
		return nil, err
	}
	opaque := l.Peer.GetPeerBoot() != 0
	tokens := l.Started.GetPageSize()
	var out []Write
	for _, e := range entries {
		item := m.GetKvItemBytes()[e]
		b := Buffer{Base: base[e], Item: item}
		for _, run := range runs {
			r, err := b.Items(run.Dst, run.Len)
			if err != nil {
				return nil, fmt.Errorf("kv entry %d: %w", e, err)
			}
			w := Write{Kind: kind, Entry: e, Item: run.Dst, First: r, Times: 1}
			switch {
			case cut.Whole():
			case opaque:
				w.First = Range{Start: r.Start + cut.DstOff, End: r.Start + cut.DstOff + cut.Len}
				w.Stride, w.Times = item, run.Len
			default:
				if tokens == 0 || item%tokens != 0 || item/tokens*cut.Len%cut.DestPage != 0 {
					return nil, fmt.Errorf("kv entry %d: a page of %d bytes is not %d tokens with a share of %d in %d each", e, item, tokens, cut.Len, cut.DestPage)
				}
				token := item / tokens
				off := token * cut.DstOff / cut.DestPage
				w.First = Range{Start: r.Start + off, End: r.Start + off + token*cut.Len/cut.DestPage}
				w.Stride, w.Times = token, run.Len*int(tokens) //nolint:gosec // tokens a page
			}
			out = append(out, w)
		}
	}
	return out, nil
}

// pairing is the cut of the entries that the writer's stage holds. Of pdlog's
// one entry a stage holds a part, in pools of several it holds whole entries.
func (l Logged) pairing(m *events.PeerMemory) (Opaque, []int, error) {
	n := len(m.GetKvPtrs())
	if n == 0 || len(m.GetKvItemBytes()) != n {
		return Opaque{}, nil, errNoShape
	}
	p := l.Started.GetPlace()
	stages, stage := int(max(p.GetPpSize(), 1)), int(p.GetPpRank())
	entries := make([]int, n)
	for i := range entries {
		entries[i] = i
	}
	o := Opaque{
		SourcePage: l.Source.GetItemBytes(), PrefillTP: int(max(p.GetTpSize(), 1)), DecodeTP: int(max(m.GetTpSize(), 1)),
		PP: stages, Stage: stage,
	}
	if l.Peer.GetPeerBoot() == 0 && stages > 1 {
		var err error
		if entries, err = ofStage(m.GetKvLayers(), n, stage, stages); err != nil {
			return Opaque{}, nil, err
		}
		o.PP, o.Stage = 1, 0
	}
	for _, e := range entries {
		o.DestPage += m.GetKvItemBytes()[e]
	}
	return o, entries, nil
}

// ofStage is the entries of the layers that one of n stages holds, which have
// as many each, in order.
func ofStage(layers []uint32, entries, stage, stages int) ([]int, error) {
	all := slices.Compact(slices.Sorted(slices.Values(layers)))
	if len(layers) != entries || len(all)%stages != 0 || stage >= stages {
		return nil, fmt.Errorf("which of %d layers stage %d of %d holds is not said", len(all), stage, stages)
	}
	per := len(all) / stages
	mine := all[stage*per : (stage+1)*per]
	var out []int
	for e, id := range layers {
		if _, ok := slices.BinarySearch(mine, id); ok {
			out = append(out, e)
		}
	}
	return out, nil
}
