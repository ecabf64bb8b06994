package replay

import (
	"cmp"
	"slices"
	"strconv"
)

// Incident is one page of one room incarnation that a write reached which had
// no business there, or whose bytes failed their check (cli.md, blame). A nil
// pointer means that the logs do not say, or that there is none: nobody owned
// the page, no transfer wrote it.
type Incident struct {
	Node          string   `json:"node"` // the decode node
	Page          uint32   `json:"page"`
	VictimRoom    *uint64  `json:"victim_room"`
	VictimRoomSeq *uint64  `json:"victim_room_seq"`
	WriterRoom    *uint64  `json:"writer_room"`
	WriterRoomSeq *uint64  `json:"writer_room_seq"` // on the decode node
	Writer        *string  `json:"writer"`          // prefill rank
	Chunk         *uint32  `json:"chunk"`
	ReleasedSeq   *uint64  `json:"released_seq"` // of the writer's room, on Node
	ReleaseBasis  *string  `json:"release_basis"`
	MissingAcks   []string `json:"missing_acks"` // ranks without evidence at that release
	ReleasedAt    *Time    `json:"released_at"`
	WriteLandedAt *Time    `json:"write_landed_at"`
	// Certainty says what the writer's name rests on: landed (an event says that
	// the write landed there), possible (it was open when the bytes were found
	// wrong), unknown (no writer).
	Certainty string `json:"certainty"`
	// CheckFailedSeq is the event that found wrong bytes, 0 if none did.
	CheckFailedSeq uint64 `json:"check_failed_seq"`
	// Bytes are which bytes of the page the write wrote; none if the logs do not tell
	// how memory is laid out, or there is no writer.
	Bytes []Part `json:"bytes"`
	// WrongBytes are the stretches in which bytes were found wrong.
	WrongBytes []Stretch `json:"wrong_bytes,omitempty"`
	// Cleared are the other writes of the writers' rooms to the same page: slices of
	// it, of which the logs show that they did no harm.
	Cleared []Clearing `json:"cleared,omitempty"`
	// Others are further writes that reached the page while it was the victim's:
	// a page that several ranks write slices of has a culprit for each.
	Others []Culprit `json:"others,omitempty"`
	// Evidence names the events behind the incident, "node#seq".
	Evidence []string `json:"evidence"`
	// Doubts are missing parts of logs that keep the writer from being certain.
	Doubts []Gap `json:"missing,omitempty"`

	at uint64 // place in the merged order
}

// Culprit is a write that had no business in a page.
type Culprit struct {
	Writer        string `json:"writer"` // prefill rank
	WriterRoom    uint64 `json:"writer_room"`
	WriterRoomSeq uint64 `json:"writer_room_seq"` // on the decode node
	Chunk         uint32 `json:"chunk"`
	LandedAt      *Time  `json:"write_landed_at"`
	Certainty     string `json:"certainty"` // landed, possible
	Bytes         []Part `json:"bytes"`
}

// Stretch is n bytes of a page on a decode rank.
type Stretch struct {
	To  string `json:"to"`
	Off uint64 `json:"off_bytes"`
	Len uint64 `json:"len_bytes"`
}

type incidentKey struct {
	node           string
	page           uint32
	victim, writer uint64 // room_seq; writer counts only where nobody is the victim
}

// blamer collects incidents, one per victim incarnation and page.
type blamer struct {
	h     *History
	late  map[*Room][]*Landing // by the writer's room
	found map[incidentKey]*Incident
	// writers are the rooms whose writes an incident names
	writers map[*Incident][]*Room
}

// Blame lists the incidents of a history in the order in which they happened.
// A write is a suspect only if nothing proves that it had ended before its
// room's pages were released: a room with a proper ACK gives none.
func Blame(h *History) []*Incident {
	b := &blamer{h: h, late: map[*Room][]*Landing{}, found: map[incidentKey]*Incident{}, writers: map[*Incident][]*Room{}}
	for _, l := range h.Landings {
		b.landing(l)
	}
	for w := range h.Writes() {
		b.lateWrite(w)
	}
	for _, c := range h.Checks {
		b.check(c)
	}
	b.clear()
	out := make([]*Incident, 0, len(b.found))
	for _, in := range b.found {
		out = append(out, in)
	}
	slices.SortFunc(out, func(a, c *Incident) int {
		return cmp.Or(cmp.Compare(a.at, c.at), cmp.Compare(a.Node, c.Node), cmp.Compare(a.Page, c.Page))
	})
	return out
}

// landing: the decode node saw the write land, after the release or in a page
// that another room owns.
func (b *blamer) landing(l *Landing) {
	if l.After {
		b.late[l.Room] = append(b.late[l.Room], l)
	}
	for _, page := range l.Pages {
		owner := b.h.ownerAt(l.Node, page, l.Mark)
		foreign := owner != nil && owner.Room != l.Room
		if l.After || foreign {
			chunk := l.Chunk
			b.add(page, owner, l.Room, suspicion{l.Rank, &chunk, "landed", l.Mark, b.h.partsOf(l, page)}, l.Mark)
		}
	}
}

// lateWrite: the writer's log alone shows that a write landed late. A fence, or
// a refusal of the decode node, proves that it did not; and where the decode
// node saw the chunk land in time, it did.
func (b *blamer) lateWrite(w *Write) {
	if !w.Landed {
		return
	}
	r := b.h.rooms[w.Dest]
	if r == nil || b.sawLate(w, r) {
		return
	}
	late := r.Released != nil && b.h.before(r.Released.Mark, w.Ended) && b.suspect(w, r)
	if pr := r.Pairs[PairKey{w.Rank, w.To}]; pr != nil && pr.inTime[w.Chunk] {
		return
	}
	chunk := w.Chunk
	for _, page := range w.Pages {
		owner := b.h.ownerAt(r.Node, page, w.Ended)
		if late || owner != nil && owner.Room != r && !slices.Contains(r.Pages, page) {
			b.add(page, owner, r, suspicion{w.Rank, &chunk, "landed", w.Ended, w.Parts(page)}, w.Ended)
		}
	}
}

// sawLate: the decode node itself reported this write as late.
func (b *blamer) sawLate(w *Write, r *Room) bool {
	return slices.ContainsFunc(b.late[r], func(l *Landing) bool {
		return l.Rank == w.Rank && l.To == w.To && l.Chunk == w.Chunk
	})
}

// suspect says whether the release of a write's room leaves it possible that
// the write lands: no evidence for its pair, or evidence that was given while
// it was open.
func (b *blamer) suspect(w *Write, r *Room) bool {
	k := PairKey{w.Rank, w.To}
	pr := r.Pairs[k]
	if pr == nil || pr.Fenced.Is() || pr.Rejected.Is() {
		return false
	}
	return !r.Released.proven[k] || w.vouched
}

// check: bytes were found wrong. The writer is the late write that landed there
// while the room had the page; else one that was still open then; else a rank
// whose room lost the page without evidence. Where the check says which bytes,
// a write of other bytes of the page is none of them.
func (b *blamer) check(c *PageCheck) {
	owner := b.h.ownerAt(c.Node, c.Page, c.Mark)
	if owner == nil || owner.Room != c.Room {
		owner = &Tenure{Room: c.Room, From: c.Room.Opened}
		for _, t := range b.h.Tenures(c.Node, c.Page) {
			if t.Room == c.Room {
				owner = t
			}
		}
	}
	in := b.found[incidentKey{c.Node, c.Page, c.Room.Seq, 0}]
	if in == nil || !in.explains(c) {
		if w, r := b.openInto(c, owner); w != nil {
			chunk := w.Chunk
			in = b.add(c.Page, owner, r, suspicion{w.Rank, &chunk, "possible", w.Ended, w.Parts(c.Page)}, c.Mark)
			in.Evidence = append(in.Evidence, evidenceOf(w.Posted))
		} else if in == nil {
			s := suspicion{certainty: "unknown"}
			r, rank := b.unproven(c, owner)
			if r != nil {
				s = suspicion{rank: rank, certainty: "possible"}
			}
			in = b.add(c.Page, owner, r, s, c.Mark)
		}
	}
	if in.CheckFailedSeq == 0 {
		in.CheckFailedSeq = c.Seq
	}
	in.Evidence = append(in.Evidence, evidenceOf(c.Mark))
	if c.Len > 0 {
		in.WrongBytes = append(in.WrongBytes, Stretch{c.To, c.Off, c.Len})
	}
}

// explains: a write that the incident names wrote what the check found wrong.
func (in *Incident) explains(c *PageCheck) bool {
	return in.Writer != nil && touch(in.Bytes, c.To, c.Off, c.Len) ||
		slices.ContainsFunc(in.Others, func(o Culprit) bool { return touch(o.Bytes, c.To, c.Off, c.Len) })
}

// openInto finds a write of another incarnation that could still land in the
// page when its bytes were found wrong, the newest one.
func (b *blamer) openInto(c *PageCheck, victim *Tenure) (*Write, *Room) {
	var found *Write
	var room *Room
	for w := range b.h.Writes() {
		r := b.h.rooms[w.Dest]
		if r == nil || r == victim.Room || r.Node != c.Node || b.h.before(c.Mark, w.Posted) || !slices.Contains(w.Pages, c.Page) ||
			c.To != "" && w.To != c.To || !touch(w.Parts(c.Page), c.To, c.Off, c.Len) {
			continue
		}
		ended := w.Ended.Is() && (!w.Landed || b.h.before(w.Ended, victim.From))
		if ended || r.Released == nil || r.Released.pos > c.pos || !b.suspect(w, r) {
			continue
		}
		if pr := r.Pairs[PairKey{w.Rank, w.To}]; pr.inTime[w.Chunk] {
			continue
		}
		if found == nil || w.Posted.pos > found.Posted.pos {
			found, room = w, r
		}
	}
	return found, room
}

// unproven finds the newest release of the page, before the victim had it, that
// lacked a rank's evidence: all that a decode node's log alone can tell.
func (b *blamer) unproven(c *PageCheck, victim *Tenure) (*Room, string) {
	ts := b.h.Tenures(c.Node, c.Page)
	for i := len(ts) - 1; i >= 0; i-- {
		r := ts[i].Room
		if r == victim.Room || r.Released == nil || ts[i].From.pos > victim.From.pos || len(r.Released.Missing) == 0 {
			continue
		}
		for _, rank := range r.Released.Missing {
			if !b.ended(r, rank) {
				return r, rank
			}
		}
	}
	return nil, ""
}

// ended: the writer's own log is here and shows that none of the rank's writes
// to the room could have been under way.
func (b *blamer) ended(r *Room, rank string) bool {
	if len(r.Peers) == 0 {
		return false
	}
	for _, p := range r.Peers {
		if p.Node != rankNode(rank) {
			continue
		}
		for _, w := range p.Writes {
			if w.Rank == rank && w.Dest == r.RoomKey && (!w.Ended.Is() || b.h.before(r.Released.Mark, w.Ended)) {
				return false
			}
		}
		return true
	}
	return false
}

// suspicion is a write that has or may have written a page.
type suspicion struct {
	rank      string // "" = nobody
	chunk     *uint32
	certainty string // of Incident
	landed    Mark
	parts     []Part
}

func (b *blamer) add(page uint32, owner *Tenure, r *Room, s suspicion, at Mark) *Incident {
	k := incidentKey{page: page}
	in := &Incident{Page: page, MissingAcks: []string{}, Chunk: s.chunk, Certainty: s.certainty, Bytes: []Part{}, at: at.pos}
	in.Bytes = append(in.Bytes, s.parts...)
	if owner != nil && owner.Room != r {
		v := owner.Room
		in.Node, in.VictimRoom, in.VictimRoomSeq = v.Node, &v.Number, &v.Seq
		k.victim = v.Seq
	}
	if r != nil {
		in.Node, in.WriterRoom, in.WriterRoomSeq = r.Node, &r.Number, &r.Seq
		if k.victim == 0 {
			k.writer = r.Seq
		}
		if rel := r.Released; rel != nil {
			at := Time{rel.Time()}
			in.ReleasedSeq, in.ReleaseBasis, in.ReleasedAt = &rel.Seq, &rel.Basis, &at
			in.MissingAcks = append(in.MissingAcks, rel.Missing...)
			in.Evidence = append(in.Evidence, evidenceOf(rel.Mark))
		}
	}
	if s.rank != "" {
		in.Writer = &s.rank
	}
	if s.landed.Is() {
		t := Time{s.landed.Time()}
		in.WriteLandedAt = &t
		in.Evidence = append(in.Evidence, evidenceOf(s.landed))
	}
	k.node = in.Node
	first := b.found[k]
	if first != nil {
		first.also(in)
		in = first // the first to land comes first
	}
	b.found[k] = in
	if r != nil && !slices.Contains(b.writers[in], r) {
		b.writers[in] = append(b.writers[in], r)
	}
	return in
}

// also adds the writer of another incident of the same page and victim.
func (in *Incident) also(other *Incident) {
	if other.Writer == nil || other.Chunk == nil || other.WriterRoomSeq == nil {
		return
	}
	c := Culprit{*other.Writer, *other.WriterRoom, *other.WriterRoomSeq, *other.Chunk, other.WriteLandedAt, other.Certainty, other.Bytes}
	if !in.names(c.Writer, c.WriterRoomSeq, c.Chunk) {
		in.Others = append(in.Others, c)
		in.Evidence = append(in.Evidence, other.Evidence...)
	}
}

// names says whether a write is one of the incident's culprits.
func (in *Incident) names(rank string, roomSeq uint64, chunk uint32) bool {
	return in.Writer != nil && in.Chunk != nil && in.WriterRoomSeq != nil && *in.Writer == rank && *in.WriterRoomSeq == roomSeq && *in.Chunk == chunk ||
		slices.ContainsFunc(in.Others, func(o Culprit) bool { return o.Writer == rank && o.WriterRoomSeq == roomSeq && o.Chunk == chunk })
}

func evidenceOf(m Mark) string { return m.Node + "#" + strconv.FormatUint(m.Seq, 10) }
