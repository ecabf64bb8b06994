package sim

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector/invariants"
)

// Config says what to run. Seed alone decides everything that is left zero.
type Config struct {
	Seed     uint64
	Nodes    int           // 0 = drawn, 3 to 5
	Safety   time.Duration // virtual length of the safety phase; 0 = two minutes
	Rate     float64       // rooms a second that each decode node opens; 0 = drawn
	MaxSteps uint64        // a run of more steps fails; 0 = 5 million
}

// keep: the events are kept, for an export, and so that checks can begin anew
// when a log has lost its end. A very large fleet does without.
func (c *Config) keep() bool { return c.Nodes <= 100 }

// Failure is the first breach of a run.
type Failure struct {
	Rule   string // "I1" to "I12", or what else had to hold
	Step   uint64
	At     time.Duration
	Detail string
}

// Result is what a run came to.
type Result struct {
	Seed     uint64
	Nodes    int
	Steps    uint64
	Events   uint64
	Rooms    uint64
	Virtual  time.Duration
	Took     time.Duration // of the wall clock, as the caller of Run measures it
	Failure  *Failure      // nil: everything held
	Injected map[string]uint64
	Probes   map[string]uint64

	w *world
}

// Run runs one seed.
func Run(cfg Config) Result {
	w := newWorld(cfg)
	w.after(0, w.start)
	w.runUntil(w.cfg.Safety)
	if w.failure == nil {
		w.heal()
	}
	if w.failure == nil {
		for _, v := range w.checker.Finish() {
			w.fail(v.Invariant, "%s", v)
		}
	}
	if w.failure != nil {
		w.aftermath()
	}
	return Result{
		Seed: cfg.Seed, Nodes: len(w.nodes) + len(w.olds), Steps: w.steps, Events: w.events, Rooms: w.lastUse, Virtual: w.now,
		Failure: w.failure, Injected: w.injected, Probes: w.probes, w: w,
	}
}

// Line is the one line by which a failure is reported and found again.
func (r *Result) Line(commit string) string {
	if r.Failure == nil {
		return fmt.Sprintf("SIM seed=%d commit=%s steps=%d ok", r.Seed, commit, r.Steps)
	}
	return fmt.Sprintf("SIM seed=%d commit=%s step=%d at=%s rule=%s %s", r.Seed, commit, r.Failure.Step, r.Failure.At, r.Failure.Rule, r.Failure.Detail)
}

// Digest is the protocol state of all nodes at the end, as text.
func (r *Result) Digest() string {
	var b strings.Builder
	for _, n := range r.w.nodes {
		fmt.Fprintf(&b, "%s up=%v %s\n", n.name, n.up, digest(n.m))
	}
	return b.String()
}

// Log streams the durable events of all nodes: what `pdreplay` opens once it is
// written as JSON lines.
func (r *Result) Log() iter.Seq2[*events.Event, error] {
	return func(yield func(*events.Event, error) bool) {
		for _, n := range r.w.nodes {
			stopped := false
			err := n.read(func(e *events.Event) error {
				if !stopped && !yield(e, nil) {
					stopped = true
				}
				return nil
			})
			if stopped || err != nil && !yield(nil, err) {
				return
			}
		}
	}
}

// Durable lists the events of all nodes in the order in which they became
// durable: no event comes before one that it could have known of. Only fleets of
// at most 100 nodes keep it.
func (r *Result) Durable() iter.Seq[*events.Event] {
	return func(yield func(*events.Event) bool) {
		for _, x := range r.w.history {
			if !yield(x.e) {
				return
			}
		}
	}
}

func newWorld(cfg Config) *world {
	w := &world{
		cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x70646c6f67)), //nolint:gosec // dice
		at: map[string]place{}, links: map[link]*linkState{}, stalls: map[link]time.Duration{}, checker: invariants.New(), sent: make([]sent, 0, 128),
		injected: map[string]uint64{}, probes: map[string]uint64{}, reuse: cfg.Seed%4 == 0,
	}
	c := &w.cfg
	if c.Nodes == 0 {
		c.Nodes = 3 + w.rng.IntN(3)
	}
	if c.Safety == 0 {
		c.Safety = 2 * time.Minute
	}
	if c.Rate == 0 {
		c.Rate = 0.5 + 5*w.rng.Float64()
	}
	if c.MaxSteps == 0 {
		c.MaxSteps = 5_000_000
	}
	names := []string{"mooncake", "nixl", "mori"}
	i := w.rng.IntN(len(names))
	w.dialect, w.other = dialect(names[i]), dialect(names[(i+1)%len(names)])
	w.f = w.faultsOf()
	w.build()
	return w
}

func dialect(name string) backends.Dialect {
	d, err := backends.Lookup(name)
	if err != nil {
		panic(err) // imported above
	}
	return d
}

// start boots the fleet and lets engines and faults begin.
func (w *world) start() {
	for _, n := range w.nodes {
		n.boot()
	}
	w.after(500*time.Millisecond, func() {
		for _, d := range w.decodes {
			w.openRooms(d)
		}
		w.breakThings()
	})
}
