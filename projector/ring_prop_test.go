package projector

import (
	"testing"

	"pgregory.net/rapid"
)

// No two live spans share a byte, none leaves the ring, prefill's own rule lets
// a span be written the moment it is handed out, and when all are free the whole
// ring can be had again.
func TestRingNeverHandsOutAByteTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Uint64Range(1, 64).Draw(t, "size")
		g := &Ring{}
		g.resize(size, 1)
		live := map[roomKey][][2]uint64{} // offsets
		next := roomKey(1)
		steps := rapid.IntRange(1, 60).Draw(t, "steps")
		for range steps {
			rooms := sortedKeys(live)
			if len(rooms) > 0 && rapid.Bool().Draw(t, "free") {
				r := rapid.SampledFrom(rooms).Draw(t, "room")
				g.free(r)
				delete(live, r)
				continue
			}
			n := rapid.Uint64Range(1, size).Draw(t, "bytes")
			from, ok := g.place(n)
			if !ok {
				if len(live) == 0 {
					t.Fatalf("%d of %d bytes do not fit an empty ring: %+v", n, size, g)
				}
				continue
			}
			room := next
			if len(rooms) > 0 && rapid.Bool().Draw(t, "same room") {
				room = rapid.SampledFrom(rooms).Draw(t, "of")
			}
			next++
			g.take(Span{Room: room, From: from, To: from + n})
			off := from % size
			if off+n > size {
				t.Fatalf("%d bytes at %d leave the ring of %d", n, off, size)
			}
			for r, spans := range live {
				for _, s := range spans {
					if off < s[1] && s[0] < off+n {
						t.Fatalf("[%d,%d) was handed out while room %d has [%d,%d)", off, off+n, r, s[0], s[1])
					}
				}
			}
			live[room] = append(live[room], [2]uint64{off, off + n})
			if round, tail := g.watermark(); !mayWrite(from/size, off+n, round, tail) {
				t.Fatalf("round %d up to %d may not be written at watermark %d, %d", from/size, off+n, round, tail)
			}
		}
		for _, r := range sortedKeys(live) {
			g.free(r)
		}
		if from, ok := g.place(size); !ok || from%size != 0 || len(g.Live) != 0 {
			t.Fatalf("all is free, and the whole ring cannot be had: %+v", g)
		}
	})
}

// prefill's rule, as wire.md 1.7 writes it.
func TestStagedWritesWaitForTheWatermark(t *testing.T) {
	for _, c := range []struct {
		round, end, markRound, markTail uint64
		want                            bool
	}{
		{0, 100, 0, 0, true},
		{1, 100, 0, 99, false},
		{1, 100, 0, 100, true},
		{1, 100, 1, 0, true},
		{2, 10, 0, 1000, false},
		{2, 10, 1, 9, false},
		{2, 10, 2, 0, true},
	} {
		if have := mayWrite(c.round, c.end, c.markRound, c.markTail); have != c.want {
			t.Errorf("%+v: %v", c, have)
		}
	}
}

// Memory that is registered anew takes effect when nothing of the old ring can
// be written to any more.
func TestRingOfNewMemoryWaitsForTheOld(t *testing.T) {
	g := &Ring{}
	g.resize(100, 10)
	from, _ := g.place(60)
	g.take(Span{Room: 1, From: from, To: from + 60})
	g.resize(50, 10)
	if at, ok := g.place(10); ok {
		t.Errorf("a span at %d while the old ring is held", at)
	}
	if g.fits(60) || !g.fits(50) {
		t.Error("what fits is what the newest ring holds")
	}
	g.free(1)
	if at, ok := g.place(50); !ok || at != 0 {
		t.Errorf("have %d, %v: %+v", at, ok, g)
	}
}
