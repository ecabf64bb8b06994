package audit

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
)

// Metrics are what an auditor shows of itself. A nil one takes everything and
// shows nothing.
type Metrics struct {
	events     *prometheus.CounterVec
	seq        *prometheus.GaugeVec
	violations *prometheus.CounterVec
	logs       prometheus.Gauge
	mine       prometheus.Gauge
}

// NewMetrics registers the auditor's metrics.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		events:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pdreplay_audit_events_total", Help: "Events checked, by node."}, []string{"node"}),
		seq:        prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pdreplay_audit_last_seq", Help: "Sequence of the newest event checked, by node."}, []string{"node"}),
		violations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pdreplay_audit_violations_total", Help: "Violations found, by invariant."}, []string{"invariant"}),
		logs:       prometheus.NewGauge(prometheus.GaugeOpts{Name: "pdreplay_audit_logs", Help: "Logs that are read."}),
		mine:       prometheus.NewGauge(prometheus.GaugeOpts{Name: "pdreplay_audit_nodes", Help: "Nodes that this auditor judges for its group."}),
	}
	for _, c := range []prometheus.Collector{m.events, m.seq, m.violations, m.logs, m.mine} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) event(e *events.Event) {
	if m != nil {
		m.events.WithLabelValues(e.Node).Inc()
		m.seq.WithLabelValues(e.Node).Set(float64(e.Seq))
	}
}

func (m *Metrics) violation(v replay.Finding) {
	if m != nil {
		m.violations.WithLabelValues(v.Invariant).Inc()
	}
}

func (m *Metrics) nodes(n int) {
	if m != nil {
		m.logs.Set(float64(n))
	}
}

func (m *Metrics) owned(n int) {
	if m != nil {
		m.mine.Set(float64(n))
	}
}
