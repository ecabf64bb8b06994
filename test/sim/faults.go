package sim

import (
	"slices"
	"time"

	"github.com/pdlog/pdlog/events"
)

// faults are the strengths of one seed. Zero is a strength: half of them are
// drawn as zero, so that each kind is also seen alone.
type faults struct {
	// control network
	loss, dup, corrupt, wrongDialect float64
	delay                            time.Duration // mean of one way
	tail                             float64       // share of messages with up to 5 s
	partition                        time.Duration // mean time between two, 0 = none
	oneWay                           float64       // share of partitions that cut one direction
	clog                             time.Duration
	swizzle                          bool // clogs come one by one and are freed in another order
	connDrop                         time.Duration
	flood                            time.Duration // mean time between two storms of messages that were sent before
	bareAgain                        float64       // share of ABORTs that come once more, late and without their frame

	// RDMA
	late, partial, failed, hang float64
	longest                     time.Duration // of a late landing
	stall                       time.Duration // mean time between stalls of a queue pair
	fenceSlow                   time.Duration
	fenceFails                  float64

	// disk
	fsync      time.Duration // typical
	fsyncSlow  float64       // share of commits that take up to 2 s
	fsyncError time.Duration
	torn       float64 // share of crashes that leave part of the commit under way
	flip       float64 // share of restarts that find a flipped bit
	full       time.Duration

	// process
	crash                 time.Duration // mean time between two, fleet-wide
	down                  time.Duration // longest
	twice                 float64       // share of restarts that crash at once again
	pause                 time.Duration
	wipe                  float64 // share of restarts on an empty disk
	older                 float64 // share of restarts on an old copy
	mirror                float64 // share of time that the mirror cannot be asked
	mirrorLost, mirrorOld float64 // share of restarts that find it wiped, or restored from an old copy
	policy, binary        float64 // share of restarts with another configuration, or after another build

	// clock
	skew   time.Duration
	jump   time.Duration // mean time between jumps
	drift  float64
	frozen time.Duration // mean time between two stops of a clock

	// engine
	abort, abortTwice, abortEarly float64
	storm                         time.Duration
	slowEngine, noEngine          float64
	doubleFinish                  float64
	reuse                         float64 // rooms that take a number again at once
	stop                          time.Duration
	fenceOrder                    time.Duration
	memory                        time.Duration // memory registered anew
}

// faultsOf draws the strengths of a seed.
func (w *world) faultsOf() faults {
	share := func(most float64) float64 {
		if w.rng.IntN(2) == 0 {
			return 0
		}
		return most * w.rng.Float64()
	}
	every := func(least, most time.Duration) time.Duration {
		if w.rng.IntN(2) == 0 {
			return 0
		}
		return w.between(least, most)
	}
	f := faults{
		loss: share(0.30), dup: share(0.50), corrupt: share(0.03), wrongDialect: share(0.02),
		delay: w.between(100*time.Microsecond, 30*time.Millisecond), tail: share(0.05),
		partition: every(2*time.Second, 30*time.Second), oneWay: w.rng.Float64(),
		clog: every(2*time.Second, 30*time.Second), swizzle: w.rng.IntN(2) == 0,
		connDrop: every(time.Second, 20*time.Second), flood: every(4*time.Second, 40*time.Second), bareAgain: share(0.3),

		late: share(0.30), partial: share(0.10), failed: share(0.10), hang: share(0.05),
		longest: w.between(time.Second, 60*time.Second), stall: every(time.Second, 20*time.Second),
		fenceSlow: every(time.Millisecond, 4*time.Second), fenceFails: share(0.5),

		fsync: w.between(50*time.Microsecond, 5*time.Millisecond), fsyncSlow: share(0.05), fsyncError: every(5*time.Second, 60*time.Second),
		torn: w.rng.Float64(), flip: share(0.10), full: every(5*time.Second, 40*time.Second),

		crash: every(time.Second, 20*time.Second), down: w.between(10*time.Millisecond, 20*time.Second), twice: share(0.6),
		pause: every(2*time.Second, 20*time.Second), wipe: share(0.5), older: share(0.3), mirror: w.rng.Float64(),
		mirrorLost: share(0.2), mirrorOld: share(0.3), policy: share(0.3), binary: share(0.3),

		skew: every(time.Millisecond, 10*time.Second), jump: every(2*time.Second, 30*time.Second), drift: share(200e-6), frozen: every(2*time.Second, 30*time.Second),

		abort: share(0.6), abortTwice: share(0.5), abortEarly: share(0.3), storm: every(10*time.Second, 60*time.Second),
		slowEngine: share(0.3), noEngine: share(0.05), doubleFinish: share(0.3), reuse: share(0.7),
		stop: every(10*time.Second, 60*time.Second), fenceOrder: every(2*time.Second, 20*time.Second), memory: every(10*time.Second, 60*time.Second),
	}
	if w.rng.IntN(4) == 0 {
		f.delay = w.between(30*time.Millisecond, 100*time.Millisecond)
	}
	if w.rng.IntN(8) == 0 {
		f.down = w.between(60*time.Second, 600*time.Second)
	}
	return f
}

// breakThings starts the fault processes of the fleet.
func (w *world) breakThings() {
	w.every(w.f.crash, func() { w.crashOne() })
	w.every(w.f.fsyncError, func() {
		if n := pick(w, w.nodes...); n.up {
			n.failSync = pick(w, syncLost, syncKept)
		}
	})
	w.every(w.f.pause, func() { pick(w, w.nodes...).pause(w.between(10*time.Millisecond, 3*time.Second)) })
	w.every(w.f.partition, w.partition)
	w.every(w.f.clog, w.clogSome)
	w.every(w.f.connDrop, w.dropConnection)
	w.every(w.f.stall, w.stallPair)
	w.every(w.f.full, func() { w.fillDisk(pick(w, w.nodes...)) })
	w.every(w.f.jump, func() {
		w.inject("clock jump")
		pick(w, w.nodes...).skew = w.between(-w.f.skew, w.f.skew)
	})
	w.every(w.f.frozen, w.freezeClock)
	w.every(w.f.flood, w.floodOne)
	w.every(w.f.storm, w.abortStorm)
	w.every(w.f.stop, func() { w.stopOne() })
	w.every(w.f.fenceOrder, w.orderFence)
	w.every(w.f.memory, w.registerAnew)
}

// every does something at random times, with the given mean between them,
// scaled to the size of the fleet, until faults stop.
func (w *world) every(mean time.Duration, do func()) {
	if mean == 0 {
		return
	}
	mean = max(mean*5/time.Duration(len(w.nodes)), 20*time.Millisecond)
	var again func()
	again = func() {
		if w.healing {
			return
		}
		do()
		w.after(w.exp(mean), again)
	}
	w.after(w.exp(mean), again)
}

func (w *world) crashOne() {
	n := pick(w, w.nodes...)
	if !n.up {
		return
	}
	w.inject("crash")
	n.die()
	n.restartLater()
}

// restartLater brings a node back, on what its disk holds by then.
func (n *node) restartLater() {
	w := n.w
	w.after(w.between(time.Millisecond, w.f.down), func() {
		if n.up || w.healing {
			return // healing starts everything itself
		}
		n.changeAround()
		switch {
		case w.fault(w.f.wipe) && n.mayForget():
			w.inject("disk wiped")
			n.wipe()
		case n.prefill && w.fault(w.f.older) && w.cfg.keep() && n.mayForget():
			n.olderCopy()
		case n.prefill && w.fault(w.f.flip) && w.cfg.keep():
			n.flip()
		}
		n.boot()
		if n.up && w.fault(w.f.twice) {
			w.inject("crash at once again")
			w.after(w.exp(20*time.Millisecond), func() {
				if n.up && !w.healing {
					n.die()
					w.after(w.exp(20*time.Millisecond), func() {
						if !n.up && !w.healing {
							n.boot()
						}
					})
				}
			})
		}
	})
}

// changeAround is what happens to a node's surroundings while it is down.
func (n *node) changeAround() {
	w := n.w
	switch {
	case n.mirrorID == nil:
	case w.fault(w.f.mirrorLost):
		w.inject("mirror wiped")
		w.probe("mirror found empty")
		n.mirrorID, n.mirrorSeq = nil, 0
	case w.fault(w.f.mirrorOld):
		w.inject("mirror restored from an old copy")
		n.mirrorSeq = uint64(w.rng.Int64N(int64(n.mirrorSeq) + 1)) //nolint:gosec // positive
	}
	if !n.prefill && w.fault(w.f.policy) {
		w.inject("configuration changed")
		n.policy = events.Policy_POLICY_HOLD + events.Policy_POLICY_FENCE - n.policy
		n.cfg = n.config()
		for _, r := range n.m.State().Rooms {
			if r.Gen != 0 {
				w.probe("configuration changed while pages were held")
				break
			}
		}
	}
	if n.snap != nil && w.fault(w.f.binary) {
		w.inject("snapshot of another build")
		w.probe("snapshot of another build ignored")
		n.snap = nil
	}
}

// freezeClock lets a node's wall clock stand still for a while.
func (w *world) freezeClock() {
	n := pick(w, w.nodes...)
	if n.frozen != 0 {
		return
	}
	w.inject("clock stands still")
	n.frozen = n.instant().Wall
	w.after(w.between(100*time.Millisecond, 20*time.Second), func() { n.frozen = 0 })
}

// mayForget leaves out what nothing can find out (docs/reliability.md): a decode
// node that has lost its log, and a prefill node that has lost its own unseen,
// know nothing of each other, though the one may still write to the other.
func (n *node) mayForget() bool {
	for _, q := range n.w.nodes {
		if q.prefill != n.prefill && q.lives > 0 && (slices.Contains(q.peers, n) || slices.Contains(n.peers, q)) {
			return false
		}
	}
	return true
}

func (w *world) stopOne() {
	n := pick(w, w.nodes...)
	if !n.up {
		return
	}
	w.inject("graceful stop")
	n.stop(w.between(0, 5*time.Second))
}

func (w *world) fillDisk(n *node) {
	if !n.up || n.full {
		return
	}
	w.inject("disk full")
	n.setFull(true)
	w.after(w.between(100*time.Millisecond, 10*time.Second), func() {
		if n.full {
			w.probe("disk full and recovered")
			n.setFull(false)
		}
	})
}
