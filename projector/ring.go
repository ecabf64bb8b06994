package projector

// Ring hands out a decode rank's staging ring (wire.md 1.7). A position counts
// the bytes handed out since the ring began, and never goes back: round times
// Size plus the offset in the ring. What lies in [oldest live span, Head) is
// held; the space of a freed span comes back when every older one is free too.
type Ring struct {
	Size uint64 // bytes; 0 = no ring
	Item uint64 // bytes a page takes in it
	Head uint64 // position behind the newest span
	Live []Span // not freed, oldest first
	// NextSize and NextItem are those of memory that was registered anew, taken
	// over when the last span of the old one is free.
	NextSize, NextItem uint64
}

// Span is the part of a ring that a chunk of a room has.
type Span struct {
	Room     roomKey
	Chunk    uint32
	From, To uint64 // positions
}

// resize takes over the ring of a registration. A span of the one before may
// still be written to.
func (g *Ring) resize(size, item uint64) {
	g.NextSize, g.NextItem = size, item
	g.settle()
}

func (g *Ring) settle() {
	if len(g.Live) > 0 || g.NextSize == g.Size && g.NextItem == g.Item {
		return
	}
	g.Size, g.Item, g.Head = g.NextSize, g.NextItem, 0
}

// fits: n bytes will fit at some time.
func (g *Ring) fits(n uint64) bool { return n > 0 && n <= g.NextSize }

// place says where n bytes go; false: not before an older span is free. A span
// does not reach over the ring's end.
func (g *Ring) place(n uint64) (from uint64, ok bool) {
	if n == 0 || n > g.Size || g.Size != g.NextSize || g.Item != g.NextItem {
		return 0, false
	}
	from = g.Head
	if left := g.Size - from%g.Size; n > left {
		from += left
	}
	return from, len(g.Live) == 0 || from+n-g.Live[0].From <= g.Size
}

// take records a span.
func (g *Ring) take(s Span) {
	g.Live = append(g.Live, s)
	g.Head = max(g.Head, s.To)
}

// free gives back all spans of a room.
func (g *Ring) free(room roomKey) {
	live := g.Live[:0:0]
	for _, s := range g.Live {
		if s.Room != room {
			live = append(live, s)
		}
	}
	g.Live = live
	g.settle()
}

// watermark is up to where the ring is free, as WATERMARK says it: all of the
// rounds before round, and round up to tail.
func (g *Ring) watermark() (round, tail uint64) {
	if g.Size == 0 {
		return 0, 0
	}
	at := g.Head
	if len(g.Live) > 0 {
		at = g.Live[0].From
	}
	return at / g.Size, at % g.Size
}

// mayWrite is prefill's rule for a span of a round that ends at end (wire.md
// 1.7): the round before has been freed up to there.
func mayWrite(round, end, markRound, markTail uint64) bool {
	return round == 0 || markRound > round-1 || markRound == round-1 && end <= markTail
}
