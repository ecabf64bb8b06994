package projector

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/pdlog/pdlog/events"
)

const t0 = 1_700_000_000_000 // unix ms

func decodeConfig(p events.Policy) Config {
	c := DefaultConfig()
	c.Node, c.Role, c.Policy, c.Pages = "d", events.Role_ROLE_DECODE, p, 16
	c.Ranks = []LocalRank{{Address: "10.0.0.2:5000"}, {Address: "10.0.0.2:5001"}}
	c.AckTimeout, c.AbortRetry, c.WaitingTimeout, c.TransferTimeout, c.BootstrapTimeout = 2*time.Second, 300*time.Millisecond, 5*time.Second, 3*time.Second, 5*time.Second
	return c
}

func prefillConfig() Config {
	c := decodeConfig(events.Policy_POLICY_FENCE)
	c.Node, c.Role = "p", events.Role_ROLE_PREFILL
	c.Ranks = []LocalRank{{Address: "10.0.0.1:5000", WireID: 0}, {Address: "10.0.0.1:5001", WireID: 1}}
	c.MaxReceipts, c.Staging, c.Place = 4, true, &events.Place{TpSize: 2}
	return c
}

var ignoreVolatile = cmp.Options{
	protocmp.Transform(), cmpopts.EquateEmpty(),
	cmpopts.IgnoreUnexported(State{}, Room{}, Pair{}, PRoom{}, Endpoint{}, PageSlot{}, queued{}),
	cmpopts.IgnoreFields(Peer{}, "Missed"), cmpopts.IgnoreFields(Target{}, "Repeats"),
	cmpopts.IgnoreFields(PRoom{}, "Awaited"), cmpopts.IgnoreFields(Pair{}, "Required"), cmpopts.IgnoreFields(State{}, "HLC"),
}

// drive steps drawn commands and checks after each what must always hold. Half of
// the machines take their results back after some of the steps: nothing that the
// state holds may lie in them.
func drive(t *rapid.T, cfg Config, draw func(*rapid.T) Command) {
	m := New(cfg)
	reuse := rapid.Bool().Draw(t, "reuse")
	if reuse {
		m.ReuseResults()
	}
	now := uint64(t0)
	var log []*events.Event
	lastGen := uint64(0)
	step := func(c Command) {
		res := m.Step(At(now), c)
		for i, e := range res.Events {
			if want := uint64(len(log)) + 1; e.Seq != want {
				t.Fatalf("%T: event %d has seq %d, want %d", c, i, e.Seq, want)
			}
			if n := len(log); n > 0 && e.Hlc <= log[n-1].Hlc {
				t.Fatalf("%T: clock of seq %d does not grow", c, e.Seq)
			}
			if a := e.GetAbortArmed(); a != nil {
				if a.Generation <= lastGen {
					t.Fatalf("generation %d after %d", a.Generation, lastGen)
				}
				lastGen = a.Generation
			}
			log = append(log, proto.CloneOf(e))
		}
		for _, ef := range res.Effects {
			if ef.After > m.LastSeq() {
				t.Fatalf("%T: %T waits for seq %d, the log ends at %d", c, ef.Do, ef.After, m.LastSeq())
			}
		}
		if _, open := c.(OpenRoom); open && res.Refused != nil {
			for _, e := range res.Events {
				if e.GetRoomOpened() != nil {
					t.Fatalf("a refused open (%v) left %v", res.Refused, e)
				}
			}
		}
		switch {
		case !reuse:
		case rapid.IntRange(0, 9).Draw(t, "keep?") == 0:
			m.Keep()
		case rapid.Bool().Draw(t, "recycle?"):
			m.Recycle()
		}
		owned := 0
		for i := range m.st.Pages {
			if o := m.st.Pages[i].owner; o != 0 {
				owned++
				if m.st.Rooms[o] == nil {
					t.Fatalf("page %d belongs to room_seq %d, which is gone", i, o)
				}
			}
		}
		var free []uint32
		for i := range m.st.Pages {
			if m.Page(uint32(i)).State == "free" {
				free = append(free, uint32(i))
			}
		}
		if got, ok := m.FreePages(len(free)); !ok || !slices.Equal(got, free) || m.PageCounts()["free"] != len(free) {
			t.Fatalf("%T: free pages %v %v, counted %v; want %v", c, got, ok, m.PageCounts(), free)
		}
		checkRings(t, m)
		total := 0
		for _, r := range m.st.Rooms {
			total += len(r.Pages)
		}
		if owned != total {
			t.Fatalf("%d pages are owned, the rooms have %d: one has two owners or none", owned, total)
		}
	}
	step(Start{Boot: 7, Incarnation: 1, LogID: make([]byte, 16)})
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		now += rapid.SampledFrom([]uint64{0, 1, 200, 900, 4000}).Draw(t, "dt")
		step(draw(t))
		if rapid.IntRange(0, 14).Draw(t, "restart?") == 0 {
			m = fold(cfg, log)
			if reuse {
				m.ReuseResults()
			}
			step(Start{Boot: now, Incarnation: m.st.Incarnation + 1, LogID: make([]byte, 16)})
		}
	}
	if d := cmp.Diff(m.st, fold(cfg, log).st, ignoreVolatile); d != "" {
		t.Fatalf("live state (-) and the fold of its log (+) differ:\n%s", d)
	}
	checkSnapshot(t, cfg, log)
}

func fold(cfg Config, log []*events.Event) *Machine {
	m := New(cfg)
	for _, e := range log {
		m.Apply(e)
	}
	return m
}

func drawExt(t *rapid.T, node string) *Ext {
	if rapid.IntRange(0, 3).Draw(t, "plain?") == 0 {
		return nil
	}
	return &Ext{
		Node: node, Boot: rapid.SampledFrom([]uint64{1, 2, 9}).Draw(t, "boot"), Incarnation: rapid.Uint64Range(1, 3).Draw(t, "inc"),
		HLC: uint64(events.MakeHLC(t0+rapid.Uint64Range(0, 10000).Draw(t, "hlc"), 0)), RoomSeq: rapid.Uint64Range(0, 40).Draw(t, "room_seq"),
		Keys:     []*events.WriteKey{{Kind: writeKeyStaging}},
		CauseSeq: rapid.Uint64Range(0, 9).Draw(t, "cause"), Proof: events.Proof(rapid.IntRange(0, 5).Draw(t, "proof")), //nolint:gosec // small
	}
}

func drawRoom(t *rapid.T) uint64 { return rapid.Uint64Range(1, 4).Draw(t, "room") }

func drawGen(t *rapid.T) *uint64 {
	if rapid.Bool().Draw(t, "no gen") {
		return nil
	}
	g := rapid.Uint64Range(0, 6).Draw(t, "gen")
	return &g
}

func drawDecode(t *rapid.T) Command {
	rank := MakeRank("p", rapid.IntRange(0, 1).Draw(t, "rank"))
	to := MakeRank("d", rapid.IntRange(0, 2).Draw(t, "to"))
	room := drawRoom(t)
	seq := rapid.Uint64Range(0, 60).Draw(t, "seq")
	var pages []uint32
	lo := rapid.Uint32Range(0, 17).Draw(t, "lo")
	for i := range rapid.Uint32Range(0, 4).Draw(t, "n") {
		pages = append(pages, lo+i)
	}
	switch rapid.IntRange(0, 28).Draw(t, "cmd") {
	case 22, 23, 24, 25, 26, 27, 28:
		return drawRing(t, to, rank, room, seq)
	case 20, 21:
		return WireNotification{
			At: to, Room: room, What: rapid.SampledFrom([]string{"kv", "kv", "aux", "aux_nokv", "state", "stg"}).Draw(t, "what"),
			Source: rapid.Uint32Range(0, 2).Draw(t, "source"), Chunk: rapid.Uint32Range(0, 2).Draw(t, "chunk"), Last: rapid.Bool().Draw(t, "last"),
			Part: rapid.Uint32Range(0, 1).Draw(t, "part"), Parts: rapid.Uint32Range(1, 2).Draw(t, "parts"), Expected: rapid.Uint32Range(0, 2).Draw(t, "expected"),
		}
	case 0, 1:
		return PeerDiscovered{
			Node: "p", PDLog: rapid.Bool().Draw(t, "pdlog"), Boot: rapid.SampledFrom([]uint64{1, 2}).Draw(t, "pboot"), Incarnation: 1,
			Fence: events.FenceKind(rapid.IntRange(1, 3).Draw(t, "fence")), Form: events.AckForm(rapid.IntRange(1, 3).Draw(t, "form")), PageSize: 64, //nolint:gosec // small
			Ranks: []PeerRank{{Rank: "p/0", Address: "10.0.0.1:5000"}, {Rank: "p/1", Address: "10.0.0.1:5001", WireID: 1, Source: 1}},
		}
	case 2, 3, 4, 5:
		return OpenRoom{Room: room, Pages: pages, Aux: rapid.IntRange(-1, 3).Draw(t, "aux"), Reserve: rapid.IntRange(0, 4).Draw(t, "reserve") == 0, Pairs: []OpenPair{{Rank: rank, To: to}, {Rank: "p/1", To: "d/0", Dummy: rapid.Bool().Draw(t, "dummy")}}}
	case 6, 7:
		return PublishResult{RoomSeq: seq, Rank: rank, To: to, Err: rapid.SampledFrom([]string{"", "", "", "lost"}).Draw(t, "err")}
	case 8:
		return PublishRoom{Room: room}
	case 9:
		return FinishRoom{Room: room}
	case 10:
		return AbortRoom{Room: room}
	case 11:
		return Landed{Lease: seq, Room: room, RoomSeq: seq, Rank: rank, To: to, Pages: pages, Aux: true}
	case 12:
		return FenceResult{RoomSeq: seq, Lease: rapid.Uint64Range(0, 60).Draw(t, "lease"), Evidence: events.FenceKind(rapid.IntRange(0, 3).Draw(t, "evidence"))} //nolint:gosec // small
	case 13, 14:
		id := rapid.Uint32Range(0, 2).Draw(t, "wire")
		return WireAck{At: to, Room: room, Rank: &id, Generation: drawGen(t), Ext: drawExt(t, "p")}
	case 15:
		return WireStatus{At: to, Room: room, Success: rapid.Bool().Draw(t, "ok"), Rank: rapid.Uint32Range(0, 2).Draw(t, "wire"), Ext: drawExt(t, "p")}
	case 16:
		return Heartbeat{Node: "p", OK: rapid.Bool().Draw(t, "ok")}
	case 17:
		return ForceRelease{Room: room}
	case 18:
		return PageReport{Room: room, Page: lo, To: to, Detail: "drawn"}
	}
	return Tick{}
}

func drawPrefill(t *rapid.T) Command {
	at := MakeRank("p", rapid.IntRange(0, 1).Draw(t, "rank"))
	room := drawRoom(t)
	addr := rapid.SampledFrom([]string{"10.0.0.2:5000", "10.0.0.2:5001", "10.9.9.9:1"}).Draw(t, "addr")
	switch rapid.IntRange(0, 18).Draw(t, "cmd") {
	case 16, 17:
		off := rapid.Uint64Range(0, 80).Draw(t, "off")
		return WireStagingRsp{
			At: at, Room: room, Session: "s", Chunk: rapid.Uint32Range(0, 3).Draw(t, "staged"), Offset: off, End: off + rapid.Uint64Range(0, 48).Draw(t, "len"),
			Round: rapid.Uint64Range(0, 2).Draw(t, "round"), Never: rapid.IntRange(0, 4).Draw(t, "never") == 0,
		}
	case 18:
		return WireWatermark{At: at, Session: rapid.SampledFrom([]string{"s", "x"}).Draw(t, "session"), Round: rapid.Uint64Range(0, 2).Draw(t, "round"), Tail: rapid.Uint64Range(0, 64).Draw(t, "tail")}
	case 0, 1:
		return WireRegister{At: at, Address: addr, Session: "s", EngineRank: 0, Ext: drawExt(t, "d"), Memory: &events.PeerMemory{KvPtrs: []uint64{0}, KvItemBytes: []uint64{16}, TpSize: 1, StagingBytes: 64}}
	case 2, 3, 4, 5:
		return WireMetadata{At: at, Room: room, Address: addr, Pages: []uint32{1, 2, 3}, Required: rapid.Uint32Range(1, 2).Draw(t, "req"), Dummy: rapid.IntRange(0, 5).Draw(t, "dummy") == 0, Ext: drawExt(t, "d")}
	case 6, 7:
		return WireAbort{At: at, Room: room, Address: rapid.SampledFrom([]string{addr, addr, ""}).Draw(t, "ret"), Generation: drawGen(t), Ext: drawExt(t, "d")}
	case 8, 9, 10:
		return SendChunk{Room: room, Rank: at, Chunk: rapid.Uint32Range(0, 2).Draw(t, "chunk"), First: rapid.Uint32Range(0, 3).Draw(t, "first"), Count: rapid.Uint32Range(0, 2).Draw(t, "count"), Last: rapid.Bool().Draw(t, "last")}
	case 11, 12:
		return WriteDone{Token: rapid.Uint64Range(1, 60).Draw(t, "token"), Outcome: WriteOutcome(rapid.IntRange(0, 5).Draw(t, "outcome")), Landed: true} //nolint:gosec // small
	case 13:
		return AwaitRoom{Room: room}
	case 14:
		return ClearRoom{Room: room}
	}
	return AbortRoom{Room: room}
}

// TestAnyCommandsKeepTheCoreWhole: whatever comes, in whatever order, the core
// does not panic, pages have one owner, sequences and generations grow, and the
// fold of the log is the state.
func TestAnyCommandsKeepTheCoreWhole(t *testing.T) {
	for _, p := range []events.Policy{events.Policy_POLICY_FENCE, events.Policy_POLICY_HOLD, events.Policy_POLICY_TIMEOUT} {
		t.Run(fmt.Sprintf("decode %v", p), rapid.MakeCheck(func(t *rapid.T) { drive(t, decodeConfig(p), drawDecode) }))
	}
	t.Run("prefill", rapid.MakeCheck(func(t *rapid.T) { drive(t, prefillConfig(), drawPrefill) }))
}
