package sim

import (
	"slices"
	"time"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/projector"
)

type msgKind string

const (
	msgRegister msgKind = "registration"
	msgMetadata msgKind = "metadata"
	msgAbort    msgKind = "abort"
	msgAck      msgKind = "abort_ack"
	msgStatus   msgKind = "status"
	msgAux      msgKind = "aux_data"
)

// link is one direction between two nodes, by name.
type link struct{ from, to string }

// linkState is how a link is broken now.
type linkState struct {
	cut    bool
	clog   bool
	last   time.Duration // when the newest message arrives, where order is kept
	parked []func()
}

func (p place) name() string {
	if p.old != nil {
		return p.old.name
	}
	return p.node.name
}

func (w *world) isCut(from, to *node) bool { return w.cutNames(from.name, to.name) }

func (w *world) cutNames(from, to string) bool {
	l := w.links[link{from, to}]
	return l != nil && l.cut
}

func (w *world) linkOf(from, to string) *linkState {
	k := link{from, to}
	l := w.links[k]
	if l == nil {
		l = &linkState{}
		w.links[k] = l
	}
	return l
}

// latency is one way's time, most of them near the mean, a few up to 5 s.
func (w *world) latency() time.Duration {
	d := w.f.delay/2 + w.exp(w.f.delay/2)
	if w.fault(w.f.tail) {
		d += w.between(0, 5*time.Second)
	}
	return d
}

// transmit puts frames on the wire. Registrations are repeated by their sender
// until they arrive, so only a cut or a dead process stops them.
func (w *world) transmit(kind msgKind, from, to place, f backends.Frames) {
	if from.old != nil || to.old != nil { // such a peer relies on the order of its connection
		if w.fault(w.f.loss) {
			w.inject("message lost")
			return
		}
		l := w.linkOf(from.name(), to.name())
		l.last = max(l.last, w.now+w.latency())
		w.arrive(from, to, f, l.last-w.now)
		return
	}
	if kind != msgRegister {
		switch {
		case w.fault(w.f.loss):
			w.inject("message lost")
			return
		case w.fault(w.f.corrupt):
			w.inject("message corrupted")
			f = w.corrupt(f)
		case w.fault(w.f.wrongDialect):
			w.inject("message of another dialect")
			f = backends.Frames{[]byte("ENGINE_HEARTBEAT"), []byte("x")}
			if g, err := w.other.Encode(&backends.Status{Room: 1, Status: backends.PollFailed}); err == nil {
				f = g[:min(len(g), 2)]
			}
		}
		for w.fault(w.f.dup / 2) {
			w.inject("message duplicated")
			w.arrive(from, to, f, w.latency()+w.between(0, 2*time.Second))
		}
	}
	if len(w.sent) < cap(w.sent) {
		w.sent = append(w.sent, sent{from, to, f})
	} else {
		w.sent[w.rng.IntN(len(w.sent))] = sent{from, to, f}
	}
	w.arrive(from, to, f, w.latency())
}

// sent is a message that was on the wire.
type sent struct {
	from, to place
	f        backends.Frames
}

// floodOne sends a node hundreds of messages at once that were sent before.
func (w *world) floodOne() {
	n := pick(w, w.nodes...)
	var list []sent
	for _, x := range w.sent {
		if x.to.node == n {
			list = append(list, x)
		}
	}
	if len(list) == 0 || !n.up {
		return
	}
	w.inject("message storm")
	before := n.m.LastSeq()
	count := 100 + w.rng.IntN(300)
	for range count {
		x := pick(w, list...)
		w.arrive(x.from, x.to, x.f, w.exp(10*time.Millisecond))
	}
	w.after(100*time.Millisecond, n.guard(func() {
		if n.m.LastSeq()-before < uint64(count)/2 { //nolint:gosec // positive
			w.probe("message storm left few events")
		}
	}))
}

func (w *world) arrive(from, to place, f backends.Frames, d time.Duration) {
	a, b := from.name(), to.name()
	if w.cutNames(a, b) {
		w.inject("message cut off")
		return
	}
	w.after(d, func() {
		deliver := func() {
			switch {
			case to.old != nil:
				to.old.receive(to.rank, f)
			case to.node.up:
				to.node.receive(to.rank, f)
			}
		}
		switch l := w.links[link{a, b}]; {
		case l == nil:
			deliver()
		case l.cut:
			w.inject("message cut off")
		case l.clog:
			l.parked = append(l.parked, deliver)
		default:
			deliver()
		}
	})
}

// corrupt damages frames so that no dialect takes them for another good
// message: what the transport's checksums let through is not ours to mend.
func (w *world) corrupt(f backends.Frames) backends.Frames {
	f = slices.Clone(f)
	switch w.rng.IntN(3) {
	case 0:
		return f[:w.rng.IntN(len(f))]
	case 1:
		junk := make([]byte, w.rng.IntN(64))
		for i := range junk {
			junk[i] = byte(w.rng.IntN(256)) //nolint:gosec // a byte
		}
		f[0] = junk
	default:
		f = append(f, []byte{0xff, 0xfe, 0xfd}, []byte("zzz"))
		slices.Reverse(f)
	}
	return f
}

// partition splits a part of the fleet from the rest for a while.
func (w *world) partition() {
	w.inject("partition")
	oneWay := w.chance(w.f.oneWay)
	inside := map[*node]bool{}
	switch w.rng.IntN(3) {
	case 0: // one node alone
		inside[pick(w, w.nodes...)] = true
	case 1: // a random part
		for _, n := range w.nodes {
			inside[n] = w.rng.IntN(2) == 0
		}
	default: // one pair
		d := pick(w, w.decodes...)
		p := pick(w, d.peers...)
		w.split(d, p, oneWay)
		return
	}
	d := w.between(50*time.Millisecond, 12*time.Second)
	var cut []*linkState
	for _, a := range w.decodes {
		for _, b := range a.peers {
			if inside[a] == inside[b] {
				continue
			}
			cut = append(cut, w.linkOf(a.name, b.name))
			if !oneWay {
				cut = append(cut, w.linkOf(b.name, a.name))
			}
		}
	}
	w.hold(cut, d)
}

func (w *world) split(a, b *node, oneWay bool) {
	if w.rng.IntN(2) == 0 {
		a, b = b, a
	}
	cut := []*linkState{w.linkOf(a.name, b.name)}
	if oneWay {
		w.inject("one-way partition")
	} else {
		cut = append(cut, w.linkOf(b.name, a.name))
	}
	w.hold(cut, w.between(50*time.Millisecond, 12*time.Second))
}

func (w *world) hold(cut []*linkState, d time.Duration) {
	for _, l := range cut {
		l.cut = true
	}
	w.after(d, func() {
		for _, l := range cut {
			l.cut = false
		}
	})
}

// clogSome holds what some links carry, and frees them one by one; swizzled,
// in another order than they were stopped in.
func (w *world) clogSome() {
	w.inject("clog")
	d := pick(w, w.decodes...)
	var held []*linkState
	for _, p := range d.peers {
		held = append(held, w.linkOf(d.name, p.name), w.linkOf(p.name, d.name))
	}
	w.rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
	held = held[:1+w.rng.IntN(len(held))]
	step := w.between(time.Millisecond, 500*time.Millisecond)
	for i, l := range held {
		w.after(time.Duration(i)*step, func() { l.clog = !w.healing })
	}
	if w.f.swizzle {
		w.rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
	}
	start := time.Duration(len(held))*step + w.between(0, 5*time.Second)
	for i, l := range held {
		w.after(start+time.Duration(i)*step, func() { l.release() })
	}
}

func (l *linkState) release() {
	l.clog = false
	parked := l.parked
	l.parked = nil
	for _, f := range parked {
		f()
	}
}

// dropConnection resets a prefill node's connection to a decode endpoint.
func (w *world) dropConnection() {
	d := pick(w, w.decodes...)
	p := pick(w, d.peers...)
	if p.up {
		w.inject("connection reset")
		p.tell(projector.GateClosed{Address: d.address(w.rng.IntN(d.ranks))})
	}
}
