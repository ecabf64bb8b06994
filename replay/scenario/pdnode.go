package scenario

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// pdNode is a pdlog node: the real machine, and a shell made of virtual time.
// Its disk is a list of events that survive, and a commit under way.
type pdNode struct {
	w *world
	d *nodeDef
	m *projector.Machine

	up     bool
	life   int
	wipes  int
	bootID uint64
	inc    uint64
	logID  []byte
	skew   time.Duration

	disk     []*events.Event // durable
	places   map[uint64]uint64
	view     *projector.Machine // fold of the durable events
	pending  []*events.Event
	inFlight int // events of the commit under way
	effects  []projector.Effect
	slow     time.Duration
	failSync string // "", "fail", "kept"
	full     bool

	ticks     map[time.Duration]bool
	leases    map[uint64]*lease
	failAfter map[uint64]int
}

// lease is one pair's permission to write into this node's memory.
type lease struct {
	tag     uint64
	room    uint64
	roomSeq uint64
	rank    projector.RankID
	to      projector.RankID
	pages   []uint32
	dummy   bool
	revoked bool
	life    int // of this node, when it was granted
	wipes   int
	key     uint64
}

func newPDNode(w *world, d *nodeDef) *pdNode {
	n := &pdNode{w: w, d: d, leases: map[uint64]*lease{}, places: map[uint64]uint64{}, failAfter: map[uint64]int{}}
	n.logID = n.newLogID()
	n.view = projector.New(n.config())
	return n
}

func (n *pdNode) def() *nodeDef { return n.d }
func (n *pdNode) alive() bool   { return n.up }

func (n *pdNode) config() projector.Config {
	pl := &n.w.sc.policy
	c := projector.Config{
		Node: n.d.name, Role: events.Role_ROLE_DECODE, Dialect: n.w.sc.dialect, Provider: "sim", Version: "scenario",
		Pages: n.d.pages, PageSize: n.d.pageSize, AckTimeout: pl.ackTimeout, AbortRetry: pl.abortRetry,
		BootstrapTimeout: pl.bootstrap, WaitingTimeout: pl.waiting, TransferTimeout: pl.transfer,
		AllowWeak: pl.allowWeak, PageCheck: true,
	}
	if n.d.prefill {
		c.Role = events.Role_ROLE_PREFILL
	}
	switch pl.release {
	case "hold":
		c.Policy = events.Policy_POLICY_HOLD
	case "timeout":
		c.Policy = events.Policy_POLICY_TIMEOUT
	default:
		c.Policy = events.Policy_POLICY_FENCE
	}
	for r := range n.d.ranks {
		l := projector.LocalRank{Address: address(n.d, r)}
		if n.d.prefill {
			l.WireID = n.w.wireID(n.d.name, r)
		}
		c.Ranks = append(c.Ranks, l)
	}
	return c
}

// hash gives ids that are stable over runs and differ between lives.
func (n *pdNode) hash(what string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s/%d/%d", what, n.d.name, n.life, n.wipes)
	return h.Sum64() | 1
}

func (n *pdNode) newLogID() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, n.hash("log")), n.hash("log2"))
}

// boot starts a life on what the disk holds.
func (n *pdNode) boot(wiped bool) {
	n.life++
	if wiped {
		n.wipes++
		n.disk, n.inc = nil, 0
		n.logID = n.newLogID()
		n.view = projector.New(n.config())
	}
	n.bootID = n.hash("boot")
	n.inc++
	n.m = projector.New(n.config())
	for _, e := range n.disk {
		n.m.Apply(e)
	}
	n.up = true
	n.pending, n.effects, n.inFlight = nil, nil, 0
	n.ticks = map[time.Duration]bool{}
	var ask []string
	if wiped {
		for _, p := range n.w.names {
			if n.w.sc.byName[p].prefill {
				ask = append(ask, p)
			}
		}
	}
	n.step(projector.Start{
		Boot: n.bootID, Incarnation: n.inc, LogID: n.logID, UnknownPast: wiped, AskPeers: ask,
		GenerationBase: uint64(n.wipes) << 32, Root: "newest", //nolint:gosec // small
	})
}

// die ends the life at once: what was not on disk is gone.
func (n *pdNode) die() {
	n.up = false
	n.pending, n.effects, n.inFlight = nil, nil, 0
	for _, name := range n.w.names { // its connections are reset
		if p, ok := n.w.nodes[name].(*pdNode); ok && p.up && !n.w.net.cut(n.d.name, name) {
			for r := range n.d.ranks {
				p.step(projector.GateClosed{Address: address(n.d, r)})
			}
		}
	}
}

func (n *pdNode) instant() projector.Instant {
	return projector.Instant{Clock: n.w.millis(), Wall: uint64(int64(n.w.millis()) + n.skew.Milliseconds())} //nolint:gosec // positive
}

// step runs one command through the core and hands its events to the disk.
func (n *pdNode) step(cmd projector.Command) *projector.Refusal {
	if !n.up {
		return &projector.Refusal{Word: "not_ready", Detail: n.d.name + " is down"}
	}
	return n.run(cmd).Refused
}

func (n *pdNode) ask(q projector.PastQuestion) *projector.PastAnswer { return n.run(q).Past }

func (n *pdNode) run(cmd projector.Command) projector.Result {
	res := n.m.Step(n.instant(), cmd)
	for _, e := range res.Events {
		n.w.emitted++
		n.places[e.Seq] = n.w.emitted
		if !routine(e) {
			n.w.changed = n.w.now
		}
	}
	n.pending = append(n.pending, res.Events...)
	n.effects = append(n.effects, res.Effects...)
	n.commit()
	n.flush()
	n.arm()
	return res
}

// routine: events that come again and again while a rank does not answer, and
// change nothing.
func routine(e *events.Event) bool {
	switch p := e.Payload.(type) {
	case *events.Event_AbortSent, *events.Event_AbortReceived, *events.Event_PeerSuspect, *events.Event_MessageRejected:
		return true
	case *events.Event_AckReceived:
		return !p.AckReceived.Counted
	case *events.Event_AckSent:
		return p.AckSent.Repeat
	}
	return false
}

// arm schedules the tick for the machine's next deadline.
func (n *pdNode) arm() {
	if !n.up {
		return
	}
	ms, ok := n.m.NextDeadline()
	if !ok {
		return
	}
	at := time.Duration(int64(ms)-epoch) * time.Millisecond //nolint:gosec // fits
	if n.ticks[at] {
		return
	}
	n.ticks[at] = true
	life := n.life
	n.w.repeat(at, func() {
		if n.life == life && n.up {
			delete(n.ticks, at)
			n.step(projector.Tick{})
		}
	})
}

// commit starts the next group commit, if none is under way.
func (n *pdNode) commit() {
	if n.inFlight > 0 || len(n.pending) == 0 {
		return
	}
	n.inFlight = len(n.pending)
	life, d := n.life, commitTime
	if n.slow > 0 {
		d = n.slow
	}
	n.w.after(d, func() {
		if n.life != life || !n.up {
			return
		}
		batch := n.pending[:n.inFlight]
		if n.failSync != "" {
			if n.failSync == "kept" {
				n.persist(batch)
			}
			n.up = false // poisoned: the node stops itself, nothing more is done or told
			return
		}
		n.pending = n.pending[n.inFlight:]
		n.inFlight = 0
		n.persist(batch)
		n.commit()
		n.flush()
	})
}

func (n *pdNode) persist(batch []*events.Event) {
	for _, e := range batch {
		n.disk = append(n.disk, e)
		n.view.Apply(e)
	}
}

func (n *pdNode) durable() uint64 {
	if len(n.disk) == 0 {
		return 0
	}
	return n.disk[len(n.disk)-1].Seq
}

// flush does the effects whose events are on disk, in order.
func (n *pdNode) flush() {
	for i := 0; i < len(n.effects); {
		if d, ok := n.effects[i].Do.(projector.DropPublish); ok {
			n.effects = append(n.effects[:i:i], n.effects[i+1:]...)
			n.dropPublish(d.RoomSeq)
			i = 0
			continue
		}
		if n.effects[i].After > n.durable() {
			i++
			continue
		}
		e := n.effects[i]
		n.effects = append(n.effects[:i:i], n.effects[i+1:]...)
		n.w.after(0, n.guard(func() { n.do(e.Do) }))
	}
}

// dropPublish takes back metadata that waits for the disk.
func (n *pdNode) dropPublish(roomSeq uint64) {
	for i := 0; i < len(n.effects); {
		a, ok := n.effects[i].Do.(projector.SendMetadata)
		if !ok || a.RoomSeq != roomSeq {
			i++
			continue
		}
		n.effects = append(n.effects[:i:i], n.effects[i+1:]...)
		n.w.after(0, n.guard(func() {
			n.step(projector.PublishResult{RoomSeq: a.RoomSeq, Rank: a.Rank, To: a.To, Err: "the room ended before it left"})
		}))
	}
}

// guard drops work of a life that is over.
func (n *pdNode) guard(f func()) func() {
	life := n.life
	return func() {
		if n.life == life && n.up {
			f()
		}
	}
}

func (n *pdNode) receive(rank int, f backends.Frames) {
	at := projector.MakeRank(n.d.name, rank)
	side := backends.AtDecode
	if n.d.prefill {
		side = backends.AtPrefill
	}
	n.step(backends.ToCommand(n.w.dialect.Decode(side, f), at, f))
}

func (n *pdNode) self(rank projector.RankID) backends.Self {
	return backends.Self{Endpoint: address(n.d, rank.Index()), PeerKey: session(n.d, rank.Index())}
}

func (n *pdNode) send(kind string, rank projector.RankID, addr string, m backends.Message, err error) error {
	if err != nil {
		return err
	}
	f, err := n.w.dialect.Encode(m)
	if err != nil {
		return err
	}
	to, ok := n.w.addr[addr]
	if !ok {
		return fmt.Errorf("no rank at %s", addr)
	}
	n.w.net.send(kind, rankAt{n.d.name, rank.Index()}, to, f)
	return nil
}

// do carries out one effect.
func (n *pdNode) do(a projector.Action) {
	switch a := a.(type) {
	case projector.SendMetadata:
		n.publish(a)
	case projector.SendAbort:
		m, err := backends.FromAbort(a, n.self(a.To))
		n.must(n.send("abort", a.To, a.Address, m, err))
	case projector.SendAck:
		n.must(n.send("abort_ack", a.Rank, a.Address, backends.FromAck(a), nil))
	case projector.SendStatus:
		if !backends.SendsStatus(n.w.dialect, a) {
			return
		}
		n.must(n.send("status", a.Rank, a.Address, backends.FromStatus(a), nil))
	case projector.PostWrite:
		n.w.mem.post(n, a)
	case projector.Fence:
		n.fence(a)
	case projector.RevokeLease:
		if l := n.leases[n.key(a.Lease)]; l != nil && n.w.fenceOf(l.rank.Node()) != events.FenceKind_FENCE_KIND_NONE {
			l.revoked = true
		}
	case projector.CheckPages:
		n.step(projector.PagesChecked{RoomSeq: a.RoomSeq, Bad: n.w.mem.check(n, a)})
	case projector.CopyAux:
		n.step(projector.CopyDone{RoomSeq: a.RoomSeq, Token: a.Token})
	case projector.AskPast:
		n.askPast(a.Node)
	case projector.FencePeer:
		n.fencePeer(a.Node)
	case projector.Rediscover:
		n.w.discover(n.d.name, a.Node)
	case projector.Stopped:
		n.up = false
	case projector.Tell, projector.SealRoom, projector.DropPublish:
	}
}

// must: the simulated wire takes every message that the core makes; one that
// does not encode is a fault of ours.
func (n *pdNode) must(err error) {
	if err != nil {
		panic(fmt.Sprintf("scenario: %s: %v", n.d.name, err))
	}
}

func (n *pdNode) publish(a projector.SendMetadata) {
	res := projector.PublishResult{RoomSeq: a.RoomSeq, Rank: a.Rank, To: a.To}
	n.leases[n.key(a.Lease)] = &lease{tag: a.Lease, room: a.Room, roomSeq: a.RoomSeq, rank: a.Rank, to: a.To, pages: a.Pages, dummy: a.Dummy, life: n.life, wipes: n.wipes, key: n.key(a.Lease)}
	if left, ok := n.failAfter[a.RoomSeq]; ok {
		if left == 0 {
			res.Err = "connection refused"
			n.step(res)
			return
		}
		n.failAfter[a.RoomSeq] = left - 1
	}
	if a.WithExt {
		a.Ext.Keys = []*events.WriteKey{{Kind: 1, Provider: "sim", Endpoint: address(n.d, a.To.Index()), Key: binary.BigEndian.AppendUint64(nil, n.key(a.Lease))}}
	}
	m, err := backends.FromMetadata(a, n.self(a.To))
	if err := n.send("metadata", a.To, a.Address, m, err); err != nil {
		res.Err = err.Error()
	}
	n.step(res)
}

func (n *pdNode) fence(a projector.Fence) {
	n.w.after(fenceTime, n.guard(func() {
		res := projector.FenceResult{RoomSeq: a.RoomSeq, Lease: a.Lease, Evidence: n.w.fenceOf(a.Rank.Node()), TookUS: uint64(fenceTime.Microseconds()), Method: "sim"}
		if res.Evidence == events.FenceKind_FENCE_KIND_NONE {
			res.Reason = "the provider cannot prove the end of the peer's writes"
		} else if l := n.leases[n.key(a.Lease)]; l != nil {
			l.revoked = true
		}
		n.step(res)
	}))
}

// askPast is the HTTP question of a node with an unknown past (wire.md 9.2).
func (n *pdNode) askPast(prefill string) {
	n.w.after(2*n.w.sc.latency, n.guard(func() {
		a := projector.PastAnswer{Node: prefill}
		if p, ok := n.w.nodes[prefill].(*pdNode); ok && p.up && !n.w.net.cut(n.d.name, prefill) {
			if past := p.ask(projector.PastQuestion{Node: n.d.name, Boot: n.bootID, LogID: n.logID}); past != nil {
				a = *past
				a.Node = prefill
			}
		}
		n.step(a)
	}))
}

func (n *pdNode) fencePeer(prefill string) {
	n.w.after(fenceTime, n.guard(func() {
		kind := n.w.fenceOf(prefill)
		if kind != events.FenceKind_FENCE_KIND_NONE {
			for _, l := range n.leases {
				if l.rank.Node() == prefill && l.life < n.life {
					l.revoked = true
				}
			}
		}
		n.step(projector.PeerFenced{Node: prefill, Evidence: kind})
	}))
}

// key is what a writer is given for a lease: a tag of this log, made unique
// over the logs that were wiped.
func (n *pdNode) key(tag uint64) uint64 { return uint64(n.wipes)<<48 | tag } //nolint:gosec // small

// ready: would /readyz say yes.
func (n *pdNode) ready() bool { return n.up && n.m.Ready() }
