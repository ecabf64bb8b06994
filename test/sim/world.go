package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pdlog/pdlog/backends"
	_ "github.com/pdlog/pdlog/backends/all" // the dialects
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector/invariants"
)

const epoch = 1767225600000 // unix ms of virtual time 0: 2026-01-01

// world is one run.
type world struct {
	cfg     Config
	rng     *rand.Rand
	f       faults
	now     time.Duration
	order   uint64
	due     []due
	steps   uint64
	dialect backends.Dialect
	other   backends.Dialect // another one, for frames of the wrong dialect

	nodes    []*node
	prefills []*node
	decodes  []*node
	olds     []*oldPrefill
	at       map[string]place // "ip:port" -> rank
	links    map[link]*linkState
	sent     []sent // some of the newest messages
	healing  bool   // the liveness phase: no fault starts any more
	reuse    bool   // the nodes' machines take their results back

	lastUse   uint64 // identity of the newest room incarnation
	lastLease uint64
	stalls    map[link]time.Duration
	checker   *invariants.Checker
	found     int // violations of the checker that have been looked at
	history   []fed
	events    uint64
	failure   *Failure
	injected  map[string]uint64
	probes    map[string]uint64
}

// fed is a durable event, in the order in which they became durable.
type fed struct {
	node  *node
	epoch int
	e     *events.Event
}

// place is a rank of a node or of an old peer.
type place struct {
	node *node
	old  *oldPrefill
	rank int
}

type due struct {
	at    time.Duration
	order uint64
	do    func()
}

func (a *due) before(b *due) bool { return a.at < b.at || a.at == b.at && a.order < b.order }

// after schedules work; d below 0 counts as 0.
func (w *world) after(d time.Duration, do func()) {
	w.order++
	x := due{at: w.now + max(d, 0), order: w.order, do: do}
	w.due = append(w.due, x)
	i := len(w.due) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !x.before(&w.due[up]) {
			break
		}
		w.due[i] = w.due[up]
		i = up
	}
	w.due[i] = x
}

func (w *world) pop() due {
	top, last := w.due[0], len(w.due)-1
	x := w.due[last]
	w.due[last] = due{}
	w.due = w.due[:last]
	if last == 0 {
		return top
	}
	i := 0
	for {
		c := 2*i + 1
		if c >= last {
			break
		}
		if c+1 < last && w.due[c+1].before(&w.due[c]) {
			c++
		}
		if !w.due[c].before(&x) {
			break
		}
		w.due[i] = w.due[c]
		i = c
	}
	w.due[i] = x
	return top
}

// runUntil does what is due up to t, or up to the first failure.
func (w *world) runUntil(t time.Duration) {
	for len(w.due) > 0 && w.due[0].at <= t && w.failure == nil {
		w.step()
		if w.steps == w.cfg.MaxSteps {
			w.fail("steps", "the run does not end: %d steps by %s", w.steps, w.now)
		}
	}
	if w.failure == nil {
		w.now = max(w.now, t)
	}
}

// aftermath lets a failed run go on for a moment, so that what it came to is on
// the logs: pdreplay finds there who wrote the page.
func (w *world) aftermath() {
	const moment, most = 2 * time.Second, 100_000
	for end := w.now + moment; len(w.due) > 0 && w.due[0].at <= end && w.steps-w.failure.Step < most; {
		w.step()
	}
}

func (w *world) step() {
	x := w.pop()
	w.now = x.at
	w.steps++
	x.do()
	w.look()
}

// look takes notice of what the checkers have found since the last step.
func (w *world) look() {
	if vs := w.checker.Violations(); len(vs) > w.found {
		w.found = len(vs)
		w.fail(vs[len(vs)-1].Invariant, "%s", vs[len(vs)-1])
	}
}

func (w *world) fail(rule, format string, args ...any) {
	if w.failure == nil {
		w.failure = &Failure{Rule: rule, Step: w.steps, At: w.now, Detail: fmt.Sprintf(format, args...)}
	}
}

// feed shows a durable event to the checkers.
func (w *world) feed(n *node, e *events.Event) {
	w.events++
	w.checker.Feed(e)
	w.probeEvent(n, e)
	if w.cfg.keep() {
		w.history = append(w.history, fed{n, n.epoch, e})
	}
}

// recheck begins the checks anew without what a node's log has lost.
func (w *world) recheck(n *node, kept uint64) {
	live := w.history[:0]
	for _, x := range w.history {
		if x.node != n || x.e.Seq <= kept {
			live = append(live, x)
		}
	}
	w.history = live
	w.checker = invariants.New()
	for _, x := range live {
		w.checker.Feed(x.e)
	}
	w.found = len(w.checker.Violations())
}

func (w *world) millis() uint64 { return uint64(epoch + w.now.Milliseconds()) } //nolint:gosec // positive

// inject counts a fault, probe a rare branch that was seen.
func (w *world) inject(kind string) { w.injected[kind]++ }
func (w *world) probe(name string)  { w.probes[name]++ }

// ---- dice

func (w *world) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

// fault is a chance that is nil once faults have stopped.
func (w *world) fault(p float64) bool { return !w.healing && w.chance(p) }

func (w *world) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(w.rng.Int64N(int64(hi-lo)))
}

// exp draws from an exponential distribution with the given mean.
func (w *world) exp(mean time.Duration) time.Duration {
	return time.Duration(w.rng.ExpFloat64() * float64(mean))
}

func pick[T any](w *world, xs ...T) T { return xs[w.rng.IntN(len(xs))] }
