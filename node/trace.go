package node

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/errors"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/pdlog/pdlog/events"
)

// TracesConfig is OpenTelemetry's traces: one a room, across its nodes.
type TracesConfig struct {
	Endpoint string `koanf:"endpoint"` // OTLP over HTTP, http://host:4318; empty = no traces

	exporter sdktrace.SpanExporter // in place of one to endpoint
}

func (c *TracesConfig) on() bool { return c.Endpoint != "" || c.exporter != nil }

func (c *TracesConfig) validate() error {
	if c.Endpoint == "" {
		return nil
	}
	if u, err := url.Parse(c.Endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return badKey("traces.endpoint", "want http://host:port or https://host:port, have %q", c.Endpoint)
	}
	return nil
}

const (
	traceQueue = 256             // batches that wait for the tracer; then they are dropped and counted
	traceClose = 2 * time.Second // for the exporter to send what it has, at the node's end
)

// tracer makes spans of events. It is a fold of its own, behind the loop: the
// loop hands batches over and never waits for it.
type tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	queue    chan []*events.Event
	done     chan struct{}
	dropped  atomic.Uint64
	fold     traceFold
	log      *slog.Logger
}

// openTraces begins to trace, if traces are configured.
func (n *Node) openTraces(ctx context.Context) error {
	if !n.cfg.Traces.on() {
		return nil
	}
	out := n.cfg.Traces.exporter
	if out == nil {
		e, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(strings.TrimSuffix(n.cfg.Traces.Endpoint, "/")+"/v1/traces"))
		if err != nil {
			return errors.Wrap(err, "traces.endpoint")
		}
		out = e
	}
	p := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(out), sdktrace.WithIDGenerator(spanIDs{}), sdktrace.WithSampler(sdktrace.AlwaysSample()),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "pdnode"), attribute.String("service.instance.id", n.cfg.Node), attribute.String("service.version", Version),
		)),
	)
	id := n.store.LogID()
	t := &tracer{
		provider: p, tracer: p.Tracer("github.com/pdlog/pdlog/node"), queue: make(chan []*events.Event, traceQueue), done: make(chan struct{}), log: n.log,
		fold: traceFold{node: n.cfg.Node, logID: id[:], rooms: map[uint64]*tracedRoom{}},
	}
	t.fold.emit = t.span
	n.tracer = t
	go t.run()
	return nil
}

// observe hands a batch over. It runs in the loop.
func (t *tracer) observe(evs []*events.Event) {
	if t == nil || len(evs) == 0 {
		return
	}
	select {
	case t.queue <- slices.Clone(evs):
	default:
		t.dropped.Add(uint64(len(evs)))
	}
}

func (t *tracer) run() {
	defer close(t.done)
	for evs := range t.queue {
		for _, e := range evs {
			t.fold.take(e)
		}
	}
}

// close sends what is there. The loop has ended.
func (t *tracer) close() {
	if t == nil {
		return
	}
	close(t.queue)
	<-t.done
	ctx, cancel := context.WithTimeout(context.Background(), traceClose)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.log.Warn("the last traces were not sent", "err", err)
	}
	if lost := t.dropped.Load(); lost > 0 {
		t.log.Warn("events had no traces made of them: the tracer did not keep up", "events", lost)
	}
}

// span is one interval of a room's life.
type span struct {
	name       string
	trace      trace.TraceID
	id, parent trace.SpanID // parent 0: a root
	from, to   time.Time
	attrs      []attribute.KeyValue
	failed     string // why, "" if it did not
}

func (t *tracer) span(s span) {
	ctx := context.WithValue(context.Background(), spanKey{}, s)
	if s.parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: s.trace, SpanID: s.parent, TraceFlags: trace.FlagsSampled, Remote: true,
		}))
	}
	_, out := t.tracer.Start(ctx, s.name, trace.WithTimestamp(s.from), trace.WithAttributes(s.attrs...))
	if s.failed != "" {
		out.SetStatus(codes.Error, s.failed)
	}
	out.End(trace.WithTimestamp(s.to))
}

type spanKey struct{}

// spanIDs takes the ids that the fold has made: both nodes of a room derive the
// same ones.
type spanIDs struct{}

var _ sdktrace.IDGenerator = spanIDs{}

// NewIDs implements sdktrace.IDGenerator.
func (spanIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	s, _ := ctx.Value(spanKey{}).(span)
	return s.trace, s.id
}

// NewSpanID implements sdktrace.IDGenerator.
func (spanIDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	s, _ := ctx.Value(spanKey{}).(span)
	return s.id
}

// spanID is the id of a part of a room's life on a node.
func spanID(node string, logID []byte, roomSeq uint64, part string) (id trace.SpanID) {
	sum := traceSum(node, logID, roomSeq, part)
	copy(id[:], sum[:])
	return id
}

// traceID is that of a room whose engine named none: of its incarnation on the
// decode node.
func traceID(node string, logID []byte, roomSeq uint64) (id trace.TraceID) {
	sum := traceSum(node, logID, roomSeq, "trace")
	copy(id[:], sum[:])
	return id
}

func traceSum(node string, logID []byte, roomSeq uint64, part string) [sha256.Size]byte {
	b := append([]byte("pdlog\x00"+node+"\x00"+part+"\x00"), logID...)
	return sha256.Sum256(binary.BigEndian.AppendUint64(b, roomSeq))
}

// engineTrace reads the label that the engine gave: a W3C traceparent, or a
// trace id of 32 hex digits.
func engineTrace(label string) (id trace.TraceID, parent trace.SpanID, ok bool) {
	if f := strings.Split(label, "-"); len(f) >= 4 && len(f[1]) == 32 && len(f[2]) == 16 {
		b, err := hex.DecodeString(f[2])
		if err != nil {
			return id, parent, false
		}
		copy(parent[:], b)
		label = f[1]
	}
	b, err := hex.DecodeString(label)
	if err != nil || len(b) != len(id) {
		return id, trace.SpanID{}, false
	}
	copy(id[:], b)
	return id, parent, id.IsValid()
}
