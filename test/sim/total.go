package sim

import (
	"fmt"
	"strings"
	"time"
)

// Total sums up runs.
type Total struct {
	Runs, Failed, Steps, Events, Rooms uint64
	Virtual, Took                      time.Duration // Took: of each run, added up
	Injected, Probes                   map[string]uint64
}

// Add adds a run.
func (t *Total) Add(r *Result) {
	if t.Injected == nil {
		t.Injected, t.Probes = map[string]uint64{}, map[string]uint64{}
	}
	t.Runs++
	if r.Failure != nil {
		t.Failed++
	}
	t.Steps, t.Events, t.Rooms, t.Virtual = t.Steps+r.Steps, t.Events+r.Events, t.Rooms+r.Rooms, t.Virtual+r.Virtual
	t.Took += r.Took
	for k, n := range r.Injected {
		t.Injected[k] += n
	}
	for k, n := range r.Probes {
		t.Probes[k] += n
	}
}

// Faults is how many faults were injected.
func (t *Total) Faults() uint64 {
	var n uint64
	for _, v := range t.Injected {
		n += v
	}
	return n
}

// Text is the report of runs that took that long. Speeds are those of one core: of
// runs side by side, each has its own.
func (t *Total) Text(took time.Duration, all bool) string {
	var b strings.Builder
	s := took.Seconds()
	fmt.Fprintf(&b, "%d runs, %d failed, %d rooms, %d events, %d faults injected, %d steps in %.1f s: %.0f steps/s and %.0f simulated s/s on a core\n",
		t.Runs, t.Failed, t.Rooms, t.Events, t.Faults(), t.Steps, s, float64(t.Steps)/t.Took.Seconds(), t.Virtual.Seconds()/t.Took.Seconds())
	if !all {
		return b.String()
	}
	for _, part := range []struct {
		title string
		m     map[string]uint64
	}{{"faults", t.Injected}, {"probes", t.Probes}} {
		fmt.Fprintf(&b, "%s\n", part.title)
		for _, k := range sorted(part.m) {
			fmt.Fprintf(&b, "  %-50s %d\n", k, part.m[k])
		}
	}
	return b.String()
}
