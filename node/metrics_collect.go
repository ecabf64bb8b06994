package node

import (
	"net"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pdlog/pdlog/projector"
)

// snapshotTime is how long a scrape waits for the loop; Prometheus itself gives
// up after ten seconds.
const snapshotTime = 2 * time.Second

// snapshot is what a scrape reads of the machine.
type snapshot struct {
	rooms  map[string]int // by state
	pages  map[string]int // by state; decode
	peers  map[string]int // by state
	open   int            // tokens
	parked int            // of them, writes whose end is not known
	oldest time.Duration  // since the oldest quarantine began
	ready  bool
}

// sharedSnapshot is the newest one, for scrapes that the loop did not answer.
type sharedSnapshot struct {
	mu sync.Mutex
	s  *snapshot
}

var (
	roomStates = []string{"bootstrapping", "waiting", "transferring", "succeeded", "failed", "held", "quarantined"}
	pageStates = []string{"free", "owned", "held", "quarantined"}
	peerStates = []string{"ok", "suspect", "lost"}
)

func states(words []string) map[string]int {
	out := make(map[string]int, len(words))
	for _, w := range words {
		out[w] = 0
	}
	return out
}

// take reads the machine; it runs in the loop.
func (m *metrics) take(mc *projector.Machine, pages int, now uint64) *snapshot {
	s := &snapshot{rooms: states(roomStates), pages: states(pageStates), peers: states(peerStates), ready: mc.Ready()}
	st := mc.State()
	taken := 0
	for _, v := range mc.RoomViews() {
		s.rooms[v.State]++
		s.open += v.Outstanding
		if st.Rooms[v.RoomSeq] == nil {
			continue
		}
		taken += len(v.Pages)
		switch v.State {
		case "held", "quarantined":
			s.pages[v.State] += len(v.Pages)
		default:
			s.pages["owned"] += len(v.Pages)
		}
	}
	for _, r := range st.Rooms {
		s.open += len(r.Copies)
	}
	for _, n := range mc.Parked() {
		s.parked += n
	}
	if s.pages["free"] = pages - taken; len(st.Unsettled) > 0 { // none is offered before the past is settled
		s.pages = states(pageStates)
		s.pages["quarantined"] = pages
	} else {
		delete(m.waits.quarantined, 0) // the past's own entry: it belongs to no room
	}
	for _, p := range mc.PeerViews() {
		s.peers[p.State]++
	}
	for _, at := range m.waits.quarantined {
		s.oldest = max(s.oldest, time.Duration(now-min(at, now))*time.Millisecond) //nolint:gosec // milliseconds
	}
	return s
}

// snapshot asks the loop, and falls back on its last answer. fresh: the loop
// has answered now.
func (n *Node) snapshot() (s *snapshot, fresh bool) {
	got := make(chan *snapshot, 1)
	t := task{look: func(m *projector.Machine, _ uint64) {
		got <- n.metrics.take(m, n.poolPages(), n.loop.clock.now().Clock)
	}}
	timer := time.NewTimer(snapshotTime)
	defer timer.Stop()
	last := &n.metrics.last
	select {
	case n.loop.queue <- t:
		select {
		case s = <-got:
			last.mu.Lock()
			defer last.mu.Unlock()
			last.s = s
			return s, true
		case <-n.loop.done:
		case <-timer.C:
		}
	case <-n.loop.done:
	case <-timer.C:
	}
	last.mu.Lock()
	defer last.mu.Unlock()
	return last.s, false
}

func (n *Node) poolPages() int {
	if n.cfg.Role != "decode" {
		return 0
	}
	return n.cfg.Pages
}

// collector gives what is read at the scrape.
type collector struct {
	n                              *Node
	rooms, pages, peers            *prometheus.Desc
	quarantined, oldest, open      *prometheus.Desc
	parked                         *prometheus.Desc
	ready, answers, queue, durable *prometheus.Desc
	lag, lagAge, mirrorUp          *prometheus.Desc
	pending, lost, revokes         *prometheus.Desc
	damaged                        *prometheus.Desc
}

var _ prometheus.Collector = (*collector)(nil)

func newCollector(n *Node) *collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &collector{
		n:           n,
		rooms:       d("pdnode_rooms", "Room incarnations the node keeps state for.", "state"),
		pages:       d("pdnode_pages", "Pages of the pool; of a decode node.", "state"),
		peers:       d("pdnode_peers", "Peers known: prefill nodes of a decode node, decode ranks of a prefill node.", "state"),
		quarantined: d("pdnode_quarantined_pages", "Pages held because no writer of theirs could be shown to have stopped."),
		oldest:      d("pdnode_quarantine_oldest_seconds", "Age of the oldest quarantine; 0 = none."),
		open:        d("pdnode_open_tokens", "Writes that are open: posted and not ended, local copies included."),
		parked:      d("pdnode_parked_writes", "Prefill: open writes whose end is not known, and which hold their room until it is."),
		ready:       d("pdnode_ready", "1 if the node takes rooms."),
		answers:     d("pdnode_loop_answers", "1 if the decision loop answered this scrape; 0: rooms, pages and peers are of an earlier one."),
		queue:       d("pdnode_loop_queue_depth", "Commands that wait for the decision loop."),
		pending:     d("pdnode_effects_pending", "Effects that wait for their events to be durable."),
		durable:     d("pdnode_log_durable_seq", "Last sequence of the log that is on disk."),
		lag:         d("pdnode_mirror_lag_events", "Durable events that the mirror does not have; of a node with a mirror."),
		lagAge:      d("pdnode_mirror_lag_seconds", "Age of the oldest durable event that the mirror does not have; 0 = none."),
		mirrorUp:    d("pdnode_mirror_up", "1 if the mirror takes events, 0 while something keeps it from that."),
		lost:        d("pdnode_messages_lost_total", "Messages to peers that were dropped or could not be sent."),
		damaged:     d("pdnode_log_damaged_segments", "Sealed segments of the log that did not verify when they were last read again; must stay 0."),
		revokes:     d("pdnode_revocations_failed_total", "Revocations of leases that failed."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.rooms, c.pages, c.peers, c.quarantined, c.oldest, c.open, c.parked, c.ready, c.answers, c.queue, c.pending, c.durable,
		c.lag, c.lagAge, c.mirrorUp, c.lost, c.revokes, c.damaged,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	n := c.n
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	total := func(d *prometheus.Desc, v uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	gauge(c.queue, float64(len(n.loop.queue)))
	gauge(c.pending, float64(n.out.pending()))
	gauge(c.durable, float64(n.store.Durable()))
	if n.mirror != nil {
		lag, age := n.mirror.m.Behind(time.Now())
		gauge(c.lag, float64(lag))
		gauge(c.lagAge, age.Seconds())
		gauge(c.mirrorUp, truth(n.mirror.failure() == nil))
	}
	total(c.lost, n.senders.lost.Load())
	total(c.revokes, n.revokeFailed.Load())
	gauge(c.damaged, float64(n.damaged.Load()))
	s, fresh := n.snapshot()
	gauge(c.answers, truth(fresh))
	gauge(c.ready, truth(fresh && s.ready && n.memory.ready() && n.store.Err() == nil && !n.draining.Load()))
	if s == nil {
		return
	}
	by := func(d *prometheus.Desc, counts map[string]int) {
		for state, v := range counts {
			gauge(d, float64(v), state)
		}
	}
	by(c.rooms, s.rooms)
	by(c.peers, s.peers)
	gauge(c.open, float64(s.open))
	gauge(c.parked, float64(s.parked)) // of a decode node 0
	if n.cfg.Role == "decode" {
		by(c.pages, s.pages)
		gauge(c.quarantined, float64(s.pages["quarantined"]))
		gauge(c.oldest, s.oldest.Seconds())
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// registerMetrics adds what needs the whole node. It gives the gatherer of the
// node's own metrics and the process's.
func (n *Node) registerMetrics() prometheus.Gatherer {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pdnode_build_info", Help: "1, with what this process is in the labels.",
	}, []string{"version", "goversion", "node", "role", "dialect", "provider", "release_policy"})
	info.WithLabelValues(Version, runtime.Version(), n.cfg.Node, n.cfg.Role, n.cfg.Dialect, n.cfg.RDMA.Provider, n.cfg.ReleasePolicy).Set(1)
	n.metrics.reg.MustRegister(newCollector(n), info)
	process := prometheus.NewRegistry()
	process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return prometheus.Gatherers{n.metrics.reg, process}
}

// metricsHandler answers GET /metrics.
func (n *Node) metricsHandler() http.Handler {
	n.metricsOnce.Do(func() { n.gatherer = n.registerMetrics() })
	return promhttp.HandlerFor(n.gatherer, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4})
}

// metricsServer serves the metrics and the health answers on metrics.listen:
// they say nothing that must be kept from who may reach that address, and
// nothing can be done through them.
func (n *Node) metricsServer(ln net.Listener) *server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", n.metricsHandler())
	n.probeRoutes(mux)
	return &server{
		http: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}, ln: ln, name: "metrics",
	}
}

// Metrics is the address of metrics.listen, "host:port"; empty without one.
func (n *Node) Metrics() string { return n.metricsAddr }
