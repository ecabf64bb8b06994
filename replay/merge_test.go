package replay_test

import (
	"errors"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector/invariants/historytest"
	"github.com/pdlog/pdlog/replay"
)

// causal says which event stands before its cause or out of its node's order.
func causal(evs []*events.Event) *events.Event {
	out := map[string]uint64{}
	in := map[string]bool{}
	for _, e := range evs {
		in[e.Node] = true
	}
	for _, e := range evs {
		if c := e.Cause; c != nil && c.Node != "" && in[c.Node] && out[c.Node] < c.Seq {
			return e
		}
		if e.Seq != out[e.Node]+1 {
			return e
		}
		out[e.Node] = e.Seq
	}
	return nil
}

func TestMergeKeepsCausesBeforeEffectsWhateverTheClocksSay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := historytest.New()
		skew := rapid.Int64Range(-20_000, 20_000)
		for _, node := range []string{"d", "p", "q"} {
			h.Skew(node, skew.Draw(rt, "skew of "+node))
		}
		h.Start("d", events.Role_ROLE_DECODE, 64)
		h.Start("p", events.Role_ROLE_PREFILL, 64)
		h.Start("q", events.Role_ROLE_PREFILL, 64)
		at := uint64(100)
		for i := range rapid.IntRange(1, 6).Draw(rt, "rooms") {
			h.At(at)
			r := h.Open(uint64(i+1), "d/0", []uint32{uint32(i)}, "p/0", "q/0") //nolint:gosec // small
			post := r.Post("p/0", 0, r.Pages, false)
			if rapid.Bool().Draw(rt, "jump") {
				h.Skew("p", skew.Draw(rt, "new skew"))
			}
			r.Abort()
			at += rapid.Uint64Range(0, 3000).Draw(rt, "wait")
			h.At(at)
			r.Hear("p/0")
			r.Hear("q/0")
			r.Drain("q/0")
			r.Ack("q/0")
			r.Land(post, false)
			r.Complete(post)
			r.Drain("p/0")
			r.Ack("p/0")
			r.Release(events.Basis_BASIS_ACKS)
		}
		got := collect(t, replay.Merge(t.Context(), open(t, writeFile(t, h.Of("q")), writeFile(t, h.Of("d")), writeFile(t, h.Of("p")))))
		if len(got) != len(h.All) {
			rt.Fatalf("have %d events, want %d", len(got), len(h.All))
		}
		if e := causal(got); e != nil {
			rt.Fatalf("out of order: %s %d %s", e.Node, e.Seq, e.TypeName())
		}
	})
}

func TestMergeShiftsASlowClock(t *testing.T) {
	h := historytest.New()
	h.Skew("p", -60_000)
	h.Start("d", events.Role_ROLE_DECODE, 64)
	h.Start("p", events.Role_ROLE_PREFILL, 64)
	r := h.At(100).Open(7, "d/0", pages, "p/0") // p learns that it is behind
	h.At(200)
	r.Post("p/0", 0, pages, false)
	h.At(300)
	r.D("", &events.RoomFailed{})
	h.At(400)
	r.Post("p/0", 1, pages, false)
	got := collect(t, replay.Merge(t.Context(), open(t, writeFile(t, h.All))))
	var order []string
	for _, e := range got {
		switch e.TypeName() {
		case "ChunkPosted", "RoomFailed":
			order = append(order, e.TypeName())
		}
	}
	if want := []string{"ChunkPosted", "RoomFailed", "ChunkPosted"}; !slices.Equal(order, want) {
		t.Errorf("have %v, want %v", order, want)
	}
}

func TestMergeEndsWhenCausesAreInACircle(t *testing.T) {
	h := begin()
	a := h.Add("d", 0, 0, "", nil, &events.PeerSuspect{})
	b := h.Add("p", 0, 0, "", nil, &events.PeerSuspect{})
	a.Cause = &events.Cause{Node: "p", Seq: b.Seq}
	b.Cause = &events.Cause{Node: "d", Seq: a.Seq}
	if got := collect(t, replay.Merge(t.Context(), open(t, writeFile(t, h.All)))); len(got) != len(h.All) {
		t.Errorf("have %d events, want %d", len(got), len(h.All))
	}
}

func TestMergeDoesNotWaitForACauseThatIsMissing(t *testing.T) {
	h := lateWrite()
	cut := h.Of("d")[:5] // the rest of d's log is lost
	got := collect(t, replay.Merge(t.Context(), open(t, writeFile(t, cut), writeFile(t, h.Of("p")))))
	if want := len(cut) + len(h.Of("p")); len(got) != want {
		t.Errorf("have %d events, want %d", len(got), want)
	}
}

func TestCopiesOfALogCountOnce(t *testing.T) {
	h := lateWrite()
	whole, dir := writeFile(t, h.All), t.TempDir()
	writeLog(t, dir, h.Of("d"))
	head := writeFile(t, h.Of("d")[:7])
	tail := writeFile(t, h.Of("d")[3:])
	got := collect(t, replay.Merge(t.Context(), open(t, whole, dir, head, tail)))
	want := collect(t, replay.Merge(t.Context(), open(t, whole)))
	if jsonl(got) != jsonl(want) {
		t.Errorf("have %d events, want %d", len(got), len(want))
	}
}

func TestCopiesThatDifferAreAConflict(t *testing.T) {
	h := lateWrite()
	other := make([]*events.Event, 0, len(h.Of("d")))
	for _, e := range h.Of("d") {
		other = append(other, proto.CloneOf(e))
	}
	other[8].Room = 4711
	var conflict error
	n := 0
	for e, err := range replay.Merge(t.Context(), open(t, writeFile(t, h.All), writeFile(t, other))) {
		if err != nil {
			conflict = err
		} else if e != nil {
			n++
		}
	}
	if !errors.Is(conflict, replay.ErrConflict) || n != len(h.All) {
		t.Errorf("have %v and %d events, want a conflict and %d", conflict, n, len(h.All))
	}
}

func TestAWipedNodeHasTwoLogs(t *testing.T) {
	old, fresh := begin(), begin()
	for _, e := range fresh.All {
		e.Hlc += 1 << 30
		e.Boot += 500
		if s := e.GetNodeStarted(); s != nil {
			s.LogId = append([]byte("second"), s.LogId[6:]...)
		}
	}
	got := collect(t, replay.Merge(t.Context(), open(t, writeFile(t, old.Of("d")), writeFile(t, fresh.Of("d")))))
	if len(got) != 2 {
		t.Errorf("have %d events, want both lives' first", len(got))
	}
}
