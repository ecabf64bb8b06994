package scenario

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// expect evaluates one expectation; an error says what was found instead.
// What is seen is what is durable: a fold of the events on each node's disk.
func (w *world) expect(s *stmt) error {
	switch s.words[0] {
	case "order":
		return w.expectOrder(s)
	case "corruption":
		return w.expectCorruption(s)
	case "violations":
		return nil // at the end, by run
	}
	n, ok := w.nodes[s.words[0]].(*pdNode)
	if !ok {
		return fmt.Errorf("%s is an old peer: nothing is expected of it", s.words[0])
	}
	if len(s.words) == 2 {
		return n.expectWord(s.words[1])
	}
	switch s.order[0] {
	case "room":
		return n.expectRoom(s)
	case "page":
		return expectPage(s, n.view.Page(uint32(s.num("page", 0)))) //nolint:gosec // parsed
	case "aux":
		return expectPage(s, n.view.AuxRow(uint32(s.num("aux", 0)))) //nolint:gosec // parsed
	case "rooms":
		if have := n.view.Rooms(); have != s.num("rooms", 0) {
			return fmt.Errorf("%s keeps state for %d rooms: %s", n.d.name, have, roomList(n.view.RoomViews()))
		}
		return nil
	}
	return n.expectEvent(s)
}

func roomList(vs []projector.RoomView) string {
	var out []string
	for _, v := range vs {
		out = append(out, fmt.Sprintf("%d %s", v.Room, v.State))
	}
	return strings.Join(out, ", ")
}

func (n *pdNode) expectWord(word string) error {
	switch {
	case word == "ready" && !n.ready():
		return fmt.Errorf("%s is not ready", n.d.name)
	case word == "notready" && n.ready():
		return fmt.Errorf("%s is ready", n.d.name)
	}
	return nil // idle: a write under way occupies no worker, so none is ever busy between two instants
}

func (n *pdNode) expectRoom(s *stmt) error {
	v := n.view.RoomView(s.room())
	for _, k := range s.order[1:] {
		want := s.keys[k]
		var have string
		switch k {
		case "state":
			have = v.State
		case "basis":
			have = v.Basis
		case "acks":
			have = fmt.Sprintf("%d/%d", v.Acked, v.Pairs)
		case "generation":
			have = strconv.FormatUint(v.Generation, 10)
		case "outstanding":
			have = strconv.Itoa(v.Outstanding)
		case "ack_targets":
			have = strconv.Itoa(v.AckTargets)
		case "missing":
			var ranks []string
			for _, r := range v.Missing {
				ranks = append(ranks, string(r))
			}
			sort.Strings(ranks)
			ranks = slices.Compact(ranks)
			have = strings.Join(ranks, ",")
			w := splitNames(want)
			sort.Strings(w)
			want = strings.Join(w, ",")
		}
		if have != want {
			return fmt.Errorf("%s room %d has %s=%s, want %s", n.d.name, v.Room, k, have, want)
		}
	}
	return nil
}

func expectPage(s *stmt, v projector.PageView) error {
	if v.State != s.keys["state"] {
		return fmt.Errorf("%s %s is %s (room %d), want %s", s.order[0], s.keys[s.order[0]], v.State, v.Room, s.keys["state"])
	}
	if r, ok := s.keys["room"]; ok && r != strconv.FormatUint(v.Room, 10) {
		return fmt.Errorf("%s %s belongs to room %d, want %s", s.order[0], s.keys[s.order[0]], v.Room, r)
	}
	return nil
}

func (n *pdNode) expectEvent(s *stmt) error {
	count := 0
	for _, e := range n.disk {
		if e.TypeName() == s.keys["event"] && n.matches(e, s) {
			count++
		}
	}
	if v, ok := s.keys["count"]; ok {
		if want, _ := strconv.Atoi(v); count != want {
			return fmt.Errorf("%s has %d such events, want %d", n.d.name, count, want)
		}
		return nil
	}
	if count == 0 {
		return fmt.Errorf("%s has no such event", n.d.name)
	}
	return nil
}

func (n *pdNode) matches(e *events.Event, s *stmt) bool {
	for _, k := range s.order {
		switch k {
		case "event", "count":
		case "room":
			if e.Room != s.room() {
				return false
			}
		default:
			if have, ok := events.FieldText(e, k); !ok || have != s.keys[k] {
				return false
			}
		}
	}
	return true
}

func (w *world) expectOrder(s *stmt) error {
	last, lastName := uint64(0), ""
	for i := 1; i < len(s.words); i += 2 {
		name, typ, _ := strings.Cut(s.words[i], ":")
		n, ok := w.nodes[name].(*pdNode)
		if !ok {
			return fmt.Errorf("%s is an old peer: nothing is expected of it", name)
		}
		place := uint64(0)
		for _, e := range n.disk {
			if e.TypeName() == typ && (s.keys["room"] == "" || e.Room == s.room()) {
				place = n.places[e.Seq]
				break
			}
		}
		switch {
		case place == 0:
			return fmt.Errorf("%s never happened", s.words[i])
		case place <= last:
			return fmt.Errorf("%s came before %s", s.words[i], lastName)
		}
		last, lastName = place, s.words[i]
	}
	return nil
}

func (w *world) expectCorruption(s *stmt) error {
	all := w.mem.corruptions
	if len(s.words) == 2 {
		if len(all) > 0 {
			return fmt.Errorf("%d corruptions, the first: %s", len(all), all[0])
		}
		return nil
	}
	page, victim := uint32(s.num("page", 0)), s.keys["victim"] //nolint:gosec // parsed
	for _, c := range all {
		if c.page != page || (victim == "none") != c.none || !c.none && strconv.FormatUint(c.victim, 10) != victim {
			continue
		}
		if string(c.writer) != s.keys["writer"] {
			continue
		}
		if r, ok := s.keys["room"]; ok && strconv.FormatUint(c.room, 10) != r {
			continue
		}
		return nil
	}
	var have []string
	for _, c := range all {
		have = append(have, c.String())
	}
	return fmt.Errorf("not among the %d corruptions found: %s", len(all), strings.Join(have, "; "))
}

// String names a corruption for people.
func (c corruption) String() string {
	s := fmt.Sprintf("page %d of %s", c.page, c.node)
	if c.none {
		s += " (nobody's)"
	} else {
		s += fmt.Sprintf(" of room %d", c.victim)
	}
	if c.writer == "" {
		return s + " changed outside any transfer"
	}
	return s + fmt.Sprintf(" written by %s for room %d", c.writer, c.room)
}
