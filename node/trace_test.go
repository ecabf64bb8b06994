package node

import (
	"context"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node/enginepb"
)

// spans is an exporter that keeps what it gets.
type spans struct {
	mu  sync.Mutex
	got []sdktrace.ReadOnlySpan
}

// ExportSpans implements sdktrace.SpanExporter.
func (s *spans) ExportSpans(_ context.Context, got []sdktrace.ReadOnlySpan) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, got...)
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (*spans) Shutdown(context.Context) error { return nil }

// of are the spans of a name in a room; a room's number stands in "room" and
// "send" alone, so others are found by trace.
func (s *spans) of(name, trace string) (out []sdktrace.ReadOnlySpan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.got {
		if x.Name() == name && (trace == "" || x.SpanContext().TraceID().String() == trace) {
			out = append(out, x)
		}
	}
	return out
}

func tracedPair(t *testing.T) (q *pair, d, p *spans) {
	t.Helper()
	d, p = &spans{}, &spans{}
	pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
	pc.Traces.exporter, dc.Traces.exporter = p, d
	dc.AckTimeout = patience // the ACK, not a fence
	return startPair(t, pc, dc, 4096), d, p
}

func TestARoomIsOneTraceAcrossItsNodes(t *testing.T) {
	q, d, p := tracedPair(t)
	q.run(71, []uint32{0, 1})
	q.finish(71)
	q.d.close() // sends what is there
	q.p.close()
	rooms, sends := d.of("room", ""), p.of("send", "")
	if len(rooms) != 1 || len(sends) != 1 {
		t.Fatalf("%d rooms on decode, %d sends on prefill", len(rooms), len(sends))
	}
	room, send := rooms[0], sends[0]
	trace := room.SpanContext().TraceID().String()
	if send.SpanContext().TraceID().String() != trace || send.Parent().SpanID() != room.SpanContext().SpanID() {
		t.Errorf("send is in trace %s below %s, the room is %s in %s", send.SpanContext().TraceID(), send.Parent().SpanID(), room.SpanContext().SpanID(), trace)
	}
	if room.Parent().IsValid() {
		t.Errorf("the room is below %s, and its engine named no trace", room.Parent().SpanID())
	}
	writes, transfers := p.of("write", trace), d.of("transfer", trace)
	if len(writes) == 0 || len(transfers) != 1 {
		t.Fatalf("%d writes, %d transfers", len(writes), len(transfers))
	}
	for _, w := range writes {
		if w.Parent().SpanID() != send.SpanContext().SpanID() || w.StartTime().Before(send.StartTime()) || w.EndTime().Before(w.StartTime()) {
			t.Errorf("write %s to %s below %s", w.StartTime(), w.EndTime(), w.Parent().SpanID())
		}
	}
	if x := transfers[0]; x.Parent().SpanID() != room.SpanContext().SpanID() || x.StartTime().Before(room.StartTime()) || x.EndTime().After(room.EndTime()) {
		t.Errorf("transfer %s to %s, room %s to %s", x.StartTime(), x.EndTime(), room.StartTime(), room.EndTime())
	}
}

func TestATraceOfTheEngineIsTakenUp(t *testing.T) {
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	q, d, p := tracedPair(t)
	label := "00-" + trace + "-" + parent + "-01"
	if _, err := q.d.client.OpenReceive(testContext(t), connect.NewRequest(&enginepb.OpenReceiveRequest{Room: 72, Count: 2, Prefill: "p0", TraceId: label})); err != nil {
		t.Fatal(err)
	}
	if _, err := q.p.client.OpenSend(testContext(t), connect.NewRequest(&enginepb.OpenSendRequest{Room: 72, TraceId: trace})); err != nil {
		t.Fatal(err)
	}
	q.p.await(enginepb.Notice_KIND_READY, 72)
	q.abort(72)
	q.p.awaitEvent("AckSent", 72, 0)
	q.d.close()
	q.p.close()
	rooms, sends, aborts, drains := d.of("room", trace), p.of("send", trace), d.of("abort", trace), p.of("drain", trace)
	if len(rooms) != 1 || len(sends) != 1 || len(aborts) != 1 || len(drains) != 1 {
		t.Fatalf("in the engine's trace: %d rooms, %d sends, %d aborts, %d drains", len(rooms), len(sends), len(aborts), len(drains))
	}
	if rooms[0].Parent().SpanID().String() != parent || rooms[0].Status().Description != "client" {
		t.Errorf("the room is below %s, and failed with %q", rooms[0].Parent().SpanID(), rooms[0].Status().Description)
	}
	if sends[0].Parent().SpanID() != rooms[0].SpanContext().SpanID() || drains[0].Parent().SpanID() != sends[0].SpanContext().SpanID() {
		t.Errorf("send below %s, drain below %s", sends[0].Parent().SpanID(), drains[0].Parent().SpanID())
	}
}

// A room that lives over a restart of both its nodes is one trace, whose root
// is as long as the room.
func TestARoomOverRestartsIsOneTrace(t *testing.T) {
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	q, d, p := tracedPair(t)
	if _, err := q.d.client.OpenReceive(testContext(t), connect.NewRequest(&enginepb.OpenReceiveRequest{
		Room: 74, Count: 2, Prefill: "p0", TraceId: "00-" + trace + "-" + parent + "-01", RequestId: "req-74",
	})); err != nil {
		t.Fatal(err)
	}
	if _, err := q.p.client.OpenSend(testContext(t), connect.NewRequest(&enginepb.OpenSendRequest{Room: 74, TraceId: trace})); err != nil {
		t.Fatal(err)
	}
	q.p.await(enginepb.Notice_KIND_READY, 74)
	before := time.Now()
	q.d.close()
	q.d.start(q.dc)
	q.p.close()
	q.p.start(q.pc)
	q.d.awaitEvent("PeerIncarnationSeen", 0, 0)
	q.d.await(enginepb.Notice_KIND_RELEASED, 74) // cut by the restart of its writer
	q.p.awaitEvent("RoomFailed", 74, 0)
	q.d.close()
	q.p.close()
	rooms, sends := d.of("room", trace), p.of("send", trace)
	if len(rooms) != 1 || len(sends) != 1 {
		t.Fatalf("in the engine's trace: %d rooms, %d sends", len(rooms), len(sends))
	}
	if rooms[0].Parent().SpanID().String() != parent || rooms[0].StartTime().After(before) || rooms[0].EndTime().Before(before) {
		t.Errorf("the room is below %s, from %s to %s; the restart was at %s", rooms[0].Parent().SpanID(), rooms[0].StartTime(), rooms[0].EndTime(), before)
	}
	if sends[0].Parent().SpanID() != rooms[0].SpanContext().SpanID() || sends[0].StartTime().After(before) {
		t.Errorf("send below %s from %s", sends[0].Parent().SpanID(), sends[0].StartTime())
	}
}

func TestEngineTraceLabels(t *testing.T) {
	for label, want := range map[string]bool{
		"4bf92f3577b34da6a3ce929d0e0e4736": true, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01": true,
		"": false, "req-7": false, "00000000000000000000000000000000": false, "00-4bf92f3577b34da6a3ce929d0e0e4736-zzf067aa0ba902b7-01": false,
	} {
		id, _, ok := engineTrace(label)
		if ok != want || ok && hex.EncodeToString(id[:]) != "4bf92f3577b34da6a3ce929d0e0e4736" {
			t.Errorf("%q: %s, %v", label, id, ok)
		}
	}
}

// A collector that does not answer costs the loop nothing: batches beyond the
// queue are dropped and counted.
func TestAFullTracerIsNotWaitedFor(t *testing.T) {
	tr := &tracer{queue: make(chan []*events.Event, 1)}
	for range 3 {
		tr.observe([]*events.Event{{}, {}})
	}
	if n := tr.dropped.Load(); n != 4 {
		t.Errorf("%d events were dropped, want those of two batches", n)
	}
}

func TestTracesGoOutAsOTLP(t *testing.T) {
	got := make(chan string, 16)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err == nil && len(b) > 0 {
			got <- r.URL.Path + " " + r.Header.Get("Content-Type")
		}
	}))
	defer collector.Close()
	cfg := testConfig(t, "prefill", "p0")
	cfg.Traces.Endpoint = collector.URL
	s := startSide(t, cfg, 4096)
	if _, err := s.client.OpenSend(testContext(t), connect.NewRequest(&enginepb.OpenSendRequest{Room: 73})); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: 73})); err != nil {
		t.Fatal(err)
	}
	s.awaitEvent("RoomFailed", 73, 0)
	s.close()
	select {
	case what := <-got:
		if what != "/v1/traces application/x-protobuf" {
			t.Errorf("the collector got %s", what)
		}
	case <-time.After(patience):
		t.Fatal("the collector got nothing")
	}
}
