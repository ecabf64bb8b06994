package replay

import (
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pdlog/pdlog/events"
)

// Life is everything that happened to one room number, on all nodes.
type Life struct {
	Room   uint64
	Rows   []RoomRow       // its incarnations
	Events []*events.Event // in merged order
}

// Lifeline gathers one room number's life from a stream. seq chooses the
// incarnations that belong to a decode room_seq; 0 takes all.
func Lifeline(stream iter.Seq2[*events.Event, error], room, seq uint64) (*Life, error) {
	h := NewHistory()
	l := &Life{Room: room}
	for e, err := range stream {
		if err != nil {
			return nil, err
		}
		if e.Room == room {
			h.Add(e)
			l.Events = append(l.Events, e)
		}
	}
	l.Rows = RoomTable(h)
	if seq != 0 {
		l.keep(h, seq)
	}
	return l, nil
}

func (l *Life) keep(h *History, seq uint64) {
	wanted := map[RoomKey]bool{}
	for _, r := range h.Rooms {
		if r.Seq != seq {
			continue
		}
		wanted[r.RoomKey] = true
		for _, p := range r.Peers {
			wanted[p.RoomKey] = true
		}
		for _, d := range r.Dests {
			wanted[d] = true
		}
	}
	l.Events = slices.DeleteFunc(l.Events, func(e *events.Event) bool { return !wanted[RoomKey{e.Node, e.RoomSeq}] })
	l.Rows = slices.DeleteFunc(l.Rows, func(r RoomRow) bool { return !wanted[RoomKey{r.Node, r.RoomSeq}] })
}

// Write prints the lifeline: time runs down, a lane per decode node and per
// prefill rank, an arrow where a message of one node led to an event of another.
func (l *Life) Write(w io.Writer) error {
	for _, r := range l.Rows {
		if _, err := fmt.Fprintln(w, headline(r)); err != nil {
			return err
		}
	}
	if len(l.Events) == 0 {
		return nil
	}
	d := newDrawing(l.Events)
	first := l.Events[0].Time()
	fmt.Fprintf(w, "\nfrom %s UTC\n\n", first.Format("2006-01-02 15:04:05.000"))
	fmt.Fprintf(w, "%10s  %s\n", "after", d.names())
	before := first
	for _, e := range l.Events {
		if wait := e.Time().Sub(before); wait >= longWait {
			fmt.Fprintf(w, "%10s  %s %s pass\n", "", d.idle(), millisText(wait.Milliseconds()))
		}
		before = e.Time()
		after := millisText(before.Sub(first).Milliseconds())
		if _, err := fmt.Fprintf(w, "%10s  %s %s\n", "+"+after, d.line(e), d.text(e)); err != nil {
			return err
		}
	}
	return nil
}

// longWait is a silence that a reader should see: longer than any message or
// commit takes.
const longWait = 500 * time.Millisecond

func headline(r RoomRow) string {
	s := fmt.Sprintf("room %d/%d on %s (%s): %s", r.Room, r.RoomSeq, r.Node, r.Role, r.State)
	if r.Outcome != "" {
		s += ", " + r.Outcome
		if r.Cause != "" {
			s += " (" + r.Cause + ")"
		}
		if r.OutcomeMS != nil {
			s += " after " + millisText(*r.OutcomeMS)
		}
	}
	if r.ReleaseBasis != "" {
		s += ", released by " + r.ReleaseBasis
		if r.ReleaseMS != nil {
			s += " " + millisText(*r.ReleaseMS) + " later"
		}
		if r.Unsafe {
			s += " UNSAFE"
		}
	}
	if len(r.Missing) > 0 {
		s += ", missing " + strings.Join(r.Missing, ",")
	}
	if len(r.Pages) > 0 {
		s += ", pages " + Ranges(r.Pages)
	}
	return s
}

// drawing lays out the lanes.
type drawing struct {
	lanes []string
	index map[string]int
	width int
	at    map[RoomKey]int // lane of an event, for arrows: node and seq
}

func newDrawing(evs []*events.Event) *drawing {
	d := &drawing{index: map[string]int{}, at: map[RoomKey]int{}}
	var decode, prefill []string
	for _, e := range evs {
		if name := laneName(e); name == e.Node {
			decode = append(decode, name) // a prefill node is sorted out below
		} else {
			prefill = append(prefill, name)
		}
	}
	slices.Sort(decode)
	slices.Sort(prefill)
	prefill = slices.Compact(prefill)
	for _, n := range slices.Compact(decode) {
		if !slices.ContainsFunc(prefill, func(p string) bool { return rankNode(p) == n }) {
			d.lanes = append(d.lanes, n)
		}
	}
	d.lanes = append(d.lanes, prefill...)
	d.width = 6
	for i, n := range d.lanes {
		d.index[n] = i
		d.width = max(d.width, utf8.RuneCountInString(n)+3)
	}
	for _, e := range evs {
		d.at[RoomKey{e.Node, e.Seq}] = d.laneOf(e)
	}
	return d
}

// laneName: a prefill rank's events stand in its own lane, a decode node's in
// the node's.
func laneName(e *events.Event) string {
	if e.Rank != "" && rankNode(e.Rank) == e.Node {
		return e.Rank
	}
	return e.Node
}

// laneOf is the lane of an event; a prefill node's own events (no rank) stand
// in its first rank's lane.
func (d *drawing) laneOf(e *events.Event) int {
	if i, ok := d.index[laneName(e)]; ok {
		return i
	}
	for i, n := range d.lanes {
		if rankNode(n) == e.Node {
			return i
		}
	}
	return 0
}

func (d *drawing) names() string {
	var sb strings.Builder
	for _, n := range d.lanes {
		sb.WriteString(n + strings.Repeat(" ", d.width-utf8.RuneCountInString(n)))
	}
	return sb.String()
}

// text is what happened; in a node's own lane it names the rank it is about.
func (d *drawing) text(e *events.Event) string {
	s := Describe(e)
	if e.Rank == "" || laneName(e) == e.Rank {
		return s
	}
	name, rest, _ := strings.Cut(s, " ")
	return strings.TrimSpace(name + " " + e.Rank + " " + rest)
}

// idle draws the lanes where nothing happens.
func (d *drawing) idle() string {
	return strings.Repeat("┆"+strings.Repeat(" ", d.width-1), len(d.lanes))
}

// line draws the lanes at one event.
func (d *drawing) line(e *events.Event) string {
	cells := make([]rune, d.width*len(d.lanes))
	for i := range cells {
		cells[i] = ' '
	}
	for i := range d.lanes {
		cells[i*d.width] = '│'
	}
	to := d.laneOf(e)
	if c := e.Cause; c != nil && c.Node != "" && c.Node != e.Node {
		if from, ok := d.at[RoomKey{c.Node, c.Seq}]; ok && from != to {
			d.arrow(cells, from, to)
		}
	}
	cells[to*d.width] = '●'
	return string(cells)
}

func (d *drawing) arrow(cells []rune, from, to int) {
	lo, hi := min(from, to)*d.width, max(from, to)*d.width
	for i := lo + 1; i < hi; i++ {
		if cells[i] == '│' {
			cells[i] = '┼'
		} else {
			cells[i] = '─'
		}
	}
	if from < to {
		cells[lo], cells[hi-1] = '├', '▶'
	} else {
		cells[hi], cells[lo+1] = '┤', '◀'
	}
}

// Select drops the events that a filter does not want; the rooms stay.
func (l *Life) Select(f *Filter) {
	l.Events = slices.DeleteFunc(l.Events, func(e *events.Event) bool { return !f.Match(e) })
}
