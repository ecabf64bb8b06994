package sim

import (
	"time"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// discover is the HTTP question of wire.md 9.2; a new life is registered with.
func (n *node) discover(p *node, beat bool) {
	w := n.w
	ask, answer := w.latency(), w.latency()
	lost := w.isCut(n, p) || w.fault(w.f.loss/4)
	w.after(ask, n.guard(func() {
		if lost || !p.up || p.paused > w.now || w.isCut(n, p) || w.isCut(p, n) {
			if beat {
				w.after(answer, n.guard(func() {
					n.missed[p.name] = true
					n.tell(projector.Heartbeat{Node: p.name})
				}))
			} else if !w.healing || p.up {
				w.after(time.Second, n.guard(func() { n.discover(p, false) }))
			}
			return
		}
		c := projector.PeerDiscovered{
			Node: p.name, PDLog: true, Boot: p.bootID, Incarnation: p.m.State().Incarnation, LogSince: p.m.LogSince(), LogID: p.logID,
			Fence: p.fence, Form: events.AckForm_ACK_FORM_V3, PageSize: 64, DType: "auto",
		}
		for r := range p.ranks {
			c.Ranks = append(c.Ranks, projector.PeerRank{Rank: p.rank(r), Address: p.address(r), WireID: p.wireID(r)})
		}
		w.after(answer, n.guard(func() {
			n.tell(c)
			if beat {
				n.tell(projector.Heartbeat{Node: p.name, OK: true})
			}
			if n.registered[p.name] != c.Boot || n.missed[p.name] {
				n.register(p, c.Boot)
			}
			n.missed[p.name] = false
		}))
	}))
}

// register sends the KV-args registration of every rank of ours to every rank
// of the prefill node.
func (n *node) register(p *node, boot uint64) {
	n.registered[p.name] = boot
	for r := range n.ranks {
		m := n.registration(r)
		m.Ext = &backends.Extension{Node: n.name, Boot: n.bootID, Incarnation: n.m.State().Incarnation, HLC: uint64(n.m.Clock()), LogID: n.logID}
		f, err := n.w.dialect.Encode(m)
		if err != nil {
			n.w.fail("encode", "registration of %s: %v", n.name, err)
			return
		}
		for pr := range p.ranks {
			n.w.transmit(msgRegister, place{node: n, rank: r}, place{node: p, rank: pr}, f)
		}
	}
}

func (n *node) registration(rank int) *backends.Registration {
	a := n.address(rank)
	ep, err := backends.ParseEndpoint(a)
	if err != nil {
		n.w.fail("encode", "%v", err)
	}
	r := int32(rank) //nolint:gosec // small
	return &backends.Registration{
		Peer: ep, SessionID: a, AgentName: a, AgentMetadata: []byte("nixlSerDes|" + a),
		Engine:     &backends.Engine{Key: a, NodeID: n.name, Hostname: n.name, Host: ep.IP, Port: ep.Port, PID: 1},
		KVDataPtrs: []uint64{0x7f0000000000}, AuxDataPtrs: []uint64{0x7e0000000000},
		DstTPRank: backends.Some(r), EngineRank: backends.Some(r), GPUID: backends.Some(r),
		AttnTPSize: int32(n.ranks), KVItemLen: 65536, KVItemLens: []uint64{65536}, //nolint:gosec // small
		KVMemoryKinds: []string{"DRAM"},
	}
}

// heartbeats probes every prefill node, again and again.
func (n *node) heartbeats() {
	for _, p := range n.peers {
		n.discover(p, true)
	}
	for _, o := range n.olds {
		n.tell(projector.Heartbeat{Node: o.name, OK: !n.w.cutNames(n.name, o.name)})
	}
	n.w.after(heartbeatEvery, n.guard(n.heartbeats))
}

// askPast asks a prefill node what is outstanding to earlier lives of this one,
// until it says nothing, or ack_timeout has passed since its first answer.
func (n *node) askPast(name string) {
	w := n.w
	p := w.nodeNamed(name)
	if p == nil { // an old peer: nobody answers there
		w.after(w.latency(), n.guard(func() { n.tell(projector.PastAnswer{Node: name}) }))
		return
	}
	if _, busy := n.asked[name]; busy {
		return
	}
	n.asked[name] = 0
	var ask func()
	ask = func() {
		again := func() { w.after(500*time.Millisecond, n.guard(ask)) }
		if !p.up || p.paused > w.now || w.isCut(n, p) || w.isCut(p, n) {
			if w.healing && p.dead {
				n.tell(projector.PastAnswer{Node: name}) // the operator has taken it out of the fleet
				delete(n.asked, name)
				return
			}
			again()
			return
		}
		past := p.run(projector.PastQuestion{Node: n.name, Boot: n.bootID, LogID: n.logID}).Past
		if past == nil {
			again()
			return
		}
		if n.asked[name] == 0 {
			n.asked[name] = w.now
		}
		if past.Answered && past.Open > 0 && w.now-n.asked[name] < ackTimeout {
			again()
			return
		}
		a := *past
		a.Node = name
		delete(n.asked, name)
		w.after(w.latency(), n.guard(func() { n.tell(a) }))
	}
	w.after(w.latency(), n.guard(ask))
}

// fencePeer revokes whatever a prefill node may hold on this node's memory by
// an earlier life.
func (n *node) fencePeer(name string) {
	w := n.w
	w.after(w.fenceTime(), n.guard(func() {
		kind := w.fenceOf(name)
		if w.fault(w.f.fenceFails) {
			kind = events.FenceKind_FENCE_KIND_NONE
		}
		if kind != events.FenceKind_FENCE_KIND_NONE {
			for _, l := range n.leases {
				if l.rank.Node() == name && l.life < n.life {
					l.revoke()
				}
			}
			w.probe("peer fenced for an unknown past")
		}
		n.tell(projector.PeerFenced{Node: name, Evidence: kind})
	}))
}

func (w *world) fenceOf(peer string) events.FenceKind {
	if n := w.nodeNamed(peer); n != nil {
		return n.fence
	}
	for _, o := range w.olds {
		if o.name == peer {
			return o.fence
		}
	}
	return events.FenceKind_FENCE_KIND_NONE
}

func (w *world) fenceTime() time.Duration {
	d := time.Millisecond
	if !w.healing {
		d += w.exp(w.f.fenceSlow)
	}
	return d
}

func logState(full bool) projector.Command { return projector.LogState{Full: full} }
