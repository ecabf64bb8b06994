package replay_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/test/fleetlog"
)

// fleet writes the logs of a made-up fleet.
func fleet(t testing.TB, o fleetlog.Options) *fleetlog.Fleet {
	t.Helper()
	f, err := fleetlog.Write(t.Context(), t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A fleet without incidents is clean: nothing is made up over many nodes whose
// rooms interleave.
func TestACleanFleetVerifies(t *testing.T) {
	f := fleet(t, fleetlog.Options{Seed: 1, Events: 20_000, Prefill: 3, Decode: 2})
	v := verify(t, f.Dir)
	if !v.OK {
		t.Errorf("%d violations, the first: %s", len(v.Violations), v.Violations[0].Text())
	}
	n := uint64(0)
	for _, l := range v.Logs {
		n += l.Events
	}
	if n != uint64(f.Events) { //nolint:gosec // a count
		t.Errorf("%d events, %d were written", n, f.Events)
	}
}

// Blame names what was injected, page by page, and nothing else.
func TestBlameFindsTheIncidentsOfAFleet(t *testing.T) {
	f := fleet(t, fleetlog.Options{Seed: 2, Events: 20_000, Prefill: 3, Decode: 2, Incidents: 7})
	if len(f.Incidents) != 7 {
		t.Fatalf("%d incidents", len(f.Incidents))
	}
	var want, have []string
	for _, in := range f.Incidents {
		for _, page := range in.Pages {
			want = append(want, fmt.Sprintf("%s page %d victim %d by %s of room %d chunk %d", in.Node, page, in.Victim, in.Writer, in.WriterRoom, in.Chunk))
		}
	}
	for _, in := range replay.Blame(gather(t, collect(t, replay.Merge(t.Context(), open(t, f.Dir))))) {
		have = append(have, fmt.Sprintf("%s page %d victim %d by %s of room %d chunk %d", in.Node, in.Page, *in.VictimRoom, *in.Writer, *in.WriterRoom, *in.Chunk))
	}
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(want, have) {
		t.Errorf("have\n%q\nwant\n%q", have, want)
	}
}
