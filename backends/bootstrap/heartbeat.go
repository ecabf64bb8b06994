package bootstrap

import "time"

// Defaults and bounds of the heartbeat (http.md 5).
const (
	DefaultHeartbeatInterval    = 5 * time.Second
	DefaultHeartbeatMaxFailures = 2
	minHeartbeatInterval        = 2 * time.Second
)

// Heartbeat counts failed health checks by prefill. Addresses are matched
// exactly, never by a prefix: 10.0.0.1:80 is not 10.0.0.1:8000 (F31). It has
// no clock and no lock; whoever asks Client.Health every Interval owns it.
type Heartbeat struct {
	interval    time.Duration
	maxFailures int
	failures    map[string]int // in a row, by address
}

// NewHeartbeat takes 0 for the defaults and raises an interval under 2 s and
// a number of failures under 1 to these.
func NewHeartbeat(interval time.Duration, maxFailures int) *Heartbeat {
	if interval == 0 {
		interval = DefaultHeartbeatInterval
	}
	if maxFailures == 0 {
		maxFailures = DefaultHeartbeatMaxFailures
	}
	return &Heartbeat{
		interval:    max(interval, minHeartbeatInterval),
		maxFailures: max(maxFailures, 1),
		failures:    make(map[string]int),
	}
}

// Interval is the time between two checks of one prefill.
func (h *Heartbeat) Interval() time.Duration { return h.interval }

// MaxFailures is the number of failures in a row that make a prefill lost.
func (h *Heartbeat) MaxFailures() int { return h.maxFailures }

// Observe takes the outcome of one check. lost is true for the failure that
// makes the prefill lost and not again before it has answered once.
func (h *Heartbeat) Observe(addr string, ok bool) (lost bool) {
	if ok {
		delete(h.failures, addr)
		return false
	}
	h.failures[addr] = min(h.failures[addr]+1, h.maxFailures+1)
	return h.failures[addr] == h.maxFailures
}

// Lost reports that the prefill has failed MaxFailures times in a row.
func (h *Heartbeat) Lost(addr string) bool { return h.failures[addr] >= h.maxFailures }

// Forget drops a prefill that is not asked any more.
func (h *Heartbeat) Forget(addr string) { delete(h.failures, addr) }
