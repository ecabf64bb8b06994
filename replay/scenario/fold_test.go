package scenario

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// TestFoldOfTheLogIsTheLiveState: a machine that applies a node's log comes to
// the state that the node had, in every scenario. What is of one life only
// (heartbeats that were answered, counters of repeats) is left out.
func TestFoldOfTheLogIsTheLiveState(t *testing.T) {
	files, err := filepath.Glob("../../test/scenarios/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenario files: %v", err)
	}
	opts := cmp.Options{
		protocmp.Transform(),
		cmpopts.EquateEmpty(),
		cmpopts.IgnoreUnexported(projector.State{}, projector.Room{}, projector.Pair{}, projector.PRoom{}, projector.Endpoint{}, projector.PageSlot{}),
		cmpopts.IgnoreFields(projector.Peer{}, "Missed"),
		cmpopts.IgnoreFields(projector.Target{}, "Repeats"),
		cmpopts.IgnoreFields(projector.PRoom{}, "Awaited"),
		cmpopts.IgnoreFields(projector.Pair{}, "Required"),
		cmpopts.IgnoreFields(projector.State{}, "HLC"),
		cmp.Transformer("known", func(k *projector.KnownRooms) any { // encoded: as they are shown
			return []any{k.Len(), k.ReleasedAfter(0)}
		}),
	}
	for _, f := range files {
		w := play(t, f)
		for _, name := range w.names {
			n, ok := w.nodes[name].(*pdNode)
			if !ok || len(n.pending) > 0 {
				continue
			}
			m := projector.New(n.config())
			from := projector.New(n.config()) // a snapshot half way, and the rest
			for i, e := range n.disk {
				if i == len(n.disk)/2 {
					if err := from.Restore(m.Snapshot()); err != nil {
						t.Fatalf("%s: %s: %v", filepath.Base(f), name, err)
					}
				}
				m.Apply(e)
				if i >= len(n.disk)/2 {
					from.Apply(e)
				}
			}
			if !bytes.Equal(from.Snapshot(), m.Snapshot()) {
				t.Errorf("%s: %s: snapshot and tail come to another state than the whole log", filepath.Base(f), name)
			}
			if n.up {
				if d := cmp.Diff(n.m.State(), m.State(), opts); d != "" {
					t.Errorf("%s: %s: live state (-) and fold of its log (+) differ:\n%s", filepath.Base(f), name, d)
				}
			}
		}
	}
}

// play runs the actions of a file and leaves its world as it is then.
func play(t *testing.T, f string) *world {
	t.Helper()
	text, err := os.ReadFile(f)
	if err != nil {
		t.Fatal(err)
	}
	sc, err := parse(f, string(text))
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWorld(sc)
	if err != nil {
		t.Fatal(err)
	}
	w.repeat(sc.policy.heartbeat, w.heartbeats)
	for _, s := range sc.stmts {
		if s.at == atEnd {
			break
		}
		w.runUntil(s.at)
		if s.verb != "expect" {
			if err := w.act(s); err != nil {
				t.Fatalf("%s:%d: %v", f, s.line, err)
			}
		}
	}
	w.runUntil(w.now + commitTime*3)
	return w
}

// TestALifeThatEndsAnywhereIsTakenUp: a log may break off behind any event. The
// next life has to bring every room to an end that it can bring it to (events.md
// I2, I7): with a fence that holds, every failed room is released under policy
// fence and timeout; without one, or under hold, it is quarantined, so that the
// operator is told of it.
func TestALifeThatEndsAnywhereIsTakenUp(t *testing.T) {
	files, err := filepath.Glob("../../test/scenarios/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenario files: %v", err)
	}
	for _, f := range files {
		w := play(t, f)
		for _, name := range w.names {
			n, ok := w.nodes[name].(*pdNode)
			if !ok {
				continue
			}
			folded := projector.New(n.config())
			for _, e := range n.disk {
				folded.Apply(e)
				for _, proven := range []events.FenceKind{events.FenceKind_FENCE_KIND_HARD, events.FenceKind_FENCE_KIND_NONE} {
					if why := takenUp(n.config(), folded.Snapshot(), e, proven); why != "" {
						t.Errorf("%s: %s: cut behind %d (%T), fence %s: %s", filepath.Base(f), name, e.Seq, e.Payload, proven, why)
					}
				}
			}
		}
	}
}

// takenUp starts a life from a state, alone, and lets every deadline pass; what
// it asks of its provider is answered. It says which room is left in the air.
func takenUp(cfg projector.Config, state []byte, last *events.Event, proven events.FenceKind) string {
	m := projector.New(cfg)
	if err := m.Restore(state); err != nil {
		return err.Error()
	}
	now := last.Clock()
	queue := []projector.Command{projector.Start{Boot: last.Boot + 1, Incarnation: last.Incarnation + 1, LogID: m.State().LogID}}
	step := func(c projector.Command) {
		for _, e := range m.Step(projector.At(now), c).Effects {
			switch x := e.Do.(type) {
			case projector.Fence:
				queue = append(queue, projector.FenceResult{RoomSeq: x.RoomSeq, Lease: x.Lease, Evidence: proven, Reason: "as the test has it"})
			case projector.CheckPages:
				queue = append(queue, projector.PagesChecked{RoomSeq: x.RoomSeq})
			}
		}
	}
	for i := range 40 {
		for len(queue) > 0 {
			c := queue[0]
			queue = queue[1:]
			step(c)
		}
		now += uint64((cfg.BootstrapTimeout + cfg.WaitingTimeout + cfg.TransferTimeout + cfg.AckTimeout).Milliseconds()) / 10 //nolint:gosec // positive
		queue = append(queue, projector.Tick{})
		if i == 30 { // what could not be fenced before is tried again
			queue = append(queue, projector.ReRegister{Memory: &events.MemoryRegistered{}})
		}
	}
	for _, r := range m.State().Rooms {
		switch {
		case r.Outcome == projector.OutcomeSucceeded || r.Quarantined && (proven == events.FenceKind_FENCE_KIND_NONE || cfg.Policy == events.Policy_POLICY_HOLD):
		case r.ReserveOnly && r.Outcome == projector.OutcomeNone: // its engine says when it ends
		default:
			return fmt.Sprintf("room %d/%d is left with outcome %d, quarantined %v", r.Room, r.Seq, r.Outcome, r.Quarantined)
		}
	}
	for _, r := range m.State().PRooms {
		if r.Outcome == projector.OutcomeNone {
			return fmt.Sprintf("room %d/%d is left open", r.Room, r.Seq)
		}
		for _, x := range r.Targets {
			if len(r.Tokens) == 0 && !x.Answered && !r.OldLife {
				return fmt.Sprintf("%s is not answered for room %d/%d", x.To, r.Room, r.Seq)
			}
		}
	}
	return ""
}

// A fence that is under way when a life ends is waited for, also by a life whose
// policy has become timeout: its failure leaves a quarantine, not a release.
func TestAFenceOutlivesAChangeOfPolicyToTimeout(t *testing.T) {
	files, err := filepath.Glob("../../test/scenarios/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, f := range files {
		w := play(t, f)
		for _, name := range w.names {
			n, ok := w.nodes[name].(*pdNode)
			if !ok {
				continue
			}
			cfg := n.config()
			cfg.Policy = events.Policy_POLICY_TIMEOUT
			folded := projector.New(n.config())
			for _, e := range n.disk {
				folded.Apply(e)
				if e.GetFenceStarted() == nil {
					continue
				}
				tried++
				m := projector.New(cfg)
				if err := m.Restore(folded.Snapshot()); err != nil {
					t.Fatal(err)
				}
				start := projector.Start{Boot: e.Boot + 1, Incarnation: e.Incarnation + 1, LogID: m.State().LogID}
				for _, x := range m.Step(projector.At(e.Clock()), start).Events {
					if x.GetReleased() != nil && x.RoomSeq == e.RoomSeq {
						t.Errorf("%s: %s: room %d is released while its fence is under way", filepath.Base(f), name, x.Room)
					}
				}
			}
		}
	}
	if tried == 0 {
		t.Error("no scenario begins a fence: the test says nothing")
	}
}
