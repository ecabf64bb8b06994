package scenario

import (
	"container/heap"
	"fmt"
	"slices"
	"time"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// Times of the simulation (scenarios.md, "what the simulation does").
const (
	epoch      = 1767225600000 // unix ms of virtual time 0: 2026-01-01
	commitTime = 300 * time.Microsecond
	fenceTime  = 2 * time.Millisecond
	setupTime  = 100 * time.Millisecond // before the first timed line
	maxVirtual = 24 * time.Hour
)

// world is one run: virtual time, a heap of what is due, and the nodes.
type world struct {
	sc      *script
	now     time.Duration
	order   uint64
	due     dueHeap
	pending int // entries of the heap that are not periodic
	changed time.Duration
	nodes   map[string]node
	names   []string
	addr    map[string]rankAt // "ip:port" -> rank
	dialect backends.Dialect
	net     network
	mem     memory
	specs   []*sendSpec
	emitted uint64 // counts events over all nodes: the order of "expect order"
}

// node is what actions and the network need of a simulated node.
type node interface {
	def() *nodeDef
	alive() bool
	receive(rank int, f backends.Frames)
}

type rankAt struct {
	node string
	rank int
}

type dueItem struct {
	at       time.Duration
	order    uint64
	periodic bool
	do       func()
}

type dueHeap []dueItem

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h dueHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) { *h = append(*h, x.(dueItem)) } //nolint:forcetypeassert // ours

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

func (w *world) after(d time.Duration, do func()) { w.schedule(w.now+max(d, 0), false, do) }

// repeat schedules work that comes again and again and so does not keep a run
// from ending.
func (w *world) repeat(at time.Duration, do func()) { w.schedule(at, true, do) }

func (w *world) schedule(at time.Duration, periodic bool, do func()) {
	w.order++
	if !periodic {
		w.pending++
	}
	heap.Push(&w.due, dueItem{at: max(at, w.now), order: w.order, periodic: periodic, do: do})
}

// runUntil does everything that is due up to t, t included.
func (w *world) runUntil(t time.Duration) {
	for len(w.due) > 0 && w.due[0].at <= t {
		x := heap.Pop(&w.due).(dueItem) //nolint:forcetypeassert // ours
		w.now = x.at
		if !x.periodic {
			w.pending--
		}
		x.do()
	}
	w.now = max(w.now, t)
}

// runOut runs until nothing is scheduled any more but what repeats for ever,
// and that has changed nothing for longer than any deadline of the file.
func (w *world) runOut() {
	p := &w.sc.policy
	quiet := 2*max(p.ackTimeout, p.abortRetry, p.bootstrap, p.waiting+p.transfer, p.transfer, p.heartbeat) + time.Minute
	start := w.now
	w.changed = max(w.changed, start)
	for len(w.due) > 0 && w.now < maxVirtual && (w.pending > 0 || w.due[0].at <= w.changed+quiet) {
		w.runUntil(w.due[0].at)
	}
}

func (w *world) millis() uint64 {
	return uint64(epoch + w.now.Milliseconds()) //nolint:gosec // positive
}

func (w *world) rankName(a rankAt) projector.RankID { return projector.MakeRank(a.node, a.rank) }

func address(d *nodeDef, rank int) string { return fmt.Sprintf("10.0.0.%d:%d", d.index, 5000+rank) }

func session(d *nodeDef, rank int) string { return fmt.Sprintf("10.0.0.%d:%d", d.index, 17800+rank) }

func newWorld(sc *script) (*world, error) {
	d, err := backends.Lookup(sc.dialect)
	if err != nil {
		return nil, err
	}
	w := &world{sc: sc, now: -setupTime, nodes: map[string]node{}, addr: map[string]rankAt{}, dialect: d}
	w.changed = w.now
	w.net.w, w.mem.w = w, w
	w.mem.init()
	for _, def := range sc.nodes {
		w.names = append(w.names, def.name)
		for r := range def.ranks {
			w.addr[address(def, r)] = rankAt{def.name, r}
		}
		switch {
		case def.version == "current":
			w.nodes[def.name] = newPDNode(w, def)
		case def.prefill:
			w.nodes[def.name] = newOldPrefill(w, def)
		default:
			w.nodes[def.name] = newOldDecode(w, def)
		}
	}
	for _, name := range w.names {
		if n, ok := w.nodes[name].(*pdNode); ok {
			n.boot(false)
		}
	}
	w.runUntil(-setupTime / 2)
	for _, name := range w.names {
		w.meet(name)
	}
	w.runUntil(0)
	return w, nil
}

// meet lets a decode node discover and register with every prefill it reaches.
func (w *world) meet(decode string) {
	if w.sc.byName[decode].prefill {
		return
	}
	for _, name := range w.names {
		if w.sc.byName[name].prefill && !w.net.cut(decode, name) && w.nodes[name].alive() {
			w.discover(decode, name)
			w.register(decode, name)
		}
	}
}

// discover is the HTTP question of wire.md 9.2, answered at once.
func (w *world) discover(decode, prefill string) {
	n, ok := w.nodes[decode].(*pdNode)
	if !ok || !n.alive() {
		return
	}
	def := w.sc.byName[prefill]
	c := projector.PeerDiscovered{
		Node: prefill, Fence: w.fenceOf(prefill), PageSize: uint64(def.pageSize), DType: "auto", //nolint:gosec // positive
	}
	switch p := w.nodes[prefill].(type) {
	case *pdNode:
		c.PDLog, c.Boot, c.Incarnation, c.LogID, c.LogSince = true, p.bootID, p.inc, p.logID, p.m.LogSince()
		c.Form = events.AckForm_ACK_FORM_V3
	case *oldPrefill:
		c.Form = events.AckForm_ACK_FORM_V2
		if def.version == "v1" {
			c.Form = events.AckForm_ACK_FORM_V1
		}
	}
	for r := range def.ranks {
		c.Ranks = append(c.Ranks, projector.PeerRank{Rank: projector.MakeRank(prefill, r), Address: address(def, r), WireID: w.wireID(prefill, r), Source: w.wireID(prefill, r)})
	}
	n.step(c)
}

// register sends the KV-args registration of every decode rank to every rank of
// the prefill node.
func (w *world) register(decode, prefill string) {
	dd, pd := w.sc.byName[decode], w.sc.byName[prefill]
	for r := range dd.ranks {
		m := registration(dd, r)
		if n, ok := w.nodes[decode].(*pdNode); ok {
			if _, pdlog := w.nodes[prefill].(*pdNode); pdlog {
				m.Ext = &backends.Extension{Node: decode, Boot: n.bootID, Incarnation: n.inc, HLC: uint64(n.m.Clock()), LogID: n.logID}
			}
		}
		f, err := w.dialect.Encode(m)
		if err != nil {
			panic(fmt.Sprintf("scenario: registration of %s/%d: %v", decode, r, err))
		}
		for pr := range pd.ranks {
			w.net.send("register", rankAt{decode, r}, rankAt{prefill, pr}, f)
		}
	}
}

func registration(d *nodeDef, rank int) *backends.Registration {
	ep, err := backends.ParseEndpoint(address(d, rank))
	if err != nil {
		panic(err)
	}
	s := session(d, rank)
	r := int32(rank) //nolint:gosec // small
	return &backends.Registration{
		Peer: ep, SessionID: s, AgentName: s, AgentMetadata: []byte("nixlSerDes|" + s),
		Engine:     &backends.Engine{Key: s, NodeID: d.name, Hostname: d.name, Host: ep.IP, Port: ep.Port, PID: 1},
		KVDataPtrs: []uint64{0x7f0000000000}, AuxDataPtrs: []uint64{0x7e0000000000},
		DstTPRank: backends.Some(r), EngineRank: backends.Some(r), GPUID: backends.Some(r),
		AttnTPSize: int32(d.ranks), KVItemLen: 65536, KVItemLens: []uint64{65536}, //nolint:gosec // small
		KVMemoryKinds: []string{"DRAM"},
	}
}

// fenceOf is what the provider can prove about a prefill node's writers.
func (w *world) fenceOf(prefill string) events.FenceKind {
	kind := w.sc.byName[prefill].fence
	if kind == "" {
		kind = w.sc.fence
	}
	switch kind {
	case "hard":
		return events.FenceKind_FENCE_KIND_HARD
	case "reader_stopped":
		return events.FenceKind_FENCE_KIND_READER_STOPPED
	}
	return events.FenceKind_FENCE_KIND_NONE
}

// wireID is a rank's prefill_unique_rank: its place in its group. Prefill nodes
// that an open names together are one group and count on.
func (w *world) wireID(prefill string, rank int) uint32 {
	base := 0
	for _, s := range w.sc.stmts {
		if s.verb != "open" {
			continue
		}
		names := splitNames(s.keys["prefill"])
		if len(names) < 2 || !slices.Contains(names, prefill) {
			continue
		}
		for _, n := range names {
			if n == prefill {
				break
			}
			base += w.sc.byName[n].ranks
		}
		break
	}
	return uint32(base + rank) //nolint:gosec // small
}
