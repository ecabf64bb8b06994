package replay

import (
	"slices"

	"github.com/pdlog/pdlog/events"
)

func (h *History) addDecode(r *Room, at Mark, e *events.Event) {
	switch p := e.Payload.(type) {
	case *events.Event_PagesReserved:
		r.Role = events.Role_ROLE_DECODE
		r.Pages, r.Aux, r.Reserved = p.PagesReserved.GetPages(), p.PagesReserved.GetAux(), at
		for _, page := range r.Pages {
			h.tenure(e.Node, page, &Tenure{Room: r, From: at})
		}
	case *events.Event_PublishStarted:
		pr := r.pair(e.Rank, p.PublishStarted.GetTo())
		pr.Published, pr.Dummy = at, p.PublishStarted.GetDummy()
	case *events.Event_StatusReceived:
		s := p.StatusReceived
		if s.GetCounted() && s.GetStatus() == events.TerminalStatus_TERMINAL_STATUS_SUCCESS {
			r.pair(e.Rank, s.GetTo()).Succeeded = at
		}
	case *events.Event_AbortArmed:
		r.Generation, r.Armed = p.AbortArmed.GetGeneration(), at
	case *events.Event_AckReceived:
		if a := p.AckReceived; a.GetCounted() {
			r.pair(e.Rank, a.GetTo()).Acked = at
		}
	case *events.Event_Fenced:
		r.pair(e.Rank, p.Fenced.GetTo()).Fenced = at
	case *events.Event_PeerRestartProven:
		r.pair(e.Rank, p.PeerRestartProven.GetTo()).Fenced = at
	case *events.Event_Quarantined:
		r.Quarantined = at
	case *events.Event_Released:
		h.release(r, at, p.Released)
	case *events.Event_WriteLanded:
		h.landed(r, at, e, p.WriteLanded)
	case *events.Event_LateWriteRejected:
		l := p.LateWriteRejected
		if pr := r.Pairs[PairKey{e.Rank, l.GetTo()}]; pr != nil {
			pr.Rejected = at
		}
		h.Refusals = append(h.Refusals, &Landing{Mark: at, Room: r, Rank: e.Rank, To: l.GetTo(), Pages: l.GetPages()})
	case *events.Event_PageCheckFailed:
		c := p.PageCheckFailed
		h.Checks = append(h.Checks, &PageCheck{Mark: at, Room: r, Page: c.GetPage(), To: c.GetTo(), Detail: c.GetDetail(), Off: c.GetPageOff(), Len: c.GetPageLen()})
	}
}

func (r *Room) pair(rank, to string) *Pair {
	if r.Pairs == nil {
		r.Pairs = map[PairKey]*Pair{}
	}
	k := PairKey{rank, to}
	if r.Pairs[k] == nil {
		r.Pairs[k] = &Pair{}
	}
	return r.Pairs[k]
}

func (h *History) tenure(node string, page uint32, t *Tenure) {
	m := h.pages[node]
	if m == nil {
		m = map[uint32][]*Tenure{}
		h.pages[node] = m
	}
	m[page] = append(m[page], t)
}

func (h *History) release(r *Room, at Mark, p *events.Released) {
	if r.Released != nil {
		return
	}
	rel := &Release{
		Mark: at, Basis: events.EnumWord(p.GetBasis().Descriptor(), p.GetBasis().Number()),
		Unsafe: p.GetUnsafe(), proven: map[PairKey]bool{},
	}
	for _, ev := range p.GetEvidence() {
		switch ev.GetBasis() {
		case events.Basis_BASIS_FORCED, events.Basis_BASIS_TIMEOUT, events.Basis_BASIS_UNSPECIFIED:
		default:
			rel.proven[PairKey{ev.GetRank(), ev.GetTo()}] = true
		}
	}
	for _, m := range p.GetMissing() {
		rel.Missing = append(rel.Missing, m.GetRank())
	}
	for k, pr := range r.Pairs { // what a release does not admit to
		if pr.Published.Is() && !rel.proven[k] && !pr.Dummy {
			rel.Missing = append(rel.Missing, k.Rank)
		}
	}
	slices.Sort(rel.Missing)
	rel.Missing = slices.Compact(rel.Missing)
	r.Released = rel
	for _, page := range p.GetPages() {
		ts := h.pages[r.Node][page]
		for i := len(ts) - 1; i >= 0; i-- {
			if ts[i].Room == r {
				ts[i].To = at
				break
			}
		}
	}
}

func (h *History) landed(r *Room, at Mark, e *events.Event, p *events.WriteLanded) {
	late := p.GetAfterRelease() || r.Released != nil
	if !late {
		pr := r.pair(e.Rank, p.GetTo())
		if pr.inTime == nil {
			pr.inTime = map[uint32]bool{}
		}
		pr.inTime[p.GetChunk()] = true
	}
	l := &Landing{
		Mark: at, Room: r, Rank: e.Rank, To: p.GetTo(), Chunk: p.GetChunk(), Pages: p.GetPages(), After: late,
		off: p.GetPageOff(), len: p.GetPageLen(), pageBytes: h.memory.pageBytes(p.GetTo()),
	}
	if l.len == 0 && p.GetBytes() == l.pageBytes*uint64(len(l.Pages)) { // not a part of each
		l.len = l.pageBytes
	}
	h.Landings = append(h.Landings, l)
}
