package replay_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/replay/scenario"
)

// simulated runs a scenario and gives its nodes' logs as the files of a fleet.
func simulated(t *testing.T, path string) (scenario.Report, []string) {
	t.Helper()
	rep, err := scenario.RunFile(path)
	if err != nil || !rep.OK {
		t.Fatalf("%s: %v line %d: %s", path, err, rep.FailedLine, rep.Detail)
	}
	byNode := map[string][]*events.Event{}
	for _, e := range rep.Logs {
		byNode[e.Node] = append(byNode[e.Node], e)
	}
	var files []string
	for _, evs := range byNode {
		chain(t, evs)
		files = append(files, writeFile(t, evs))
	}
	return rep, files
}

// chain fills in the hashes that a log's writer would.
func chain(t *testing.T, evs []*events.Event) {
	t.Helper()
	var at events.Position
	for _, e := range evs {
		e.PrevHash = at.Chain
		w := events.NewFrameWriter(at)
		if err := w.Append(e); err != nil {
			t.Fatal(err)
		}
		at = w.Position()
	}
}

const scenarios = "../test/scenarios/*.txt"

// What the simulation itself saw, blame finds in the logs alone: the same pages,
// and a named writer for each that a transfer wrote.
func TestBlameAgreesWithTheSimulation(t *testing.T) {
	names, err := filepath.Glob(scenarios)
	if err != nil || len(names) < 10 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		_, files := simulated(t, name)
		merged := collect(t, replay.Merge(t.Context(), open(t, files...)))
		if e := causal(merged); e != nil {
			t.Errorf("%s: %s %d %s is out of order", name, e.Node, e.Seq, e.TypeName())
		}
		got := replay.Blame(gather(t, merged))
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		wanted := 0
		for line := range strings.Lines(string(text)) {
			_, want, ok := strings.Cut(line, "expect corruption page=")
			if !ok {
				continue
			}
			wanted++
			if !contains(got, strings.TrimSpace(want)) {
				t.Errorf("%s: page=%s is not among\n%s", name, want, lines(got))
			}
		}
		if wanted == 0 && len(got) > 0 {
			t.Errorf("%s: no corruption there, yet\n%s", name, lines(got))
		}
	}
}

// contains looks for "12 victim=8 writer=p/0 room=7" among incidents.
func contains(in []*replay.Incident, want string) bool {
	want = strings.NewReplacer("victim=", "victim ", "writer=", "writer ", "room=", "room ").Replace(want)
	for _, l := range strings.Split(lines(in), "\n") {
		if strings.HasPrefix(l, "page "+want+" ") {
			return true
		}
	}
	return false
}

// Every scenario's logs hold what its file says they hold, whole or one node's
// alone: no violation is made up.
func TestVerifyAgreesWithTheScenarios(t *testing.T) {
	names, err := filepath.Glob(scenarios)
	if err != nil || len(names) < 10 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		_, files := simulated(t, name)
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		allowed := ""
		for line := range strings.Lines(string(text)) {
			if _, want, ok := strings.Cut(line, "expect violations "); ok {
				allowed = strings.TrimSpace(want)
			}
		}
		if got := strings.Join(invariantsOf(verify(t, files...)), ","); got != allowed {
			t.Errorf("%s: violated %q, want %q", name, got, allowed)
		}
		for _, f := range files {
			for _, v := range verify(t, f).Violations {
				if !strings.Contains(allowed, v.Invariant) {
					t.Errorf("%s: one log alone: %s", name, v.Text())
				}
			}
		}
	}
}
