package sim

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// heal ends the safety phase: faults stop, most nodes come back, some prefill
// nodes stay dead. What is due then is liveness: every page comes back (reliability
// rule "every page is released") within the limits of the protocol.
func (w *world) heal() {
	w.healing = true
	for _, k := range slices.SortedFunc(maps.Keys(w.links), func(a, b link) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
	}) {
		w.links[k].cut = false
		w.links[k].release()
	}
	clear(w.stalls)
	for _, p := range w.prefills {
		p.dead = len(w.prefills) > 1 && w.rng.IntN(6) == 0
	}
	for _, n := range w.nodes {
		n.paused, n.failSync = 0, syncOK
		if n.full {
			n.full = false
			n.tell(logState(false))
		}
		switch {
		case n.dead && n.up:
			n.die()
		case !n.dead && (!n.up || n.m.State().Draining):
			if n.up { // it is being stopped: the rest of that is cut short
				n.die()
			}
			n.boot()
		}
	}
	// The last writes land, deadlines pass, peers find each other.
	w.runUntil(w.now + waitingTimeout + transferTimeout + bootstrapTimeout + 2*heartbeatEvery + 60*time.Second)
	if w.failure != nil {
		return
	}
	for _, d := range w.decodes { // under policy hold, pages wait for an operator
		for _, r := range d.m.RoomViews() {
			if r.State == "quarantined" {
				d.run(projector.FenceRoom{Room: r.Room})
			}
		}
	}
	w.runUntil(w.now + 2*ackTimeout + 30*time.Second)
	if w.failure != nil {
		return
	}
	for _, n := range w.nodes {
		if w.failure == nil && n.up {
			n.settled()
			n.folds()
		}
	}
}

// settled: nothing is left but what a provider without a fence, or a rank that
// cannot tell, keeps in quarantine.
func (n *node) settled() {
	w, st := n.w, n.m.State()
	for _, seq := range sorted(st.Rooms) {
		r := st.Rooms[seq]
		if excused := n.excused(r); !excused {
			w.fail("I2", "%s: room %d/%d is not released after the faults have stopped: outcome %d, generation %d, quarantined %v", n.name, r.Room, r.Seq, r.Outcome, r.Gen, r.Quarantined)
			return
		}
		w.probe("quarantine outlives the run: no fence")
	}
	for _, seq := range sorted(st.PRooms) {
		r := st.PRooms[seq]
		if r.Outcome == projector.OutcomeNone {
			w.fail("I7", "%s: room %d/%d is still open after the faults have stopped", n.name, r.Room, r.Seq)
			return
		}
		for _, t := range r.Targets {
			if !t.Answered && !r.OldLife {
				w.fail("I5", "%s: %s was never answered for room %d/%d", n.name, t.To, r.Room, r.Seq)
				return
			}
		}
		for _, id := range sorted(r.Tokens) {
			if !r.OldLife {
				w.fail("I7", "%s: write %d of room %d/%d never ended", n.name, id, r.Room, r.Seq)
				return
			}
		}
	}
	if len(n.inFlight) == 0 && len(n.pending)+len(n.queue) > 0 {
		w.fail("I12", "%s: %d events and %d effects wait for nothing", n.name, len(n.pending), len(n.queue))
	}
}

// excused: every pair that still owes evidence is one that nobody can fence.
func (n *node) excused(r *projector.Room) bool {
	if r.Outcome != projector.OutcomeFailed || !r.Quarantined {
		return false
	}
	for _, p := range r.Pairs {
		if p.Publish != projector.PublishNone && p.Evidence == 0 && n.w.fenceOf(p.Rank.Node()) != events.FenceKind_FENCE_KIND_NONE {
			return false
		}
	}
	return true
}

// folds is I5 of the ladder: a machine that applies the node's log comes to the
// state that the node has.
func (n *node) folds() {
	m := projector.New(n.cfg)
	if err := n.read(func(e *events.Event) error {
		m.Apply(e)
		return nil
	}); err != nil {
		n.w.fail("I9", "%s: its own log does not read: %v", n.name, err)
		return
	}
	for _, e := range slices.Concat(n.inFlight, n.pending) {
		m.Apply(e)
	}
	if have, want := digest(m), digest(n.m); have != want {
		n.w.fail("replay", "%s: the fold of its log differs from its state:\n%s\n%s", n.name, have, want)
	}
}
