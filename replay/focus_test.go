package replay_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/test/fleetlog"
)

// What is said of one page from the rooms that touched it is what is said of it
// from everything.
func TestOnePageFromItsOwnRoomsAlone(t *testing.T) {
	f := fleet(t, fleetlog.Options{Seed: 3, Events: 6_000, Prefill: 3, Decode: 2, Incidents: 3})
	logs := open(t, f.Dir)
	whole := gather(t, collect(t, replay.Merge(t.Context(), logs)))
	all := replay.Blame(whole)
	bad := map[string]bool{}
	for _, in := range f.Incidents {
		for _, page := range in.Pages {
			bad[in.Node] = true
			checkPage(t, logs, whole, all, in.Node, page)
		}
	}
	if len(bad) == 0 {
		t.Fatal("no incident")
	}
	for _, node := range whole.DecodeNodes() {
		for _, page := range []uint32{0, 7, 100, 9999} {
			checkPage(t, logs, whole, all, node, page)
		}
	}
}

func checkPage(t *testing.T, logs []*replay.Log, whole *replay.History, all []*replay.Incident, node string, page uint32) {
	t.Helper()
	focus, err := replay.FocusOn(t.Context(), logs, node, page)
	if err != nil {
		t.Fatal(err)
	}
	evs := collect(t, replay.MergeFocus(t.Context(), logs, focus))
	part := gather(t, evs)
	other := func(in *replay.Incident) bool { return in.Node != node || in.Page != page }
	want, have := lines(slices.DeleteFunc(slices.Clone(all), other)), lines(slices.DeleteFunc(replay.Blame(part), other))
	if want != have {
		t.Errorf("page %d of %s: have\n%s\nwant\n%s", page, node, have, want)
	}
	w, h := replay.PageHistory(whole, node, page, nil), replay.PageHistory(part, node, page, nil)
	// Where neither a cause nor a clock orders events of two nodes, the order is free.
	byNode := func(a, b replay.PageStep) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), cmp.Compare(a.Seq, b.Seq), strings.Compare(a.What, b.What))
	}
	slices.SortFunc(w.Steps, byNode)
	slices.SortFunc(h.Steps, byNode)
	if !slices.EqualFunc(w.Steps, h.Steps, func(a, b replay.PageStep) bool { return byNode(a, b) == 0 && a.Bad == b.Bad }) {
		t.Errorf("page %d of %s: %d steps, want %d", page, node, len(h.Steps), len(w.Steps))
	}
	if len(evs) >= whole.Events/2 {
		t.Errorf("page %d of %s: %d of %d events were read", page, node, len(evs), whole.Events)
	}
}
