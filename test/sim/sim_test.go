package sim_test

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/test/ladder"
	"github.com/pdlog/pdlog/test/sim"
)

// mustFire are the rare branches that CI's seeds have to reach: a simulation
// that no longer gets there proves nothing about them.
var mustFire = []string{
	"abort overtook grant", "ack fan-out with one rank missing", "ack held until the drain", "ack withheld: cannot tell",
	"aux row by message", "crash between persist and send", "damaged log found on open", "disk full and recovered", "drain while partitioned",
	"fence failed", "fence refused a write", "graceful stop done", "late write under an unknown past", "lease fired", "log tail cut on open",
	"mirror found ahead", "mirror found behind", "mirror found forked", "never_seen counted", "pages quarantined", "peer fenced for an unknown past",
	"receipt dropped, watermark raised", "refused: room_live", "release without ack", "released by acks", "released by fence",
	"released by mixed", "released by never_published", "released by success", "room id used again within 1 s", "room succeeded",
	"snapshot ignored as damaged", "started from a snapshot",
	"stale ack ignored", "started with an unknown past", "tombstone refused a grant", "told by a peer that the log is an older copy",
	"configuration changed while pages were held", "events while the clock stood still", "lower generation changes nothing", "message storm left few events", "mirror found empty",
	"snapshot of another build ignored",
	"two generations in flight at once", "uncertain write drained", "unknown past settled",
}

// build compiles pdsim without the race detector, which has nothing to find in
// one goroutine; overlay may be empty.
func build(t *testing.T, overlay string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "pdsim")
	args := []string{"build", "-o", bin}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.Command("go", append(args, "./cmd/pdsim")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
}

func envInt(name string, def int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return def
}

// run runs pdsim and returns its summary.
func run(t *testing.T, bin string, env []string, args ...string) (sim.Total, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Hour)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, append(args, "-json", "-j", strconv.Itoa(envInt("PDLOG_SIM_JOBS", 1)))...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	out, _ := cmd.Output() // a failing seed is in the summary
	var total sim.Total
	var text []string
	sc := bufio.NewScanner(strings.NewReader(string(out)))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		if line := sc.Text(); strings.HasPrefix(line, "{") {
			if err := json.Unmarshal([]byte(line), &total); err != nil {
				t.Fatalf("summary of pdsim: %v", err)
			}
		} else {
			text = append(text, line)
		}
	}
	if total.Runs == 0 {
		t.Fatalf("pdsim did not run:\n%s", out)
	}
	return total, strings.Join(text, "\n")
}

// TestSeeds runs the seeds of a change (PDLOG_SIM_SEEDS, 100) on small fleets,
// and a few on larger ones (PDLOG_SIM_FLEETS, 6, of up to 50 nodes). Nothing may
// break, and every probe has to fire.
func TestSeeds(t *testing.T) {
	if testing.Short() {
		t.Skip("runs pdsim for some seconds")
	}
	bin := build(t, "")
	start := time.Now()
	small, text := run(t, bin, nil, "-seed", "1", "-seeds", strconv.Itoa(envInt("PDLOG_SIM_SEEDS", 100)), "-all")
	t.Log("\n" + text)
	large, text := run(t, bin, nil, "-seed", "100000", "-seeds", strconv.Itoa(envInt("PDLOG_SIM_FLEETS", 6)), "-most-nodes", "50", "-virtual", "20s", "-all")
	t.Log("\n" + text)
	ladder.Report(t, ladder.Row{Rung: "simulation", What: "small fleets, and fleets of 5 to 50", Runs: small.Runs + large.Runs,
		Faults: small.Faults() + large.Faults(), Found: small.Failed + large.Failed, Took: time.Since(start)})
	if small.Failed+large.Failed > 0 {
		t.Errorf("%d of %d runs failed", small.Failed+large.Failed, small.Runs+large.Runs)
	}
	for _, p := range mustFire {
		if small.Probes[p]+large.Probes[p] == 0 {
			t.Errorf("probe %q did not fire in %d runs", p, small.Runs+large.Runs)
		}
	}
}

// TestThousandNodes: a fleet of a thousand nodes runs for 60 virtual seconds.
func TestThousandNodes(t *testing.T) {
	if os.Getenv("PDLOG_SIM_THOUSAND") == "" {
		t.Skip("set PDLOG_SIM_THOUSAND=1: takes a minute or two")
	}
	total, text := run(t, build(t, ""), nil, "-seed", "7", "-nodes", "1000", "-virtual", "60s", "-rate", "0.5")
	t.Log("\n" + text)
	if total.Failed > 0 {
		t.Fatal("it failed")
	}
}

// TestSameSeedSameRun: a seed decides everything, so a failure can be seen again.
func TestSameSeedSameRun(t *testing.T) {
	for seed := uint64(1); seed <= 12; seed++ {
		cfg := sim.Config{Seed: seed, Safety: 20 * time.Second}
		a, b := sim.Run(cfg), sim.Run(cfg)
		if a.Failure != nil {
			t.Fatal(a.Line("here"))
		}
		if a.Steps != b.Steps || a.Events != b.Events || a.Digest() != b.Digest() {
			t.Errorf("two runs of seed %d: %d and %d steps, %d and %d events", seed, a.Steps, b.Steps, a.Events, b.Events)
		}
	}
}

// TestLogOpensInReplay: the log of a run is an ordinary export.
func TestLogOpensInReplay(t *testing.T) {
	r := sim.Run(sim.Config{Seed: 3, Safety: 10 * time.Second})
	if r.Failure != nil {
		t.Fatal(r.Line("here"))
	}
	path := filepath.Join(t.TempDir(), "run.jsonl")
	n, err := replay.Export(path, r.Log())
	if err != nil || n == 0 {
		t.Fatalf("export: %d events, %v", n, err)
	}
	logs, err := replay.Open(t.Context(), []string{path})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{} // peers of earlier versions keep no log
	for e, err := range r.Log() {
		if err != nil {
			t.Fatal(err)
		}
		names[e.Node] = true
	}
	if len(logs) != len(names) || len(names) < 3 {
		t.Errorf("the export holds %d logs of %d nodes", len(logs), len(names))
	}
	for _, e := range replay.Merge(t.Context(), logs) {
		if e != nil {
			t.Fatal(e)
		}
	}
}
