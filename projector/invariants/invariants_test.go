package invariants_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector/invariants"
	"github.com/pdlog/pdlog/projector/invariants/historytest"
)

func check(evs []*events.Event) []invariants.Violation {
	c := invariants.New()
	c.CheckChain()
	for _, e := range evs {
		c.Feed(e)
	}
	return c.Finish()
}

func names(vs []invariants.Violation) string {
	var out []string
	for _, v := range vs {
		if !slices.Contains(out, v.Invariant) {
			out = append(out, v.Invariant)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

func start() *historytest.History {
	h := historytest.New()
	h.Start("d", events.Role_ROLE_DECODE, 64)
	h.Start("p", events.Role_ROLE_PREFILL, 64)
	return h
}

var pages = []uint32{10, 11, 12, 13}

// fleet is a history with every kind of healthy end: success, acks while
// writes run, fence, never published, a room number that comes back, restarts.
func fleet() *historytest.History {
	h := start()
	a := h.At(10).Open(7, "d/0", pages, "p/0", "p/1")
	a.Write("p/0", 0, pages, true)
	a.Write("p/1", 0, pages, true)
	a.Succeed()
	h.At(20)
	a.D("", &events.RoomFinished{})
	a.Release(events.Basis_BASIS_SUCCESS)
	a.P("p/0", &events.RoomCleared{})

	b := h.At(30).Open(7, "d/0", pages, "p/0", "p/1")
	slow := b.Post("p/0", 0, pages, false)
	b.Abort()
	b.Hear("p/0")
	b.Hear("p/1")
	b.Drain("p/1")
	b.Ack("p/1")
	h.At(50)
	b.Land(slow, false)
	b.Complete(slow)
	b.Drain("p/0")
	b.Ack("p/0")
	b.Release(events.Basis_BASIS_ACKS)
	b.Clear("p/0")

	c := h.At(60).Open(8, "d/0", pages, "p/0")
	hung := c.Post("p/0", 3, pages, false)
	c.Abort()
	c.Hear("p/0")
	h.At(2000)
	c.D("p/0", &events.AckTimedOut{Generation: c.Generation})
	c.Fence("p/0")
	c.Release(events.Basis_BASIS_FENCE)
	c.D("p/0", &events.LateWriteRejected{To: "d/0", Pages: pages, Writes: 1})
	c.P("p/0", &events.ChunkFailed{Token: hung.Seq, Chunk: 3, To: "d/0", Proven: true})
	c.Drain("p/0")
	c.P("p/0", &events.AckSent{To: "d/0", Generation: &c.Generation, Proof: events.Proof_PROOF_DRAINED, DecodeRoomSeq: c.Seq})
	c.Clear("p/0")

	n := h.At(3000).Reserve(9, "d/0", []uint32{1, 2}, "p/0")
	n.D("", &events.RoomFailed{})
	n.Release(events.Basis_BASIS_NEVER_PUBLISHED)
	h.Start("p", events.Role_ROLE_PREFILL, 64)
	h.Start("d", events.Role_ROLE_DECODE, 64)
	h.At(200_000)
	late := h.Open(11, "d/0", pages, "p/0")
	late.Write("p/0", 0, pages, true)
	late.Succeed()
	return h
}

func TestHealthyHistoryHasNoViolation(t *testing.T) {
	if vs := check(fleet().All); len(vs) > 0 {
		t.Fatalf("violations in a healthy history: %v", vs)
	}
}

func TestPartialViewHasNoViolation(t *testing.T) {
	h := fleet()
	for _, node := range h.Nodes() {
		own := h.Of(node)
		for cut := range own {
			if vs := check(own[cut:]); len(vs) > 0 {
				t.Fatalf("log of %s from %d on alone: %v", node, own[cut].Seq, vs)
			}
		}
		for cut := range own { // a log that ends early
			if vs := check(own[:cut]); len(vs) > 0 {
				t.Fatalf("log of %s up to %d alone: %v", node, cut, vs)
			}
		}
	}
	for cut := range h.All {
		if vs := check(h.All[:cut]); len(vs) > 0 {
			t.Fatalf("history up to %d: %v", cut, vs)
		}
	}
}

func TestWipedNodeBeginsANewLog(t *testing.T) {
	h := fleet()
	other := start() // the same names, other logs
	for _, e := range other.All {
		e.Boot += 77
		e.Hlc += 1 << 40
	}
	if vs := check(append(h.All, other.All...)); len(vs) > 0 {
		t.Fatalf("violations: %v", vs)
	}
}

// Each case is a minimal history with one fault, and the same without it.
func TestEachFaultIsFound(t *testing.T) {
	timedOut := func(h *historytest.History) (*historytest.Room, *events.Event) {
		r := h.At(10).Open(7, "d/0", pages, "p/0")
		post := r.Post("p/0", 2, pages, false)
		r.Abort()
		r.Hear("p/0")
		h.At(1000)
		r.D("p/0", &events.AckTimedOut{Generation: r.Generation})
		r.Release(events.Basis_BASIS_TIMEOUT)
		return r, post
	}
	aborted := func(h *historytest.History) (*historytest.Room, *events.Event) {
		r := h.At(10).Open(7, "d/0", pages, "p/0")
		post := r.Post("p/0", 2, pages, false)
		r.Abort()
		r.Hear("p/0")
		return r, post
	}
	cases := []struct {
		name string
		want string // with the fault
		good string // without it
		tell func(h *historytest.History, fault bool)
	}{
		{"a write lands after a timed release", "I1,I2", "I2", func(h *historytest.History, fault bool) {
			r, post := timedOut(h)
			if fault {
				h.At(2000)
				r.Land(post, true)
				r.Complete(post)
			}
		}},
		{"the writer alone knows that it landed", "I1,I2", "I2", func(h *historytest.History, fault bool) {
			r, post := timedOut(h)
			h.At(2000)
			if fault {
				r.Complete(post)
			} else {
				r.P("p/0", &events.ChunkFailed{Token: post.Seq, To: "d/0", Proven: true})
			}
		}},
		{"the decode node refused the late write", "I1,I2", "I2", func(h *historytest.History, fault bool) {
			r, post := timedOut(h)
			h.At(2000)
			r.Complete(post)
			if !fault {
				r.D("p/0", &events.LateWriteRejected{To: "d/0", Pages: pages})
			}
		}},
		{"a write lands in another room's pages", "I1", "", func(h *historytest.History, fault bool) {
			a := h.Open(7, "d/0", pages, "p/0")
			h.Open(8, "d/0", []uint32{20, 21}, "p/0")
			to := pages[:1]
			if fault {
				to = []uint32{20}
			}
			a.Land(a.Post("p/0", 0, to, false), false)
		}},
		{"a write that the node knows no room of lands in another room's page", "I1", "", func(h *historytest.History, fault bool) {
			h.Open(8, "d/0", []uint32{20, 21}, "p/0")
			page := uint32(22)
			if fault {
				page = 21
			}
			h.Stray("d", 7, "p/0", &events.WriteLanded{To: "d/0", Pages: []uint32{page}})
		}},
		{"a write that the node knows no room of lands in a free page", "I1", "", func(h *historytest.History, fault bool) {
			h.Open(8, "d/0", []uint32{20, 21}, "p/0")
			h.Stray("d", 7, "p/0", &events.WriteLanded{To: "d/0", Pages: []uint32{22}, AfterRelease: fault})
		}},
		{"released with one rank's ack missing", "I2", "", func(h *historytest.History, fault bool) {
			r := h.Open(7, "d/0", pages, "p/0", "p/1")
			r.Abort()
			for _, rank := range r.Ranks {
				r.Hear(rank)
				r.Drain(rank)
				if rank == "p/0" || !fault {
					r.Ack(rank)
				}
			}
			r.Release(events.Basis_BASIS_ACKS)
		}},
		{"the ack of an earlier use is the evidence", "I2", "", func(h *historytest.History, fault bool) {
			r, post := aborted(h)
			r.Complete(post)
			r.Drain("p/0")
			now := r.Generation
			if fault {
				r.Generation = 0
			}
			r.Ack("p/0")
			r.Generation = now
			r.Release(events.Basis_BASIS_ACKS)
		}},
		{"a fence without a proof", "I2", "", func(h *historytest.History, fault bool) {
			r, _ := aborted(h)
			r.Fence("p/0")
			if fault {
				h.All[len(h.All)-1].GetFenced().Evidence = events.FenceKind_FENCE_KIND_NONE
			}
			r.Release(events.Basis_BASIS_FENCE)
		}},
		{"a rank never reported its success", "I2", "", func(h *historytest.History, fault bool) {
			r := h.Open(7, "d/0", pages, "p/0")
			r.Write("p/0", 0, pages, true)
			r.D("p/0", &events.StatusReceived{To: "d/0", Status: events.TerminalStatus_TERMINAL_STATUS_SUCCESS, Counted: !fault})
			r.D("", &events.CoverageCompleted{})
			r.D("", &events.RoomSucceeded{})
			r.D("", &events.Released{Pages: pages, Aux: 7, Basis: events.Basis_BASIS_SUCCESS, Evidence: []*events.Evidence{{Rank: "p/0", To: "d/0", Basis: events.Basis_BASIS_SUCCESS}}})
		}},
		{"success without coverage", "I2", "", func(h *historytest.History, fault bool) {
			r := h.Open(7, "d/0", pages, "p/0")
			r.Write("p/0", 0, pages, true)
			if !fault {
				r.D("", &events.CoverageCompleted{})
			}
			sent := r.P("p/0", &events.StatusSent{To: "d/0", Status: events.TerminalStatus_TERMINAL_STATUS_SUCCESS})
			got := r.DFrom("p/0", sent, &events.StatusReceived{To: "d/0", Status: events.TerminalStatus_TERMINAL_STATUS_SUCCESS, Counted: true})
			r.D("", &events.Released{Pages: pages, Aux: 7, Basis: events.Basis_BASIS_SUCCESS, Evidence: []*events.Evidence{
				{Rank: "p/0", To: "d/0", Basis: events.Basis_BASIS_SUCCESS, Seq: got.Seq},
			}})
		}},
		{"never published, although it was", "I2", "", func(h *historytest.History, fault bool) {
			r := h.Reserve(7, "d/0", pages, "p/0")
			if fault {
				r.Publish("p/0")
			}
			r.D("", &events.Released{Pages: pages, Aux: 7, Basis: events.Basis_BASIS_NEVER_PUBLISHED})
		}},
		{"forced release", "I2", "", func(h *historytest.History, fault bool) {
			r, post := aborted(h)
			if fault {
				r.Release(events.Basis_BASIS_FORCED)
				return
			}
			r.Complete(post)
			r.Drain("p/0")
			r.Ack("p/0")
			r.Release(events.Basis_BASIS_ACKS)
		}},
		{"ack before the drain", "I3", "", func(h *historytest.History, fault bool) {
			r, post := aborted(h)
			if fault {
				r.Ack("p/0")
			}
			r.Complete(post)
			r.Drain("p/0")
			if !fault {
				r.Ack("p/0")
			}
		}},
		{"ack without any drain", "I3", "", func(h *historytest.History, fault bool) {
			r, post := aborted(h)
			r.Complete(post)
			if !fault {
				r.Drain("p/0")
			}
			r.Ack("p/0")
		}},
		{"ack before the drain, and the write lands after the release", "I1,I3", "", func(h *historytest.History, fault bool) {
			r, post := aborted(h)
			if !fault {
				r.Complete(post)
				r.Drain("p/0")
			}
			r.Ack("p/0")
			r.Release(events.Basis_BASIS_ACKS)
			if fault {
				r.Complete(post)
			}
		}},
		{"a chunk is posted after the abort", "I3", "", func(h *historytest.History, fault bool) {
			r, _ := aborted(h)
			if fault {
				r.Post("p/0", 9, pages, true)
			}
		}},
		{"drained with an open write", "I3", "", func(h *historytest.History, fault bool) {
			r, post := aborted(h)
			if !fault {
				r.Complete(post)
			}
			r.Drain("p/0")
		}},
		{"ABORT sent before it is armed", "I4", "", func(h *historytest.History, fault bool) {
			r := h.Open(7, "d/0", pages, "p/0")
			if fault {
				r.D("p/0", &events.AbortSent{Generation: 1, To: "d/0"})
			}
			r.Abort()
		}},
		{"a generation comes back", "I4", "", func(h *historytest.History, fault bool) {
			h.Open(7, "d/0", pages, "p/0").Abort()
			r := h.Open(8, "d/0", []uint32{20}, "p/0")
			h.Start("d", events.Role_ROLE_DECODE, 64)
			gen := uint64(2)
			if fault {
				gen = 1
			}
			r.D("", &events.AbortArmed{Generation: gen})
		}},
		{"an old generation is acknowledged", "I5", "", func(h *historytest.History, fault bool) {
			r, post := aborted(h)
			r.Complete(post)
			r.Drain("p/0")
			next := r.Generation + 1
			r.P("p/0", &events.AbortReceived{To: "d/0", Generation: &next})
			if !fault {
				r.Generation = next
			}
			r.P("p/0", &events.AckSent{To: "d/0", Generation: &r.Generation, Proof: events.Proof_PROOF_DRAINED})
		}},
		{"a second target is forgotten", "I5", "", func(h *historytest.History, fault bool) {
			r, post := aborted(h)
			r.P("p/0", &events.AbortReceived{To: "d/1", Generation: &r.Generation})
			r.P("p/0", &events.AckTargetHeld{To: "d/1", Generation: &r.Generation})
			h.At(100)
			r.Complete(post)
			r.Drain("p/0")
			r.Ack("p/0")
			if !fault {
				r.P("p/0", &events.AckSent{To: "d/1", Generation: &r.Generation, Proof: events.Proof_PROOF_DRAINED})
			}
			h.At(5000)
			h.Add("p", 0, 0, "", nil, &events.PeerSuspect{Peer: "d"})
		}},
		{"a target that waited for another use of the number is forgotten", "I5", "", func(h *historytest.History, fault bool) {
			r, post := aborted(h)
			r.P("p/0", &events.AbortReceived{To: "s/1", Generation: &r.Generation})
			r.P("p/0", &events.AckTargetHeld{To: "s/1", Generation: &r.Generation})
			other := h.Add("p", 7, 0, "", nil, &events.RoomOpened{}).Seq
			h.Add("p", 7, other, "p/0", nil, &events.MetadataReceived{To: "s/1"})
			write := h.Add("p", 7, other, "p/0", nil, &events.ChunkPosted{Token: 900, To: "s/1"})
			r.Complete(post)
			r.Drain("p/0")
			r.Ack("p/0")
			if fault {
				h.Add("p", 7, other, "p/0", write, &events.ChunkCompleted{Token: 900, To: "s/1"})
			}
			h.At(5000)
			h.Add("p", 0, 0, "", nil, &events.PeerSuspect{Peer: "d"})
		}},
		{"a copy of decode's own begins after the outcome", "I6", "", func(h *historytest.History, fault bool) {
			r := h.At(10).Open(7, "d/0", pages, "p/0")
			if !fault {
				r.D("", &events.LocalCopyStarted{Token: 1, To: "d/0", What: "staging"})
			}
			r.Abort()
			if fault {
				r.D("", &events.LocalCopyStarted{Token: 1, To: "d/0", What: "staging"})
			}
			r.Hear("p/0")
			r.Drain("p/0")
			r.Ack("p/0")
			r.Release(events.Basis_BASIS_ACKS)
		}},
		{"two outcomes", "I6", "", func(h *historytest.History, fault bool) {
			r := h.Open(7, "d/0", pages, "p/0")
			r.D("", &events.RoomFailed{})
			if fault {
				r.D("", &events.RoomSucceeded{})
			}
		}},
		{"a second status that is no repeat", "I6", "", func(h *historytest.History, fault bool) {
			r := h.Open(7, "d/0", pages, "p/0")
			r.P("p/0", &events.StatusSent{To: "d/0", Status: events.TerminalStatus_TERMINAL_STATUS_FAILED})
			r.P("p/0", &events.StatusSent{To: "d/0", Status: events.TerminalStatus_TERMINAL_STATUS_FAILED, Repeat: !fault})
		}},
		{"a status makes a room", "I7", "", func(h *historytest.History, fault bool) {
			if fault {
				h.Add("d", 9, 0, "p/0", nil, &events.StatusReceived{To: "d/0"})
			} else {
				h.Add("d", 9, 0, "", nil, &events.RoomOpened{Role: events.Role_ROLE_DECODE})
			}
		}},
		{"late metadata revives an ended incarnation", "I7", "", func(h *historytest.History, fault bool) {
			r, post := aborted(h)
			r.Complete(post)
			r.Drain("p/0")
			r.Ack("p/0")
			again := *r
			again.Peer = map[string]uint64{}
			again.P("p/0", &events.MetadataReceived{To: "d/0", DecodeNode: "d", DecodeRoomSeq: r.Seq, Pages: pages})
			if fault {
				again.Post("p/0", 0, pages, false)
			} else {
				again.P("p/0", &events.RoomFailed{Cause: events.AbortCause_ABORT_CAUSE_REFUSED})
			}
		}},
		{"a chunk without a destination", "I7", "", func(h *historytest.History, fault bool) {
			r := h.Reserve(7, "d/0", pages, "p/0")
			r.P("p/0", &events.RoomOpened{Role: events.Role_ROLE_PREFILL})
			if !fault {
				r.Publish("p/0")
			}
			r.Post("p/0", 0, pages, false)
		}},
		{"source pages reused while a write reads them", "I8", "", func(h *historytest.History, fault bool) {
			r, post := aborted(h)
			if !fault {
				r.Complete(post)
			}
			r.Clear("p/0")
		}},
		{"two rooms own a page", "I11", "", func(h *historytest.History, fault bool) {
			h.Open(7, "d/0", pages, "p/0")
			second := []uint32{20}
			if fault {
				second = []uint32{13}
			}
			h.Open(8, "d/0", second, "p/0")
		}},
		{"a page is left out of the release", "I11", "", func(h *historytest.History, fault bool) {
			r := h.Reserve(7, "d/0", pages, "p/0")
			r.D("", &events.RoomFailed{})
			if fault {
				r.Pages = pages[:3]
			}
			r.Release(events.Basis_BASIS_NEVER_PUBLISHED)
		}},
		{"a second release", "I11", "", func(h *historytest.History, fault bool) {
			r := h.Reserve(7, "d/0", pages, "p/0")
			r.D("", &events.RoomFailed{})
			r.Release(events.Basis_BASIS_NEVER_PUBLISHED)
			if fault {
				r.Release(events.Basis_BASIS_NEVER_PUBLISHED)
			}
		}},
		{"a failed room's pages are never released", "I11", "", func(h *historytest.History, fault bool) {
			r := h.Reserve(7, "d/0", pages, "p/0")
			r.D("", &events.RoomFailed{})
			if !fault {
				r.Release(events.Basis_BASIS_NEVER_PUBLISHED)
			}
			h.At(120_000)
			h.Add("d", 0, 0, "", nil, &events.PeerSuspect{Peer: "p"})
		}},
		{"the node itself found a violation", "I4", "", func(h *historytest.History, fault bool) {
			if fault {
				h.Add("d", 0, 0, "", nil, &events.InvariantViolated{Invariant: "I4", Detail: "x"})
			}
		}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			for _, fault := range []bool{false, true} {
				want := tc.good
				if fault {
					want = tc.want
				}
				h := start()
				tc.tell(h, fault)
				c := invariants.New()
				for _, e := range h.All {
					c.Feed(e)
				}
				vs := c.Finish()
				if got := names(vs); got != want {
					t.Errorf("fault=%v: violated %q, want %q: %v", fault, got, want, vs)
				}
				followed(t, h)
			}
		})
	}
}

// followed has the nodes live on, and holds a checker that hands its findings out
// as they come, and is asked for what is overdue, against one that is asked at
// the end.
func followed(t *testing.T, h *historytest.History) {
	t.Helper()
	var found []invariants.Violation
	h.At(600_000)
	for _, node := range []string{"d", "p"} {
		h.Add(node, 0, 0, "", nil, &events.PeerSuspect{Peer: "x"})
	}
	c, atEnd := invariants.New(), invariants.New()
	for _, e := range h.All {
		c.Feed(e)
		atEnd.Feed(e)
		found = append(found, c.Take()...)
	}
	c.Overdue()
	found = append(found, c.Take()...)
	c.Overdue()
	if again := append(c.Take(), c.Finish()...); len(again) > 0 {
		t.Errorf("found again: %v", again)
	}
	text := func(vs []invariants.Violation) (out []string) {
		for _, v := range vs {
			out = append(out, v.String())
		}
		slices.Sort(out)
		return out
	}
	if have, want := text(found), text(atEnd.Finish()); !slices.Equal(have, want) {
		t.Errorf("followed live: %q\nat the end: %q", have, want)
	}
}

// A successor that is fed from what Needs says on judges open rooms whole.
func TestNeedsReachesBackToTheOldestOpenRoom(t *testing.T) {
	h := start()
	done := h.At(10).Open(7, "d/0", pages, "p/0")
	done.Write("p/0", 0, pages, true)
	done.Succeed()
	done.D("", &events.RoomFinished{})
	done.Release(events.Basis_BASIS_SUCCESS)
	done.P("p/0", &events.RoomCleared{})
	open := h.At(20).Open(8, "d/0", pages, "p/0")
	open.Post("p/0", 0, pages, false)
	c := invariants.New()
	rooms := map[string]uint64{}
	for _, e := range h.All {
		c.Feed(e)
		if e.Room == 8 {
			rooms[e.Node] = e.RoomSeq
		}
	}
	if seq, peers := c.Needs("d"); seq != rooms["d"] || len(peers) != 0 {
		t.Errorf("d needs %d and %v, want %d", seq, peers, rooms["d"])
	}
	if seq, peers := c.Needs("p"); seq != rooms["p"] || len(peers) != 1 || peers["d"] != rooms["d"] {
		t.Errorf("p needs %d and %v, want %d and d from %d", seq, peers, rooms["p"], rooms["d"])
	}
	if seq, peers := c.Needs("nobody"); seq != 0 || peers != nil {
		t.Errorf("nobody needs %d and %v", seq, peers)
	}
}

func TestLogOrderFaultsAreFound(t *testing.T) {
	h := fleet()
	own := h.Of("d")
	clone := func() []*events.Event {
		out := make([]*events.Event, len(own))
		for i, e := range own {
			out[i] = proto.CloneOf(e)
		}
		return out
	}
	for name, breakIt := range map[string]func(evs []*events.Event) []*events.Event{
		"gap":          func(evs []*events.Event) []*events.Event { return slices.Delete(evs, 5, 6) },
		"clock back":   func(evs []*events.Event) []*events.Event { evs[6].Hlc = evs[5].Hlc; return evs },
		"chain":        func(evs []*events.Event) []*events.Event { evs[6].PrevHash ^= 1; return evs },
		"changed fact": func(evs []*events.Event) []*events.Event { evs[6].Rank = "p/9"; return evs },
	} {
		found := false
		for _, v := range check(breakIt(clone())) {
			found = found || v.Invariant == "I9"
		}
		if !found {
			t.Errorf("%s: no I9 violation", name)
		}
	}
	if vs := check(clone()); len(vs) > 0 {
		t.Errorf("whole log: %v", vs)
	}
}

func TestViolationSaysWhere(t *testing.T) {
	v := invariants.Violation{Invariant: "I1", Node: "d", Room: 7, RoomSeq: 12, Page: 10, Seq: 44, Detail: "x"}
	if got, want := v.String(), "I1 d#44 room=7/12 page=10: x"; got != want {
		t.Errorf("have %q, want %q", got, want)
	}
}
