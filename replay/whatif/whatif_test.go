package whatif_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/replay/scenario"
	"github.com/pdlog/pdlog/replay/whatif"
)

const scenarios = "../../test/scenarios/"

// logs runs a scenario and opens the export of its nodes' logs.
func logs(t *testing.T, path string) []*replay.Log {
	t.Helper()
	rep, err := scenario.RunFile(path)
	if err != nil || !rep.OK {
		t.Fatalf("%s: %v line %d: %s", path, err, rep.FailedLine, rep.Detail)
	}
	return open(t, rep.Logs)
}

func open(t *testing.T, evs []*events.Event) []*replay.Log {
	t.Helper()
	var b []byte
	for _, e := range evs {
		b = append(events.AppendJSON(b, e), '\n')
	}
	file := filepath.Join(t.TempDir(), "export.jsonl")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := replay.Open(t.Context(), []string{file})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func run(t *testing.T, logs []*replay.Log, plan whatif.Plan) *whatif.Result {
	t.Helper()
	res, err := whatif.Run(t.Context(), logs, plan)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// policyOf is what a scenario's decode nodes recorded.
func policyOf(t *testing.T, logs []*replay.Log) events.Policy {
	t.Helper()
	for _, l := range logs {
		for e, err := range l.Events(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if s := e.GetNodeStarted(); s.GetRole() == events.Role_ROLE_DECODE {
				return s.GetPolicy()
			}
			break
		}
	}
	return 0
}

// Under its own policy a run is what it was: the recorded inputs, read back out
// of the log, lead the machine to the recorded releases, at the recorded times.
// PDLOG_LONG=1 takes every scenario, not every other one.
func TestTheRecordedPolicyChangesNothing(t *testing.T) {
	names, err := filepath.Glob(scenarios + "*.txt")
	if err != nil || len(names) < 100 {
		t.Fatal(len(names), err)
	}
	replayed := 0
	for i, name := range names {
		if i%2 == 1 && os.Getenv("PDLOG_LONG") == "" {
			continue
		}
		logs := logs(t, name)
		policy := policyOf(t, logs)
		if policy == 0 {
			continue // its decode nodes keep no log
		}
		replayed++
		res := run(t, logs, whatif.Plan{Policy: policy})
		if res.ReleasesChanged != 0 || res.Corruptions.Recorded != res.Corruptions.UnderPolicy || res.Unplaced != 0 {
			var b bytes.Buffer
			_ = res.Write(&b)
			t.Errorf("%s: %d unplaced\n%s", filepath.Base(name), res.Unplaced, b.String())
		}
	}
	if replayed < 50 {
		t.Errorf("only %d scenarios have a decode log", replayed)
	}
}

// basisOf is the fate of a room in one of the runs: "" = still held.
func basisOf(f whatif.Fate) string {
	if f.Basis == nil {
		return ""
	}
	return *f.Basis
}

func TestOtherPoliciesHaveTheirOutcomes(t *testing.T) {
	cases := []struct {
		file            string
		plan            whatif.Plan
		room            uint64
		recorded, under string
		corruptions     [2]int
		changed         int
	}{
		{"088-name-the-writer", whatif.Plan{Policy: events.Policy_POLICY_FENCE}, 7, "timeout", "fence", [2]int{4, 0}, 1},
		{"088-name-the-writer", whatif.Plan{Policy: events.Policy_POLICY_HOLD}, 7, "timeout", "acks", [2]int{4, 0}, 1},
		{"088-name-the-writer", whatif.Plan{Policy: events.Policy_POLICY_TIMEOUT, AckTimeout: 10 * time.Second}, 7, "timeout", "acks", [2]int{4, 0}, 1},
		{"200-fence-at-the-deadline", whatif.Plan{Policy: events.Policy_POLICY_TIMEOUT}, 7, "fence", "timeout", [2]int{0, 4}, 1},
		{"200-fence-at-the-deadline", whatif.Plan{Policy: events.Policy_POLICY_FENCE, AckTimeout: 20 * time.Second}, 7, "fence", "acks", [2]int{0, 0}, 1},
		{"211-force-release-is-unsafe", whatif.Plan{Policy: events.Policy_POLICY_FENCE}, 7, "forced", "fence", [2]int{4, 0}, 1},
		{"201-fence-that-proves-nothing", whatif.Plan{Policy: events.Policy_POLICY_TIMEOUT}, 7, "acks", "timeout", [2]int{0, 4}, 1},
	}
	for _, tc := range cases {
		names, _ := filepath.Glob(scenarios + tc.file[:3] + "-*.txt")
		if len(names) != 1 {
			t.Fatalf("%s: %v", tc.file, names)
		}
		res := run(t, logs(t, names[0]), tc.plan)
		name := tc.file + " " + res.Policy
		found := false
		for _, f := range res.Rooms {
			if f.Room != tc.room {
				continue
			}
			found = true
			if basisOf(f.Recorded) != tc.recorded || basisOf(f.UnderPolicy) != tc.under {
				t.Errorf("%s: room %d has %q and %q, want %q and %q", name, f.Room, basisOf(f.Recorded), basisOf(f.UnderPolicy), tc.recorded, tc.under)
			}
		}
		if !found {
			t.Errorf("%s: room %d is not listed", name, tc.room)
		}
		if have := [2]int{res.Corruptions.Recorded, res.Corruptions.UnderPolicy}; have != tc.corruptions {
			t.Errorf("%s: corruptions %v, want %v", name, have, tc.corruptions)
		}
		if res.ReleasesChanged != tc.changed {
			t.Errorf("%s: %d releases changed, want %d", name, res.ReleasesChanged, tc.changed)
		}
	}
}

func TestHoldingCostsMemory(t *testing.T) {
	names, _ := filepath.Glob(scenarios + "088-*.txt")
	res := run(t, logs(t, names[0]), whatif.Plan{Policy: events.Policy_POLICY_HOLD})
	if h := res.HeldPageSeconds; h.UnderPolicy < h.Recorded+4*2.5 {
		t.Errorf("room 7's four pages wait for the write that ends 3 s later, yet held_page_seconds is %+v", h)
	}
	if res.PeakHeldPages.UnderPolicy != 4 || res.Unplaced != 0 {
		t.Errorf("peak %+v, unplaced %d", res.PeakHeldPages, res.Unplaced)
	}
}

// A pool that is full with held pages has none for the next room, and that is
// said, not papered over.
func TestAPoolThatIsTooSmallIsSaid(t *testing.T) {
	rep, err := scenario.Run("small", `
prefill p ranks=1
decode  d pages=4
policy  release=timeout ack_timeout=1s
0ms     open   room=7 prefill=p decode=d pages=0-3
5ms     send   room=7 rank=p/0 chunk=0 pages=0-3 takes=4s
20ms    abort  room=7 by=d
2s      open   room=8 prefill=p decode=d pages=0-3
2.1s    send   room=8 rank=p/0 chunk=0 pages=0-3 takes=40ms last
3s      finish room=8
end     expect corruption page=0 victim=none writer=p/0 room=7
end     expect violations I1,I2
`)
	if err != nil || !rep.OK {
		t.Fatal(err, rep.Detail)
	}
	res := run(t, open(t, rep.Logs), whatif.Plan{Policy: events.Policy_POLICY_HOLD})
	if res.Unplaced != 1 || res.Corruptions.UnderPolicy != 0 {
		t.Errorf("unplaced %d, corruptions %+v", res.Unplaced, res.Corruptions)
	}
	var b bytes.Buffer
	if err := res.Write(&b); err != nil || !strings.Contains(b.String(), "1 could not have been opened: no free pages") {
		t.Errorf("have %s, %v", b.String(), err)
	}
}
