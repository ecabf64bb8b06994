package node

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// MetricsConfig is where the metrics are served besides the engine API's socket.
type MetricsConfig struct {
	Listen string `koanf:"listen"` // host:port of GET /metrics and the health answers; empty = not on TCP
}

// Bounds of the labels whose values come from outside: the value after the last
// one that fits is "other". A fleet's peers are fewer; a stranger's invention
// must not grow the registry.
const (
	maxPeerLabels = 256
	maxKindLabels = 32
	otherLabel    = "other"
)

// metrics counts what the node does. Counters of events are a fold of the
// batches the loop appends (observe), and of nothing else; what the machine
// holds is read when somebody asks (metrics_collect.go). No label carries a
// room. observe, took and snapshot run in the loop; the rest may be called from
// anywhere. A nil *metrics counts nothing.
type metrics struct {
	reg *prometheus.Registry

	released     *prometheus.CounterVec
	abortRelease *prometheus.HistogramVec
	opened       prometheus.Counter
	ended        *prometheus.CounterVec
	aborts       *prometheus.CounterVec
	acks         *prometheus.CounterVec
	acksSent     prometheus.Counter
	fences       *prometheus.CounterVec
	chunkBytes   *bounded[prometheus.Counter]
	chunkSeconds *bounded[prometheus.Observer]
	rejected     *bounded[prometheus.Counter]
	lateWrites   prometheus.Counter
	pageChecks   prometheus.Counter
	scrubbed     prometheus.Counter
	unsafe       prometheus.Counter
	violations   prometheus.Counter
	step         prometheus.Histogram
	commit       prometheus.Histogram
	sync         prometheus.Histogram
	group        prometheus.Histogram

	waits waits // of the loop

	// Children of the vectors above that a room's end asks for, once each.
	ofBasis           cells[events.Basis, prometheus.Counter]
	ofWait            cells[events.Basis, prometheus.Observer]
	ofCause           cells[events.AbortCause, prometheus.Counter]
	ofForm            cells[events.AckForm, prometheus.Counter] // of ACKs that counted
	succeeded, failed prometheus.Counter

	committing atomic.Pointer[commitMark]
	last       sharedSnapshot
}

// cells keeps the children of a vector by the number of an enum: to find one by its
// labels hashes them each time. It is the loop's.
type cells[E enum, C any] struct {
	of   func(E) C
	have map[E]C
}

func (c *cells[E, C]) at(e E) C {
	have, ok := c.have[e]
	if !ok {
		have = c.of(e)
		if c.have == nil {
			c.have = map[E]C{}
		}
		if len(c.have) < maxKindLabels {
			c.have[e] = have
		}
	}
	return have
}

// commitMark is one append whose way to the disk is being timed.
type commitMark struct {
	seq uint64
	at  time.Time
}

// Classic buckets beside the native ones: a server that scrapes no native
// histograms still gets quantiles.
var (
	releaseBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	stepBuckets    = []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 1e-2, .1}
	commitBuckets  = []float64{1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, .01, .025, .05, .1, .25, .5, 1, 5}
	chunkBuckets   = []float64{1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, .01, .025, .05, .1, .5, 1, 5, 30}
	groupBuckets   = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 16384}
)

func histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
	}
}

func newMetrics() *metrics {
	count := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counts := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	bytes := counts("pdnode_chunk_bytes_total", "Bytes of chunks written to (prefill) or by (decode) a peer node.", "peer")
	seconds := prometheus.NewHistogramVec(histogram("pdnode_chunk_seconds", "Prefill: time from the posting of a chunk to its completion, by peer node.", chunkBuckets), []string{"peer"})
	rejected := counts("pdnode_messages_rejected_total", "Messages that no rule takes, by kind.", "kind")
	m := &metrics{
		reg:          prometheus.NewRegistry(),
		released:     counts("pdnode_released_total", "Room incarnations whose pages were released, by basis (events.md, the release rule).", "basis"),
		abortRelease: prometheus.NewHistogramVec(histogram("pdnode_abort_release_seconds", "Time from AbortArmed to Released of a room, by basis.", releaseBuckets), []string{"basis"}),
		opened:       count("pdnode_rooms_opened_total", "Room incarnations opened by the engine."),
		ended:        counts("pdnode_rooms_ended_total", "Room incarnations that reached their terminal outcome.", "outcome"),
		aborts:       counts("pdnode_aborts_total", "Rooms that failed, by cause.", "cause"),
		acks:         counts("pdnode_acks_total", "ABORT_ACKs received, by wire form and by whether they counted, or why not.", "form", "verdict"),
		acksSent:     count("pdnode_acks_sent_total", "ABORT_ACKs sent by a prefill node."),
		fences:       counts("pdnode_fences_total", "Fences by what the provider proved, or failed.", "result"),
		lateWrites:   count("pdnode_late_writes_rejected_total", "Writes the provider refused because their lease was revoked."),
		pageChecks:   count("pdnode_page_check_failures_total", "Pages whose bytes were found wrong."),
		scrubbed:     count("pdnode_log_scrubbed_bytes_total", "Bytes of sealed segments that were read again and verified."),
		unsafe:       count("pdnode_unsafe_releases_total", "Releases without evidence: forced, or by policy timeout."),
		violations:   count("pdnode_invariant_violations_total", "Breaches of an invariant seen live: InvariantViolated, a write after its release (I1), an unsafe release (I2)."),
		step:         prometheus.NewHistogram(histogram("pdnode_loop_step_seconds", "Time the decision loop took for one command.", stepBuckets)),
		commit:       prometheus.NewHistogram(histogram("pdnode_log_commit_seconds", "Time from an append that must be durable to its being durable; one append at a time is timed.", commitBuckets)),
		sync:         prometheus.NewHistogram(histogram("pdnode_log_sync_seconds", "Time the disk took for one commit: a group of events, written and synced.", commitBuckets)),
		group:        prometheus.NewHistogram(histogram("pdnode_log_group_events", "Events of one commit.", groupBuckets)),
		chunkBytes:   newBounded(bytes.WithLabelValues, maxPeerLabels),
		chunkSeconds: newBounded(seconds.WithLabelValues, maxPeerLabels),
		rejected:     newBounded(rejected.WithLabelValues, maxKindLabels),
		waits:        newWaits(),
	}
	m.reg.MustRegister(m.released, m.abortRelease, m.opened, m.ended, m.aborts, m.acks, m.acksSent, m.fences,
		bytes, seconds, rejected, m.sync, m.group, m.lateWrites, m.pageChecks, m.scrubbed, m.unsafe, m.violations, m.step, m.commit)
	m.zeroes()
	m.ofBasis.of = func(b events.Basis) prometheus.Counter { return m.released.WithLabelValues(word(b)) }
	m.ofWait.of = func(b events.Basis) prometheus.Observer { return m.abortRelease.WithLabelValues(word(b)) }
	m.ofCause.of = func(c events.AbortCause) prometheus.Counter { return m.aborts.WithLabelValues(word(c)) }
	m.ofForm.of = func(f events.AckForm) prometheus.Counter { return m.acks.WithLabelValues(word(f), "counted") }
	m.succeeded, m.failed = m.ended.WithLabelValues("succeeded"), m.ended.WithLabelValues("failed")
	return m
}

// zeroes makes every value of the closed labels exist, so that the first of its
// kind is an increase and not a new series.
func (m *metrics) zeroes() {
	for _, w := range enumWords(events.Basis(0).Descriptor()) {
		m.released.WithLabelValues(w)
	}
	for _, w := range enumWords(events.AbortCause(0).Descriptor()) {
		m.aborts.WithLabelValues(w)
	}
	for _, w := range []string{"hard", "reader_stopped", "failed"} {
		m.fences.WithLabelValues(w)
	}
	for _, w := range []string{"succeeded", "failed"} {
		m.ended.WithLabelValues(w)
	}
	for _, w := range enumWords(events.AckForm(0).Descriptor()) {
		m.acks.WithLabelValues(w, "counted")
	}
}

func enumWords(d protoreflect.EnumDescriptor) []string {
	var out []string
	for i := range d.Values().Len() {
		if n := d.Values().Get(i).Number(); n != 0 {
			out = append(out, events.EnumWord(d, n))
		}
	}
	return out
}

// enum is what an events enum is.
type enum interface {
	comparable
	Descriptor() protoreflect.EnumDescriptor
	Number() protoreflect.EnumNumber
}

func word[E enum](e E) string {
	if w := events.EnumWord(e.Descriptor(), e.Number()); w != "" {
		return w
	}
	return "unknown"
}

// waits holds the instants (deadline clock, ms) since when rooms wait, by
// room_seq. It is a fold of the log: what an earlier life left waiting is
// waited for since then.
type waits struct {
	armed       map[uint64]uint64
	quarantined map[uint64]uint64
}

func newWaits() waits { return waits{armed: map[uint64]uint64{}, quarantined: map[uint64]uint64{}} }

// note takes one event. It gives the time from arming to release when e is the
// release of an armed room.
func (w waits) note(e *events.Event) (waited time.Duration, ok bool) {
	at := deadlineClock(e)
	switch e.Payload.(type) {
	case *events.Event_AbortArmed:
		if _, again := w.armed[e.RoomSeq]; !again {
			w.armed[e.RoomSeq] = at
		}
	case *events.Event_Quarantined:
		if _, again := w.quarantined[e.RoomSeq]; !again {
			w.quarantined[e.RoomSeq] = at
		}
	case *events.Event_Released:
		from, was := w.armed[e.RoomSeq]
		delete(w.armed, e.RoomSeq)
		delete(w.quarantined, e.RoomSeq)
		if was {
			return time.Duration(at-min(from, at)) * time.Millisecond, true //nolint:gosec // milliseconds of one life
		}
	}
	return 0, false
}

// observe folds a batch that the log has taken.
func (m *metrics) observe(evs []*events.Event) {
	if m == nil {
		return
	}
	for _, e := range evs {
		m.event(e)
	}
}

func (m *metrics) event(e *events.Event) {
	waited, afterAbort := m.waits.note(e)
	switch p := e.Payload.(type) {
	case *events.Event_RoomOpened:
		m.opened.Inc()
	case *events.Event_RoomSucceeded:
		m.succeeded.Inc()
	case *events.Event_RoomFailed:
		m.failed.Inc()
		m.ofCause.at(p.RoomFailed.Cause).Inc()
	case *events.Event_AckReceived:
		if a := p.AckReceived; a.Counted {
			m.ofForm.at(a.Form).Inc()
		} else {
			m.acks.WithLabelValues(word(a.Form), word(a.Why)).Inc()
		}
	case *events.Event_AckSent:
		m.acksSent.Inc()
	case *events.Event_Fenced:
		m.fences.WithLabelValues(word(p.Fenced.Evidence)).Inc()
	case *events.Event_FenceFailed:
		m.fences.WithLabelValues("failed").Inc()
	case *events.Event_Released:
		m.ofBasis.at(p.Released.Basis).Inc()
		if afterAbort {
			m.ofWait.at(p.Released.Basis).Observe(waited.Seconds())
		}
		if p.Released.Unsafe {
			m.unsafe.Inc()
			m.violations.Inc()
		}
	case *events.Event_WriteLanded:
		m.chunkBytes.of(projector.RankID(e.Rank).Node()).Add(float64(p.WriteLanded.Bytes))
		if p.WriteLanded.AfterRelease {
			m.violations.Inc()
		}
	case *events.Event_ChunkCompleted:
		m.chunkBytes.of(projector.RankID(p.ChunkCompleted.To).Node()).Add(float64(p.ChunkCompleted.Bytes))
	case *events.Event_LateWriteRejected:
		m.lateWrites.Add(float64(max(p.LateWriteRejected.Writes, 1)))
	case *events.Event_PageCheckFailed:
		m.pageChecks.Inc()
	case *events.Event_MessageRejected:
		m.rejected.of(p.MessageRejected.Kind).Add(float64(max(p.MessageRejected.Count, 1)))
	case *events.Event_InvariantViolated:
		m.violations.Inc()
	}
}

// took notes how long one command took in the loop.
func (m *metrics) took(d time.Duration) {
	if m != nil {
		m.step.Observe(d.Seconds())
	}
}

// appended begins to time an append, unless one is being timed.
func (m *metrics) appended(seq uint64) {
	if m != nil && m.committing.Load() == nil {
		m.committing.Store(&commitMark{seq: seq, at: time.Now()})
	}
}

// durable ends it.
func (m *metrics) durable(seq uint64) {
	if m == nil {
		return
	}
	c := m.committing.Load()
	if c != nil && seq >= c.seq && m.committing.CompareAndSwap(c, nil) {
		m.commit.Observe(time.Since(c.at).Seconds())
	}
}

// committed notes one commit of the log.
func (m *metrics) committed(events int, took time.Duration) {
	if m != nil {
		m.sync.Observe(took.Seconds())
		m.group.Observe(float64(events))
	}
}

// chunkTook notes a write that completed.
func (m *metrics) chunkTook(peer string, d time.Duration) {
	if m != nil {
		m.chunkSeconds.of(peer).Observe(d.Seconds())
	}
}

// bounded is a metric with one label of open values.
type bounded[M any] struct {
	with func(labels ...string) M
	max  int

	mu   sync.Mutex
	seen map[string]M
}

func newBounded[M any](with func(...string) M, most int) *bounded[M] {
	return &bounded[M]{with: with, max: most, seen: map[string]M{}}
}

// of is the metric of a label's value, or that of the others.
func (b *bounded[M]) of(label string) M {
	b.mu.Lock()
	defer b.mu.Unlock()
	m, ok := b.seen[label]
	if !ok {
		if len(b.seen) >= b.max {
			label = otherLabel
		}
		m = b.with(label)
		if label != otherLabel {
			b.seen[label] = m
		}
	}
	return m
}
