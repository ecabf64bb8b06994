package projector

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/pdlog/pdlog/events"
)

// checkRings: the parts of a ring that rooms hold do not overlap, and each
// belongs to a room that has not been released.
func checkRings(t *rapid.T, m *Machine) {
	for at, g := range m.st.Rings {
		for i, s := range g.Live {
			if m.st.Rooms[s.Room] == nil {
				t.Fatalf("%s: room_seq %d is gone and holds %+v", at, s.Room, s)
			}
			for _, o := range g.Live[:i] {
				if a, b := s.From%g.Size, o.From%g.Size; a < b+o.To-o.From && b < a+s.To-s.From {
					t.Fatalf("%s: %+v and %+v share bytes of the ring", at, s, o)
				}
			}
		}
	}
}

func drawRing(t *rapid.T, to, rank RankID, room, seq uint64) Command {
	chunk, first := rapid.Uint32Range(0, 2).Draw(t, "staged"), rapid.Uint32Range(0, 2).Draw(t, "first")
	n := rapid.Uint32Range(0, 3).Draw(t, "staged pages")
	session := "10.0.0.2:500" + string(rune('0'+to.Index()))
	switch rapid.IntRange(0, 6).Draw(t, "ring") {
	case 0:
		return MemoryAdded{Memory: &events.MemoryRegistered{
			Name: "rank", LocalRank: uint32(min(to.Index(), 1)), ItemBytes: 16, StagingBytes: rapid.SampledFrom([]uint64{64, 64, 64, 40, 0}).Draw(t, "size"), //nolint:gosec // small
		}}
	case 1, 2:
		return WireStagingReq{At: to, Room: room, Chunk: chunk, Pages: n, Session: session}
	case 3:
		off := rapid.Uint64Range(0, 64).Draw(t, "off")
		return Landed{Lease: seq, Room: room, RoomSeq: seq, Rank: rank, To: to, StagingOffset: off, StagingEnd: off + rapid.Uint64Range(0, 32).Draw(t, "len")}
	case 4, 5:
		return WireChunkReady{At: to, Room: room, Chunk: chunk, First: first, Pages: n, Writer: session, Rank: rapid.Uint32Range(0, 2).Draw(t, "wire")}
	}
	return CopyDone{RoomSeq: seq, Token: rapid.Uint64Range(0, 60).Draw(t, "token"), Err: rapid.SampledFrom([]string{"", "", "no"}).Draw(t, "err")}
}

// stagedRoom is a decode node with a ring of 64 bytes at each rank, and room 5
// that both ranks of p write to, one to each decode rank.
func stagedRoom(t *testing.T) (m *Machine, seq uint64) {
	t.Helper()
	m, seq = decodeWith(t, events.FenceKind_FENCE_KIND_HARD)
	for rank := range uint32(2) {
		m.Step(At(t0), MemoryAdded{Memory: &events.MemoryRegistered{Name: "rank", LocalRank: rank, ItemBytes: 16, StagingBytes: 64}})
	}
	return m, seq
}

const session0 = "10.0.0.2:5000"

func askRing(m *Machine, room uint64) []SendStagingRsp {
	var out []SendStagingRsp
	for _, e := range m.Step(At(t0), WireStagingReq{At: "d/0", Room: room, Pages: 2, Session: session0}).Effects {
		if a, ok := e.Do.(SendStagingRsp); ok {
			out = append(out, a)
		}
	}
	return out
}

func copies(res Result) []CopyStaged {
	var out []CopyStaged
	for _, e := range res.Effects {
		if a, ok := e.Do.(CopyStaged); ok {
			out = append(out, a)
		}
	}
	return out
}

func ready0(rank uint32) WireChunkReady {
	return WireChunkReady{At: "d/0", Room: 5, Pages: 2, Writer: session0, Rank: rank}
}

func landedInRing(seq uint64) Landed {
	return Landed{Room: 5, RoomSeq: seq, Rank: "p/0", To: "d/0", StagingOffset: 0, StagingEnd: 32}
}

// An open copy out of the ring holds the room and its part of the ring, whatever
// evidence has come; then both come free together (F22, the release rule).
func TestCopyOutOfTheRingHoldsTheRoom(t *testing.T) {
	m, seq := stagedRoom(t)
	if a := askRing(m, 5); len(a) != 1 || a[0].Offset != 0 || a[0].End != 32 || a[0].Address != "10.0.0.1:5000" {
		t.Fatalf("answered %+v", a)
	}
	if a := askRing(m, 5); len(a) != 1 || a[0].End != 32 || len(m.st.Rings["d/0"].Live) != 1 {
		t.Fatalf("asked again: %+v, %+v", a, m.st.Rings["d/0"])
	}
	m.Step(At(t0), landedInRing(seq))
	started := copies(m.Step(At(t0), ready0(0)))
	if len(started) != 1 || started[0].Offset != 0 || len(started[0].Pages) != 2 {
		t.Fatalf("copies %+v", started)
	}
	m.Step(At(t0), AbortRoom{Room: 5})
	gen := m.st.Rooms[seq].Gen
	for _, p := range m.st.Rooms[seq].Pairs {
		m.Step(At(t0), WireAck{At: p.To, Room: 5, Rank: &p.WireID, Generation: &gen, Ext: &Ext{
			Node: "p", Boot: 9, Incarnation: 1, RoomSeq: seq, Proof: events.Proof_PROOF_DRAINED, LogID: make([]byte, 16),
		}})
	}
	if r := m.st.Rooms[seq]; r == nil || r.owes() {
		t.Fatalf("both ranks have drained and a copy is open: %+v", r)
	}
	res := m.Step(At(t0), CopyDone{RoomSeq: seq, Token: started[0].Token})
	if m.st.Rooms[seq] != nil || len(m.st.Rings["d/0"].Live) != 0 {
		t.Fatalf("the copy has ended: %+v, %+v", m.st.Rooms[seq], m.st.Rings["d/0"])
	}
	marks := 0
	for _, e := range res.Effects {
		if _, ok := e.Do.(SendWatermark); ok {
			marks++
		}
	}
	if marks != 1 {
		t.Errorf("%d watermarks, want one for the rank that wrote", marks)
	}
}

// After the arming no copy begins, and no part of the ring is given out.
func TestNothingIsStagedAfterTheAbort(t *testing.T) {
	m, seq := stagedRoom(t)
	askRing(m, 5)
	m.Step(At(t0), landedInRing(seq))
	m.Step(At(t0), AbortRoom{Room: 5})
	if c := copies(m.Step(At(t0), ready0(0))); len(c) != 0 {
		t.Errorf("a copy after the arming: %+v", c)
	}
	if a := m.Step(At(t0), WireStagingReq{At: "d/0", Room: 5, Chunk: 1, Pages: 1, Session: session0}); len(a.Effects) != 0 || len(m.st.Rings["d/0"].Live) != 1 {
		t.Errorf("given out after the arming: %+v", a.Effects)
	}
}

// CHUNK_READY does not name a use of the number: one of an earlier use must not
// copy out what has not landed for this one.
func TestReadyOfAnEarlierUseCopiesNothing(t *testing.T) {
	m, seq := stagedRoom(t)
	askRing(m, 5)
	other := landedInRing(seq)
	other.StagingOffset, other.StagingEnd = 32, 64
	for name, c := range map[string]Command{
		"nothing has landed": ready0(0), "another part has": other, "another rank": ready0(1), "no such part": WireChunkReady{At: "d/0", Room: 5, Chunk: 1, Pages: 1, Writer: session0},
		"a stranger's session": WireChunkReady{At: "d/0", Room: 5, Pages: 2, Writer: "x"},
	} {
		if c := copies(m.Step(At(t0), c)); len(c) != 0 {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if c := copies(m.Step(At(t0), ready0(0))); len(c) != 0 {
		t.Errorf("only another part has landed: %+v", c)
	}
	m.Step(At(t0), landedInRing(seq))
	for _, n := range []uint32{0, 3} {
		c := ready0(0)
		c.Pages = n
		if c := copies(m.Step(At(t0), c)); len(c) != 0 {
			t.Errorf("%d pages: %+v", n, c)
		}
	}
	if c := copies(m.Step(At(t0), ready0(0))); len(c) != 1 {
		t.Errorf("it has landed and is ready: %+v", c)
	}
	if c := copies(m.Step(At(t0), ready0(0))); len(c) != 0 {
		t.Errorf("a repeat: %+v", c)
	}
}

// What will never fit is answered so; a room of prefills that are not pdlog too,
// since how they lay their bytes down is not known.
func TestRingThatIsTooSmallSaysNever(t *testing.T) {
	m, _ := stagedRoom(t)
	m.Step(At(t0), MemoryAdded{Memory: &events.MemoryRegistered{Name: "rank", ItemBytes: 16, StagingBytes: 31}})
	if a := askRing(m, 5); len(a) != 1 || !a[0].Never {
		t.Errorf("two pages of 16 bytes in 31: %+v", a)
	}
	n := notifiedRoom(t)
	n.Step(At(t0), MemoryAdded{Memory: &events.MemoryRegistered{Name: "rank", ItemBytes: 16, StagingBytes: 64}})
	if a := askRing(n, 7); len(a) != 2 || !a[0].Never || !a[1].Never {
		t.Errorf("a room of an SGLang prefill: %+v", a)
	}
}

// A chunk larger than what is left waits, and so does a smaller one behind it;
// both get their place when a room is released.
func TestAsksForTheRingAreServedInOrder(t *testing.T) {
	m, seq := stagedRoom(t)
	askRing(m, 5)
	res := m.Step(At(t0), OpenRoom{Room: 6, Pages: []uint32{3, 4, 5, 6}, Aux: -1, Pairs: []OpenPair{{Rank: "p/0", To: "d/0"}}})
	m.Step(At(t0), PublishResult{RoomSeq: res.RoomSeq, Rank: "p/0", To: "d/0"})
	for _, c := range []WireStagingReq{{At: "d/0", Room: 6, Pages: 3, Session: session0}, {At: "d/0", Room: 6, Chunk: 3, Pages: 1, Session: session0}} {
		if res := m.Step(At(t0), c); len(res.Effects) != 0 {
			t.Fatalf("given out: %+v", res.Effects)
		}
	}
	m.Step(At(t0), AbortRoom{Room: 5})
	for _, p := range m.st.Rooms[seq].Pairs {
		m.Step(At(t0), FenceResult{RoomSeq: seq, Lease: p.Lease})
	}
	m.Step(At(t0), ForceRelease{Room: 5})
	if g := m.st.Rings["d/0"]; len(g.Live) != 2 || g.Live[0].To-g.Live[0].From != 48 || g.Live[1].Chunk != 3 {
		t.Errorf("%+v", g)
	}
}
