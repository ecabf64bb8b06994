package scenario

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/projector"
)

// oldPrefill is an SGLang prefill of an earlier version (wire.md 4.2): v2
// answers an ABORT with rank and room when its count of running chunks is 0, v1
// with a mere receipt at once. It keeps no log.
type oldPrefill struct {
	w     *world
	d     *nodeDef
	ranks []*oldRank
	life  int
	down  bool
}

// oldRank is one of its processes.
type oldRank struct {
	p     *oldPrefill
	index int
	rooms map[uint64]*oldRoom
	count map[uint64]int // running chunks, by room number alone (F17)
}

type oldRoom struct {
	dests   []*backends.Metadata
	queue   []oldSend
	failed  bool
	last    bool
	told    bool
	targets []rankAt
	sent    int32 // chunks handed to the engine: NIXL numbers them by itself
}

type oldSend struct {
	chunk uint32
	pages []uint32
	last  bool
	to    []string
}

func newOldPrefill(w *world, d *nodeDef) *oldPrefill {
	p := &oldPrefill{w: w, d: d}
	p.start()
	return p
}

// start begins a life, which knows nothing of an earlier one.
func (p *oldPrefill) start() {
	p.life++
	p.down = false
	p.ranks = nil
	for r := range p.d.ranks {
		p.ranks = append(p.ranks, &oldRank{p: p, index: r, rooms: map[uint64]*oldRoom{}, count: map[uint64]int{}})
	}
}

func (p *oldPrefill) die()          { p.down = true }
func (p *oldPrefill) def() *nodeDef { return p.d }
func (p *oldPrefill) alive() bool   { return !p.down }

func (p *oldPrefill) receive(rank int, f backends.Frames) {
	r := p.ranks[rank]
	switch m := p.w.dialect.Decode(backends.AtPrefill, f).(type) {
	case *backends.Metadata:
		room := r.room(m.Room)
		room.dests = append(room.dests, m)
		r.flush(m.Room, room)
	case *backends.Abort:
		r.abort(m)
	}
}

func (r *oldRank) room(n uint64) *oldRoom {
	if r.rooms[n] == nil || r.rooms[n].failed || r.rooms[n].told {
		r.rooms[n] = &oldRoom{}
	}
	return r.rooms[n]
}

func (r *oldRank) abort(m *backends.Abort) {
	to, ok := r.p.w.addr[m.Peer.Key()]
	room := r.rooms[m.Room]
	if room != nil && !room.told {
		room.failed = true
	}
	if !ok {
		return
	}
	if r.p.d.version == "v1" {
		r.reply(to, "abort_ack", &backends.AbortAck{Room: m.Room})
		return
	}
	if room != nil && !slices.Contains(room.targets, to) {
		room.targets = append(room.targets, to)
	}
	if room == nil {
		if r.count[m.Room] == 0 {
			r.ack(m.Room, to)
		}
		return
	}
	r.drain(m.Room, room)
}

func (r *oldRank) ack(room uint64, to rankAt) {
	r.reply(to, "abort_ack", &backends.AbortAck{Room: room, PrefillRank: backends.Some(int32(r.p.w.wireID(r.p.d.name, r.index)))}) //nolint:gosec // small
}

func (r *oldRank) reply(to rankAt, kind string, m backends.Message) {
	if f, err := r.p.w.dialect.Encode(m); err == nil {
		r.p.w.net.send(kind, rankAt{r.p.d.name, r.index}, to, f)
	}
}

// drain acks every target when nothing runs any more.
func (r *oldRank) drain(n uint64, room *oldRoom) {
	if r.count[n] > 0 {
		return
	}
	for _, to := range room.targets {
		r.ack(n, to)
	}
	room.targets = nil
}

func (r *oldRank) send(n uint64, s oldSend) {
	if r.p.down {
		return
	}
	room := r.rooms[n]
	if room == nil {
		room = r.room(n)
	}
	if room.failed || room.told {
		return
	}
	room.queue = append(room.queue, s)
	r.flush(n, room)
}

func (r *oldRank) flush(n uint64, room *oldRoom) {
	if len(room.dests) == 0 || int(room.dests[0].RequiredDstInfoNum) > len(room.dests) || room.failed {
		return
	}
	queue := room.queue
	room.queue = nil
	for _, s := range queue {
		room.last = room.last || s.last
		number := room.sent
		room.sent++
		for _, d := range room.dests {
			at, ok := r.p.w.addr[d.Peer.Key()]
			to := r.p.w.rankName(at)
			if !ok || d.IsDummy || !inside(s.pages, d.DstPageIndices) || len(s.to) > 0 && !slices.Contains(s.to, string(to)) {
				continue
			}
			r.count[n]++
			ended, life := false, r.p.life
			r.p.w.mem.start(&write{
				from: r.p, rank: projector.MakeRank(r.p.d.name, r.index), to: to, room: n, chunk: s.chunk, pages: s.pages, last: s.last,
				done: func(o projector.WriteOutcome, _ bool, _ string) {
					if ended || r.p.down || r.p.life != life {
						return
					}
					ended = true
					if o != projector.WriteCompleted {
						r.conclude(n, room, false)
						if r.p.w.dialect.Habits().ErrAck == backends.ErrAckNever {
							return // it keeps the count and never acknowledges (F3)
						}
					} else {
						r.notify(n, at, number, s.last, len(s.pages) > 0)
					}
					r.count[n]-- // it takes any return of the transfer call for the end (F1)
					if r.count[n] == 0 && room.last && len(room.queue) == 0 {
						r.conclude(n, room, true)
					}
					r.drain(n, room)
				},
			})
		}
	}
}

// notify is what the engine tells beside the data, where the backend has it so
// (wire.md 1.10): the chunk, and with the last one the aux row.
func (r *oldRank) notify(room uint64, to rankAt, chunk int32, last, pages bool) {
	d, ok := r.p.w.dialect.(backends.Notifier)
	if !ok {
		return
	}
	source := int32(r.p.w.wireID(r.p.d.name, r.index)) //nolint:gosec // small; one stage, no CP: as the wire id
	var told []backends.Notification
	switch {
	case pages && last:
		told = []backends.Notification{{Room: room, What: backends.NotifyKV, Chunk: chunk, Last: true, Source: source, Parts: 1}, {Room: room, What: backends.NotifyAux}}
	case pages:
		told = []backends.Notification{{Room: room, What: backends.NotifyKV, Chunk: chunk, Source: source, Parts: 1}}
	case last:
		told = []backends.Notification{{Room: room, What: backends.NotifyAuxNoKV, Source: source, Expected: chunk}}
	}
	n, ok := r.p.w.nodes[to.node].(*pdNode)
	for _, x := range told {
		if text, err := d.FormatNotification(x); err == nil && ok {
			n.step(backends.NotificationToCommand(r.p.w.dialect, r.p.w.rankName(to), []byte(text)))
		}
	}
}

// inside: it takes its destinations from the metadata's list, by position.
func inside(pages []uint32, list []int32) bool {
	for _, p := range pages {
		if !slices.Contains(list, int32(p)) { //nolint:gosec // parsed
			return false
		}
	}
	return true
}

func (r *oldRank) conclude(n uint64, room *oldRoom, ok bool) {
	if room.told || room.failed {
		return
	}
	if ok {
		room.told = true
	} else {
		room.failed = true
	}
	if !r.p.w.dialect.Habits().SuccessByStatus {
		return // these versions of its backend tell no end by status (wire.md 1.6)
	}
	st := &backends.Status{Room: n, Status: backends.PollFailed, PrefillRank: int32(r.p.w.wireID(r.p.d.name, r.index))} //nolint:gosec // small
	if ok {
		st.Status = backends.PollSuccess
	}
	for _, d := range room.dests {
		if to, known := r.p.w.addr[d.Peer.Key()]; known && !d.IsDummy {
			r.reply(to, "status", st)
		}
	}
}

func (p *oldPrefill) abortRoom(n uint64) {
	if p.down {
		return
	}
	for _, r := range p.ranks {
		if room := r.rooms[n]; room != nil {
			r.conclude(n, room, false)
		}
	}
}

// oldDecode is an SGLang decode of an earlier version: it sends ABORT without a
// generation, once, and keeps no log.
type oldDecode struct {
	w     *world
	d     *nodeDef
	rooms map[uint64][]openPair
	down  bool
}

func newOldDecode(w *world, d *nodeDef) *oldDecode {
	return &oldDecode{w: w, d: d, rooms: map[uint64][]openPair{}}
}

func (n *oldDecode) def() *nodeDef                    { return n.d }
func (n *oldDecode) alive() bool                      { return !n.down }
func (n *oldDecode) receive(_ int, _ backends.Frames) {}
func (n *oldDecode) die()                             { n.down = true }

func (n *oldDecode) start() {
	n.down = false
	n.rooms = map[uint64][]openPair{}
}

func (n *oldDecode) open(room uint64, pairs []openPair, pages []uint32, aux int) error {
	if n.down {
		return fmt.Errorf("%s is down", n.d.name)
	}
	n.rooms[room] = pairs
	for _, p := range pairs {
		self := backends.Self{Endpoint: address(n.d, p.to.rank), PeerKey: session(n.d, p.to.rank)}
		a := projector.SendMetadata{Room: room, Pages: pages, Aux: uint32(max(aux, 0)), Dummy: p.dummy, Required: required(pairs, p.rank)} //nolint:gosec // >= 0
		m, err := backends.FromMetadata(a, self)
		if err != nil {
			return err
		}
		f, err := n.w.dialect.Encode(m)
		if err != nil {
			return err
		}
		n.w.net.send("metadata", p.to, p.rank, f)
	}
	return nil
}

func (n *oldDecode) abort(room uint64) error {
	if n.down {
		return nil
	}
	for _, p := range n.rooms[room] {
		ep, err := backends.ParseEndpoint(address(n.d, p.to.rank))
		if err != nil {
			return err
		}
		f, err := n.w.dialect.Encode(&backends.Abort{Room: room, Peer: ep})
		if err != nil {
			return err
		}
		n.w.net.send("abort", p.to, p.rank, f)
	}
	delete(n.rooms, room)
	return nil
}

func required(pairs []openPair, rank rankAt) uint32 {
	n := uint32(0)
	for _, p := range pairs {
		if p.rank == rank {
			n++
		}
	}
	return n
}

func parseRank(s string) rankAt {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == '/' {
			r, _ := strconv.Atoi(s[i+1:])
			return rankAt{s[:i], r}
		}
	}
	return rankAt{node: s}
}
