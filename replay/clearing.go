package replay

import (
	"cmp"
	"fmt"
	"slices"
)

// Clearing is a write to a page of an incident that did no harm there: a rank that
// wrote another slice of the page, and of which the logs show that it had ended.
type Clearing struct {
	Writer     string `json:"writer"` // prefill rank
	WriterRoom uint64 `json:"writer_room"`
	Chunk      uint32 `json:"chunk"`
	Bytes      []Part `json:"bytes"`
	Why        string `json:"why"`
	Evidence   string `json:"evidence"` // the event behind it
}

// clear lists for each incident the writes that it does not name, of the rooms
// that it does. What is neither named nor cleared, the logs leave open.
func (b *blamer) clear() {
	if len(b.found) == 0 {
		return
	}
	landed := map[*Room][]*Landing{}
	for _, l := range b.h.Landings {
		landed[l.Room] = append(landed[l.Room], l)
	}
	for in, rooms := range b.writers {
		for _, r := range rooms {
			b.clearRoom(in, r, landed[r])
		}
		slices.SortFunc(in.Cleared, func(x, y Clearing) int {
			return cmp.Or(cmp.Compare(x.WriterRoom, y.WriterRoom), cmp.Compare(x.Writer, y.Writer), cmp.Compare(x.Chunk, y.Chunk))
		})
	}
}

func (b *blamer) clearRoom(in *Incident, r *Room, landed []*Landing) {
	type slice struct {
		rank  string
		chunk uint32
	}
	seen := map[slice]bool{}
	put := func(rank string, chunk uint32, parts []Part, why string, by Mark) {
		k := slice{rank, chunk}
		if seen[k] || in.names(rank, r.Seq, chunk) {
			return
		}
		seen[k] = true
		in.Cleared = append(in.Cleared, Clearing{rank, r.Number, chunk, append([]Part{}, parts...), why, evidenceOf(by)})
	}
	for _, l := range landed {
		if !l.After && slices.Contains(l.Pages, in.Page) {
			put(l.Rank, l.Chunk, b.h.partsOf(l, in.Page), "landed while the page was its room's", l.Mark)
		}
	}
	for _, p := range r.Peers {
		for _, w := range p.Writes {
			if w.Dest != r.RoomKey || !slices.Contains(w.Pages, in.Page) {
				continue
			}
			if why, by := b.harmless(in, w, r); by.Is() {
				put(w.Rank, w.Chunk, w.Parts(in.Page), why, by)
			}
		}
	}
}

// harmless says why a write that did not land in time did no harm; a zero mark if
// the logs do not show it.
func (b *blamer) harmless(in *Incident, w *Write, r *Room) (why string, by Mark) {
	pr := r.Pairs[PairKey{w.Rank, w.To}]
	switch {
	case w.Ended.Is() && !w.Landed:
		return "ended without landing", w.Ended
	case w.Ended.Is() && (r.Released == nil || b.h.before(w.Ended, r.Released.Mark)):
		return "ended before the pages were released", w.Ended
	case pr != nil && pr.Rejected.Is():
		return "bounced", pr.Rejected
	case pr != nil && pr.Fenced.Is():
		return "its access had been revoked", pr.Fenced
	case in.Certainty != "landed" && len(in.WrongBytes) > 0 && !slices.ContainsFunc(in.WrongBytes, func(s Stretch) bool { return touch(w.Parts(in.Page), s.To, s.Off, s.Len) }):
		return "wrote other bytes than those that are wrong", w.Posted
	}
	return "", Mark{}
}

// Text is the clearing as a sentence.
func (c Clearing) Text() string {
	s := fmt.Sprintf("%s, chunk %d", c.Writer, c.Chunk)
	if t := PartsText(c.Bytes); t != "" {
		s += " (" + t + ")"
	}
	return s + ", is cleared: " + c.Why + "."
}
