package model_test

import (
	"os"
	"testing"

	"github.com/pdlog/pdlog/test/ladder"
)

// search is one check of the model.
type search struct {
	name    string
	defines []string
	flags   []string
	args    []string
}

var (
	safety   = []string{"-O2", "-DSAFETY", "-DNOCLAIM", "-DHC4"}
	liveness = []string{"-O2", "-DHC4"}
	quick    = []string{"-m100000", "-w22"}
	live     = []string{"-a", "-m1000000", "-w22"}
)

// perChange is what each change runs; a rank's death matters to liveness alone,
// for a rank that does nothing more is among the interleavings.
var perChange = []search{
	{"safe: two uses, two ranks, a restart", []string{"DEATHS=0"}, safety, quick},
	{"live: two uses, two ranks, a death", []string{"LIVENESS", "RESTARTS=0"}, liveness, live},
}

// atNight sees more of it; the largest by a bit state search, which covers a part.
var atNight = []search{
	{"safe: receipts are dropped", []string{"DEATHS=0", "DROPPING"}, safety, quick},
	{"safe: a rank ends rooms by itself", []string{"DEATHS=0", "FAILING"}, safety, quick},
	{"safe: two pages, two uses of the number at once", []string{"DEATHS=0", "PAGES=2"}, safety, quick},
	{"safe: two restarts, two writes", []string{"DEATHS=0", "RESTARTS=2", "WRITES=2"}, safety, []string{"-m100000", "-w26"}},
	{"live: a death and a restart", []string{"LIVENESS"}, liveness, []string{"-a", "-m1000000", "-w26"}},
	{"bit state: three uses, two pages, all of it", []string{"DEATHS=0", "USES=3", "PAGES=2", "WRITES=2", "RESTARTS=2", "DROPPING", "FAILING"}, []string{"-O2", "-DSAFETY", "-DNOCLAIM", "-DBITSTATE"}, []string{"-m100000", "-w32", "-Q20"}},
}

// mutants are the faults that the model has to show.
var mutants = []search{
	{"ack without generation", []string{"NO_GEN"}, safety, quick},
	{"generation starts again", []string{"GEN_RESTARTS"}, safety, quick},
	{"ack before the drain", []string{"EARLY_ACK"}, safety, quick},
	{"metadata after its own abort", []string{"NO_TOMB"}, safety, quick},
	{"watermark goes down", []string{"TOMB_BACK", "DROPPING"}, safety, quick},
	{"lease over without a fence", []string{"NO_FENCE"}, safety, quick},
	{"fence taken as done before its proof", []string{"EARLY_FENCE"}, safety, quick},
	{"one rank stands for all", []string{"ONE_RANK"}, safety, quick},
	{"acks counted, not matched", []string{"COUNTED", "NO_TIMER"}, safety, quick},
	{"restart taken as proof", []string{"RESTART_PROOF"}, safety, quick},
	{"cannot tell, and vouches", []string{"VOUCH"}, safety, quick},
	{"posted before its metadata is on disk", []string{"POST_EARLY"}, safety, quick},
	{"receipts lost in a restart", []string{"FORGET"}, safety, quick},
	{"no lease", []string{"LIVENESS", "NO_TIMER", "RESTARTS=0"}, liveness, live},
}

func TestModelHolds(t *testing.T) {
	needSpin(t)
	list := perChange
	if os.Getenv("PDLOG_NIGHT") != "" {
		list = append(list[:len(list):len(list)], atNight...)
	}
	for _, s := range list {
		t.Run(s.name, func(t *testing.T) {
			o := compile(t, s.defines, s.flags).run(t, nil, s.args...)
			ladder.Report(t, ladder.Row{Rung: "model", What: s.name, Runs: 1, Took: o.took})
			t.Logf("%.0f states, depth %d, %s", o.states, o.depth, o.took)
			if o.errors > 0 || o.truncated {
				t.Fatalf("%d errors\n%s", o.errors, o.text)
			}
			if o.states < 1000 {
				t.Fatalf("%.0f states: the model does nothing\n%s", o.states, o.text)
			}
		})
	}
}

// TestMutantsAreShown: a model that cannot fail proves nothing.
func TestMutantsAreShown(t *testing.T) {
	needSpin(t)
	for _, s := range mutants {
		t.Run(s.name, func(t *testing.T) {
			defines := s.defines
			if s.flags[1] == "-DSAFETY" {
				defines = append(defines[:len(defines):len(defines)], "DEATHS=0")
			}
			flags := append([]string{"-O1"}, s.flags[1:]...)
			o := compile(t, defines, flags).run(t, nil, s.args...)
			found := uint64(0)
			if o.errors > 0 {
				found = 1
			}
			ladder.Report(t, ladder.Row{Rung: "model mutants", What: s.name, Runs: 1, Faults: 1, Found: found, Took: o.took})
			if o.errors == 0 {
				t.Fatalf("not found in %.0f states", o.states)
			}
			t.Logf("found after %.0f states, %s", o.states, o.took)
		})
	}
}
