package projector

import (
	"bytes"
	"slices"
	"testing"

	"github.com/pdlog/pdlog/events"
)

// The faults below were found by the fleet simulation (BUGS.md).

func startedNode(t *testing.T, c Config) *Machine {
	t.Helper()
	m := New(c)
	m.Step(At(t0), Start{Boot: 7, Incarnation: 1, LogID: make([]byte, 16)})
	return m
}

// decodeWith is a decode node that has published room 5 to both ranks of p.
func decodeWith(t *testing.T, fence events.FenceKind) (*Machine, uint64) {
	t.Helper()
	m := startedNode(t, decodeConfig(events.Policy_POLICY_FENCE))
	m.Step(At(t0), PeerDiscovered{
		Node: "p", PDLog: true, Boot: 9, Incarnation: 1, LogSince: 1, LogID: make([]byte, 16), Fence: fence, Form: events.AckForm_ACK_FORM_V3, PageSize: 64,
		Ranks: []PeerRank{{Rank: "p/0", Address: "10.0.0.1:5000", WireID: 0}, {Rank: "p/1", Address: "10.0.0.1:5001", WireID: 1}},
	})
	return m, openBoth(t, m, []uint32{1, 2})
}

func openBoth(t *testing.T, m *Machine, pages []uint32) uint64 {
	t.Helper()
	res := m.Step(At(t0), OpenRoom{Room: 5, Pages: pages, Aux: -1, Pairs: []OpenPair{{Rank: "p/0", To: "d/0"}, {Rank: "p/1", To: "d/1"}}})
	if res.Refused != nil {
		t.Fatal(res.Refused)
	}
	m.Step(At(t0), PublishResult{RoomSeq: res.RoomSeq, Rank: "p/0", To: "d/0"})
	m.Step(At(t0), PublishResult{RoomSeq: res.RoomSeq, Rank: "p/1", To: "d/1"})
	return res.RoomSeq
}

func fences(res Result) []Fence {
	var out []Fence
	for _, e := range res.Effects {
		if f, ok := e.Do.(Fence); ok {
			out = append(out, f)
		}
	}
	return out
}

func TestLastFenceQuarantines(t *testing.T) {
	m, seq := decodeWith(t, events.FenceKind_FENCE_KIND_HARD)
	m.Step(At(t0), AbortRoom{Room: 5})
	fs := fences(m.Step(At(t0+2000), Tick{}))
	if len(fs) != 2 {
		t.Fatalf("%d fences at the deadline, want 2", len(fs))
	}
	m.Step(At(t0+2001), FenceResult{RoomSeq: seq, Lease: fs[0].Lease, Evidence: events.FenceKind_FENCE_KIND_NONE})
	m.Step(At(t0+2002), FenceResult{RoomSeq: seq, Lease: fs[1].Lease, Evidence: events.FenceKind_FENCE_KIND_HARD})
	if r := m.State().Rooms[seq]; r == nil || !r.Quarantined {
		t.Error("one of two fences failed, the other held: the room is not quarantined, so nobody tries again")
	}
}

func TestHeldUseIsReachedByNumber(t *testing.T) {
	m, seq := decodeWith(t, events.FenceKind_FENCE_KIND_HARD)
	m.Step(At(t0), AbortRoom{Room: 5})
	again := openBoth(t, m, []uint32{3, 4}) // the number is used again, and that use ends
	m.Step(At(t0+1), AbortRoom{Room: 5})
	gen := m.State().Rooms[again].Gen
	for i, rank := range []uint32{0, 1} {
		m.Step(At(t0+2), WireAck{At: RankID([]string{"d/0", "d/1"}[i]), Room: 5, Rank: &rank, Generation: &gen, Ext: &Ext{
			Node: "p", Boot: 9, Incarnation: 1, LogID: make([]byte, 16), RoomSeq: again, Proof: events.Proof_PROOF_DRAINED,
		}})
	}
	if m.State().Rooms[again] != nil {
		t.Fatal("the second use is not released")
	}
	if fs := fences(m.Step(At(t0+3), FenceRoom{Room: 5})); len(fs) != 2 || fs[0].RoomSeq != seq {
		t.Errorf("an operator's fence reaches %v, want both pairs of room 5/%d", fs, seq)
	}
}

// An order about one rank is none about the others of its rooms.
func TestFenceOfARankLeavesTheOthers(t *testing.T) {
	for _, c := range []struct {
		peer string
		want []RankID
	}{
		{"p/1", []RankID{"p/1"}},
		{"p", []RankID{"p/0", "p/1"}},
		{"", []RankID{"p/0", "p/1"}},
		{"q", nil},
		{"p/", nil},
	} {
		m, seq := decodeWith(t, events.FenceKind_FENCE_KIND_HARD)
		m.Step(At(t0), AbortRoom{Room: 5})
		fs := fences(m.Step(At(t0+1), FenceRoom{Room: 5, Peer: c.peer}))
		var have []RankID
		for _, f := range fs {
			have = append(have, f.Rank)
			m.Step(At(t0+2), FenceResult{RoomSeq: seq, Lease: f.Lease, Evidence: events.FenceKind_FENCE_KIND_HARD})
		}
		if !slices.Equal(have, c.want) {
			t.Errorf("a fence of %q reaches %v, want %v", c.peer, have, c.want)
		}
		if released := m.State().Rooms[seq] == nil; released != (len(c.want) == 2) {
			t.Errorf("a fence of %q: released %v", c.peer, released)
		}
	}
}

func TestAckOfNoIncarnationProvesNothing(t *testing.T) {
	m, seq := decodeWith(t, events.FenceKind_FENCE_KIND_HARD)
	m.Step(At(t0), AbortRoom{Room: 5})
	gen, rank := m.State().Rooms[seq].Gen, uint32(0)
	x := &Ext{Node: "p", Boot: 9, Incarnation: 1, LogID: make([]byte, 16), Proof: events.Proof_PROOF_DRAINED}
	res := m.Step(At(t0+1), WireAck{At: "d/0", Room: 5, Rank: &rank, Generation: &gen, Ext: x})
	if a := res.Events[0].GetAckReceived(); a == nil || a.Counted || a.Why != events.NotCounted_NOT_COUNTED_NO_PROOF {
		t.Errorf("an ACK whose frame names no room_seq: %v, want no_proof", a)
	}
}

// A success that names no use of its number may be of an earlier one, as long as the
// rank has not answered for that: it does not count for the next.
func TestSuccessOfAnEarlierUseDoesNotCount(t *testing.T) {
	m, first := decodeWith(t, events.FenceKind_FENCE_KIND_HARD)
	m.Step(At(t0), AbortRoom{Room: 5})
	res := m.Step(At(t0), OpenRoom{Room: 5, Pages: []uint32{3}, Aux: -1, Pairs: []OpenPair{{Rank: "p/0", To: "d/0", Required: 1}}})
	if res.Refused != nil {
		t.Fatal(res.Refused)
	}
	m.Step(At(t0), PublishResult{RoomSeq: res.RoomSeq, Rank: "p/0", To: "d/0"})
	if res.RoomSeq == first || m.State().Rooms[first] == nil {
		t.Fatal("the first use is not held beside the second")
	}
	ev := m.Step(At(t0+1), WireStatus{At: "d/0", Room: 5, Rank: 0, Success: true}).Events
	if len(ev) == 0 || ev[0].GetStatusReceived() == nil || ev[0].GetStatusReceived().Counted {
		t.Errorf("it counts: %v", ev)
	}
	if r := m.State().Rooms[res.RoomSeq]; r == nil || r.Outcome != OutcomeNone {
		t.Errorf("the second use has ended: %+v", r)
	}
}

// prefillWith is a prefill node that knows decode rank d/0.
func prefillWith(t *testing.T, start Start) *Machine {
	t.Helper()
	m := New(prefillConfig())
	m.Step(At(t0), start)
	for _, at := range []RankID{"p/0", "p/1"} {
		m.Step(At(t0), WireRegister{At: at, Address: "10.0.0.2:5000", Session: "s", Ext: &Ext{Node: "d", Boot: 3, Incarnation: 1, LogID: make([]byte, 16)}})
	}
	return m
}

func metadata(at RankID, dummy bool) WireMetadata {
	return WireMetadata{At: at, Room: 5, Address: "10.0.0.2:5000", Pages: []uint32{1}, Dummy: dummy, Required: 1, Ext: &Ext{Node: "d", Boot: 3, Incarnation: 1, LogID: make([]byte, 16), RoomSeq: 44}}
}

func TestDummyThatComesFirstEndsNothing(t *testing.T) {
	m := prefillWith(t, Start{Boot: 7, Incarnation: 1, LogID: make([]byte, 16)})
	m.Step(At(t0), metadata("p/1", true))
	m.Step(At(t0+1), metadata("p/0", false))
	if n := len(m.State().PRooms); n != 1 {
		t.Errorf("%d rooms of one incarnation, want 1", n)
	}
	m.Step(At(t0+2), AwaitRoom{Room: 5, Ranks: []RankID{"p/0", "p/1"}})
	if r := m.pcurrent(5); r == nil || !r.live() || len(r.Expect) != 2 {
		t.Errorf("room 5 after its engine asked for it: %+v", r)
	}
}

func abortOf(gen, publishedBoot uint64) WireAbort {
	return WireAbort{At: "p/0", Room: 5, Address: "10.0.0.2:5000", Generation: &gen, Ext: &Ext{
		Node: "d", Boot: 3, Incarnation: 1, LogID: make([]byte, 16), RoomSeq: 44, SeenLogID: make([]byte, 16), PublishedBoot: publishedBoot,
	}}
}

func proofs(res Result) []events.Proof {
	var out []events.Proof
	for _, e := range res.Effects {
		if a, ok := e.Do.(SendAck); ok {
			out = append(out, a.Ext.Proof)
		}
	}
	return out
}

func TestOlderCopyCannotTellTwice(t *testing.T) {
	m := prefillWith(t, Start{Boot: 7, Incarnation: 4, LogID: make([]byte, 16), UnknownPast: true})
	for range 2 { // the answer to a repeat is the same
		if p := proofs(m.Step(At(t0+1), abortOf(1, 6))); len(p) != 1 || p[0] != events.Proof_PROOF_CANNOT_TELL {
			t.Errorf("a node with an unknown past answers %v for a room published to an earlier life, want cannot_tell", p)
		}
	}
	if p := proofs(m.Step(At(t0+1), WireAbort{At: "p/1", Room: 6, Address: "10.0.0.2:5000", Generation: new(uint64), Ext: &Ext{
		Node: "d", Boot: 3, Incarnation: 1, LogID: make([]byte, 16), RoomSeq: 50, SeenLogID: make([]byte, 16), PublishedBoot: 7,
	}})); len(p) != 1 || p[0] != events.Proof_PROOF_NEVER_SEEN {
		t.Errorf("for a room published to this life it answers %v, want never_seen", p)
	}
}

// A log restored from an older copy has grown past what the peer has seen of the
// lost end, two lives later: the life that told it ended below that.
func TestOlderCopyThatHasGrown(t *testing.T) {
	for _, tc := range []struct {
		name string
		boot uint64 // the life that told
		seq  func(m *Machine) uint64
		want events.Proof
	}{
		{"more than the life that told it has", 7, func(m *Machine) uint64 { return m.st.Lives[7] + 1 }, events.Proof_PROOF_CANNOT_TELL},
		{"all that the life that told it has", 7, func(m *Machine) uint64 { return m.st.Lives[7] }, events.Proof_PROOF_NEVER_SEEN},
		{"a life that the log has lost", 6, func(*Machine) uint64 { return 1 }, events.Proof_PROOF_CANNOT_TELL},
		{"a peer that does not name the life", 0, func(m *Machine) uint64 { return m.st.LifeSince - 1 }, events.Proof_PROOF_NEVER_SEEN},
	} {
		m := prefillWith(t, Start{Boot: 7, Incarnation: 1, LogID: make([]byte, 16)})
		for boot := uint64(8); boot < 10; boot++ {
			m = again(t, m)
			m.Step(At(t0+boot), Start{Boot: boot, Incarnation: boot - 6, LogID: make([]byte, 16)})
		}
		a := abortOf(1, 7)
		a.Ext.SeenBoot, a.Ext.SeenSeq = tc.boot, tc.seq(m)
		if p := proofs(m.Step(At(t0+20), a)); len(p) != 1 || p[0] != tc.want {
			t.Errorf("%s: answered %v, want %v", tc.name, p, tc.want)
		}
		if lost := tc.want == events.Proof_PROOF_CANNOT_TELL; m.st.UnknownPast != lost {
			t.Errorf("%s: unknown past %v, want %v", tc.name, m.st.UnknownPast, lost)
		}
	}
}

// again is the machine of the next life, from a snapshot.
func again(t *testing.T, m *Machine) *Machine {
	t.Helper()
	n := New(m.cfg)
	if err := n.Restore(m.Snapshot()); err != nil {
		t.Fatal(err)
	}
	return n
}

// What an ABORT says to have seen is of the life that the room was published to.
func TestSeenOfTheLifePublishedTo(t *testing.T) {
	p := &Peer{Boot: 1}
	p.seen(43)
	p.seen(40)
	p.Boot = 2
	p.seen(35)
	for boot, want := range map[uint64]SeenLife{1: {1, 43}, 2: {2, 35}, 0: {1, 43}, 3: {1, 43}} {
		if got := p.seenOf(boot); got != want {
			t.Errorf("seen of life %d: %+v, want %+v", boot, got, want)
		}
	}
	st := newState(&Config{})
	st.Rooms[9] = &Room{Pairs: []*Pair{{Rank: "p/0", Boot: 2}}}
	p.Node, p.Boot = "p", 3
	p.seen(50)
	p.Boot = 4
	p.seen(60)
	st.dropSeen(p)
	if want := []SeenLife{{2, 35}, {4, 60}}; !slices.Equal(p.Seen, want) {
		t.Errorf("kept %+v, want %+v: the life with an open room and the present one", p.Seen, want)
	}
}

func TestLowerGenerationOfAReceipt(t *testing.T) {
	m := prefillWith(t, Start{Boot: 7, Incarnation: 1, LogID: make([]byte, 16)})
	m.Step(At(t0+1), abortOf(9, 7))
	if p := proofs(m.Step(At(t0+2), abortOf(8, 7))); len(p) != 0 {
		t.Errorf("generation 8 after 9 is answered: %v", p)
	}
}

func TestBareAbortTakesNothingAway(t *testing.T) {
	m := prefillWith(t, Start{Boot: 7, Incarnation: 1, LogID: make([]byte, 16)})
	m.Step(At(t0), AwaitRoom{Room: 5, Ranks: []RankID{"p/0", "p/1"}})
	m.Step(At(t0+1), abortOf(9, 7))
	bare := func(gen *uint64) []events.Proof {
		a := abortOf(0, 0)
		a.Ext, a.Generation = nil, gen
		return proofs(m.Step(At(t0+2), a))
	}
	lower := uint64(8)
	for _, when := range []string{"with the room in the table", "with a receipt"} {
		if p := bare(nil); len(p) != 0 {
			t.Errorf("%s: an ABORT without a generation after one with 9 is answered: %v", when, p)
		}
		if p := bare(&lower); len(p) != 0 {
			t.Errorf("%s: generation 8 after 9 is answered: %v", when, p)
		}
		m.Step(At(t0+3), ClearRoom{Room: 5})
	}
}

// A rank that the room had not heard of while it was in the table.
func TestBareAbortOfAnotherRankIsRemembered(t *testing.T) {
	m := prefillWith(t, Start{Boot: 7, Incarnation: 1, LogID: make([]byte, 16)})
	m.Step(At(t0), AwaitRoom{Room: 5, Ranks: []RankID{"p/0", "p/1"}})
	m.Step(At(t0+1), abortOf(9, 7))
	m.Step(At(t0+2), ClearRoom{Room: 5})
	bare := func(gen uint64) []events.Proof {
		a := abortOf(gen, 0)
		a.Ext, a.At = nil, "p/1"
		return proofs(m.Step(At(t0+3), a))
	}
	if p := bare(9); len(p) != 1 {
		t.Errorf("generation 9 for another rank is answered %v", p)
	}
	if p := bare(8); len(p) != 0 {
		t.Errorf("generation 8 after 9 is answered: %v", p)
	}
}

// What a life has sent before its node was wiped may come after the node has asked
// what is outstanding to it: it opens nothing, and registers nobody.
func TestLateWordsOfAClosedLifeAreRefused(t *testing.T) {
	m := prefillWith(t, Start{Boot: 7, Incarnation: 1, LogID: make([]byte, 16)})
	ext := &Ext{Node: "d", Boot: 3, Incarnation: 1, LogID: make([]byte, 16), RoomSeq: 44}
	m.Step(At(t0), WireRegister{At: "p/0", Address: "10.0.0.2:5000", Session: "s", Ext: ext})
	a := m.Step(At(t0+1), PastQuestion{Node: "d", Boot: 9}).Past
	if a == nil || !a.Answered || !a.Known || a.Open != 0 {
		t.Fatalf("the answer is %+v", a)
	}
	m.Step(At(t0+2), WireRegister{At: "p/0", Address: "10.0.0.2:5000", Session: "s", Ext: ext})
	res := m.Step(At(t0+2), WireMetadata{At: "p/0", Room: 5, Address: "10.0.0.2:5000", Pages: []uint32{1}, Required: 1, Ext: ext})
	if len(m.State().PRooms) != 0 {
		t.Errorf("metadata of a closed life opens a room: %v", res.Events)
	}
	again := New(m.cfg)
	if err := again.Restore(m.Snapshot()); err != nil || !again.st.Closed[3] {
		t.Errorf("after a start from a snapshot: closed %v, %v", again.st.Closed, err)
	}
	// The next life of the same log, whose first word is late too.
	m.Step(At(t0+2), PastQuestion{Node: "d", Boot: 9, LogID: bytes.Repeat([]byte{1}, 16)})
	second := *ext
	second.Boot, second.Incarnation = 4, 2
	m.Step(At(t0+2), WireRegister{At: "p/0", Address: "10.0.0.2:5000", Session: "s", Ext: &second})
	m.Step(At(t0+2), WireMetadata{At: "p/0", Room: 5, Address: "10.0.0.2:5000", Pages: []uint32{1}, Required: 1, Ext: &second})
	if len(m.State().PRooms) != 0 {
		t.Error("metadata of a life that nobody had heard of, on a log that is over, opens a room")
	}
	now := *ext
	now.Boot, now.LogID = 9, bytes.Repeat([]byte{1}, 16)
	m.Step(At(t0+3), WireRegister{At: "p/0", Address: "10.0.0.2:5000", Session: "s", Ext: &now})
	m.Step(At(t0+3), WireMetadata{At: "p/0", Room: 5, Address: "10.0.0.2:5000", Pages: []uint32{1}, Required: 1, Ext: &now})
	if len(m.State().PRooms) != 1 {
		t.Error("the life that asked is not served")
	}
}

func TestAwaitedRoomSaysNothingOfALostUse(t *testing.T) {
	m := prefillWith(t, Start{Boot: 7, Incarnation: 4, LogID: make([]byte, 16), UnknownPast: true})
	res := m.Step(At(t0), AwaitRoom{Room: 5, Ranks: []RankID{"p/0", "p/1"}})
	if res.Refused != nil {
		t.Fatal(res.Refused)
	}
	if p := proofs(m.Step(At(t0+1), abortOf(1, 6))); len(p) != 1 || p[0] != events.Proof_PROOF_CANNOT_TELL {
		t.Errorf("a use that was published to an earlier life, of which the log's end is lost, is answered %v, want cannot_tell", p)
	}
}

// A late copy of metadata opens a room on a log that has lost the use's beginning:
// the earlier process may still write, whatever this room has posted.
func TestRoomOfALostUseSaysNothingOfIt(t *testing.T) {
	cannot := func(m *Machine, when string, c WireAbort) {
		t.Helper()
		if p := proofs(m.Step(At(t0+3), c)); len(p) != 1 || p[0] != events.Proof_PROOF_CANNOT_TELL {
			t.Errorf("%s: %v, want cannot_tell", when, p)
		}
	}
	m := prefillWith(t, Start{Boot: 7, Incarnation: 4, LogID: make([]byte, 16), UnknownPast: true})
	m.Step(At(t0+1), metadata("p/0", false))
	if len(m.State().PRooms) != 1 {
		t.Fatal("the late copy opened no room: this test says nothing")
	}
	cannot(m, "the first ABORT", abortOf(1, 6))
	cannot(m, "its repeat", abortOf(1, 6))
	again := New(m.cfg)
	if err := again.Restore(m.Snapshot()); err != nil {
		t.Fatal(err)
	}
	again.Step(At(t0+2), Start{Boot: 8, Incarnation: 5, LogID: make([]byte, 16)})
	cannot(again, "after a restart", abortOf(1, 6))
	cannot(again, "a later generation after a restart", abortOf(2, 6))
	m.Step(At(t0+4), ClearRoom{Room: 5})
	cannot(m, "after the engine has cleared it", abortOf(2, 6))

	m = prefillWith(t, Start{Boot: 7, Incarnation: 4, LogID: make([]byte, 16), UnknownPast: true})
	m.Step(At(t0+1), metadata("p/0", false))
	if p := proofs(m.Step(At(t0+3), abortOf(1, 7))); len(p) != 1 || p[0] != events.Proof_PROOF_DRAINED {
		t.Errorf("a use that was published to this life: %v, want drained", p)
	}
}

// A prefill that dies may have written what its log has no ChunkPosted of: to a
// decode node that asks for its past, a room that was taken in and has no end on
// the log is open, in the table and as a receipt. So it is not after a clean stop,
// nor for the log that asks.
func TestRoomWithoutAnEndIsOpenToTheNextLog(t *testing.T) {
	first, second := make([]byte, 16), bytes.Repeat([]byte{2}, 16)
	for _, c := range []struct {
		what           string
		clean, cleared bool
		asks           []byte
		open           int
	}{
		{"in the table", false, false, second, 1},
		{"as a receipt", false, true, second, 1},
		{"as a receipt, to a build that names no log", false, true, nil, 1},
		{"as a receipt of the log that asks", false, true, first, 0},
		{"after a clean stop", true, false, second, 0},
		{"after a clean stop, as a receipt", true, true, second, 0},
	} {
		m := prefillWith(t, Start{Boot: 7, Incarnation: 1, LogID: make([]byte, 16)})
		ext := &Ext{Node: "d", Boot: 3, Incarnation: 1, LogID: first, RoomSeq: 44}
		m.Step(At(t0), WireRegister{At: "p/0", Address: "10.0.0.2:5000", Session: "s", Ext: ext})
		m.Step(At(t0+1), WireMetadata{At: "p/0", Room: 5, Address: "10.0.0.2:5000", Pages: []uint32{1}, Required: 1, Ext: ext})
		if len(m.State().PRooms) != 1 {
			t.Fatalf("%s: the metadata opens %d rooms", c.what, len(m.State().PRooms))
		}
		if c.clean {
			m.Step(At(t0+2), Stop{})
		}
		next := New(m.cfg)
		if err := next.Restore(m.Snapshot()); err != nil {
			t.Fatal(err)
		}
		m = next
		m.Step(At(t0+3), Start{Boot: 8, Incarnation: 2, LogID: make([]byte, 16)})
		if c.cleared {
			m.Step(At(t0+4), ClearRoom{Room: 5})
			if len(m.State().PRooms) != 0 {
				t.Fatalf("%s: the room is still in the table", c.what)
			}
		}
		a := m.Step(At(t0+5), PastQuestion{Node: "d", Boot: 9, LogID: c.asks}).Past
		if a == nil || !a.Answered || !a.Known || (a.Open > 0) != (c.open > 0) {
			t.Errorf("%s: the answer is %+v, want %d open", c.what, a, c.open)
		}
	}
}

// What is dropped is answered as drained by the watermark: a room of which the log
// cannot tell keeps its receipt, however many come after it.
func TestReceiptOfARoomWithoutAnEndIsKept(t *testing.T) {
	m := prefillWith(t, Start{Boot: 7, Incarnation: 1, LogID: make([]byte, 16)})
	ext := &Ext{Node: "d", Boot: 3, Incarnation: 1, LogID: make([]byte, 16), RoomSeq: 44}
	m.Step(At(t0), WireRegister{At: "p/0", Address: "10.0.0.2:5000", Session: "s", Ext: ext})
	m.Step(At(t0+1), WireMetadata{At: "p/0", Room: 5, Address: "10.0.0.2:5000", Pages: []uint32{1}, Required: 1, Ext: ext})
	next := New(m.cfg)
	next.cfg.MaxReceipts = 4
	if err := next.Restore(m.Snapshot()); err != nil {
		t.Fatal(err)
	}
	m = next
	m.Step(At(t0+3), Start{Boot: 8, Incarnation: 2, LogID: make([]byte, 16)})
	m.Step(At(t0+4), ClearRoom{Room: 5})
	dropped := 0
	for i := range uint64(20) {
		gen := uint64(9)
		res := m.Step(At(t0+5+i), WireAbort{At: "p/0", Room: 100 + i, Address: "10.0.0.2:5000", Generation: &gen, Ext: &Ext{
			Node: "d", Boot: 3, Incarnation: 1, LogID: make([]byte, 16), RoomSeq: 45 + i, PublishedBoot: 8,
		}})
		for _, e := range res.Events {
			if e.GetReceiptDropped() != nil {
				dropped++
			}
		}
	}
	if len(m.st.receiptQ) != 4 || dropped != 17 {
		t.Errorf("%d receipts are left, %d were dropped", len(m.st.receiptQ), dropped)
	}
	gen := uint64(9)
	ps := proofs(m.Step(At(t0+30), WireAbort{At: "p/0", Room: 5, Address: "10.0.0.2:5000", Generation: &gen, Ext: abortOf(9, 7).Ext}))
	if slices.Contains(ps, events.Proof_PROOF_DRAINED) || slices.Contains(ps, events.Proof_PROOF_NEVER_SEEN) {
		t.Errorf("the room without an end is answered %v", ps)
	}
}
