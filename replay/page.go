package replay

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// PageStep is one thing that happened to a page.
type PageStep struct {
	At     Time    `json:"at"`
	Node   string  `json:"node"`
	Seq    uint64  `json:"seq"`
	What   string  `json:"what"` // owned, released, write_posted, write_ended, landed, refused, check_failed, quarantined
	Room   uint64  `json:"room"`
	Seqno  uint64  `json:"room_seq"`
	Rank   string  `json:"rank"`
	Chunk  *uint32 `json:"chunk"`
	Detail string  `json:"detail"`
	Bad    bool    `json:"bad"`   // it happened to a page that was not the writer's
	Bytes  []Part  `json:"bytes"` // of the page, that a write wrote; none: not known, or no write

	pos uint64
}

// PageLog is a page's owners and every write to it.
type PageLog struct {
	Node  string     `json:"node"`
	Page  uint32     `json:"page"`
	Steps []PageStep `json:"steps"`
	// Verdict is clean, corrupted or undetermined.
	Verdict string `json:"verdict"`
	Doubts  []Gap  `json:"missing"`
}

// PageHistory tells one page's life on a decode node, in merged order.
// gaps are what its evidence lacks.
func PageHistory(h *History, node string, page uint32, gaps []Gap) PageLog {
	out := PageLog{Node: node, Page: page, Steps: []PageStep{}}
	add := func(at Mark, what string, r *Room, rank string, chunk *uint32, detail string, bad bool, parts ...Part) {
		out.Steps = append(out.Steps, PageStep{
			At: Time{at.Time()}, Node: at.Node, Seq: at.Seq, What: what, Room: r.Number, Seqno: r.Seq,
			Rank: rank, Chunk: chunk, Detail: detail, Bad: bad, Bytes: append([]Part{}, parts...), pos: at.pos,
		})
	}
	for _, t := range h.Tenures(node, page) {
		add(t.From, "owned", t.Room, "", nil, "", false)
		if t.Room.Quarantined.Is() {
			add(t.Room.Quarantined, "quarantined", t.Room, "", nil, "", false)
		}
		if t.To.Is() {
			rel := t.Room.Released
			detail := "basis " + rel.Basis
			if len(rel.Missing) > 0 {
				detail += fmt.Sprintf(", missing %v", rel.Missing)
			}
			add(t.To, "released", t.Room, "", nil, detail, rel.Unsafe)
		}
	}
	stray := func(at Mark, r *Room) bool {
		owner := h.ownerAt(node, page, at)
		return owner == nil || owner.Room != r
	}
	for w := range h.Writes() {
		if rankNode(w.To) != node || !slices.Contains(w.Pages, page) {
			continue
		}
		r := h.rooms[w.Dest]
		if r == nil {
			r = w.Room
		}
		chunk := w.Chunk
		add(w.Posted, "write_posted", r, w.Rank, &chunk, "to "+w.To, false, w.Parts(page)...)
		if w.Ended.Is() {
			how := w.How
			if w.How == "drained" && w.Landed {
				how = "drained, landed"
			}
			add(w.Ended, "write_ended", r, w.Rank, &chunk, how, false, w.Parts(page)...)
		}
	}
	for _, l := range h.Landings {
		if l.Node == node && slices.Contains(l.Pages, page) {
			chunk := l.Chunk
			bad := l.After || stray(l.Mark, l.Room)
			detail := ""
			if bad {
				detail = "the page was not this room's"
			}
			add(l.Mark, "landed", l.Room, l.Rank, &chunk, detail, bad, h.partsOf(l, page)...)
		}
	}
	for _, l := range h.Refusals {
		if l.Node == node && slices.Contains(l.Pages, page) {
			add(l.Mark, "refused", l.Room, l.Rank, nil, "late write bounced", false)
		}
	}
	for _, c := range h.Checks {
		if c.Node == node && c.Page == page {
			detail := c.Detail
			if c.Len > 0 {
				detail = fmt.Sprintf("wrong: bytes %d–%d on %s; %s", c.Off, c.Off+c.Len-1, c.To, detail)
			}
			add(c.Mark, "check_failed", c.Room, "", nil, detail, true)
		}
	}
	slices.SortStableFunc(out.Steps, func(a, b PageStep) int {
		switch {
		case a.pos < b.pos:
			return -1
		case a.pos > b.pos:
			return 1
		}
		return 0
	})
	incidents := slices.DeleteFunc(Blame(h), func(in *Incident) bool { return in.Node != node || in.Page != page })
	j := h.Judge(incidents, gaps)
	out.Verdict, out.Doubts = j.Verdict, j.Doubts
	return out
}

// Write prints the page's life for people; lines marked ! are the bad ones.
func (p PageLog) Write(w io.Writer) error {
	fmt.Fprintf(w, "page %d of %s\n", p.Page, p.Node)
	if len(p.Steps) == 0 {
		_, err := fmt.Fprintln(w, "never owned, never written, as far as these logs tell")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, " \tTIME (UTC)\tWHAT\tROOM\tRANK\tCHUNK\tBYTES OF THE PAGE\tEVENT\tDETAIL")
	for _, s := range p.Steps {
		mark, chunk := " ", "-"
		if s.Bad {
			mark = "!"
		}
		if s.Chunk != nil {
			chunk = fmt.Sprint(*s.Chunk)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d/%d\t%s\t%s\t%s\t%s#%d\t%s\n",
			mark, s.At.Format("2006-01-02 15:04:05.000"), s.What, s.Room, s.Seqno, dash(s.Rank), chunk, dash(PartsText(s.Bytes)), s.Node, s.Seq, s.Detail)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	var sb strings.Builder
	fmt.Fprintf(&sb, "\n%s", p.Verdict)
	if len(p.Doubts) > 0 {
		fmt.Fprintf(&sb, ", because %s", gapsText(p.Doubts))
	}
	if p.Verdict != Undetermined && len(p.Doubts) > 0 {
		sb.Reset()
		fmt.Fprintf(&sb, "\n%s, as far as these logs go: %s", p.Verdict, gapsText(p.Doubts))
	}
	_, err := fmt.Fprintln(w, sb.String())
	return err
}
