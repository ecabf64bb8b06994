package geometry

import "fmt"

// Opaque pairs pages of which only the size is known: what a page of one side
// holds is the share of the other's that the sizes and the TP ranks say.
type Opaque struct {
	SourcePage uint64 // bytes of a page of prefill's rank
	DestPage   uint64 // bytes of a page of decode's rank
	PrefillTP  int
	DecodeTP   int
	PP, Stage  int // pipeline stages of prefill, and the writer's
}

// Cut is the part of a page that one rank writes: Len bytes from SrcOff of its
// own page to DstOff of the destination's page of DestPage bytes.
type Cut struct{ SrcOff, Len, DstOff, DestPage uint64 }

// Whole reports that the rank writes the destination's page as a whole.
func (c Cut) Whole() bool { return c.DstOff == 0 && c.Len == c.DestPage }

// Cut: equal pages go whole. With more ranks on prefill's side, each of them
// holds a share of decode's page, in rank order; with more on decode's, each of
// those takes its share of prefill's. Where there are more ranks than shares,
// neighbours hold copies of the same one (wire.md F30). The stages of a pipeline
// hold the layers in order: each writes its part of the page, one behind the
// other. Ranks are TP ranks of the instance.
func (o Opaque) Cut(prefill, decode int) (Cut, error) {
	stages := uint64(max(o.PP, 1)) //nolint:gosec // positive
	part := o.DestPage / stages    // of a page, that is this stage's
	c := Cut{DestPage: o.DestPage}
	switch {
	case o.SourcePage == 0 || part == 0 || part*stages != o.DestPage || o.Stage < 0 || o.Stage >= max(o.PP, 1):
		return Cut{}, o.misfit()
	case part == o.SourcePage:
		c.Len = part
	case part > o.SourcePage && part%o.SourcePage == 0:
		i, ok := share(prefill, o.PrefillTP, o.DecodeTP, part/o.SourcePage)
		if !ok {
			return Cut{}, o.misfit()
		}
		c.Len, c.DstOff = o.SourcePage, i*o.SourcePage
	case part < o.SourcePage && o.SourcePage%part == 0:
		i, ok := share(decode, o.DecodeTP, o.PrefillTP, o.SourcePage/part)
		if !ok {
			return Cut{}, o.misfit()
		}
		c.SrcOff, c.Len = i*part, part
	default:
		return Cut{}, o.misfit()
	}
	c.DstOff += uint64(o.Stage) * part //nolint:gosec // not negative
	return c, nil
}

func (o Opaque) misfit() error {
	return fmt.Errorf("pages of %d bytes on %d ranks and %d stages do not fit pages of %d bytes on %d ranks",
		o.SourcePage, o.PrefillTP, max(o.PP, 1), o.DestPage, o.DecodeTP)
}

// share is the part of n that a rank of the wider side has in a page of the
// narrower side.
func share(rank, wide, narrow int, n uint64) (uint64, bool) {
	if narrow < 1 || rank < 0 || wide < 1 || wide%narrow != 0 || uint64(wide/narrow)%n != 0 {
		return 0, false
	}
	group := wide / narrow // ranks that share one page
	copies := uint64(group) / n
	return uint64(rank%group) / copies, true //nolint:gosec // not negative
}
