package node

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
)

// scrape gives every sample of a node as "name{label=value,...}" -> value; a
// histogram is its count.
func scrape(t *testing.T, n *Node) map[string]float64 {
	t.Helper()
	families, err := n.metrics.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			out[f.GetName()+labels(m)] = value(m)
		}
	}
	return out
}

func labels(m *dto.Metric) string {
	if len(m.Label) == 0 {
		return ""
	}
	var parts []string
	for _, l := range m.Label {
		parts = append(parts, l.GetName()+"="+l.GetValue())
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func value(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Histogram != nil:
		return float64(m.Histogram.GetSampleCount())
	}
	return m.Gauge.GetValue()
}

func (q *pair) abort(room uint64) *enginepb.Notice {
	q.t.Helper()
	if _, err := q.d.client.Abort(testContext(q.t), connect.NewRequest(&enginepb.AbortRequest{Room: room, Reason: "test"})); err != nil {
		q.t.Fatal(err)
	}
	return q.d.await(enginepb.Notice_KIND_RELEASED, room)
}

func TestMetricsFollowARoomAndAnAbort(t *testing.T) {
	pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
	dc.Metrics.Listen = "127.0.0.1:0"
	dc.AckTimeout = patience // the ACK, not a fence
	q := startPair(t, pc, dc, 4096)
	q.run(41, []uint32{0, 1})
	q.finish(41)
	q.open(42, 2, 3, 4)
	q.p.await(enginepb.Notice_KIND_READY, 42)
	during := scrape(t, q.d.node)
	for name, want := range map[string]float64{
		"pdnode_pages{state=owned}": 3, "pdnode_pages{state=free}": testPages - 3, "pdnode_rooms{state=waiting}": 1,
		"pdnode_peers{state=ok}": 1, "pdnode_ready": 1, "pdnode_loop_answers": 1,
	} {
		if during[name] != want {
			t.Errorf("%s is %v while a room is open, want %v", name, during[name], want)
		}
	}
	n := q.abort(42)
	d, p := scrape(t, q.d.node), scrape(t, q.p.node)
	for name, want := range map[string]float64{
		"pdnode_rooms_opened_total":                           2,
		"pdnode_rooms_ended_total{outcome=succeeded}":         1,
		"pdnode_rooms_ended_total{outcome=failed}":            1,
		"pdnode_aborts_total{cause=client}":                   1,
		"pdnode_released_total{basis=success}":                1,
		"pdnode_released_total{basis=" + n.Basis + "}":        1,
		"pdnode_abort_release_seconds{basis=" + n.Basis + "}": 1,
		"pdnode_pages{state=free}":                            testPages,
		"pdnode_pages{state=owned}":                           0,
		"pdnode_quarantined_pages":                            0,
		"pdnode_invariant_violations_total":                   0,
		"pdnode_chunk_bytes_total{peer=p0}":                   d["pdnode_chunk_bytes_total{peer=p0}"],
		"pdnode_build_info" + buildLabels(t, d):               1,
		"pdnode_acks_total{form=v3,verdict=counted}":          1,
		"pdnode_open_tokens":                                  0,
	} {
		if have, ok := d[name]; !ok || have != want {
			t.Errorf("%s is %v (there: %v), want %v", name, have, ok, want)
		}
	}
	if d["pdnode_chunk_bytes_total{peer=p0}"] < 2*4096 || p["pdnode_chunk_bytes_total{peer=d0}"] < 2*4096 {
		t.Errorf("bytes: decode %v, prefill %v", d["pdnode_chunk_bytes_total{peer=p0}"], p["pdnode_chunk_bytes_total{peer=d0}"])
	}
	if p["pdnode_chunk_seconds{peer=d0}"] < 2 || d["pdnode_log_sync_seconds"] == 0 || d["pdnode_log_group_events"] == 0 {
		t.Errorf("chunks timed %v, commits timed %v, groups %v", p["pdnode_chunk_seconds{peer=d0}"], d["pdnode_log_sync_seconds"], d["pdnode_log_group_events"])
	}
	// An ABORT that was repeated is acknowledged again.
	if p["pdnode_acks_sent_total"] < 1 || d["pdnode_log_durable_seq"] == 0 || d["pdnode_loop_step_seconds"] == 0 || d["pdnode_log_commit_seconds"] == 0 {
		t.Errorf("acks sent %v, durable %v, steps %v, commits %v", p["pdnode_acks_sent_total"],
			d["pdnode_log_durable_seq"], d["pdnode_loop_step_seconds"], d["pdnode_log_commit_seconds"])
	}
	for _, s := range []*side{q.p, q.d} {
		problems, err := testutil.GatherAndLint(s.node.metrics.reg)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range problems {
			t.Errorf("%s: %s: %s", s.node.cfg.Node, l.Metric, l.Text)
		}
	}
	fetch(t, http.DefaultClient, "http://"+q.d.node.Metrics()+"/metrics", 200, "pdnode_released_total", "go_goroutines")
	fetch(t, http.DefaultClient, "http://"+q.d.node.Metrics()+"/readyz", 200, "ok")
	fetch(t, http.DefaultClient, "http://"+q.d.node.Metrics()+"/", 404, "")
	fetch(t, q.p.http, "http://node/metrics", 200, "pdnode_acks_sent_total")
	http.DefaultClient.CloseIdleConnections()
	if q.p.node.Metrics() != "" {
		t.Errorf("metrics are served on %s by default", q.p.node.Metrics())
	}
}

func buildLabels(t *testing.T, samples map[string]float64) string {
	t.Helper()
	for name := range samples {
		if l, ok := strings.CutPrefix(name, "pdnode_build_info"); ok {
			if !strings.Contains(l, "node=d0") || !strings.Contains(l, "role=decode") {
				t.Errorf("build info says %s", l)
			}
			return l
		}
	}
	t.Error("no build info")
	return ""
}

func fetch(t *testing.T, c *http.Client, url string, code int, wants ...string) {
	t.Helper()
	req, err := http.NewRequestWithContext(testContext(t), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != code {
		t.Fatalf("%s: %d %v, want %d: %s", url, res.StatusCode, err, code, b)
	}
	for _, w := range wants {
		if !strings.Contains(string(b), w) {
			t.Errorf("%s does not say %q", url, w)
		}
	}
}

// The counted pages are those of the page view, whatever the rooms' states.
func TestMetricsPagesAgreeWithThePageView(t *testing.T) {
	dc := testConfig(t, "decode", "d0")
	dc.ReleasePolicy, dc.AckTimeout = "hold", 50*time.Millisecond
	pc := testConfig(t, "prefill", "p0")
	pc.RDMA.Fault = "hang"
	q := startPair(t, pc, dc, 4096)
	q.open(51, 0, 1)
	q.p.await(enginepb.Notice_KIND_READY, 51)
	q.chunk(51, 0, 0, []uint32{0, 1}, true)
	q.p.awaitEvent("ChunkPosted", 51, 0)
	q.open(52, 5)
	if _, err := q.d.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: 51, Reason: "stuck"})); err != nil {
		t.Fatal(err)
	}
	q.d.awaitEvent("Quarantined", 51, 0)
	res, err := q.d.client.Pages(testContext(t), connect.NewRequest(&enginepb.PagesRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	d := scrape(t, q.d.node)
	for state, want := range map[string]uint64{
		"free": res.Msg.Free, "owned": res.Msg.Owned, "held": res.Msg.Held, "quarantined": res.Msg.Quarantined,
	} {
		if have := d["pdnode_pages{state="+state+"}"]; have != float64(want) {
			t.Errorf("%v pages %s, the view says %d", have, state, want)
		}
	}
	if d["pdnode_quarantined_pages"] != 2 || d["pdnode_rooms{state=quarantined}"] != 1 {
		t.Errorf("quarantined: %v pages, %v rooms", d["pdnode_quarantined_pages"], d["pdnode_rooms{state=quarantined}"])
	}
	if p, known := scrape(t, q.p.node)["pdnode_parked_writes"]; !known || p != 0 {
		t.Errorf("%v writes are parked on prefill (told: %v), want none: the one that hangs still has time", p, known)
	}
	if p := scrape(t, q.p.node); p["pdnode_open_tokens"] != 1 {
		t.Errorf("%v tokens are open on prefill, want the one that hangs", p["pdnode_open_tokens"])
	}
	last := q.d.node.store.Durable()
	q.d.close() // the next life remembers since when its pages are held
	q.d.start(q.dc)
	q.d.awaitEvent("NodeStarted", 0, last)
	if d := scrape(t, q.d.node); d["pdnode_quarantined_pages"] != 2 || d["pdnode_quarantine_oldest_seconds"] <= 0 {
		t.Errorf("after a restart: %v pages, oldest %v s", d["pdnode_quarantined_pages"], d["pdnode_quarantine_oldest_seconds"])
	}
	if _, err := q.d.client.ForceRelease(testContext(t), connect.NewRequest(&enginepb.RoomRequest{Room: 51})); err != nil {
		t.Fatal(err)
	}
	q.d.await(enginepb.Notice_KIND_RELEASED, 51)
	d = scrape(t, q.d.node)
	if d["pdnode_unsafe_releases_total"] != 1 || d["pdnode_invariant_violations_total"] != 1 || d["pdnode_quarantine_oldest_seconds"] != 0 {
		t.Errorf("after a forced release: unsafe %v, violations %v, oldest %v", d["pdnode_unsafe_releases_total"],
			d["pdnode_invariant_violations_total"], d["pdnode_quarantine_oldest_seconds"])
	}
}

// count gives the series of a metric.
func count(t *testing.T, m *metrics, name string) int {
	t.Helper()
	n, err := testutil.GatherAndCount(m.reg, name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestMetricsLabelsAreBounded(t *testing.T) {
	m := newMetrics()
	var evs []*events.Event
	for i := range 3 * maxPeerLabels {
		evs = append(evs,
			&events.Event{Payload: &events.Event_ChunkCompleted{ChunkCompleted: &events.ChunkCompleted{To: fmt.Sprintf("d%d/0", i), Bytes: 1}}},
			&events.Event{Payload: &events.Event_MessageRejected{MessageRejected: &events.MessageRejected{Kind: fmt.Sprintf("kind %d", i), Count: 2}}})
	}
	m.observe(evs)
	for i := range 3 * maxPeerLabels {
		m.chunkTook(fmt.Sprintf("d%d", i), time.Millisecond)
	}
	if n := count(t, m, "pdnode_chunk_seconds"); n != maxPeerLabels+1 {
		t.Errorf("%d peers with a latency, want %d and other", n, maxPeerLabels)
	}
	if n := count(t, m, "pdnode_chunk_bytes_total"); n != maxPeerLabels+1 {
		t.Errorf("%d peers, want %d and other", n, maxPeerLabels)
	}
	if n := count(t, m, "pdnode_messages_rejected_total"); n != maxKindLabels+1 {
		t.Errorf("%d kinds, want %d and other", n, maxKindLabels)
	}
	if v := testutil.ToFloat64(m.chunkBytes.of(otherLabel)); v != 2*maxPeerLabels {
		t.Errorf("%v bytes of other peers", v)
	}
	if v := testutil.ToFloat64(m.rejected.of(otherLabel)); v != 2*(3*maxPeerLabels-maxKindLabels) {
		t.Errorf("%v messages of other kinds", v)
	}
}

// A scrape does not hang on a loop that is busy.
func TestScrapeWithoutTheLoopSaysSo(t *testing.T) {
	s := startSide(t, testConfig(t, "decode", "d0"), 4096)
	scrape(t, s.node) // what a later one falls back on
	hold, held := make(chan struct{}), make(chan struct{})
	err := s.node.loop.submit(task{look: func(*projector.Machine, uint64) { close(held); <-hold }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case <-held:
	case <-ctx.Done():
		t.Fatal("the loop did not take the task")
	}
	d := scrape(t, s.node)
	close(hold)
	if d["pdnode_loop_answers"] != 0 || d["pdnode_ready"] != 0 || d["pdnode_pages{state=free}"] != testPages {
		t.Errorf("answers %v, ready %v, free %v", d["pdnode_loop_answers"], d["pdnode_ready"], d["pdnode_pages{state=free}"])
	}
}
