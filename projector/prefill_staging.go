package projector

import (
	"slices"

	"github.com/pdlog/pdlog/events"
)

// stagingRing names a decode rank's ring as one of our ranks deals with it.
type stagingRing struct {
	at      RankID
	session string
}

// mark is the newest WATERMARK of a ring.
type mark struct{ round, tail uint64 }

// stagingKey is a chunk on its way from a local rank to a decode rank.
type stagingKey struct {
	rank, to RankID
	chunk    uint32
}

// stagingRoom is what is known of a room's requests for room in decode's rings.
// Chunks wait in the room's queue. A prefill room does not outlive the life that
// opened it, so this needs no place in the log; the events say it all the same.
type stagingRoom struct{ answers map[stagingKey]*stagingAnswer }

type stagingAnswer struct {
	pages              uint32
	answered, direct   bool
	round, offset, end uint64
}

// stages: a chunk for this destination goes through its staging ring: staging is
// on, the destination is pdlog, has registered a ring and given us a key to it,
// runs another TP size, and the pages stand one behind the other in its list
// (wire.md 1.7). first is the place of the first one.
func (m *Machine) stages(d *Dest, pages []uint32) (first uint32, ok bool) {
	ep := m.st.Endpoints[d.Address]
	if !m.cfg.Staging || len(pages) == 0 || ep == nil || ep.Boot == 0 || ep.Memory.GetStagingBytes() == 0 ||
		ep.Memory.GetTpSize() == m.cfg.Place.GetTpSize() || len(ep.Memory.GetKvItemBytes()) != 1 {
		return 0, false
	}
	if !slices.ContainsFunc(d.Keys, func(k *events.WriteKey) bool { return k.GetKind() == writeKeyStaging }) {
		return 0, false
	}
	at := slices.Index(d.Pages, pages[0])
	if at < 0 || at+len(pages) > len(d.Pages) || !slices.Equal(d.Pages[at:at+len(pages)], pages) {
		return 0, false
	}
	return uint32(at), true //nolint:gosec // pool size
}

// writeKeyStaging is the kind of a key to a staging ring (wire.md 9.3).
const writeKeyStaging = 4

// staged says where a chunk for a destination goes: into its ring at offset, or
// (direct) into its pages; ready is false while the ring has not answered or may
// not be written there yet. The first call asks.
func (m *Machine) staged(r *PRoom, c *SendChunk, d *Dest, pages []uint32) (a *stagingAnswer, first uint32, ready bool) {
	first, ok := m.stages(d, pages)
	if !ok {
		return nil, 0, true
	}
	sr := m.staging[r.Seq]
	if sr == nil {
		sr = &stagingRoom{answers: map[stagingKey]*stagingAnswer{}}
		m.staging[r.Seq] = sr
	}
	key := stagingKey{rank: c.Rank, to: d.To, chunk: first}
	a = sr.answers[key]
	if a == nil {
		sr.answers[key] = &stagingAnswer{pages: uint32(len(pages))} //nolint:gosec // pool size
		m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(c.Rank), Payload: &events.Event_StagingAsked{StagingAsked: &events.StagingAsked{
			To: string(d.To), Chunk: first, Pages: uint32(len(pages)), //nolint:gosec // pool size
		}}})
		m.do(SendStagingReq{Room: r.Room, Address: d.Address, Session: d.Session, Chunk: first, Pages: uint32(len(pages))}) //nolint:gosec // pool size
		return nil, first, false
	}
	switch {
	case !a.answered:
		return nil, first, false
	case a.direct:
		return nil, first, true
	}
	w := m.marks[stagingRing{c.Rank, d.Session}]
	return a, first, mayWrite(a.round, a.end, w.round, w.tail)
}

// stagingRsp takes decode's answer. One that nobody asked for, or that lies
// outside the ring, changes nothing.
func (m *Machine) stagingRsp(c WireStagingRsp) {
	no := func(why string) { m.reject(Rejected{Kind: "staging_rsp", Reason: why, From: c.Session}) }
	r := m.pcurrent(c.Room)
	if r == nil || !r.live() || m.staging[r.Seq] == nil {
		no("nothing was asked for")
		return
	}
	var d *Dest
	for _, x := range r.Dests {
		if x.Rank == c.At && x.Session == c.Session {
			d = x
		}
	}
	if d == nil {
		no("no destination of the room has this session")
		return
	}
	a := m.staging[r.Seq].answers[stagingKey{rank: c.At, to: d.To, chunk: c.Chunk}]
	mem := m.st.Endpoints[d.Address].GetMemory()
	switch {
	case a == nil:
		no("nothing was asked for")
		return
	case a.answered:
		return // each of the room's ranks that asks makes decode answer all of them
	case c.Never:
		a.direct = true
	case c.End > mem.GetStagingBytes() || c.End < c.Offset:
		no("outside the ring")
		return
	case uint64(a.pages)*mem.GetKvItemBytes()[0] > c.End-c.Offset:
		a.direct = true // given out to a rank that had fewer pages
	default:
		a.round, a.offset, a.end = c.Round, c.Offset, c.End
	}
	a.answered = true
	m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(c.At), Payload: &events.Event_StagingAnswered{StagingAnswered: &events.StagingAnswered{
		To: string(d.To), Chunk: c.Chunk, Round: a.round, Offset: a.offset, End: a.end, Direct: a.direct,
	}}})
	m.flush(r, c.At)
	m.touchAny(r.Seq)
}

// GetMemory is nil for an endpoint that is not registered.
func (ep *Endpoint) GetMemory() *events.PeerMemory {
	if ep == nil {
		return nil
	}
	return ep.Memory
}

// watermark takes a WATERMARK of a registered decode rank; it never goes back.
func (m *Machine) watermark(c WireWatermark) {
	known := false
	for _, ep := range m.st.Endpoints {
		known = known || ep.Session == c.Session && ep.at[c.At]
	}
	if !known {
		m.reject(Rejected{Kind: "watermark", Reason: "no decode rank has registered with this session", From: c.Session})
		return
	}
	key := stagingRing{c.At, c.Session}
	if w := m.marks[key]; c.Round < w.round || c.Round == w.round && c.Tail <= w.tail {
		return
	}
	m.marks[key] = mark{c.Round, c.Tail}
	for _, seq := range sortedKeys(m.staging) {
		if r := m.st.PRooms[seq]; r != nil && r.live() {
			m.flush(r, c.At)
			m.touchAny(seq)
		}
	}
}

// stagingReady tells decode that a staged write has landed. After the end of the
// room nobody is told: decode copies nothing out any more.
func (m *Machine) stagingReady(r *PRoom, t *Token) {
	d := r.dest(t.Rank, t.To)
	if !t.Staged || !r.live() || d == nil {
		return
	}
	m.do(SendChunkReady{Room: r.Room, Address: d.Address, Session: d.Session, Chunk: t.First, First: t.First, Pages: t.Pages, WireID: m.wireID(t.Rank)})
}
