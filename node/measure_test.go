package node

import (
	"slices"
	"testing"
)

// TestAbortBenchFreesEveryPage: the pair that is measured does what it is
// measured for, over memory and over sockets.
func TestAbortBenchFreesEveryPage(t *testing.T) {
	for name, sockets := range map[string]bool{"memory": false, "sockets": true} {
		t.Run(name, func(t *testing.T) {
			const rooms = 50
			b, err := NewAbortBench(testContext(t), shortDir(t), rooms, sockets)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			}()
			for range 2 {
				if err := b.Open(testContext(t), rooms); err != nil {
					t.Fatal(err)
				}
				run, err := b.AbortAll(testContext(t))
				if err != nil {
					t.Fatal(err)
				}
				if len(run.Latency) != rooms || run.Wall < slices.Max(run.Latency) {
					t.Errorf("%d rooms in %v, the slowest in %v; want %d", len(run.Latency), run.Wall, slices.Max(run.Latency), rooms)
				}
			}
		})
	}
}
