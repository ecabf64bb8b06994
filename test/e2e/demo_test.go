package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node/demo"
	"github.com/pdlog/pdlog/store"
)

// demoLimit: a small demo takes seconds; a loaded machine is given more.
const demoLimit = 2 * time.Minute

// runDemo runs pdnode demo and returns its summary and exit code.
func runDemo(t *testing.T, args ...string) (demo.Summary, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), demoLimit)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, pdnode, append([]string{"demo", "-o", "json"}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		t.Fatal(err)
	}
	var s demo.Summary
	if err := json.Unmarshal(out.Bytes(), &s); err != nil {
		t.Fatalf("exit %d, no summary (%v): %s", cmd.ProcessState.ExitCode(), err, errs.String())
	}
	return s, cmd.ProcessState.ExitCode()
}

// readLog reads a closed log, verified on the way.
func readLog(t *testing.T, dir string) []*events.Event {
	t.Helper()
	var evs []*events.Event
	if _, err := store.ReadDir(dir, 1, func(e *events.Event) error { evs = append(evs, e); return nil }); err != nil {
		t.Fatal(err)
	}
	return evs
}

func TestDemoReleasesEveryPageByEvidence(t *testing.T) {
	dir := t.TempDir()
	s, code := runDemo(t, "--requests", "40", "--seed", "5", "--bytes-per-token", "256", "--data-dir", dir)
	if code != 0 || len(s.Problems) > 0 {
		t.Fatalf("exit %d, problems %v", code, s.Problems)
	}
	if s.Requests != 40 || s.Succeeded+s.Aborted+s.Failed != 40 {
		t.Errorf("outcomes do not add up: %+v", s)
	}
	if s.CorruptPages != 0 || s.HeldNow != 0 || s.Unsafe != 0 || s.LostPages != 0 {
		t.Errorf("have %+v", s)
	}
	if s.Aborted < 4 {
		t.Errorf("%d aborted, 8 were asked for and most come before the success", s.Aborted)
	}
	if s.PagesChecked == 0 || s.Bytes == 0 {
		t.Error("nothing was moved or checked")
	}
	b := s.Released
	if n := b.Success + b.ACKs + b.Fence + b.NeverPublished + b.PeerRestart + b.Mixed; n != 40-s.TooLarge {
		t.Errorf("%d rooms were released by evidence, want %d: %+v", n, 40-s.TooLarge, b)
	}
	logs := map[string][]*events.Event{}
	for _, n := range s.Nodes {
		if n.MirrorLag != 0 {
			t.Errorf("%s: mirror lag %d", n.Node, n.MirrorLag)
		}
		if n.Log != filepath.Join(dir, n.Node, "log") {
			t.Errorf("%s: log in %s", n.Node, n.Log)
		}
		evs := readLog(t, n.Log)
		logs[n.Node] = evs
		if uint64(len(evs)) != n.Events {
			t.Errorf("%s: the summary says %d events, the log has %d", n.Node, n.Events, len(evs))
		}
		if last := evs[len(evs)-1].TypeName(); last != "NodeStopped" {
			t.Errorf("%s: the log ends with %s", n.Node, last)
		}
	}
	checkReleases(t, logs["d0"])
	checkInvariants(t, logs)
}

// Released too early on purpose: the demo must notice, and say so.
func TestDemoFindsCorruptionUnderPolicyTimeout(t *testing.T) {
	s, code := runDemo(t, "--requests", "120", "--seed", "5", "--pages", "2048", "--bytes-per-token", "256", "--data-dir", t.TempDir(),
		"--release-policy", "timeout", "--ack-timeout", "20ms", "--fault", "late:500ms:30%")
	if code != 1 || s.CorruptPages == 0 {
		t.Errorf("exit %d, %d corrupt pages: %v", code, s.CorruptPages, s.Problems)
	}
	if s.Released.Timeout == 0 || s.Unsafe == 0 {
		t.Errorf("nothing was released by timeout: %+v", s.Released)
	}
}

// The same faults, fenced: late writes bounce.
func TestDemoIsCleanUnderPolicyFence(t *testing.T) {
	dir := t.TempDir()
	s, code := runDemo(t, "--requests", "60", "--seed", "5", "--pages", "2048", "--bytes-per-token", "256", "--data-dir", dir,
		"--ack-timeout", "20ms", "--fault", "late:500ms:30%")
	if code != 0 || s.CorruptPages != 0 {
		t.Errorf("exit %d, %d corrupt pages: %v", code, s.CorruptPages, s.Problems)
	}
	if s.Released.Fence+s.Released.Mixed == 0 || s.Unsafe != 0 {
		t.Errorf("released: %+v, %d unsafe", s.Released, s.Unsafe)
	}
	logs := map[string][]*events.Event{}
	for _, node := range []string{"p0", "d0"} {
		logs[node] = readLog(t, filepath.Join(dir, node, "log"))
	}
	checkReleases(t, logs["d0"])
	checkInvariants(t, logs)
}

// Writes that land late, hang for ever or are taken in part, and half of the
// requests aborted, on each provider that runs here: no page is corrupt, each
// room is released by evidence, and what hangs holds nothing in the end.
// test/rxe/run.sh does the same on verbs.
func TestDemoWithEveryFaultReleasesByEvidence(t *testing.T) {
	for _, provider := range []string{"tcp", "shm", "auto"} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			dir := t.TempDir()
			s, code := runDemo(t, "--provider", provider, "--requests", "40", "--seed", "9", "--bytes-per-token", "256", "--data-dir", dir,
				"--abort-percent", "50", "--fault", "late:2s:20%,hang:5%,partial:1s:5%")
			if code != 0 || s.CorruptPages != 0 || s.Unsafe != 0 || s.HeldNow != 0 || s.LostPages != 0 {
				t.Errorf("exit %d, problems %v: %+v", code, s.Problems, s)
			}
			b := s.Released
			if n := b.Success + b.ACKs + b.Fence + b.NeverPublished + b.PeerRestart + b.Mixed; n != 40-s.TooLarge {
				t.Errorf("%d rooms were released by evidence, want %d: %+v", n, 40-s.TooLarge, b)
			}
			if b.Fence+b.Mixed == 0 {
				t.Errorf("nothing had to be fenced: the faults were not there (%+v)", b)
			}
			logs := map[string][]*events.Event{}
			for _, node := range []string{"p0", "d0"} {
				logs[node] = readLog(t, filepath.Join(dir, node, "log"))
			}
			checkReleases(t, logs["d0"])
			checkInvariants(t, logs)
		})
	}
}
