package node

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
)

// A sealed segment that rots under a running node is said and counted; the node
// runs on. A pass over a whole log says nothing.
func TestScrubTellsOfARottenSegment(t *testing.T) {
	cfg := smallLog(t)
	n, said := logOf(t, cfg)
	live(t, n, 1500)
	const fast = 1 << 40
	if !n.scrub(context.Background(), fast) || n.damaged.Load() != 0 || strings.Contains(said.String(), "does not verify") {
		t.Fatalf("a whole log: %d damaged, %s", n.damaged.Load(), said)
	}
	segs := segmentsOf(t, cfg)
	if len(segs) < 2 {
		t.Fatalf("%d segments", len(segs))
	}
	slices.Sort(segs)
	b, err := os.ReadFile(segs[0])
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(segs[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for at := 3 * os.Getpagesize(); at < len(b); at += os.Getpagesize() { // some of it is in use
		if _, err := f.WriteAt([]byte{b[at+100] ^ 1}, int64(at+100)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if !n.scrub(context.Background(), fast) || n.damaged.Load() != 1 || !strings.Contains(said.String(), segs[0]) || !strings.Contains(said.String(), "does not verify") {
		t.Errorf("%d damaged, it said %s", n.damaged.Load(), said)
	}
	if n.store.Err() != nil {
		t.Errorf("the log ended: %v", n.store.Err())
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if n.scrub(ctx, 1) {
		t.Error("a node that ends begins another pass")
	}
}
