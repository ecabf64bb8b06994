package projector

import (
	"fmt"
	"strings"

	"github.com/pdlog/pdlog/events"
)

// open reserves all pages of a room, or none, and begins to publish it.
func (m *Machine) open(c OpenRoom) {
	aux, ref := m.admit(&c)
	if ref != nil {
		m.res.Refused = ref
		return
	}
	seq := m.st.Seq + 1
	opened := &events.RoomOpened{Role: events.Role_ROLE_DECODE, RequestId: c.RequestID, TraceId: c.TraceID, ReserveOnly: c.Reserve, TimeoutMs: c.Timeout}
	for _, p := range c.Pairs {
		opened.Pairs = append(opened.Pairs, &events.Pair{
			Rank: string(p.Rank), To: string(p.To), WireId: m.st.Peers[p.Rank.Node()].Ranks[p.Rank].WireID, Dummy: p.Dummy,
		})
	}
	m.emit(&events.Event{Room: c.Room, RoomSeq: seq, Payload: &events.Event_RoomOpened{RoomOpened: opened}})
	m.emit(&events.Event{Room: c.Room, RoomSeq: seq, Payload: &events.Event_PagesReserved{PagesReserved: &events.PagesReserved{Pages: c.Pages, Aux: aux}}})
	r := m.room(seq)
	for i, p := range c.Pairs {
		r.Pairs[i].Required = p.Required
	}
	m.res.RoomSeq, m.res.Aux = seq, aux
	if !c.Reserve {
		m.publishNext(r)
	}
	m.touch(seq)
}

// admit checks an open in full before anything is recorded: a refused room
// leaves nothing behind (cases.md C-23, C-42).
func (m *Machine) admit(c *OpenRoom) (aux uint32, ref *Refusal) {
	no := func(word, format string, args ...any) (uint32, *Refusal) {
		return 0, &Refusal{Word: word, Detail: fmt.Sprintf(format, args...)}
	}
	st := m.st
	switch {
	case c.Room == 0: // the aux row's gate reads 0 as "not arrived" (wire.md 3.3)
		return no("bad_request", "room 0 is no identity")
	case st.Draining:
		return no("not_ready", "the node is draining")
	case len(st.Unsettled) > 0:
		return no("not_ready", "the node has an unknown past: %s may still write into its pages", strings.Join(sortedKeys(st.Unsettled), ", "))
	case m.logFull:
		return no("not_ready", "the log takes no new rooms: its volume is full or it is behind")
	case len(st.Rooms) >= m.cfg.MaxRooms:
		return no("limit", "%d rooms are open, which is the limit", len(st.Rooms))
	case len(c.Pairs) == 0:
		return no("bad_request", "room %d names no prefill rank", c.Room)
	}
	if seq := st.Current[c.Room]; seq != 0 {
		if r := st.Rooms[seq]; r != nil && r.Outcome != OutcomeFailed {
			return no("room_live", "room %d is live since seq %d", c.Room, seq)
		}
	}
	seen := map[[2]RankID]bool{}
	for _, p := range c.Pairs {
		if _, ok := m.cfg.localRank(p.To); !ok {
			return no("bad_request", "%s is no rank of this node", p.To)
		}
		if k := [2]RankID{p.Rank, p.To}; seen[k] {
			return no("bad_request", "pair %s to %s twice", p.Rank, p.To)
		} else { //nolint:revive // scoped key
			seen[k] = true
		}
		peer := st.Peers[p.Rank.Node()]
		if why := m.badPeer[p.Rank.Node()]; why != "" {
			return no("incompatible", "%s: %s", p.Rank.Node(), why)
		}
		switch {
		case peer == nil:
			return no("not_ready", "prefill node %s is not known yet", p.Rank.Node())
		case peer.PageSize != 0 && peer.PageSize != uint64(m.cfg.PageSize): //nolint:gosec // small
			return no("incompatible", "%s has pages of %d tokens, ours have %d", peer.Node, peer.PageSize, m.cfg.PageSize)
		case peer.Weak && !m.cfg.AllowWeak:
			return no("weak_peer", "%s cannot prove a drain and weak_peers is refuse", peer.Node)
		case peer.Lost:
			return no("not_ready", "prefill node %s is lost", peer.Node)
		case peer.Ranks[p.Rank].Rank == "":
			return no("bad_request", "%s is no rank of %s", p.Rank, peer.Node)
		}
	}
	mine := make(map[uint32]bool, len(c.Pages))
	for _, pg := range c.Pages {
		switch {
		case int(pg) >= len(st.Pages):
			return no("bad_request", "page %d is outside the pool of %d", pg, len(st.Pages))
		case mine[pg]:
			return no("bad_request", "page %d twice", pg)
		case st.Pages[pg].owner != 0:
			return no("pages_busy", "page %d belongs to room %d", pg, st.Rooms[st.Pages[pg].owner].Room)
		}
		mine[pg] = true
	}
	return m.admitAux(c.Aux)
}

func (m *Machine) admitAux(want int) (uint32, *Refusal) {
	rows := m.st.Aux
	if want >= 0 {
		if want >= len(rows) {
			return 0, &Refusal{Word: "bad_request", Detail: fmt.Sprintf("aux row %d is outside the %d rows", want, len(rows))}
		}
		if o := rows[want]; o != 0 {
			return 0, &Refusal{Word: "pages_busy", Detail: fmt.Sprintf("aux row %d belongs to room %d", want, m.st.Rooms[o].Room)}
		}
		return uint32(want), nil //nolint:gosec // checked
	}
	if row, ok := m.st.auxFree.lowest(); ok {
		return uint32(row), nil //nolint:gosec // small
	}
	return 0, &Refusal{Word: "pages_busy", Detail: "no aux row is free"}
}

func (m *Machine) publishRoom(c PublishRoom) {
	r := m.current(c.Room)
	if r == nil || !r.live() || r.published() > 0 {
		m.refuse("unknown_room", fmt.Sprintf("room %d has nothing to publish", c.Room))
		return
	}
	m.res.RoomSeq = r.Seq
	m.publishNext(r)
	m.touch(r.Seq)
}

// publishNext tells the next prefill rank where the pages are. PublishStarted
// is durable before the message leaves (I6, F19); the next rank is told only
// after this one's send has succeeded.
func (m *Machine) publishNext(r *Room) {
	for _, p := range r.Pairs {
		if p.Publish != PublishNone {
			continue
		}
		peer := m.st.Peers[p.Rank.Node()]
		rank := peer.Ranks[p.Rank]
		s := &events.PublishStarted{
			To: string(p.To), Pages: r.Pages, Aux: r.Aux, Lease: m.st.Seq + 1, Fence: peer.Fence,
			Pdlog: peer.PDLog, PeerBoot: peer.Boot, PeerIncarnation: peer.Inc,
			PeerLogSince: peer.LogSince, PeerLogId: peer.LogID, Dummy: p.Dummy,
		}
		if p.Dummy {
			s.Pages = nil
		}
		seq := m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(p.Rank), Payload: &events.Event_PublishStarted{PublishStarted: s}})
		required := p.Required
		if required == 0 {
			required = r.required(p.Rank)
		}
		x := m.ext(r.Seq, seq)
		seen := peer.seenOf(0)
		x.SeenLogID, x.SeenSeq, x.SeenBoot = peer.LogID, seen.Seq, seen.Boot
		m.do(SendMetadata{
			Room: r.Room, RoomSeq: r.Seq, Rank: p.Rank, Address: rank.Address, To: p.To,
			Pages: s.Pages, Aux: r.Aux, Dummy: p.Dummy, Required: required,
			Lease: s.Lease, WithExt: peer.PDLog, Ext: x,
		})
		return
	}
}

// required counts the decode ranks that one prefill rank serves in a room.
func (r *Room) required(rank RankID) uint32 {
	n := uint32(0)
	for _, p := range r.Pairs {
		if p.Rank == rank {
			n++
		}
	}
	return n
}

func (m *Machine) publishResult(c PublishResult) {
	r := m.room(c.RoomSeq)
	if r == nil {
		return
	}
	p := r.pair(c.Rank, c.To)
	if p == nil || p.Publish != PublishStarted {
		return
	}
	m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(c.Rank), Payload: &events.Event_MetadataPublished{MetadataPublished: &events.MetadataPublished{
		To: string(c.To), Failed: c.Err != "", Reason: c.Err,
	}}})
	switch {
	case c.Err != "":
		m.fail(r, events.AbortCause_ABORT_CAUSE_PUBLISH_FAILED, "metadata to "+string(c.Rank)+": "+c.Err, m.cfg.Node, nil)
	case r.live(): // after a terminal outcome nothing more is published
		m.publishNext(r)
		m.maybeSucceed(r)
	}
	m.touch(r.Seq)
}

func (m *Machine) current(room uint64) *Room { return m.room(m.st.Current[room]) }

// room is an incarnation in the table, nil if it is not there. A step asks for the
// same one again and again.
func (m *Machine) room(key roomKey) *Room {
	if m.hot == nil || m.hot.Seq != key {
		m.hot = m.st.Rooms[key]
	}
	return m.hot
}
