package projector

import (
	"fmt"
	"slices"

	"github.com/pdlog/pdlog/events"
)

// sendChunk takes a chunk of the engine: posted at once if the rank has its
// metadata, queued if it has not, skipped if the room has ended.
func (m *Machine) sendChunk(c SendChunk) {
	if _, ok := m.cfg.localRank(c.Rank); !ok {
		m.refuse("bad_request", fmt.Sprintf("%s is no rank of this node", c.Rank))
		return
	}
	r := m.pcurrent(c.Room)
	if r == nil {
		if m.st.Receipts[c.Room] != nil { // it has ended, and the engine has cleared it
			m.emit(&events.Event{Room: c.Room, Rank: string(c.Rank), Payload: &events.Event_ChunkSkipped{ChunkSkipped: &events.ChunkSkipped{
				Chunk: c.Chunk, Pages: c.Pages, Reason: "the room has ended",
			}}})
			return
		}
		m.await(AwaitRoom{Room: c.Room})
		if r = m.pcurrent(c.Room); r == nil {
			return // refused
		}
	}
	m.res.RoomSeq = r.Seq
	switch {
	case c.RoomSeq != 0 && c.RoomSeq != r.Seq:
		m.skip(r, c, fmt.Sprintf("meant for incarnation %d of the number", c.RoomSeq))
	case !r.live():
		m.skip(r, c, "the room has ended")
	case r.done(c.Rank).Concluded: // decode may have released the pages by now
		m.skip(r, c, "the rank has reported success")
	case !r.ready(c.Rank):
		m.queue(r, c)
	default:
		m.post(r, c)
		m.settleP(r)
	}
	if r.timer == 0 || r.timer > m.now.Clock+millis(m.cfg.TransferTimeout) {
		m.touchAny(r.Seq)
	}
}

// queue keeps a chunk for later.
func (m *Machine) queue(r *PRoom, c SendChunk) {
	q := &events.ChunkQueued{Chunk: c.Chunk, Pages: c.Pages, Last: c.Last, First: c.First, Count: uint64(c.Count), SourcePages: c.SourcePages, Bytes: c.Bytes, SourceAux: c.SourceAux}
	for _, to := range c.To {
		q.To = append(q.To, string(to))
	}
	m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(c.Rank), Payload: &events.Event_ChunkQueued{ChunkQueued: q}})
}

func (m *Machine) skip(r *PRoom, c SendChunk, why string) {
	m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(c.Rank), Payload: &events.Event_ChunkSkipped{ChunkSkipped: &events.ChunkSkipped{
		Chunk: c.Chunk, Pages: c.Pages, Reason: why,
	}}})
}

// flush posts what waited for the rank's metadata.
func (m *Machine) flush(r *PRoom, rank RankID) {
	for _, q := range append([]queued(nil), r.Queue...) {
		if q.cmd.Rank == rank && r.live() {
			m.post(r, q.cmd)
		}
	}
	m.settleP(r)
}

// post posts one chunk to every destination of its rank. A page outside the
// room is not posted and fails the room (cases.md C-59).
func (m *Machine) post(r *PRoom, c SendChunk) {
	var dests []*Dest
	for _, d := range r.Dests {
		if d.Rank == c.Rank && !d.Dummy && (len(c.To) == 0 || slices.Contains(c.To, d.To)) {
			dests = append(dests, d)
		}
	}
	pages := make([][]uint32, len(dests))
	for i, d := range dests {
		var err string
		if pages[i], err = destPages(d, c); err != "" {
			m.skip(r, c, err)
			m.failP(r, events.AbortCause_ABORT_CAUSE_BAD_CHUNK, fmt.Sprintf("chunk %d: %s", c.Chunk, err), m.cfg.Node)
			return
		}
	}
	if len(dests) == 0 || len(pages[0]) == 0 && !c.Last {
		m.skip(r, c, "nothing to send")
		return
	}
	places := make([]*stagingAnswer, len(dests))
	firsts := make([]uint32, len(dests))
	all := true
	for i, d := range dests {
		var ready bool
		places[i], firsts[i], ready = m.staged(r, &c, d, pages[i])
		all = all && ready
	}
	if !all {
		if !r.queuedChunk(c.Rank, c.Chunk) {
			m.queue(r, c)
		}
		return
	}
	for i, d := range dests {
		token := m.st.Seq + 1
		e, posted := m.pool.ChunkPosted.New()
		e.Room, e.RoomSeq, e.Rank = r.Room, r.Seq, string(c.Rank)
		posted.Token, posted.Chunk, posted.To, posted.Last, posted.Bytes = token, c.Chunk, string(d.To), c.Last, c.Bytes
		posted.Pages, posted.SourcePages, posted.SourceAux = pages[i], c.SourcePages, c.SourceAux
		if a := places[i]; a != nil {
			posted.StagingOffset, posted.StagingEnd, posted.First = a.offset, a.end, firsts[i]
		}
		m.emit(e)
		w := PostWrite{
			Token: token, Room: r.Room, RoomSeq: r.Seq, Rank: c.Rank, To: d.To, Address: d.Address, Session: d.Session,
			Chunk: c.Chunk, Pages: pages[i], SourcePages: c.SourcePages, Last: c.Last, Keys: d.Keys,
			Staged: places[i] != nil, StagingAt: posted.StagingOffset,
		}
		if c.Last {
			w.Aux, w.SourceAux = d.Aux, c.SourceAux
		}
		m.doAfter(d.MetaSeq, w) // ChunkPosted rides the next commit; the write does not wait for it
	}
}

func destPages(d *Dest, c SendChunk) ([]uint32, string) {
	if c.Pages != nil {
		for _, pg := range c.Pages {
			if !slices.Contains(d.Pages, pg) {
				return nil, fmt.Sprintf("page %d is not a page of the room on %s", pg, d.To)
			}
		}
		return c.Pages, ""
	}
	end := uint64(c.First) + uint64(c.Count)
	if end > uint64(len(d.Pages)) {
		return nil, fmt.Sprintf("places %d to %d of %d pages on %s", c.First, end, len(d.Pages), d.To)
	}
	return d.Pages[c.First:end:end], ""
}

// writeDone takes the outcome of a write from the provider. An error is not an
// end (F1, F2): only what the provider proves closes a token.
func (m *Machine) writeDone(c WriteDone) {
	r, t := m.token(c.Token)
	if t == nil {
		return
	}
	ended := func() *events.Event {
		return &events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(t.Rank), Cause: m.localCause(t.ID)}
	}
	switch {
	case c.Outcome == WriteCompleted && !t.Uncertain:
		e, p := m.pool.ChunkCompleted.New()
		e.Room, e.RoomSeq, e.Rank, e.Cause = r.Room, r.Seq, string(t.Rank), m.localCause(t.ID)
		p.Token, p.Chunk, p.To, p.Bytes = t.ID, t.Chunk, string(t.To), t.Bytes
		m.emit(e)
		m.stagingReady(r, t)
	case c.Outcome == WriteFailed && !t.Uncertain:
		e := ended()
		e.Payload = &events.Event_ChunkFailed{ChunkFailed: &events.ChunkFailed{Token: t.ID, Chunk: t.Chunk, To: string(t.To), Reason: c.Reason, Proven: true}}
		m.emit(e)
		m.failP(r, events.AbortCause_ABORT_CAUSE_TRANSFER_FAILED, fmt.Sprintf("chunk %d to %s: %s", t.Chunk, t.To, c.Reason), m.cfg.Node)
	case c.Outcome == WriteUncertain:
		if !t.Uncertain {
			m.uncertain(r, t, c.Reason)
		}
		m.failP(r, events.AbortCause_ABORT_CAUSE_TRANSFER_FAILED, fmt.Sprintf("chunk %d to %s: %s", t.Chunk, t.To, c.Reason), m.cfg.Node)
	default: // the true end of an uncertain write
		how, landed := "drained", c.Landed
		switch c.Outcome {
		case WriteCompleted:
			how, landed = "completed late", true
		case WriteFailed:
			how, landed = c.Reason, false
		}
		e := ended()
		e.Payload = &events.Event_ChunkDrained{ChunkDrained: &events.ChunkDrained{Token: t.ID, Chunk: t.Chunk, To: string(t.To), How: how, Landed: landed}}
		m.emit(e)
	}
	m.settleP(r)
	if r.timer == 0 || !r.writing() { // else the timer is that of a write under way: early, never late
		m.touchAny(r.Seq)
	}
}

func (m *Machine) uncertain(r *PRoom, t *Token, why string) {
	m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(t.Rank), Cause: m.localCause(t.ID), Payload: &events.Event_ChunkUncertain{ChunkUncertain: &events.ChunkUncertain{
		Token: t.ID, Chunk: t.Chunk, To: string(t.To), Reason: why,
	}}})
}

func (m *Machine) token(id uint64) (*PRoom, *Token) {
	if key, ok := m.st.tokens[id]; ok {
		if r := m.proom(key); r != nil {
			return r, r.Tokens[id]
		}
	}
	return nil, nil
}
