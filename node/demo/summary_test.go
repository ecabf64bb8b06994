package demo

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node/enginepb"
)

func errorsAs(err error, target any) bool { return errors.As(err, target) }

// ev is an event of node n about room incarnation room, at ms.
func ev(n string, room uint64, ms uint64, e *events.Event) *events.Event {
	e.Node, e.RoomSeq, e.Hlc = n, room, uint64(events.MakeHLC(ms, 0))
	return e
}

func TestSummaryCountsWhatTheLogsSay(t *testing.T) {
	t.Parallel()
	tl := newTally()
	for _, e := range []*events.Event{
		ev("d0", 10, 1, &events.Event{Payload: &events.Event_PagesReserved{PagesReserved: &events.PagesReserved{Pages: []uint32{1, 2}}}}),
		ev("d0", 20, 1, &events.Event{Payload: &events.Event_PagesReserved{PagesReserved: &events.PagesReserved{Pages: []uint32{3}}}}),
		ev("d0", 30, 1, &events.Event{Payload: &events.Event_PagesReserved{PagesReserved: &events.PagesReserved{Pages: []uint32{4}}}}),
		ev("d0", 10, 100, &events.Event{Payload: &events.Event_AbortArmed{AbortArmed: &events.AbortArmed{Generation: 1}}}),
		ev("d0", 10, 140, &events.Event{Payload: &events.Event_Released{Released: &events.Released{Basis: events.Basis_BASIS_ACKS}}}),
		ev("d0", 20, 150, &events.Event{Payload: &events.Event_Released{Released: &events.Released{Basis: events.Basis_BASIS_TIMEOUT, Unsafe: true}}}),
		ev("d0", 20, 160, &events.Event{Payload: &events.Event_PageCheckFailed{PageCheckFailed: &events.PageCheckFailed{Page: 3}}}),
		ev("d0", 20, 161, &events.Event{Payload: &events.Event_PageCheckFailed{PageCheckFailed: &events.PageCheckFailed{Page: 3}}}),
		ev("d0", 10, 90, &events.Event{Payload: &events.Event_WriteLanded{WriteLanded: &events.WriteLanded{Bytes: 100}}}),
		ev("d0", 10, 91, &events.Event{Payload: &events.Event_WriteLanded{WriteLanded: &events.WriteLanded{Bytes: 7}}}),
		ev("p0", 5, 90, &events.Event{Payload: &events.Event_ChunkCompleted{ChunkCompleted: &events.ChunkCompleted{}}}),
		ev("p0", 5, 101, &events.Event{Payload: &events.Event_AbortReceived{AbortReceived: &events.AbortReceived{}}}),
		ev("p0", 5, 102, &events.Event{Payload: &events.Event_ChunkCompleted{ChunkCompleted: &events.ChunkCompleted{}}}),
	} {
		tl.add(e)
	}
	r := EngineReport{Total: 4, Succeeded: 2, Aborted: 1, Failed: 1, Corrupt: []RoomPage{{20, 3}, {30, 4}}, Taken: []uint32{4}}
	s := summarize(r, tl, 0, 1500*time.Millisecond)
	if s.Released.ACKs != 1 || s.Released.Timeout != 1 || s.Unsafe != 1 {
		t.Errorf("released: %+v", s)
	}
	if s.CorruptPages != 2 { // (20,3) once, (30,4) once
		t.Errorf("corrupt pages: %d", s.CorruptPages)
	}
	if s.HeldNow != 1 || s.HeldPages != 1 || s.Bytes != 107 || s.InFlight != 1 || s.Seconds != 1.5 {
		t.Errorf("have %+v", s)
	}
	if d := cmp.Diff(Quantiles{P50: 40, P99: 40, Max: 40}, s.AbortToRelease); d != "" {
		t.Error(d)
	}
	if s.OK() {
		t.Error("corrupt pages pass as good")
	}
}

func TestSummaryKeysAreTheContract(t *testing.T) {
	t.Parallel()
	s := summarize(EngineReport{}, newTally(), 0, 0)
	s.Nodes = append(s.Nodes, NodeSummary{Node: "d0"})
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	for path, keys := range map[string][]string{
		"":                    {"requests", "succeeded", "aborted", "failed", "bytes", "seconds", "pages_checked", "corrupt_pages", "released", "held_now", "abort_to_release_ms", "nodes", "nats_url"},
		"released":            {"success", "acks", "fence", "never_published", "peer_restart", "forced", "timeout", "mixed"},
		"abort_to_release_ms": {"p50", "p99", "max"},
	} {
		at := m
		if path != "" {
			at = m[path].(map[string]any)
		}
		for _, k := range keys {
			if _, ok := at[k]; !ok {
				t.Errorf("%s %s is missing", path, k)
			}
		}
	}
	n := m["nodes"].([]any)[0].(map[string]any)
	for _, k := range []string{"node", "role", "events", "log", "mirror_lag"} {
		if _, ok := n[k]; !ok {
			t.Errorf("nodes %s is missing", k)
		}
	}
}

func TestWhatMakesADemoEndBadly(t *testing.T) {
	t.Parallel()
	good := EngineReport{Total: 1, Succeeded: 1}
	if s := summarize(good, newTally(), 0, 0); !s.OK() {
		t.Errorf("a good run has problems: %v", s.Problems)
	}
	for name, s := range map[string]*Summary{
		"lost pages":   summarize(good, newTally(), 2, 0),
		"no outcome":   summarize(EngineReport{Total: 2, Succeeded: 1}, newTally(), 0, 0),
		"double owner": summarize(EngineReport{Total: 1, Succeeded: 1, PoolFault: "page 3 twice"}, newTally(), 0, 0),
		"wrong bytes":  summarize(EngineReport{Total: 1, Succeeded: 1, Corrupt: []RoomPage{{1, 2}}}, newTally(), 0, 0),
	} {
		var b strings.Builder
		if err := s.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		if s.OK() || !strings.Contains(b.String(), s.Problems[0]) {
			t.Errorf("%s: not said", name)
		}
	}
}

// A mirror that is behind is no bad end: no decision waits for it, and the log
// has everything (cli.md, cases.md C-78). It is said so that nobody overlooks it.
func TestAMirrorThatIsBehindIsSaidLoudly(t *testing.T) {
	t.Parallel()
	s := summarize(EngineReport{Total: 1, Succeeded: 1}, newTally(), 0, 0)
	s.Nodes = []NodeSummary{{Node: "p0"}, {Node: "d0", MirrorLag: 17, MirrorError: "no space left on device"}}
	var b strings.Builder
	if err := s.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if !s.OK() || !strings.Contains(b.String(), "THE MIRROR IS BEHIND: it lacks the last 17 events of d0 (no space left on device)") {
		t.Errorf("said: %v %s", s.OK(), b.String())
	}
	if strings.Contains(b.String(), "events of p0 (") {
		t.Errorf("said of the node whose mirror is whole: %s", b.String())
	}
}

func TestQuantilesAreMeasuredValues(t *testing.T) {
	t.Parallel()
	ms := make([]uint64, 0, 200)
	for i := range uint64(200) {
		ms = append(ms, 200-i)
	}
	if d := cmp.Diff(Quantiles{P50: 100, P99: 198, Max: 200}, quantiles(ms)); d != "" {
		t.Error(d)
	}
	if q := quantiles(nil); q != (Quantiles{}) {
		t.Errorf("of nothing: %+v", q)
	}
}

func TestPagesThatTheTwoSidesSeeDifferentlyAreLost(t *testing.T) {
	t.Parallel()
	view := func(free, held uint64, pages ...uint32) *enginepb.PagesResponse {
		r := &enginepb.PagesResponse{Free: free, Held: held}
		for _, g := range pages {
			r.Pages = append(r.Pages, &enginepb.PageView{Page: g, State: "held"})
		}
		return r
	}
	for _, c := range []struct {
		name  string
		taken []uint32
		node  *enginepb.PagesResponse
		want  int
	}{
		{"all free", nil, view(8, 0), 0},
		{"held on both sides", []uint32{3, 4}, view(6, 2, 3, 4), 0},
		{"the node forgot to say", []uint32{3}, view(8, 0), 1},
		{"the engine uses a held page", nil, view(7, 1, 5), 1},
		{"in no state at all", nil, view(7, 0), 1},
	} {
		if got := disagree(c.taken, c.node, 8); got != c.want {
			t.Errorf("%s: %d lost, want %d", c.name, got, c.want)
		}
	}
}
