package node

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/backends/bootstrap"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

const (
	discoverFirst = 50 * time.Millisecond // between attempts to a prefill that is not up yet, doubling
	discoverMax   = 5 * time.Second
	discoverAgain = 60 * time.Second // of a peer that is not pdlog: an upgrade is noticed (wire.md 9.2)
)

// prefill is a prefill node as this decode node has found it.
type prefill struct {
	bootstrap string
	topology  topology
	seen      projector.PeerDiscovered
	others    *projector.PeerDiscovered // ranks registered there that its pdlog node does not run
	ranks     map[int]projector.RankID  // all ranks of the instance, by topology.index
	ext       map[string]bool           // addresses that read our extension (wire.md 9.1)
	told      map[string]bool           // addresses that have our registration of this life
	silent    bool                      // discovery had no answer: it may be pdlog for all that is known
}

// peerTable finds the configured prefill nodes, keeps asking whether they live,
// and registers with their ranks.
type peerTable struct {
	ask    *bootstrap.Client
	cfg    *Config
	live   *atomic.Pointer[liveConfig]
	fence  events.FenceKind // what the provider proves of a pdlog peer
	tell   func(projector.Command)
	greet  func(address string, ext bool) // queues our registrations to a rank
	curve  *curve                         // nil: plain control sockets
	memory func() bool                    // all local memory is there

	mu     sync.Mutex
	byNode map[string]*prefill

	observed map[string]observed      // by node
	pokes    map[string]chan struct{} // by bootstrap address
	wg       sync.WaitGroup
	ended    bool // nobody is followed any more
}

func newPeerTable(cfg *Config, now *atomic.Pointer[liveConfig], ask *bootstrap.Client, tell func(projector.Command)) *peerTable {
	return &peerTable{
		cfg: cfg, live: now, ask: ask, tell: tell,
		byNode: map[string]*prefill{}, observed: map[string]observed{}, pokes: map[string]chan struct{}{},
	}
}

// start follows every prefill of the configuration until ctx ends; those that
// are followed already are left alone.
func (t *peerTable) start(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, addr := range t.live.Load().peers {
		if t.ended || t.pokes[addr] != nil {
			continue
		}
		poke := make(chan struct{}, 1)
		t.pokes[addr] = poke
		t.wg.Go(func() { t.follow(ctx, addr, poke) })
	}
}

// wait waits for those who follow; none begins after it.
func (t *peerTable) wait() {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.wg.Wait()
}

// follow discovers one prefill, then probes it at every heartbeat.
func (t *peerTable) follow(ctx context.Context, addr string, poke <-chan struct{}) {
	var cur *prefill
	missed := false // the last probe had no answer
	wait := discoverFirst
	var asked time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		again := false
		select {
		case <-ctx.Done():
			return
		case <-poke:
			again = true
		case <-timer.C:
		}
		switch {
		case cur == nil:
			if cur = t.discover(ctx, addr); cur != nil {
				asked = time.Now()
			}
		case again || !cur.seen.PDLog && time.Since(asked) > discoverAgain:
			if p := t.discover(ctx, addr); p != nil {
				cur, asked = p, time.Now()
			}
		default:
			cur, missed = t.probe(ctx, cur, missed)
		}
		if cur != nil {
			timer.Reset(t.live.Load().heartbeat)
			continue
		}
		timer.Reset(wait)
		wait = min(2*wait, discoverMax)
	}
}

// probe asks whether the peer lives, and a pdlog peer whether it is still the
// same life, and one whose discovery had no answer who it is. One that is not
// pdlog cannot say: after a probe without an answer
// it may be another process, at other ports, and is found anew.
func (t *peerTable) probe(ctx context.Context, p *prefill, missed bool) (now *prefill, missing bool) {
	node := p.seen.Node
	if p.seen.PDLog {
		info, ok, err := t.ask.Discover(ctx, p.bootstrap)
		if err == nil && ok && info.Boot == p.seen.Boot && info.Node == node {
			t.beat(p, true)
			return p, false
		}
		if err == nil && ok { // another life, or another node
			if q := t.discover(ctx, p.bootstrap); q != nil {
				return q, false
			}
		}
	}
	alive := t.ask.Health(ctx, p.bootstrap)
	if alive && missed && !p.seen.PDLog {
		t.registerAnew(node)
		if q := t.discover(ctx, p.bootstrap); q != nil {
			return q, false
		}
		alive = false // it answers, and its ranks are not registered yet
	}
	if ctx.Err() == nil {
		t.beat(p, alive)
	}
	if alive && (p.seen.PDLog || p.silent) {
		if q := t.discover(ctx, p.bootstrap); q != nil {
			return q, false
		}
	}
	return p, !alive
}

// registerAnew forgets who has our registration: a new process at an old port
// has not.
func (t *peerTable) registerAnew(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byNode[node]; p != nil {
		p.told = map[string]bool{}
	}
}

// beat tells the core whether a prefill answers. Ranks of others that are
// registered with it are known by it alone.
func (t *peerTable) beat(p *prefill, ok bool) {
	t.tell(projector.Heartbeat{Node: p.seen.Node, OK: ok})
	if p.others != nil {
		t.tell(projector.Heartbeat{Node: p.others.Node, OK: ok})
	}
}

// discover asks a prefill who it is, registers with its ranks and tells the
// core. nil: there is no answer that can be used yet.
func (t *peerTable) discover(ctx context.Context, addr string) *prefill {
	var info bootstrap.NodeInfo
	var err error
	found := bootstrap.Other
	if t.cfg.Extension {
		if info, found, err = t.ask.WhoIs(ctx, addr); err != nil {
			return nil
		}
	}
	topo, err := t.ask.Topology(ctx, addr, bootstrap.Local{PageSize: t.cfg.PageSize, KVCacheDType: t.cfg.DType})
	var refused *bootstrap.RefusedError
	if err != nil && !errors.As(err, &refused) {
		return nil
	}
	if found == bootstrap.Silent { // it has just come up, or an answer was lost
		if info, found, err = t.ask.WhoIs(ctx, addr); err != nil || found == bootstrap.Silent && t.wasPDLog(addr) {
			return nil
		}
	}
	isPDLog := found == bootstrap.PDLog
	p := &prefill{
		bootstrap: addr, silent: found == bootstrap.Silent, ext: map[string]bool{}, told: map[string]bool{}, ranks: map[int]projector.RankID{},
		topology: topology{
			tp: max(topo.AttnTPSize, 1), cp: max(topo.AttnCPSize, 1), pp: max(topo.PPSize, 1), dp: max(topo.DPSize, 1),
			allCP: topo.EnableDSACacheLayerSplit, follow: topo.FollowBootstrapRoom,
		},
		seen: projector.PeerDiscovered{
			Node: addr, PageSize: uint64(topo.PageSize), DType: topo.KVCacheDType, //nolint:gosec // positive
			Form: t.cfg.sglangForm(), Fence: events.FenceKind_FENCE_KIND_NONE,
		},
	}
	foreign := p.seen // what is not run by a pdlog node here
	if isPDLog {
		p.seen.Node, p.seen.PDLog = info.Node, true
		p.seen.Boot, p.seen.Incarnation = info.Boot, info.Incarnation
		p.seen.LogSince, p.seen.LogID = info.LogSince, info.LogID
		p.seen.Form, p.seen.Fence = events.AckForm_ACK_FORM_V3, t.fence
		for i, r := range info.Ranks {
			at := rankAddress(r)
			p.add(&p.seen, projector.MakeRank(info.Node, i), place{dp: r.DP, tp: r.TP, pp: r.PP, cp: r.CP}, at)
			p.ext[at] = info.Speaks(bootstrap.FeaturePDX1)
		}
	}
	if refused != nil {
		p.seen.Incompatible = refused.Error()
	} else if why := t.curve.of(p.seen.Node, info.Curve, isPDLog); why != "" {
		p.seen.Incompatible = why
	} else if err := t.addOthers(ctx, p, &foreign); err != nil {
		return nil
	}
	if t.curve != nil && p.seen.Incompatible == "" {
		if p.others != nil {
			p.others.Incompatible = t.curve.of("", "", false)
		}
		for at := range p.ext {
			t.curve.learn(at, info.Curve)
		}
	}
	t.recall(&p.seen)
	t.adopt(p)
	return p
}

// add gives a rank its name and its numbers.
func (p *prefill) add(seen *projector.PeerDiscovered, id projector.RankID, at place, address string) {
	p.ranks[p.topology.index(at)] = id
	seen.Ranks = append(seen.Ranks, projector.PeerRank{
		Rank: id, Address: address, WireID: uint32(p.topology.unique(at)), Source: uint32(p.topology.source(at)), //nolint:gosec // ranks
	})
}

// addOthers asks for the ranks that the pdlog node at the server does not run
// itself: all of them, if there is none. Ranks of a pdlog node that is known by
// a server of its own are that node's.
func (t *peerTable) addOthers(ctx context.Context, p *prefill, foreign *projector.PeerDiscovered) error {
	for _, at := range p.topology.places() {
		i := p.topology.index(at)
		if _, own := p.ranks[i]; own {
			continue
		}
		r, err := t.ask.Rank(ctx, p.bootstrap, at.dp, at.cp, at.tp, at.pp)
		if err != nil {
			return err
		}
		address := rankAddress(r)
		if id, ok := t.runBy(p.bootstrap, address); ok {
			p.ranks[i] = id
			continue
		}
		p.add(foreign, projector.MakeRank(p.bootstrap, i), at, address)
	}
	switch {
	case !p.seen.PDLog:
		p.seen = *foreign
	case len(foreign.Ranks) > 0:
		t.recall(foreign)
		p.others = foreign
	}
	return nil
}

// wasPDLog: the one found last at a bootstrap address is a pdlog node. It is
// one until something else answers there.
func (t *peerTable) wasPDLog(addr string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.byNode {
		if p.bootstrap == addr && p.seen.PDLog {
			return true
		}
	}
	return false
}

// runBy finds the pdlog node, known at another bootstrap server, that runs the
// rank at an address.
func (t *peerTable) runBy(bootstrap, address string) (projector.RankID, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.byNode {
		if p.bootstrap == bootstrap || !p.seen.PDLog {
			continue
		}
		for _, r := range p.seen.Ranks {
			if r.Address == address {
				return r.Rank, true
			}
		}
	}
	return "", false
}

// adopt makes p the present state of its node. Its ranks have our registration
// in their queues before the core can send them metadata.
func (t *peerTable) adopt(p *prefill) {
	t.mu.Lock()
	if old := t.byNode[p.seen.Node]; old != nil && old.seen.Boot == p.seen.Boot {
		p.told = old.told
	}
	for name, old := range t.byNode {
		if old.bootstrap == p.bootstrap && name != p.seen.Node {
			delete(t.byNode, name) // another node answers at this address now
		}
	}
	t.byNode[p.seen.Node] = p
	t.register(p)
	t.claim(p)
	t.mu.Unlock()
	t.tell(p.seen)
	if p.others != nil {
		t.tell(*p.others)
	}
}

// claim has servers asked again at which ranks of p were taken for SGLang's,
// since p was not known then, and the server of p, if it was asked before the
// node was known that runs one of its ranks; the lock is held.
func (t *peerTable) claim(p *prefill) {
	for _, q := range t.byNode {
		if q != p && q.takes(p) {
			t.poke(q.bootstrap)
		}
		if q != p && p.takes(q) {
			t.poke(p.bootstrap)
		}
	}
}

// takes: p takes a rank of q, a pdlog node, for an SGLang one.
func (p *prefill) takes(q *prefill) bool {
	if !q.seen.PDLog {
		return false
	}
	for _, r := range p.plain() {
		if _, runs := q.ext[r.Address]; runs {
			return true
		}
	}
	return false
}

// plain are the ranks that no pdlog node here is known to run.
func (p *prefill) plain() []projector.PeerRank {
	switch {
	case p.others != nil:
		return p.others.Ranks
	case !p.seen.PDLog:
		return p.seen.Ranks
	}
	return nil
}

// poke has a server asked again, soon; the lock is held.
func (t *peerTable) poke(bootstrap string) {
	select {
	case t.pokes[bootstrap] <- struct{}{}:
	default:
	}
}

// register queues our registration for ranks that do not have it; the lock is
// held.
func (t *peerTable) register(p *prefill) {
	if !t.memory() || p.seen.Incompatible != "" {
		return
	}
	ranks := p.seen.Ranks
	if p.others != nil && p.others.Incompatible == "" {
		ranks = slices.Concat(ranks, p.others.Ranks)
	}
	for _, r := range ranks {
		if !p.told[r.Address] && !t.another(p, r.Address) {
			p.told[r.Address] = true
			t.greet(r.Address, p.ext[r.Address])
		}
	}
}

// another: a pdlog node that is known by a server of its own runs the rank at
// an address, and is greeted as such. A plain registration behind its own would
// take the name from us by which it knows us. The lock is held.
func (t *peerTable) another(p *prefill, address string) bool {
	if _, own := p.ext[address]; own {
		return false
	}
	for _, q := range t.byNode {
		if _, runs := q.ext[address]; q != p && q.seen.PDLog && runs {
			return true
		}
	}
	return false
}

// memoryChanged registers with every known peer, anew.
func (t *peerTable) memoryChanged() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.byNode {
		p.told = map[string]bool{}
		t.register(p)
	}
}

// boot is the life of a node that was seen last, 0 if it is not pdlog.
func (t *peerTable) boot(node string) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byNode[node]; p != nil {
		return p.seen.Boot
	}
	return 0
}

// find resolves a node name or a bootstrap address.
func (t *peerTable) find(name string) (p *prefill, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byNode[name]; p != nil {
		return p, true
	}
	for _, p := range t.byNode {
		if p.bootstrap == name {
			return p, true
		}
	}
	return nil, false
}

// only is the one known prefill node, if there is just one.
func (t *peerTable) only() (name string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n := range t.byNode {
		name = n
	}
	return name, len(t.byNode) == 1
}

// addressOf is the bootstrap address of a node, or of ranks that are named by
// it.
func (t *peerTable) addressOf(node string) string {
	address, _ := t.about(node)
	return address
}

// about says where a node's bootstrap server is, and why it cannot be served.
func (t *peerTable) about(node string) (address, incompatible string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byNode[node]; p != nil {
		return p.bootstrap, p.seen.Incompatible
	}
	for _, p := range t.byNode {
		if p.others != nil && p.others.Node == node {
			return p.bootstrap, p.others.Incompatible
		}
	}
	return "", ""
}

// rediscover asks a node again who it is, soon.
func (t *peerTable) rediscover(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byNode[node]; p != nil {
		t.poke(p.bootstrap)
	}
}

// rankAddress is a rank's control address in its one text form.
func rankAddress(r bootstrap.Rank) string {
	if a := r.AddrPort(); a.IsValid() {
		return netip.AddrPortFrom(a.Addr(), a.Port()).String()
	}
	return net.JoinHostPort(r.IP, strconv.Itoa(int(r.Port)))
}
