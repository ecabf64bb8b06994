package whatif

import (
	"maps"
	"slices"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/replay"
)

// node replays one decode node's log.
type node struct {
	plan     Plan
	lockstep bool // deadlines are the recorded ones: time passes with the recorded events
	m        *projector.Machine
	made     []*events.Event // of the other run: a restart folds them
	rooms    map[uint64]*room
	byNew    map[uint64]*room
	byGen    map[uint64]*room // recorded generation
	caps     map[string]*events.PeerCapabilities
	opening  *events.Event // RoomOpened whose PagesReserved comes next
	unreg    string        // memory that is registered anew
	skew     int64         // wall minus deadline clock, ms

	fences map[pairKey][]fenced // what the recorded run's fences came to
	told   map[pairKey]*events.PublishStarted
	late   []arrival        // incidents that the decode log alone does not show
	nobody map[pageKey]bool // wrong bytes that no transfer wrote, by recorded room
	harm   map[harm]bool

	unplaced int
	why      string // of the first one
	lastMS   uint64 // of the newest event
}

type pairKey struct {
	room uint64 // recorded room_seq
	replay.PairKey
}

type pageKey struct {
	room uint64
	page uint32
}

// harm is one corrupted page of the other run, keyed as blame does.
type harm struct {
	page           uint32
	victim, writer uint64 // room_seq of the other run; the writer counts where nobody is the victim
}

// fenced is the outcome of one recorded fence.
type fenced struct {
	seq      uint64
	evidence events.FenceKind
}

// arrival is a late write that only the writer's log, or a failed check, tells.
type arrival struct {
	ms   uint64
	seq  uint64 // of the failed check, 0 = by time
	room uint64
	pair replay.PairKey
	page uint32
}

// room is one incarnation in both runs.
type room struct {
	number, recorded, seq uint64 // seq: of the other run
	from                  []uint32
	place                 map[uint32]uint32 // recorded page -> page of the other run
	pairs                 map[replay.PairKey]*pair
	recordedGen, gen      uint64
	checking              bool
	skipped               string
	bad                   []projector.PageReport

	armed, released uint64 // ms, 0 = did not happen
	basis           events.Basis
}

type pair struct {
	wire    uint32
	lease   uint64
	fence   events.FenceKind
	pdlog   bool
	since   uint64
	logID   []byte
	pending bool // a fence waits for its outcome
	tried   int  // fences that have one
	revoked bool
}

func newNode(plan Plan) *node {
	return &node{
		plan: plan, rooms: map[uint64]*room{}, byNew: map[uint64]*room{}, byGen: map[uint64]*room{},
		caps: map[string]*events.PeerCapabilities{}, fences: map[pairKey][]fenced{},
		told: map[pairKey]*events.PublishStarted{}, nobody: map[pageKey]bool{}, harm: map[harm]bool{},
	}
}

func (n *node) now(e *events.Event) projector.Instant {
	wall := events.HLC(e.Hlc).Millis()
	n.skew = int64(wall) - int64(e.Clock())
	return projector.Instant{Clock: e.Clock(), Wall: wall}
}

// start begins a life under the plan.
func (n *node) start(e *events.Event, s *events.NodeStarted) {
	cfg := replay.ConfigOf(e.Node, s)
	n.lockstep = n.plan.AckTimeout == 0 || n.plan.AckTimeout == cfg.AckTimeout
	cfg.Policy = n.plan.Policy
	if n.plan.AckTimeout != 0 {
		cfg.AckTimeout = n.plan.AckTimeout
	}
	n.m = projector.New(cfg)
	for _, old := range n.made {
		n.m.Apply(old)
	}
	n.step(n.now(e), projector.Start{
		Boot: e.Boot, Incarnation: e.Incarnation, LogID: s.GetLogId(), GenerationBase: s.GetGenerationBase(),
		UnknownPast: s.GetUnknownPast(), AskPeers: s.GetAskPeers(), Root: s.GetRoot(),
	})
}

// step runs one command and what follows from it at once.
func (n *node) step(now projector.Instant, c projector.Command) projector.Result {
	res := n.m.Step(now, c)
	n.made = append(n.made, res.Events...)
	for _, e := range res.Events {
		n.saw(e)
	}
	for _, ef := range res.Effects {
		n.do(now, ef.Do)
	}
	return res
}

func (n *node) saw(e *events.Event) {
	r := n.byNew[e.RoomSeq]
	if r == nil {
		return
	}
	switch p := e.Payload.(type) {
	case *events.Event_PublishStarted:
		if pr := r.pairs[replay.PairKey{Rank: e.Rank, To: p.PublishStarted.GetTo()}]; pr != nil {
			pr.lease = p.PublishStarted.GetLease()
		}
	case *events.Event_AbortArmed:
		r.gen, r.armed = p.AbortArmed.GetGeneration(), events.HLC(e.Hlc).Millis()
	case *events.Event_Released:
		r.basis, r.released = p.Released.GetBasis(), events.HLC(e.Hlc).Millis()
	}
}

func (n *node) do(now projector.Instant, a projector.Action) {
	switch a := a.(type) {
	case projector.CheckPages:
		if r := n.byNew[a.RoomSeq]; r != nil {
			r.checking = true
		}
	case projector.RevokeLease:
		// A provider that cannot prove anything cannot revoke either.
		if r := n.byNew[a.RoomSeq]; r != nil {
			if pr := r.pairs[keyOf(a.Rank, a.To)]; pr != nil && provable(pr.fence) {
				pr.revoked = true
			}
		}
	case projector.Fence:
		n.fence(now, a)
	}
}

func keyOf(rank, to projector.RankID) replay.PairKey {
	return replay.PairKey{Rank: string(rank), To: string(to)}
}

func provable(k events.FenceKind) bool {
	return k == events.FenceKind_FENCE_KIND_HARD || k == events.FenceKind_FENCE_KIND_READER_STOPPED
}

// fence: where the recorded run did the same one at the same time, its outcome
// comes with its event; where it did another, that outcome counts; else the
// recorded fence kind does.
func (n *node) fence(now projector.Instant, a projector.Fence) {
	r := n.byNew[a.RoomSeq]
	if r == nil {
		return
	}
	k := keyOf(a.Rank, a.To)
	pr := r.pairs[k]
	if pr == nil {
		return
	}
	done := n.fences[pairKey{r.recorded, k}]
	if pr.tried < len(done) && n.lockstep && n.plan.Policy == events.Policy_POLICY_FENCE {
		pr.pending = true
		return
	}
	kind := pr.fence
	if pr.tried < len(done) {
		kind = done[pr.tried].evidence
	}
	n.fenceEnded(now, r, k, kind)
}

func (n *node) fenceEnded(now projector.Instant, r *room, k replay.PairKey, kind events.FenceKind) {
	pr := r.pairs[k]
	pr.pending = false
	pr.tried++
	res := projector.FenceResult{RoomSeq: r.seq, Lease: pr.lease, Evidence: kind, Method: "whatif"}
	if provable(kind) {
		pr.revoked = true
	} else {
		res.Reason = "the provider cannot prove the end of the peer's writes"
	}
	n.step(now, res)
}

// open gives the room its recorded pages, or free ones in the place of those
// that another room still holds in this run.
func (n *node) open(now projector.Instant, opened, reserved *events.Event) {
	o, p := opened.GetRoomOpened(), reserved.GetPagesReserved()
	r := &room{
		number: opened.Room, recorded: opened.RoomSeq, from: p.GetPages(), place: map[uint32]uint32{}, pairs: map[replay.PairKey]*pair{},
	}
	n.rooms[r.recorded] = r
	pages, ok := n.choose(p.GetPages())
	if !ok {
		n.leaveOut("no free pages")
		return
	}
	for i, pg := range r.from {
		r.place[pg] = pages[i]
	}
	c := projector.OpenRoom{
		Room: r.number, Pages: pages, Aux: -1, Reserve: o.GetReserveOnly(), RequestID: o.GetRequestId(), TraceID: o.GetTraceId(), Timeout: o.GetTimeoutMs(),
	}
	if n.m.AuxRow(p.GetAux()).State == "free" {
		c.Aux = int(p.GetAux())
	}
	for _, pr := range o.GetPairs() {
		n.acquaint(now, r, pr)
		c.Pairs = append(c.Pairs, projector.OpenPair{Rank: projector.RankID(pr.GetRank()), To: projector.RankID(pr.GetTo()), Dummy: pr.GetDummy()})
		r.pairs[replay.PairKey{Rank: pr.GetRank(), To: pr.GetTo()}] = &pair{wire: pr.GetWireId()}
	}
	r.seq = n.m.LastSeq() + 1
	n.byNew[r.seq] = r
	if res := n.step(now, c); res.Refused != nil {
		delete(n.byNew, r.seq)
		r.seq = 0
		n.leaveOut(res.Refused.Detail)
	}
}

func (n *node) leaveOut(why string) {
	if n.unplaced == 0 {
		n.why = why
	}
	n.unplaced++
}

// acquaint introduces a prefill rank whose discovery is not in the log any more,
// by what the room's publish says of it.
func (n *node) acquaint(now projector.Instant, r *room, pr *events.Pair) {
	rank := projector.RankID(pr.GetRank())
	peer := n.m.State().Peers[rank.Node()]
	if peer != nil && peer.Ranks[rank].Rank != "" {
		return
	}
	c := n.discovered(rank.Node())
	if n.caps[rank.Node()] == nil {
		s := n.told[pairKey{r.recorded, replay.PairKey{Rank: pr.GetRank(), To: pr.GetTo()}}]
		c.PDLog, c.Boot, c.Incarnation, c.LogSince, c.LogID = s.GetPdlog(), s.GetPeerBoot(), s.GetPeerIncarnation(), s.GetPeerLogSince(), s.GetPeerLogId()
		c.Fence, c.Form = s.GetFence(), events.AckForm_ACK_FORM_V3
	}
	c.Ranks = []projector.PeerRank{{Rank: rank, WireID: pr.GetWireId()}}
	n.step(now, c)
}

func (n *node) choose(want []uint32) ([]uint32, bool) {
	out := slices.Clone(want)
	taken := map[uint32]bool{}
	for _, pg := range want {
		taken[pg] = true
	}
	next := len(n.m.State().Pages)
	for i, pg := range want {
		if n.m.Page(pg).State == "free" {
			continue
		}
		for next--; next >= 0; next-- {
			if pg := uint32(next); !taken[pg] && n.m.Page(pg).State == "free" {
				break
			}
		}
		if next < 0 {
			return nil, false
		}
		out[i] = uint32(next)
	}
	return out, true
}

// arrive lets a recorded write come in again: it bounces where its key is
// revoked, and does harm where its page is not its room's any more.
func (n *node) arrive(now projector.Instant, r *room, k replay.PairKey, c projector.Landed) {
	pr := r.pairs[k]
	if r.seq == 0 || pr == nil || pr.lease == 0 {
		return
	}
	c.Room, c.RoomSeq, c.Lease, c.Rank, c.To = r.number, r.seq, pr.lease, projector.RankID(k.Rank), projector.RankID(k.To)
	pages := make([]uint32, len(c.Pages))
	for i, pg := range c.Pages {
		pages[i] = r.placeOf(pg)
	}
	c.Pages = pages
	if pr.revoked {
		n.step(now, projector.LateWrite{Lease: c.Lease, Room: c.Room, RoomSeq: c.RoomSeq, Rank: c.Rank, To: c.To, Pages: c.Pages, Bytes: c.Bytes, Writes: 1})
		return
	}
	for _, pg := range pages {
		n.hurt(r, pg)
	}
	n.step(now, c)
}

func (n *node) hurt(r *room, pg uint32) {
	v := n.m.Page(pg)
	if v.Seq == r.seq || v.Seq == 0 && v.State == "quarantined" { // its own; or nobody's to harm
		return
	}
	h := harm{page: pg, victim: v.Seq}
	if v.Seq == 0 {
		h.writer = r.seq
	}
	n.harm[h] = true
}

func (r *room) placeOf(pg uint32) uint32 {
	if to, ok := r.place[pg]; ok {
		return to
	}
	return pg
}

func (r *room) pairsSorted() []replay.PairKey {
	return slices.SortedFunc(maps.Keys(r.pairs), func(a, b replay.PairKey) int {
		if a.Rank != b.Rank {
			if a.Rank < b.Rank {
				return -1
			}
			return 1
		}
		if a.To < b.To {
			return -1
		}
		if a.To > b.To {
			return 1
		}
		return 0
	})
}
