package node

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestDamagedLogIsSetAsideAndThePastIsUnknown: a flipped byte in a record does
// not stop the node and is not believed: the log is set aside as it is, what
// verifies is kept, and the node proves nothing about what it has lost.
func TestDamagedLogIsSetAsideAndThePastIsUnknown(t *testing.T) {
	cfg := testConfig(t, "prefill", "p0")
	cfg.DataDir = shortDir(t)
	cfg.NATS.Embedded, cfg.NATS.URL = false, ""
	n, err := Start(testContext(t), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	id := n.store.LogID()
	if err := n.Stop(testContext(t), 0); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(cfg.LogDir(), "*.db"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no segments: %v", err)
	}
	hits := 0
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		hits += bytes.Count(b, []byte("mooncake"))
		if err := os.WriteFile(f, bytes.ReplaceAll(b, []byte("mooncake"), []byte("noonbake")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if hits == 0 {
		t.Fatal("the dialect's name does not stand in the log: nothing was damaged")
	}
	n, err = Start(testContext(t), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Stop(testContext(t), 0); err != nil {
			t.Error(err)
		}
	}()
	if aside, _ := filepath.Glob(filepath.Join(filepath.Dir(cfg.LogDir()), "log.damaged-*")); len(aside) != 1 {
		t.Errorf("%d damaged logs were set aside, want 1", len(aside))
	}
	if n.store.LogID() == id {
		t.Error("the salvaged log goes by the id of the damaged one")
	}
	evs, err := n.store.ReadFrom(1, 1000)
	if err != nil {
		t.Fatal(err)
	}
	start := evs[len(evs)-1].GetNodeStarted()
	for _, e := range evs {
		if s := e.GetNodeStarted(); s != nil {
			start = s
		}
	}
	if start == nil || !start.UnknownPast || start.GenerationBase == 0 {
		t.Errorf("the life after it began as %v, want an unknown past and a generation base from the clock", start)
	}
}
