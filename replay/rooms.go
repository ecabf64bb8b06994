package replay

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/pdlog/pdlog/events"
)

// RoomRow is one room incarnation in the table of rooms. Durations that the
// logs do not tell are nil.
type RoomRow struct {
	Node         string   `json:"node"`
	Role         string   `json:"role"`
	Room         uint64   `json:"room"`
	RoomSeq      uint64   `json:"room_seq"`
	RequestID    string   `json:"request_id"`
	State        string   `json:"state"`
	Outcome      string   `json:"outcome"` // succeeded, failed, "" = none yet
	Cause        string   `json:"cause"`
	Reason       string   `json:"reason"`
	Ranks        []string `json:"ranks"`
	Pages        []uint32 `json:"pages"`
	Chunks       int      `json:"chunks"` // writes posted
	OpenWrites   int      `json:"open_writes"`
	Bytes        uint64   `json:"bytes"`
	Generation   uint64   `json:"generation"`
	ReleaseBasis string   `json:"release_basis"`
	Unsafe       bool     `json:"unsafe"`
	Missing      []string `json:"missing"`
	OpenedAt     Time     `json:"opened_at"`
	// OutcomeMS is from open to outcome, ReleaseMS from the outcome to the
	// release, HeldMS from the armed abort to the release.
	OutcomeMS *int64 `json:"outcome_ms"`
	ReleaseMS *int64 `json:"release_ms"`
	HeldMS    *int64 `json:"held_ms"`
}

// RoomTable lists the room incarnations of a history in order of their
// beginning. A prefill incarnation whose decode room is in view is part of that
// room's line; else it has one of its own.
func RoomTable(h *History) []RoomRow {
	joined := map[*Room]bool{}
	for _, r := range h.Rooms {
		for _, p := range r.Peers {
			joined[p] = true
		}
	}
	rows := []RoomRow{}
	for _, r := range h.Rooms {
		if !joined[r] {
			rows = append(rows, rowOf(r))
		}
	}
	return rows
}

func rowOf(r *Room) RoomRow {
	row := RoomRow{
		Node: r.Node, Role: events.EnumWord(r.Role.Descriptor(), r.Role.Number()), Room: r.Number, RoomSeq: r.Seq, RequestID: r.RequestID,
		State: r.State(), Outcome: r.Outcome, Cause: r.Cause, Reason: r.Reason,
		Ranks: append([]string{}, r.Ranks()...), Pages: append([]uint32{}, r.Pages...), Generation: r.Generation,
		Missing: append([]string{}, r.Missing()...), OpenedAt: Time{r.Opened.Time()},
	}
	add := func(w *Write) {
		row.Chunks++
		row.Bytes += w.Bytes
		if !w.Ended.Is() {
			row.OpenWrites++
		}
	}
	for _, w := range r.Writes {
		add(w)
	}
	for _, p := range r.Peers {
		for _, w := range p.Writes {
			if w.Dest == r.RoomKey {
				add(w)
			}
		}
	}
	row.OutcomeMS = msBetween(r.Opened, r.Ended)
	if rel := r.Released; rel != nil {
		row.ReleaseBasis, row.Unsafe, row.Missing = rel.Basis, rel.Unsafe, append([]string{}, rel.Missing...)
		row.ReleaseMS, row.HeldMS = msBetween(r.Ended, rel.Mark), msBetween(r.Armed, rel.Mark)
	}
	return row
}

func msBetween(from, to Mark) *int64 {
	if ms, ok := to.Since(from); ok {
		return &ms
	}
	return nil
}

// WriteRooms prints the table for people.
func WriteRooms(w io.Writer, rows []RoomRow) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "OPENED (UTC)\tNODE\tROOM\tSEQ\tSTATE\tOUTCOME\tIN\tRANKS\tPAGES\tCHUNKS\tGEN\tRELEASE\tAFTER\tHELD\tNOTE")
	for _, r := range rows {
		outcome := r.Outcome
		if r.Cause != "" {
			outcome += " (" + r.Cause + ")"
		}
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			r.OpenedAt.Format("2006-01-02 15:04:05.000"), r.Node, r.Room, r.RoomSeq, r.State, dash(outcome), msText(r.OutcomeMS),
			dash(strings.Join(r.Ranks, ",")), pagesText(r.Pages), chunksText(r), generationText(r.Generation),
			dash(r.ReleaseBasis), msText(r.ReleaseMS), msText(r.HeldMS), noteOf(r))
	}
	return tw.Flush()
}

func noteOf(r RoomRow) string {
	var notes []string
	if r.Unsafe {
		notes = append(notes, "UNSAFE")
	}
	if len(r.Missing) > 0 && (r.Unsafe || r.State == "held" || r.State == "quarantined") {
		notes = append(notes, "missing "+strings.Join(r.Missing, ","))
	}
	return strings.Join(notes, " ")
}

func chunksText(r RoomRow) string {
	if r.OpenWrites > 0 {
		return fmt.Sprintf("%d (%d open)", r.Chunks, r.OpenWrites)
	}
	return strconv.Itoa(r.Chunks)
}

// generationText drops the base that a log took from the clock (events.md,
// identity): people compare the low bits.
func generationText(gen uint64) string {
	const baseBits = 24
	switch {
	case gen == 0:
		return "-"
	case gen>>baseBits == 0:
		return strconv.FormatUint(gen, 10)
	default:
		return fmt.Sprintf("…%d", gen&(1<<baseBits-1))
	}
}

func pagesText(pages []uint32) string {
	s := Ranges(pages)
	if len(s) > 28 {
		sorted := slices.Sorted(slices.Values(pages))
		return fmt.Sprintf("%d pages %d..%d", len(pages), sorted[0], sorted[len(sorted)-1])
	}
	return s
}

func msText(ms *int64) string {
	if ms == nil {
		return "-"
	}
	return millisText(*ms)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
