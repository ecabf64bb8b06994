package truth

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/replay/scenario"
)

// runs is how many seeded runs a test makes: few in a plain run of the tests,
// many with make truth.
func runs(t *testing.T, env string, plain int) int {
	t.Helper()
	v := os.Getenv(env)
	if v == "" {
		return plain
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatalf("%s: %v", env, err)
	}
	return n
}

// Blame names exactly the injected writers of each page of simulated fleets.
func TestBlameNamesExactlyWhatASimulationInjected(t *testing.T) {
	pages, writers, dead := 0, 0, 0
	n := runs(t, "PDLOG_TRUTH_RUNS", 24)
	for seed := range n {
		text := story(uint64(seed)) //nolint:gosec // not negative
		rep, err := scenario.Run(fmt.Sprintf("story-%d", seed), text)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		if rep.FailedLine != 0 {
			t.Fatalf("seed %d: line %d: %s\n%s", seed, rep.FailedLine, rep.Detail, text)
		}
		want := injected(rep)
		have := blamed(t, files(t, rep.Logs))
		if !slices.Equal(want, have) {
			t.Errorf("seed %d:\n%s\nscenario:\n%s", seed, diff(want, have), text)
		}
		pages += len(want)
		for _, w := range want {
			writers += strings.Count(w, "+") + 1
		}
		if strings.Contains(text, "crash p") || strings.Contains(text, "crash q") {
			dead++
		}
	}
	t.Logf("%d runs: %d corrupt pages, %d writers named, %d runs with a writer that died", n, pages, writers, dead)
	if pages < n {
		t.Errorf("%d corrupt pages in %d runs: the stories do not show what they are for", pages, n)
	}
}

// injected is what the simulation saw: for each page and victim, all writers.
func injected(rep scenario.Report) []string {
	by := map[string][]string{}
	for _, c := range rep.Truth {
		victim := "nobody"
		if c.VictimSeq != 0 {
			victim = fmt.Sprintf("%d/%d", c.Victim, c.VictimSeq)
		}
		k := fmt.Sprintf("page %d of %s, victim %s", c.Page, c.Node, victim)
		by[k] = append(by[k], fmt.Sprintf("%s room %d chunk %d", c.Writer, c.WriterRoom, c.Chunk))
	}
	return told(by)
}

// blamed is what blame finds in the logs alone.
func blamed(t *testing.T, sources []string) []string {
	t.Helper()
	by := map[string][]string{}
	for _, in := range incidents(t, sources) {
		victim, writer := "nobody", "unknown"
		if in.VictimRoom != nil {
			victim = fmt.Sprintf("%d/%d", *in.VictimRoom, *in.VictimRoomSeq)
		}
		if in.Writer != nil && in.Chunk != nil {
			writer = fmt.Sprintf("%s room %d chunk %d", *in.Writer, *in.WriterRoom, *in.Chunk)
		}
		k := fmt.Sprintf("page %d of %s, victim %s", in.Page, in.Node, victim)
		by[k] = append(by[k], writer)
		for _, o := range in.Others {
			by[k] = append(by[k], fmt.Sprintf("%s room %d chunk %d", o.Writer, o.WriterRoom, o.Chunk))
		}
	}
	return told(by)
}

func told(by map[string][]string) []string {
	out := []string{}
	for k, writers := range by {
		slices.Sort(writers)
		out = append(out, k+": "+strings.Join(slices.Compact(writers), " + "))
	}
	slices.Sort(out)
	return out
}

func incidents(t *testing.T, sources []string) []*replay.Incident {
	t.Helper()
	logs, err := replay.Open(t.Context(), sources)
	if err != nil {
		t.Fatal(err)
	}
	h, err := replay.Gather(replay.Merge(t.Context(), logs))
	if err != nil {
		t.Fatal(err)
	}
	return replay.Blame(h)
}

// files are the logs of a run, an export for each node.
func files(t *testing.T, evs []*events.Event) []string {
	t.Helper()
	dir := t.TempDir()
	lines := map[string][]byte{}
	for _, e := range evs {
		lines[e.Node] = append(events.AppendJSON(lines[e.Node], e), '\n')
	}
	var out []string
	for node, b := range lines {
		path := filepath.Join(dir, node+".jsonl")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		out = append(out, path)
	}
	slices.Sort(out)
	return out
}

func diff(want, have []string) string {
	var b strings.Builder
	for _, w := range want {
		if !slices.Contains(have, w) {
			fmt.Fprintf(&b, "missed: %s\n", w)
		}
	}
	for _, h := range have {
		if !slices.Contains(want, h) {
			fmt.Fprintf(&b, "false:  %s\n", h)
		}
	}
	return b.String()
}
