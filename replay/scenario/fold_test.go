package scenario

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/testing/protocmp"

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
