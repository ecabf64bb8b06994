package picture_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/test/fleetlog"
)

// largeTimeline is the page of a fleet's logs of PDLOG_PICTURE_EVENTS events, with
// three late writes among them.
func largeTimeline(t *testing.T) (html string, f *fleetlog.Fleet) {
	t.Helper()
	n := 60_000
	if v := os.Getenv("PDLOG_PICTURE_EVENTS"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil {
			t.Fatalf("PDLOG_PICTURE_EVENTS: %v", err)
		}
	}
	f, err := fleetlog.Write(t.Context(), t.TempDir(), fleetlog.Options{Seed: 3, Events: n, Decode: 2, Incidents: 3})
	if err != nil {
		t.Fatal(err)
	}
	logs, err := replay.Open(t.Context(), []string{f.Dir})
	if err != nil {
		t.Fatal(err)
	}
	return timelineOf(t, logs), f
}

// A page does not grow with the logs: of a million events it is as large, and
// each late write is drawn and listed with its events (make test-browser opens it).
func TestALargeFleetBecomesAPageThatIsNoLarger(t *testing.T) {
	html, f := largeTimeline(t)
	s := sceneOf(t, html)
	if !s.Aggregated || s.Events != f.Events {
		t.Fatalf("aggregated %v, %d of %d events", s.Aggregated, s.Events, f.Events)
	}
	late, bars := map[string]bool{}, map[string]int{}
	for _, b := range s.Bars {
		bars[b.Kind]++
		if b.Kind != "late" {
			continue
		}
		late[b.Text] = true
		for _, ref := range b.Refs {
			if !strings.Contains(html, `id="e-`+strings.ReplaceAll(ref, "#", "-")+`"`) {
				t.Errorf("%s of %q is not listed", ref, b.Text)
			}
		}
	}
	if len(late) != len(f.Incidents) || bars["victim"] != len(f.Incidents) {
		t.Errorf("%d late writes and %d victims are drawn, %d were written: %v", len(late), bars["victim"], len(f.Incidents), bars)
	}
	const most = 2 << 20 // bytes: at 1200 slices of time a lane, and what the incidents need
	if len(html) > most || len(s.Bars) > 20_000 {
		t.Errorf("%d events make a page of %d bytes with %d bars", f.Events, len(html), len(s.Bars))
	}
	t.Logf("%d events: a page of %d KiB, %d bars", f.Events, len(html)>>10, len(s.Bars))
}
