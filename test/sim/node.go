package sim

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// Limits of the simulated nodes: short, so that every deadline is met often.
const (
	ackTimeout       = 2 * time.Second
	abortRetry       = 300 * time.Millisecond
	bootstrapTimeout = 8 * time.Second
	waitingTimeout   = 8 * time.Second
	transferTimeout  = 3 * time.Second
	heartbeatEvery   = 5 * time.Second
)

// node is a pdlog node: the real machine in a shell made of virtual time.
type node struct {
	w       *world
	idx     int
	name    string
	prefill bool
	ranks   int
	pages   int
	fence   events.FenceKind // what decode nodes can prove about its writers (prefill)
	policy  events.Policy
	peers   []*node       // decode: the prefill nodes it knows
	olds    []*oldPrefill // decode: its peers of earlier versions
	cfg     projector.Config

	m      *projector.Machine
	up     bool
	life   int
	boots  int
	lives  int // log lives: a wipe or an older copy begins one
	epoch  int
	bootID uint64
	logID  []byte
	skew   time.Duration
	frozen uint64 // wall clock stands, 0 = it runs
	dead   bool   // stays down in the liveness phase
	tickAt time.Duration
	queue  []entry // effects, in the order they were decided in
	doing  bool
	paused time.Duration // nothing reaches the loop before
	inbox  []projector.Command

	disk
	decodeSide
	engine prefillEngine

	registered map[string]uint64 // prefill node -> life that this life has registered with
	missed     map[string]bool   // prefill node -> the last heartbeat failed
	asked      map[string]time.Duration
}

// entry is an effect that waits for the disk.
type entry struct {
	gate uint64
	do   projector.Action
}

func (n *node) address(rank int) string {
	return fmt.Sprintf("10.%d.%d.%d:%d", n.idx>>16&255, n.idx>>8&255, n.idx&255, 5000+rank)
}

func (n *node) rank(i int) projector.RankID { return projector.MakeRank(n.name, i) }

func (n *node) wireID(rank int) uint32 { return uint32(n.idx*4 + rank) } //nolint:gosec // small

func (n *node) config() projector.Config {
	c := projector.Config{
		Node: n.name, Role: events.Role_ROLE_DECODE, Dialect: n.w.dialect.Name(), Provider: "sim", Version: "sim",
		Pages: n.pages, PageSize: 64, AckTimeout: ackTimeout, AbortRetry: abortRetry, BootstrapTimeout: bootstrapTimeout,
		WaitingTimeout: waitingTimeout, TransferTimeout: transferTimeout, AllowWeak: true, PageCheck: true, Policy: n.policy,
		MaxReceipts: 64, // few, so that watermarks are met
	}
	if n.prefill {
		c.Role = events.Role_ROLE_PREFILL
	}
	for r := range n.ranks {
		l := projector.LocalRank{Address: n.address(r)}
		if n.prefill {
			l.WireID = n.wireID(r)
		}
		c.Ranks = append(c.Ranks, l)
	}
	return c
}

// boot starts a life on what the disk holds.
func (n *node) boot() {
	w := n.w
	n.life++
	n.boots++
	n.bootID = uint64(n.idx)<<32 | uint64(n.boots) //nolint:gosec // small
	if n.logID == nil {
		n.logID = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(n.idx)), uint64(n.lives)) //nolint:gosec // small
	}
	n.m = n.machine()
	damaged := n.open()
	n.up, n.paused, n.failSync, n.tickAt, n.queue, n.inbox = true, 0, syncOK, 0, nil, nil
	n.registered, n.missed, n.asked = map[string]uint64{}, map[string]bool{}, map[string]time.Duration{}
	s := projector.Start{Boot: n.bootID, Incarnation: n.m.State().Incarnation + 1, LogID: n.logID, Root: "newest"}
	known := n.remembered()
	wiped := n.m.LastSeq() == 0 && n.lives > 0
	if damaged || known || wiped && !n.prefill {
		s.UnknownPast = true
		if !n.prefill {
			for _, p := range n.peers {
				s.AskPeers = append(s.AskPeers, p.name)
			}
			for _, o := range n.olds {
				s.AskPeers = append(s.AskPeers, o.name)
			}
		}
	}
	s.GenerationBase = uint64(n.lives) << 32 //nolint:gosec // small
	if s.UnknownPast {
		w.probe("started with an unknown past")
	}
	n.run(s)
	if n.prefill {
		n.engine.reconcile(n)
		return
	}
	n.reconcile()
	for _, p := range n.peers {
		n.discover(p, false)
	}
	for _, o := range n.olds {
		n.discoverOld(o)
	}
	w.after(w.between(0, heartbeatEvery), n.guard(n.heartbeats))
}

// remembered: the mirror can be asked, and knows another log of this node or
// more of this one than is here.
func (n *node) remembered() bool {
	w := n.w
	n.mirrorUp = !w.fault(w.f.mirror)
	switch {
	case n.mirrorID == nil || !n.mirrorUp:
		return false
	case string(n.mirrorID) != string(n.logID):
		w.probe("mirror found forked")
		return true
	case n.mirrorSeq > n.m.LastSeq():
		w.probe("mirror found ahead")
		return true
	case n.mirrorSeq < n.m.LastSeq():
		w.probe("mirror found behind")
	}
	return false
}

// die ends the life at once: what is not on disk is gone, but for what the disk
// did of the commit under way.
func (n *node) die() {
	n.up = false
	n.cut()
	n.pending, n.queue = nil, nil
	for _, p := range n.w.prefills { // its connections are reset
		if !n.prefill && p.up && slices.Contains(n.peers, p) && !n.w.isCut(n, p) {
			for r := range n.ranks {
				p.tell(projector.GateClosed{Address: n.address(r)})
			}
		}
	}
}

// stop is SIGTERM.
func (n *node) stop(grace time.Duration) {
	n.run(projector.Stop{Grace: uint64(grace.Milliseconds()), Reason: "sim"}) //nolint:gosec // positive
}

func (n *node) pause(d time.Duration) {
	if n.up {
		n.w.inject("pause")
		n.paused = max(n.paused, n.w.now+d)
	}
}

func (n *node) instant() projector.Instant {
	now := n.w.millis()
	wall := int64(now) + n.skew.Milliseconds() + int64(n.w.f.drift*float64(n.w.now.Milliseconds())*float64(n.idx%3-1)) //nolint:gosec // fits
	if n.frozen != 0 {
		wall = int64(n.frozen) //nolint:gosec // fits
	}
	return projector.Instant{Clock: now, Wall: uint64(max(wall, 1))} //nolint:gosec // positive
}

// tell is for what comes from outside: a paused process takes it later.
func (n *node) tell(cmd projector.Command) {
	if !n.up {
		return
	}
	if n.paused > n.w.now || len(n.inbox) > 0 {
		if n.inbox = append(n.inbox, cmd); len(n.inbox) == 1 {
			n.w.after(n.paused-n.w.now, n.guard(n.wake))
		}
		return
	}
	n.run(cmd)
}

// wake takes in order what has come while the process stood still.
func (n *node) wake() {
	if n.paused > n.w.now {
		n.w.after(n.paused-n.w.now, n.guard(n.wake))
		return
	}
	inbox := n.inbox
	n.inbox = nil
	for _, cmd := range inbox {
		n.run(cmd)
	}
}

// machine is the node's, empty.
func (n *node) machine() *projector.Machine {
	m := projector.New(n.cfg)
	if n.w.reuse {
		m.ReuseResults()
	}
	return m
}

// run runs one command through the core and hands its events to the disk.
func (n *node) run(cmd projector.Command) projector.Result {
	if !n.up {
		return projector.Result{Refused: &projector.Refusal{Word: "not_ready", Detail: n.name + " is down"}}
	}
	res := n.m.Step(n.instant(), cmd)
	if n.w.reuse { // as the daemon's loop: the state must hold nothing that lies in them
		res.Events = slices.Clone(res.Events)
		for i, e := range res.Events {
			res.Events[i] = proto.CloneOf(e)
		}
	}
	for _, e := range res.Events {
		n.note(e)
	}
	n.targetsAnswered(res.Events)
	if n.frozen != 0 && len(res.Events) > 0 {
		n.w.probe("events while the clock stood still")
	}
	n.pending = append(n.pending, res.Events...)
	n.push(res.Effects)
	if n.w.reuse {
		res.Effects = nil
		n.m.Recycle()
	}
	n.commit()
	n.flush()
	n.arm()
	return res
}

// push queues effects as the daemon's outbox does: in order, each with the gate
// of those in front of it; a write whose own gate is open does not queue.
func (n *node) push(effects []projector.Effect) {
	var gate uint64
	for _, e := range effects {
		if d, ok := e.Do.(projector.DropPublish); ok {
			n.dropPublish(d.RoomSeq)
			continue
		}
		gate = max(gate, e.After)
		if _, ok := e.Do.(projector.PostWrite); ok && gate <= n.durable {
			n.w.after(0, n.guard(func() { n.perform(e.Do) }))
			continue
		}
		n.queue = append(n.queue, entry{gate, e.Do})
	}
}

// dropPublish takes back metadata that waits for the disk.
func (n *node) dropPublish(roomSeq uint64) {
	n.queue = slices.DeleteFunc(n.queue, func(e entry) bool {
		a, ok := e.do.(projector.SendMetadata)
		if !ok || a.RoomSeq != roomSeq {
			return false
		}
		n.w.after(0, n.guard(func() {
			n.run(projector.PublishResult{RoomSeq: a.RoomSeq, Rank: a.Rank, To: a.To, Err: "the room ended before it left"})
		}))
		return true
	})
}

// flush does the effects whose events are on disk, in order.
func (n *node) flush() {
	if n.doing {
		return
	}
	n.doing = true
	for len(n.queue) > 0 && n.queue[0].gate <= n.durable && n.up {
		e := n.queue[0]
		n.queue = n.queue[1:]
		n.perform(e.do)
	}
	n.doing = false
}

// guard drops work of a life that is over.
func (n *node) guard(f func()) func() {
	life := n.life
	return func() {
		if n.life == life && n.up {
			f()
		}
	}
}

// arm schedules the tick for the machine's next deadline.
func (n *node) arm() {
	if !n.up || len(n.inbox) > 0 { // what wakes it arms it again
		return
	}
	ms, ok := n.m.NextDeadline()
	if !ok {
		return
	}
	at := max(time.Duration(int64(ms)-epoch)*time.Millisecond, n.w.now, n.paused) //nolint:gosec // fits
	if n.tickAt != 0 && n.tickAt <= at && n.tickAt >= n.w.now {
		return
	}
	n.tickAt = at
	n.w.after(at-n.w.now, n.guard(func() {
		if n.tickAt == at {
			n.tickAt = 0
			n.tell(projector.Tick{})
			n.arm()
		}
	}))
}

func (n *node) receive(rank int, f backends.Frames) {
	side := backends.AtDecode
	if n.prefill {
		side = backends.AtPrefill
	}
	n.tell(backends.ToCommand(n.w.dialect.Decode(side, f), n.rank(rank), f))
}

func (n *node) self(rank projector.RankID) backends.Self {
	a := n.address(rank.Index())
	return backends.Self{Endpoint: a, PeerKey: a}
}

// send puts a message of ours on the wire. What it tells has to be on disk: its
// cause names the event.
func (n *node) send(kind msgKind, rank projector.RankID, addr string, m backends.Message, err error, cause uint64) error {
	if cause > n.durable {
		n.w.fail("log before wire", "%s: %s to %s tells of event %d; the disk has %d", n.name, kind, addr, cause, n.durable)
	}
	if err != nil {
		return err
	}
	f, err := n.w.dialect.Encode(m)
	if err != nil {
		return err
	}
	to, ok := n.w.at[addr]
	if !ok {
		return fmt.Errorf("no rank at %s", addr)
	}
	n.w.transmit(kind, place{node: n, rank: rank.Index()}, to, f)
	return nil
}

// abortAgain lets an ABORT come once more, seconds later and without its frame.
func (n *node) abortAgain(a projector.SendAbort, m backends.Abort) {
	m.Ext = nil
	f, err := n.w.dialect.Encode(&m)
	to, ok := n.w.at[a.Address]
	if err != nil || !ok {
		n.must(err)
		return
	}
	n.w.inject("abort comes again, late and without its frame")
	n.w.arrive(place{node: n, rank: a.To.Index()}, to, f, n.w.between(0, 8*time.Second))
}

func (n *node) must(err error) {
	if err != nil {
		n.w.fail("encode", "%s: %v", n.name, err)
	}
}

// perform carries out one effect.
func (n *node) perform(a projector.Action) {
	w := n.w
	switch a := a.(type) {
	case projector.SendMetadata:
		n.publish(a)
	case projector.SendAbort:
		m, err := backends.FromAbort(a, n.self(a.To))
		n.must(n.send(msgAbort, a.To, a.Address, m, err, a.Ext.CauseSeq))
		if w.fault(w.f.bareAgain) && err == nil {
			n.abortAgain(a, *m)
		}
	case projector.SendAck:
		n.must(n.send(msgAck, a.Rank, a.Address, backends.FromAck(a), nil, a.Ext.CauseSeq))
	case projector.SendStatus:
		n.must(n.send(msgStatus, a.Rank, a.Address, backends.FromStatus(a), nil, a.Ext.CauseSeq))
	case projector.PostWrite:
		n.post(a)
	case projector.Fence:
		n.fenceLease(a)
	case projector.RevokeLease:
		n.revoke(a.Lease)
	case projector.CheckPages:
		n.checkPages(a)
	case projector.CopyAux:
		n.copyAux(a)
	case projector.AskPast:
		n.askPast(a.Node)
	case projector.FencePeer:
		n.fencePeer(a.Node)
	case projector.Rediscover:
		if p := w.nodeNamed(a.Node); p != nil && p.prefill {
			n.discover(p, false)
		}
	case projector.Tell:
		n.told(a)
	case projector.Stopped:
		w.probe("graceful stop done")
		n.sync()
		n.up = false
		n.pending, n.queue = nil, nil
		n.restartLater()
	case projector.SealRoom, projector.DropPublish:
	}
}

func (w *world) nodeNamed(name string) *node {
	for _, n := range w.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}
