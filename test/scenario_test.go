package test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay/scenario"
	"github.com/pdlog/pdlog/test/ladder"
)

func scenarioFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("scenarios/*.txt")
	if err != nil || len(files) < 128 {
		t.Fatalf("found %d scenario files (%v), want at least 128", len(files), err)
	}
	return files
}

// TestScenarios runs every scenario file; a file that fails names its line.
func TestScenarios(t *testing.T) {
	start, files, failed := time.Now(), scenarioFiles(t), uint64(0)
	for _, f := range files {
		ok := t.Run(filepath.Base(f), func(t *testing.T) {
			rep, err := scenario.RunFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if !rep.OK {
				t.Fatalf("%s:%d: %s", f, rep.FailedLine, rep.Detail)
			}
		})
		if !ok {
			failed++
		}
	}
	ladder.Report(t, ladder.Row{Rung: "scenarios", What: "files", Runs: uint64(len(files)), Found: failed, Took: time.Since(start)})
}

// TestSameFileSameEvents: a scenario is deterministic, byte for byte.
func TestSameFileSameEvents(t *testing.T) {
	for _, f := range scenarioFiles(t) {
		var runs [2][]byte
		for i := range runs {
			rep, err := scenario.RunFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range rep.Logs {
				runs[i] = append(events.AppendJSON(runs[i], e), '\n')
			}
		}
		if !bytes.Equal(runs[0], runs[1]) {
			t.Errorf("%s: two runs differ", f)
		}
	}
}

// TestChangedExpectationFails: the runner notices when a file expects what does
// not happen.
func TestChangedExpectationFails(t *testing.T) {
	text, err := os.ReadFile("scenarios/001-late-write-reused-pages.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new string }{
		{"state=held acks=0/1", "state=released"},
		{"count=0", "count=1"},
		{"basis=acks", "basis=fence"},
		{"outstanding=1", "outstanding=2"},
		{"end     expect corruption none", "end     expect corruption page=10 victim=8"},
		{"end     expect corruption none", "end     expect violations I1"},
		{"p:Drained < p:AckSent", "p:AckSent < p:Drained"},
		{"refused=pages_busy", "refused=weak_peer"},
	} {
		changed := bytes.Replace(text, []byte(c.old), []byte(c.new), 1)
		if bytes.Equal(changed, text) {
			t.Fatalf("%q does not stand in the file", c.old)
		}
		rep, err := scenario.Run("changed", string(changed))
		if err != nil {
			t.Fatalf("%q: %v", c.new, err)
		}
		if rep.OK {
			t.Errorf("with %q instead of %q the file still passes", c.new, c.old)
		}
	}
}
