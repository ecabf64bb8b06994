package projector

import (
	"fmt"

	"github.com/pdlog/pdlog/events"
)

// Staged is one chunk of a room in the staging ring of a local decode rank.
type Staged struct {
	To    RankID
	Chunk uint32 // chunk_idx
	Pages uint32 // room in the ring
	From  uint64 // position in the ring
	First uint32 // place of its first page in the room's list, once a writer has said it
	Count uint32 // pages that the writers say they wrote
	Ready map[RankID]bool
	// Landed: our provider has placed a write of the rank in it, under a lease of
	// this incarnation. CHUNK_READY does not say which use of a number it means.
	Landed map[RankID]bool
}

// stagingAsk is a request for room in a ring that is full. It waits for a
// release, and is forgotten with the node's life: prefill asks again.
type stagingAsk struct {
	room  roomKey
	to    RankID
	chunk uint32
	pages uint32
}

func (r *Room) staged(to RankID, chunk uint32) *Staged {
	for _, s := range r.Staged {
		if s.To == to && s.Chunk == chunk {
			return s
		}
	}
	return nil
}

// stagers are the pairs that write into a rank's ring; nil if one of them lays
// its bytes down in a way of its own: only pdlog prefills use our ring.
func (r *Room) stagers(to RankID) []*Pair {
	var out []*Pair
	for _, p := range r.Pairs {
		if p.To != to || p.Dummy || p.Publish == PublishNone {
			continue
		}
		if !p.PDLog {
			return nil
		}
		out = append(out, p)
	}
	return out
}

// stagingReq takes a STAGING_REQ: room in the ring is given out once for each
// chunk of a room and decode rank, whoever asks. Nothing is given out for a room
// that has ended, and no byte that an older span still has.
func (m *Machine) stagingReq(c WireStagingReq) {
	no := func(why string) { m.reject(Rejected{Kind: "staging_req", Reason: why, From: string(c.At)}) }
	r := m.current(c.Room)
	g := m.st.Rings[c.At]
	switch {
	case r == nil:
		no("unknown or ended room")
		return
	case !r.live() || r.published() == 0:
		no("the room has ended")
		return
	case g == nil || g.NextSize == 0:
		no("no staging ring is registered")
		return
	case !m.ownSession(c.At, c.Session):
		no("it names another session")
		return
	case c.Pages == 0 || c.Chunk >= uint32(len(r.Pages)) || c.Pages > uint32(len(r.Pages))-c.Chunk: //nolint:gosec // pool size
		no(fmt.Sprintf("%d pages from place %d of a room of %d", c.Pages, c.Chunk, len(r.Pages)))
		return
	}
	if s := r.staged(c.At, c.Chunk); s != nil {
		m.answerStaging(r, s)
		return
	}
	if len(r.stagers(c.At)) == 0 || !g.fits(uint64(c.Pages)*g.NextItem) {
		for _, p := range r.Pairs {
			if p.To == c.At && !p.Dummy && p.Publish != PublishNone {
				m.do(SendStagingRsp{Room: r.Room, Address: m.addressOf(p.Rank), To: c.At, Chunk: c.Chunk, Never: true})
			}
		}
		return
	}
	ask := stagingAsk{room: r.Seq, to: c.At, chunk: c.Chunk, pages: c.Pages}
	for _, a := range m.asks {
		if a.room == ask.room && a.to == ask.to && a.chunk == ask.chunk {
			return // it waits already
		}
	}
	m.asks = append(m.asks, ask)
	m.serveAsks()
}

// ownSession: a message of the ring names the session that the rank registered
// with.
func (m *Machine) ownSession(at RankID, session string) bool {
	i, ok := m.cfg.localRank(at)
	return ok && m.cfg.Ranks[i].Address == session
}

func (m *Machine) addressOf(rank RankID) string {
	if p := m.st.Peers[rank.Node()]; p != nil {
		return p.Ranks[rank].Address
	}
	return ""
}

// serveAsks gives out what fits, in the order it was asked for; one that does
// not fit holds back those behind it for the same ring. Asks of rooms that have
// ended are forgotten.
func (m *Machine) serveAsks() {
	var left []stagingAsk
	full := map[RankID]bool{}
	for _, a := range m.asks {
		r, g := m.st.Rooms[a.room], m.st.Rings[a.to]
		if r == nil || !r.live() || g == nil {
			continue
		}
		n := uint64(a.pages) * g.Item
		from, ok := g.place(n)
		if !ok || full[a.to] {
			full[a.to] = true
			left = append(left, a)
			continue
		}
		m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Payload: &events.Event_StagingAllocated{StagingAllocated: &events.StagingAllocated{
			To: string(a.to), Chunk: a.chunk, Pages: a.pages, Round: from / g.Size, Offset: from % g.Size, End: from%g.Size + n,
		}}})
		m.answerStaging(r, r.staged(a.to, a.chunk))
	}
	m.asks = left
}

// answerStaging tells every writer of a chunk where it goes. The watermark goes
// ahead on the same connection: what is given out here is free, and prefill
// must not wait for a WATERMARK that was lost.
func (m *Machine) answerStaging(r *Room, s *Staged) {
	g := m.st.Rings[s.To]
	if g == nil || g.Size == 0 {
		return
	}
	round, tail := g.watermark()
	for _, p := range r.stagers(s.To) {
		to := m.addressOf(p.Rank)
		if round > 0 {
			m.do(SendWatermark{Address: to, To: s.To, Round: round, Tail: tail})
		}
		m.do(SendStagingRsp{
			Room: r.Room, Address: to, To: s.To, Chunk: s.Chunk,
			Offset: s.From % g.Size, Round: s.From / g.Size, End: s.From%g.Size + uint64(s.Pages)*g.Item,
		})
	}
}

// chunkReady takes a CHUNK_READY. When every writer of the chunk has said it,
// the pages are copied out of the ring: a local write, and a token until it has
// ended (F22). None starts after the arming or an outcome.
func (m *Machine) chunkReady(c WireChunkReady) {
	no := func(why string) { m.reject(Rejected{Kind: "chunk_ready", Reason: why, From: string(c.At)}) }
	r := m.current(c.Room)
	if r == nil {
		no("unknown or ended room")
		return
	}
	p := r.byWireID(c.Rank, c.At, nil)
	s := r.staged(c.At, c.Chunk)
	switch {
	case !r.live():
		no("the room has ended")
		return
	case !m.ownSession(c.At, c.Writer):
		no("it names another session")
		return
	case p == nil || p.Dummy || !p.PDLog:
		no("the rank owes nothing here")
		return
	case s == nil:
		no("no part of the ring was given out for it")
		return
	case !s.Landed[p.Rank]: // of an earlier use of the number, or not true
		no("nothing of the rank has landed there")
		return
	case s.Ready[p.Rank]:
		no("a repeat")
		return
	case c.Pages == 0 || c.Pages > s.Pages || uint64(c.First)+uint64(c.Pages) > uint64(len(r.Pages)):
		no(fmt.Sprintf("%d pages from place %d do not fit", c.Pages, c.First))
		return
	case len(s.Ready) > 0 && (s.First != c.First || s.Count != c.Pages):
		no("another rank says that other pages are in it")
		return
	}
	m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(p.Rank), Payload: &events.Event_StagingReady{StagingReady: &events.StagingReady{
		To: string(c.At), Chunk: c.Chunk, First: c.First, Pages: c.Pages,
	}}})
	for _, q := range r.stagers(c.At) {
		if !s.Ready[q.Rank] {
			m.touch(r.Seq)
			return
		}
	}
	g := m.st.Rings[c.At]
	token := m.st.Seq + 1
	m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Payload: &events.Event_LocalCopyStarted{LocalCopyStarted: &events.LocalCopyStarted{
		Token: token, To: string(c.At), What: copyStaging, Index: c.Chunk, Bytes: uint64(s.Count) * g.Item,
	}}})
	m.do(CopyStaged{
		Room: r.Room, RoomSeq: r.Seq, Token: token, To: c.At, Offset: s.From % g.Size, Pages: r.Pages[s.First : s.First+s.Count],
	})
	m.touch(r.Seq)
}

// What a local copy copies (LocalCopyStarted.what).
const (
	copyAux     = "aux_data"
	copyStaging = "staging"
)

// LocalCopy is an open copy of this node's own into a room's memory.
type LocalCopy struct {
	To     RankID
	Staged bool
	Chunk  uint32 // staged
}

// freeStaging is called when a room was released: what it had of the rings is
// free, and asks that waited for it are served.
func (m *Machine) freeStaging(staged []*Staged, pairs []*Pair) {
	if len(staged) == 0 {
		return
	}
	told := map[[2]RankID]bool{}
	for _, s := range staged {
		g := m.st.Rings[s.To]
		if g == nil {
			continue
		}
		round, tail := g.watermark()
		for _, p := range pairs {
			if k := [2]RankID{s.To, p.Rank}; p.To == s.To && !p.Dummy && !told[k] {
				told[k] = true
				m.do(SendWatermark{Address: m.addressOf(p.Rank), To: s.To, Round: round, Tail: tail})
			}
		}
	}
	m.serveAsks()
}

func (m *Machine) applyMemory(p *events.MemoryRegistered) {
	if m.cfg.Role != events.Role_ROLE_DECODE {
		return
	}
	at := m.cfg.rank(int(p.LocalRank))
	g := m.st.Rings[at]
	if g == nil {
		if p.StagingBytes == 0 {
			return
		}
		g = &Ring{}
		m.st.Rings[at] = g
	}
	g.resize(p.StagingBytes, p.ItemBytes)
}

func (m *Machine) applyAllocated(r *Room, p *events.StagingAllocated) {
	g := m.st.Rings[RankID(p.To)]
	if g == nil || g.Size == 0 || p.End < p.Offset {
		return
	}
	from := p.Round*g.Size + p.Offset
	g.take(Span{Room: r.Seq, Chunk: p.Chunk, From: from, To: from + p.End - p.Offset})
	r.Staged = append(r.Staged, &Staged{To: RankID(p.To), Chunk: p.Chunk, Pages: p.Pages, From: from})
}

func applyStagingReady(r *Room, rank RankID, p *events.StagingReady) {
	s := r.staged(RankID(p.To), p.Chunk)
	if s == nil {
		return
	}
	if s.Ready == nil {
		s.Ready = map[RankID]bool{}
	}
	s.Ready[rank] = true
	s.First, s.Count = p.First, p.Pages
}

func (r *Room) stagedLanded(p *Pair, g *Ring, from, to uint64) {
	for _, s := range r.Staged {
		if off := s.From % max(g.Size, 1); s.To == p.To && off <= from && to <= off+uint64(s.Pages)*g.Item {
			if s.Landed == nil {
				s.Landed = map[RankID]bool{}
			}
			s.Landed[p.Rank] = true
		}
	}
}

// applyCopied: the pages of a staged chunk are in their place, with the parts of
// all its writers.
func (r *Room) applyCopied(c LocalCopy) {
	s := r.staged(c.To, c.Chunk)
	if s == nil || uint64(s.First)+uint64(s.Count) > uint64(len(r.Pages)) {
		return
	}
	for _, p := range r.Pairs {
		if p.To != c.To || !s.Ready[p.Rank] {
			continue
		}
		for i := s.First; i < s.First+s.Count; i++ {
			p.cover(int(i), len(r.Pages))
		}
	}
}
