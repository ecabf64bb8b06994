package picture_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector/invariants/historytest"
	"github.com/pdlog/pdlog/replay/picture"
)

// fleet is a history of many rooms on two decode nodes and four ranks, with one
// late write among them.
func fleet(t *testing.T, rooms int) []*events.Event {
	t.Helper()
	h := historytest.New()
	h.Start("d0", events.Role_ROLE_DECODE, 4096)
	h.Start("d1", events.Role_ROLE_DECODE, 4096)
	h.Start("p0", events.Role_ROLE_PREFILL, 4096)
	h.Start("p1", events.Role_ROLE_PREFILL, 4096)
	var late func()
	for i := range rooms {
		at := uint64(100 + 20*i)
		d, p := fmt.Sprintf("d%d/0", i%2), fmt.Sprintf("p%d/%d", i/2%2, i%2)
		first := uint32(i % 64 * 8)
		pages := []uint32{first, first + 1, first + 2, first + 3}
		r := h.At(at).Open(uint64(1000+i), d, pages, p)
		if i == rooms/2 {
			post := r.Post(p, 0, pages, false)
			h.At(at + 3)
			r.Abort()
			r.Release(events.Basis_BASIS_TIMEOUT)
			h.At(at + 4)
			h.Open(7, d, pages[:2], p)
			h.At(at + 15)
			late = func() { r.Land(post, true); r.Complete(post) }
		} else {
			h.At(at + uint64(5+i%9))
			r.Write(p, 0, pages, true)
			r.Succeed()
		}
		if late != nil {
			late()
			late = nil
		}
	}
	return h.All
}

func TestTheReportNamesTheIncidentAndItsEvents(t *testing.T) {
	html := reportOf(t, scenarioLogs(t, incident))
	for _, want := range []string{
		"<!doctype html>", "4 pages were written by a write that had no business there",
		"Pages 22-23 of d: room 8/", "without the ACK of p/0", "I1", "Lifelines", `class="bad"`,
	} {
		if !strings.Contains(html, want) {
			t.Errorf("the report does not say %q", want)
		}
	}
	ids := map[string]bool{}
	for _, m := range regexp.MustCompile(`<tr id="(e-[a-z0-9-]+)">`).FindAllStringSubmatch(html, -1) {
		ids[m[1]] = true
	}
	links := regexp.MustCompile(`href="#(e-[^"]+)"`).FindAllStringSubmatch(html, -1)
	if len(links) < 8 {
		t.Errorf("only %d links to events", len(links))
	}
	for _, l := range links {
		if !ids[l[1]] {
			t.Errorf("%s leads nowhere", l[1])
		}
	}
}

func TestACleanReportSaysSo(t *testing.T) {
	html := reportOf(t, scenarioLogs(t, "../../test/scenarios/200-fence-at-the-deadline.txt"))
	if !strings.Contains(html, "No page was written after its release") || strings.Contains(html, `class="bad"`) || strings.Contains(html, `id="blame"`) {
		t.Error("a run without an incident is reported as bad")
	}
}

// What a page loads is in it: nothing names another file or host.
func TestThePageStandsAlone(t *testing.T) {
	for name, html := range map[string]string{
		"report": reportOf(t, scenarioLogs(t, incident)), "timeline": timelineOf(t, scenarioLogs(t, incident)),
	} {
		for _, bad := range []string{"<link", "<img", "<iframe", " src=", "@import", "url(", "fetch(", "XMLHttpRequest"} {
			if strings.Contains(html, bad) {
				t.Errorf("%s: has %q", name, bad)
			}
		}
		if rest := strings.ReplaceAll(html, "http://www.w3.org/2000/svg", ""); strings.Contains(rest, "http://") || strings.Contains(rest, "https://") {
			t.Errorf("%s: names a host", name)
		}
	}
}

func TestTextOfALogCannotBecomeMarkup(t *testing.T) {
	h := historytest.New()
	h.Start("d", events.Role_ROLE_DECODE, 64)
	h.Start("p", events.Role_ROLE_PREFILL, 64)
	r := h.At(5).Open(7, "d/0", []uint32{1}, "p/0")
	r.D("", &events.PageCheckFailed{Page: 1, To: "d/0", Detail: `</script><script>alert(1)</script>`})
	html := reportOf(t, logsOf(t, h.All))
	if strings.Contains(html, "<script>alert(1)") || !strings.Contains(html, "alert(1)") {
		t.Error("a detail of an event is not escaped")
	}
}

// sceneOf is the scene that stands in a page.
func sceneOf(t *testing.T, html string) picture.Scene {
	t.Helper()
	_, rest, ok := strings.Cut(html, `<script type="application/json" id="scene">`)
	if !ok {
		t.Fatal("no scene")
	}
	raw, _, _ := strings.Cut(rest, "</script>")
	var s picture.Scene
	if err := json.Unmarshal([]byte(raw), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestBarsOfALaneDoNotOverlapInARow(t *testing.T) {
	s := sceneOf(t, timelineOf(t, logsOf(t, fleet(t, 300))))
	if s.Aggregated || len(s.Bars) < 600 || len(s.Lanes) != 6 {
		t.Fatalf("aggregated %v, %d bars, %d lanes", s.Aggregated, len(s.Bars), len(s.Lanes))
	}
	type place struct{ lane, row int }
	end := map[place]int64{}
	kinds := map[string]int{}
	for _, b := range s.Bars {
		k := place{b.Lane, b.Row}
		if b.From < end[k] || b.Row >= s.Lanes[b.Lane].Rows {
			t.Fatalf("%q overlaps in lane %d row %d of %d", b.Text, b.Lane, b.Row, s.Lanes[b.Lane].Rows)
		}
		end[k] = b.To
		kinds[b.Kind]++
	}
	if kinds["late"] != 1 || kinds["victim"] != 1 {
		t.Errorf("have %v, want one late write and one victim", kinds)
	}
}

// Above 10,000 events the page stays small, and the incident is still drawn
// bar by bar, with its events.
func TestManyEventsAreAggregatedAndTheIncidentIsNot(t *testing.T) {
	evs := fleet(t, 800)
	if len(evs) <= picture.Detailed {
		t.Fatalf("only %d events", len(evs))
	}
	html := timelineOf(t, logsOf(t, evs))
	s := sceneOf(t, html)
	if !s.Aggregated || s.Events != len(evs) {
		t.Fatalf("aggregated %v, %d events", s.Aggregated, s.Events)
	}
	kinds := map[string]int{}
	for _, b := range s.Bars {
		kinds[b.Kind]++
	}
	if kinds["late"] != 1 || kinds["victim"] != 1 || kinds["busy"] < 500 || kinds["room"] > 2 {
		t.Errorf("have %v", kinds)
	}
	if n := strings.Count(html, `<tr id="e-`); n < 10 || n > 100 {
		t.Errorf("%d events are listed, want those of the incident", n)
	}
	if len(html) > 4<<20 {
		t.Errorf("the page has %d bytes", len(html))
	}
}

// Perfetto shows overlapping slices of a thread wrong; async pairs with ids of
// their own it does not.
func TestThePerfettoTraceHasAnIDForEveryBar(t *testing.T) {
	var b bytes.Buffer
	s := build(t, scenarioLogs(t, incident))
	if err := s.WritePerfetto(&b); err != nil {
		t.Fatal(err)
	}
	var trace struct {
		TraceEvents []struct {
			Name, Ph, ID, Cat string
			TS                float64
			PID               int
		}
	}
	if err := json.Unmarshal(b.Bytes(), &trace); err != nil {
		t.Fatal(err)
	}
	open := map[string]float64{}
	pairs, late, instants := 0, 0, 0
	for _, e := range trace.TraceEvents {
		switch e.Ph {
		case "b":
			if _, dup := open[e.ID]; dup {
				t.Errorf("id %s twice", e.ID)
			}
			open[e.ID] = e.TS
			if e.Cat == "late" {
				late++
			}
		case "e":
			from, ok := open[e.ID]
			if !ok || e.TS < from {
				t.Errorf("%s ends at %.0f, began %v at %.0f", e.ID, e.TS, ok, from)
			}
			pairs++
		case "i":
			instants++
		case "M":
		default:
			t.Errorf("phase %s", e.Ph)
		}
	}
	if pairs != len(s.Bars) || pairs == 0 || late != 1 || instants != len(s.Marks) {
		t.Errorf("%d pairs for %d bars, %d late, %d instants", pairs, len(s.Bars), late, instants)
	}
}
