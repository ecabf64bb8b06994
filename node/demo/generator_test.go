package demo

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGeneratorHasTheShapeOfTheConversationTrace(t *testing.T) {
	t.Parallel()
	const n = 12031
	reqs := Generate(7, n)
	if len(reqs) != n {
		t.Fatalf("have %d requests", len(reqs))
	}
	lengths := make([]int, 0, n)
	batches := map[int64]int{}
	sum, out := 0, 0
	for i, r := range reqs {
		if i > 0 && r.AtMS < reqs[i-1].AtMS {
			t.Fatal("arrivals are not in order")
		}
		batches[r.AtMS]++
		lengths = append(lengths, r.Input)
		sum += r.Input
		out += r.Output
	}
	slices.Sort(lengths)
	within := func(name string, have, lo, hi float64) {
		t.Helper()
		if have < lo || have > hi {
			t.Errorf("%s is %g, want %g to %g", name, have, lo, hi)
		}
	}
	// The trace's own figures: mean 12,035, median 6,909, p99 85,401, 894 to 126,195.
	within("mean input", float64(sum)/n, 11000, 13000)
	within("median input", float64(lengths[n/2]), 5000, 8000)
	within("p99 input", float64(lengths[n*99/100]), 70000, 110000)
	within("least input", float64(lengths[0]), genMinInput, genMinInput+50)
	within("most input", float64(lengths[n-1]), 100000, genMaxInput)
	within("mean output", float64(out)/n, 320, 360)
	// Bursts: mean and variance of a batch are those of a Poisson draw.
	mean := float64(n) / float64(len(batches))
	within("requests a batch", mean, 9.5, 11)
	v := 0.0
	for _, k := range batches {
		v += (float64(k) - mean) * (float64(k) - mean)
	}
	within("variance of a batch", v/float64(len(batches)), 8, 13)
}

func TestGeneratorIsAFunctionOfItsSeed(t *testing.T) {
	t.Parallel()
	a, b := Generate(3, 500), Generate(3, 500)
	if d := cmp.Diff(a, b); d != "" {
		t.Errorf("equal seeds differ: %s", d)
	}
	if slices.Equal(a, Generate(4, 500)) {
		t.Error("different seeds give equal requests")
	}
	if !slices.Equal(a[:100], Generate(3, 100)) {
		t.Error("a longer run begins otherwise than a shorter one")
	}
}
