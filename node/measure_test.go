package node

import (
	"slices"
	"testing"
	"time"
)

// TestPairBenchFreesEveryPage: the pair that is measured does what it is
// measured for, over memory and over sockets.
func TestPairBenchFreesEveryPage(t *testing.T) {
	for name, memory := range map[string]bool{"memory": true, "sockets": false} {
		t.Run(name, func(t *testing.T) {
			const rooms = 50
			b, err := NewPairBench(testContext(t), shortDir(t), PairShape{Rooms: rooms, Memory: memory})
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

// TestPairBenchTransfers: with both mirrors on, every page of every room
// arrives before the rate is told.
func TestPairBenchTransfers(t *testing.T) {
	b, err := NewPairBench(testContext(t), shortDir(t), PairShape{Rooms: 3, RoomPages: 4, PageBytes: 4096, Mirror: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	from, to := b.memory[0].Bytes(), b.memory[1].Bytes()
	pages := b.shape.pages() * b.shape.PageBytes
	for i := range from[:pages] {
		from[i] = byte(i*7 + i>>12)
	}
	rate, err := b.Transfer(testContext(t), 50*time.Millisecond)
	if err != nil || rate <= 0 {
		t.Fatalf("rate %v, %v", rate, err)
	}
	if !slices.Equal(from[:pages], to[:pages]) {
		t.Error("the pages of decode are not those of prefill")
	}
}

// TestPairBenchAbortsInFlight: pages are not free before the write has landed.
func TestPairBenchAbortsInFlight(t *testing.T) {
	const held = 20 * time.Millisecond
	b, err := NewPairBench(testContext(t), shortDir(t), PairShape{Rooms: 1, Fault: "late:20ms:100%"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	beyond, err := b.AbortInFlight(testContext(t), 5, held)
	if err != nil || len(beyond) != 5 {
		t.Fatalf("%v, %v; want five, none below zero", beyond, err)
	}
}
