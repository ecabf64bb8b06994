package picture

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
)

// Detailed is how many events a page shows one by one.
const Detailed = 10_000

// bins is how many slices of time an aggregated lane has: more than a screen
// has pixels for, so that a first zoom still says something.
const bins = 1200

// Scene is everything that is drawn. Times are ms from Start.
type Scene struct {
	Start      replay.Time `json:"start"`
	Length     int64       `json:"length"`
	Lanes      []Lane      `json:"lanes"`
	Bars       []Bar       `json:"bars"`
	Marks      []Mark      `json:"marks"`
	Events     int         `json:"events"`
	Aggregated bool        `json:"aggregated"`

	rows      []*events.Event
	incidents []*replay.Incident
	history   *replay.History
}

// Lane is one node or rank.
type Lane struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // decode, rank
	Rows int    `json:"rows"` // bars that overlap stand in rows of their own
}

// Bar is something that lasts.
type Bar struct {
	Lane  int      `json:"lane"`
	Row   int      `json:"row"`
	From  int64    `json:"from"`
	To    int64    `json:"to"`
	Kind  string   `json:"kind"` // room, held, victim, write, late, busy
	Text  string   `json:"text"`
	Label string   `json:"label"` // what fits inside
	Weigh float64  `json:"weigh,omitempty"`
	Refs  []string `json:"refs"` // ids of events, node#seq
	room  replay.RoomKey
}

// Mark is something that happens at once.
type Mark struct {
	Lane int      `json:"lane"`
	At   int64    `json:"at"`
	Kind string   `json:"kind"` // release, unsafe, latewrite, refused, check, quarantine
	Text string   `json:"text"`
	Refs []string `json:"refs"`
	room replay.RoomKey
}

// Build reads the logs. A log that is damaged or unavailable is an error.
func Build(ctx context.Context, logs []*replay.Log) (*Scene, error) {
	s := &Scene{history: replay.NewHistory()}
	for e, err := range replay.Merge(ctx, logs) {
		if err != nil {
			return nil, err
		}
		s.history.Add(e)
		s.Events++
		switch {
		case s.Events <= Detailed:
			s.rows = append(s.rows, e)
		default:
			s.Aggregated, s.rows = true, nil
		}
	}
	s.incidents = replay.Blame(s.history)
	involved := s.involved()
	if s.Aggregated {
		for e, err := range replay.Merge(ctx, logs) {
			if err != nil {
				return nil, err
			}
			if involved[replay.RoomKey{Node: e.Node, Seq: e.RoomSeq}] && len(s.rows) < Detailed {
				s.rows = append(s.rows, e)
			}
		}
	}
	s.draw(involved)
	return s, nil
}

// involved are the incarnations that an incident names, on all nodes.
func (s *Scene) involved() map[replay.RoomKey]bool {
	out := map[replay.RoomKey]bool{}
	add := func(node string, seq *uint64) {
		if seq == nil {
			return
		}
		k := replay.RoomKey{Node: node, Seq: *seq}
		out[k] = true
		if r := s.history.Room(k); r != nil {
			for _, p := range r.Peers {
				out[p.RoomKey] = true
			}
		}
	}
	for _, in := range s.incidents {
		add(in.Node, in.VictimRoomSeq)
		add(in.Node, in.WriterRoomSeq)
	}
	return out
}

func (s *Scene) draw(involved map[replay.RoomKey]bool) {
	h := s.history
	s.Start = replay.Time{Time: h.First.Time()}
	for _, m := range []replay.Mark{h.First, h.Last} { // clocks of other nodes may lie outside
		s.Length = max(s.Length, s.at(m))
	}
	for _, r := range h.Rooms {
		s.Length = max(s.Length, s.at(r.Last))
	}
	s.Length = max(s.Length, 1)
	lane := s.lanes()
	victims, late := s.parts()
	for _, r := range h.Rooms {
		if r.Role == events.Role_ROLE_DECODE {
			s.room(lane[r.Node], r, victims[r.RoomKey])
		}
		for _, w := range r.Writes {
			s.write(lane[w.Rank], w, late[lateKey{w.Dest, w.Rank, w.Chunk}])
		}
	}
	s.arrivals(lane)
	if s.Aggregated {
		s.aggregate(involved)
	}
	s.stack()
}

func (s *Scene) at(m replay.Mark) int64 { return max(0, m.Time().Sub(s.Start.Time).Milliseconds()) }

// lanes are the decode nodes, then the prefill ranks, by name.
func (s *Scene) lanes() map[string]int {
	decode, ranks := map[string]bool{}, map[string]bool{}
	for _, r := range s.history.Rooms {
		if r.Role == events.Role_ROLE_DECODE {
			decode[r.Node] = true
		}
		for _, k := range r.Ranks() {
			ranks[k] = true
		}
		for _, w := range r.Writes {
			ranks[w.Rank] = true
		}
	}
	out := map[string]int{}
	for i, set := range []map[string]bool{decode, ranks} {
		names := make([]string, 0, len(set))
		for n := range set {
			names = append(names, n)
		}
		slices.Sort(names)
		for _, n := range names {
			out[n] = len(s.Lanes)
			s.Lanes = append(s.Lanes, Lane{Name: n, Kind: []string{"decode", "rank"}[i], Rows: 1})
		}
	}
	return out
}

type lateKey struct {
	dest  replay.RoomKey
	rank  string
	chunk uint32
}

// parts says who is a victim and which writes were late.
func (s *Scene) parts() (victims map[replay.RoomKey]bool, late map[lateKey]bool) {
	victims, late = map[replay.RoomKey]bool{}, map[lateKey]bool{}
	for _, in := range s.incidents {
		if in.VictimRoomSeq != nil {
			victims[replay.RoomKey{Node: in.Node, Seq: *in.VictimRoomSeq}] = true
		}
		if in.WriterRoomSeq != nil && in.Writer != nil && in.Chunk != nil {
			late[lateKey{replay.RoomKey{Node: in.Node, Seq: *in.WriterRoomSeq}, *in.Writer, *in.Chunk}] = true
		}
		for _, o := range in.Others {
			late[lateKey{replay.RoomKey{Node: in.Node, Seq: o.WriterRoomSeq}, o.Writer, o.Chunk}] = true
		}
	}
	return victims, late
}

func (s *Scene) room(lane int, r *replay.Room, victim bool) {
	if !r.Reserved.Is() {
		return
	}
	end, over := s.Length, r.Ended.Is()
	switch { // the engine uses the pages of a room that succeeded until it is done
	case r.Outcome == "succeeded" && r.Released != nil:
		end = s.at(r.Released.Mark)
	case over && r.Outcome != "succeeded":
		end = s.at(r.Ended)
	}
	kind := "room"
	if victim {
		kind = "victim"
	}
	what := r.Outcome
	if r.Cause != "" {
		what += " (" + r.Cause + ")"
	}
	if what == "" {
		what = "open"
	}
	text := fmt.Sprintf("room %d/%d on %s, pages %s: %s", r.Number, r.Seq, r.Node, replay.Ranges(r.Pages), what)
	if victim {
		text += ", a victim"
	}
	s.Bars = append(s.Bars, Bar{Lane: lane, From: s.at(r.Opened), To: end, Kind: kind, Text: text, Label: fmt.Sprintf("room %d", r.Number), Refs: refs(r.Opened, r.Ended), room: r.RoomKey})
	if !over {
		return
	}
	free := s.Length
	if r.Released != nil {
		free = s.at(r.Released.Mark)
		m := Mark{Lane: lane, At: free, Kind: "release", Refs: refs(r.Released.Mark), room: r.RoomKey,
			Text: fmt.Sprintf("pages %s of room %d/%d released by %s", replay.Ranges(r.Pages), r.Number, r.Seq, r.Released.Basis)}
		if r.Released.Unsafe {
			m.Kind = "unsafe"
			m.Text += ", unsafe, without the ACK of " + strings.Join(r.Released.Missing, ", ")
		}
		s.Marks = append(s.Marks, m)
	}
	if r.Outcome == "failed" {
		s.Bars = append(s.Bars, Bar{Lane: lane, From: end, To: free, Kind: "held", Label: fmt.Sprintf("room %d held", r.Number), room: r.RoomKey,
			Text: fmt.Sprintf("room %d/%d: pages %s held after its end", r.Number, r.Seq, replay.Ranges(r.Pages)), Refs: refs(r.Armed)})
	}
}

func (s *Scene) write(lane int, w *replay.Write, late bool) {
	b := Bar{Lane: lane, From: s.at(w.Posted), To: s.Length, Kind: "write", Refs: refs(w.Posted, w.Ended), room: w.Room.RoomKey,
		Label: replay.Ranges(w.Pages)}
	how := "still open"
	if w.Ended.Is() {
		b.To, how = s.at(w.Ended), w.How
	}
	which := "pages " + replay.Ranges(w.Pages)
	if len(w.Pages) > 0 {
		if t := replay.PartsText(w.Parts(w.Pages[0])); t != "" && t != "all bytes" {
			which = t + " of each of " + which
		}
	}
	b.Text = fmt.Sprintf("room %d chunk %d: %s writes %s of %s, %s", w.Room.Number, w.Chunk, w.Rank, which, w.To, how)
	if late {
		b.Kind = "late"
		b.Text += ", after the pages had been released"
	}
	s.Bars = append(s.Bars, b)
}

// arrivals are the marks of writes and checks on the decode nodes.
func (s *Scene) arrivals(lane map[string]int) {
	bad := map[string]bool{}
	for _, in := range s.incidents {
		for _, ref := range in.Evidence {
			bad[ref] = true
		}
	}
	for _, l := range s.history.Landings {
		if ref := refs(l.Mark); l.After || bad[ref[0]] {
			s.Marks = append(s.Marks, Mark{Lane: lane[l.Node], At: s.at(l.Mark), Kind: "latewrite", Refs: ref, room: l.Room.RoomKey,
				Text: fmt.Sprintf("late write of %s for room %d/%d landed in pages %s", l.Rank, l.Room.Number, l.Room.Seq, replay.Ranges(l.Pages))})
		}
	}
	for _, l := range s.history.Refusals {
		s.Marks = append(s.Marks, Mark{Lane: lane[l.Node], At: s.at(l.Mark), Kind: "refused", Refs: refs(l.Mark), room: l.Room.RoomKey,
			Text: fmt.Sprintf("late write of %s for room %d/%d bounced", l.Rank, l.Room.Number, l.Room.Seq)})
	}
	for _, c := range s.history.Checks {
		s.Marks = append(s.Marks, Mark{Lane: lane[c.Node], At: s.at(c.Mark), Kind: "check", Refs: refs(c.Mark), room: c.Room.RoomKey,
			Text: fmt.Sprintf("page %d of room %d/%d failed its check", c.Page, c.Room.Number, c.Room.Seq)})
	}
}

// aggregate turns the bars that belong to no incident into a measure of how
// many there were at a time.
func (s *Scene) aggregate(involved map[replay.RoomKey]bool) {
	counts := make([][]float64, len(s.Lanes))
	var kept []Bar
	for _, b := range s.Bars {
		if involved[b.room] {
			kept = append(kept, b)
		}
		if counts[b.Lane] == nil {
			counts[b.Lane] = make([]float64, bins)
		}
		for i := b.From * bins / (s.Length + 1); i <= b.To*bins/(s.Length+1); i++ {
			counts[b.Lane][i]++
		}
	}
	for lane, c := range counts {
		most := 1.0
		for _, n := range c {
			most = max(most, n)
		}
		for i, n := range c {
			if n > 0 {
				from, to := int64(i)*(s.Length+1)/bins, int64(i+1)*(s.Length+1)/bins
				kept = append(kept, Bar{Lane: lane, From: from, To: to, Kind: "busy", Weigh: n / most, Refs: []string{}, Text: fmt.Sprintf("%.0f at once", n)})
			}
		}
	}
	s.Bars = kept
	s.Marks = slices.DeleteFunc(s.Marks, func(m Mark) bool { return !involved[m.room] })
}

// stack gives bars that overlap rows of their own; those that show only how
// busy a lane was share its first one.
func (s *Scene) stack() {
	slices.SortStableFunc(s.Bars, func(a, b Bar) int { return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.From, b.From)) })
	var ends []int64
	lane := -1
	for i := range s.Bars {
		b := &s.Bars[i]
		if b.Lane != lane {
			lane, ends = b.Lane, nil
			if s.Aggregated {
				ends = append(ends, s.Length+1)
			}
		}
		if b.Kind == "busy" {
			continue
		}
		b.Row = slices.IndexFunc(ends, func(end int64) bool { return end <= b.From })
		if b.Row < 0 {
			b.Row = len(ends)
			ends = append(ends, 0)
		}
		ends[b.Row] = max(b.To, b.From+1)
		s.Lanes[lane].Rows = max(s.Lanes[lane].Rows, len(ends))
	}
}

func refs(marks ...replay.Mark) []string {
	out := []string{}
	for _, m := range marks {
		if m.Is() {
			out = append(out, fmt.Sprintf("%s#%d", m.Node, m.Seq))
		}
	}
	return out
}

// Bad says whether there is an incident.
func (s *Scene) Bad() bool { return len(s.incidents) > 0 }
