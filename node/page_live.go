package node

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/errors"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
)

const (
	pageEvery   = 500 * time.Millisecond // between two looks at the machine, for everybody who watches
	pageSlice   = 256                    // rooms seen at once: the loop is free between slices
	pageMessage = 500                    // rooms of one message to a browser
	pageBody    = 64 << 10               // bytes of an action
	roomEvents  = 2000                   // events of one lifeline
	roomScan    = 500000                 // events looked at for it
)

func formatRoom(room uint64) string { return strconv.FormatUint(room, 10) }

func answerJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, pageBody))
	dec.DisallowUnknownFields()
	return errors.Wrap(dec.Decode(v), "not the JSON of an action")
}

// pageRow is a room on the page. Numbers that may not fit a float are strings.
type pageRow struct {
	Room       string      `json:"room"`
	Seq        uint64      `json:"seq"`
	State      string      `json:"state"`
	Pages      [][2]uint32 `json:"pages"` // first and last of each run
	Count      int         `json:"count"`
	Opened     uint64      `json:"opened"`
	Until      uint64      `json:"until,omitempty"`
	Generation string      `json:"generation,omitempty"`
	Cause      string      `json:"cause,omitempty"`
	Reason     string      `json:"reason,omitempty"`
	Missing    []string    `json:"missing,omitempty"`
	Fenced     bool        `json:"fenced,omitempty"`
	Open       int         `json:"open,omitempty"` // prefill: writes
	Targets    int         `json:"targets,omitempty"`
	Request    string      `json:"request,omitempty"`
}

func rowOf(v *projector.RoomView) pageRow {
	r := pageRow{
		Room: formatRoom(v.Room), Seq: v.RoomSeq, State: v.State, Count: len(v.Pages), Opened: v.OpenedAt, Until: v.Until,
		Cause: v.Cause, Reason: v.Reason, Fenced: v.Fenced, Open: v.Outstanding, Targets: v.AckTargets, Request: v.RequestID,
		Pages: runs(v.Pages),
	}
	if v.Generation != 0 {
		r.Generation = formatRoom(v.Generation)
	}
	for _, m := range v.Missing {
		r.Missing = append(r.Missing, string(m))
	}
	return r
}

// runs shortens a page list to first and last of each run.
func runs(pages []uint32) [][2]uint32 {
	out := [][2]uint32{}
	for _, p := range pages {
		if k := len(out); k > 0 && out[k-1][1]+1 == p {
			out[k-1][1] = p
			continue
		}
		out = append(out, [2]uint32{p, p})
	}
	return out
}

// pageView is what one client of the page was told last.
type pageView struct {
	rooms map[uint64]string // row as JSON, by room_seq
	node  string
	peers string
}

// look reads the rooms, a slice at a time: the loop never works long for the
// page. Each room is whole; together they are of about the same time.
func (n *Node) look() (map[uint64]string, error) {
	var keys []uint64
	err := n.loop.see(func(m *projector.Machine, _ uint64) { keys = m.RoomKeys() })
	if err != nil {
		return nil, err
	}
	out := make(map[uint64]string, len(keys))
	for part := range slices.Chunk(keys, pageSlice) {
		rows := make([]pageRow, 0, len(part))
		err := n.loop.see(func(m *projector.Machine, _ uint64) {
			for _, key := range part {
				if v, ok := m.RoomViewAt(key); ok {
					rows = append(rows, rowOf(&v))
				}
			}
		})
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			b, err := json.Marshal(r)
			if err != nil {
				return nil, errors.Wrap(err, "encode a room")
			}
			out[r.Seq] = string(b)
		}
	}
	return out, nil
}

var pageJSON = protojson.MarshalOptions{EmitUnpopulated: true, UseProtoNames: true}

// delta is what has changed since the client was told: JSON objects, each a
// message of its own with at most pageMessage rooms, so that a browser is not
// busy for long with one of them. None: nothing has changed.
func (v *pageView) delta(n *Node) (messages []string, err error) {
	rooms, err := n.look()
	if err != nil {
		return nil, err
	}
	head, err := v.head(n)
	if err != nil {
		return nil, err
	}
	if len(head) > 0 { // the size of the pool comes before what is in it
		messages = append(messages, "{"+strings.Join(head, ",")+"}")
	}
	var gone, changed []uint64
	for seq := range v.rooms {
		if _, ok := rooms[seq]; !ok {
			gone = append(gone, seq)
		}
	}
	for seq, row := range rooms {
		if v.rooms[seq] != row {
			changed = append(changed, seq)
		}
	}
	v.rooms = rooms
	slices.Sort(gone)
	for part := range slices.Chunk(gone, pageMessage) {
		b, err := json.Marshal(part)
		if err != nil {
			return nil, errors.Wrap(err, "encode rooms that are gone")
		}
		messages = append(messages, `{"gone":`+string(b)+"}")
	}
	slices.Sort(changed)
	for part := range slices.Chunk(changed, pageMessage) {
		rows := make([]string, len(part))
		for i, seq := range part {
			rows[i] = rooms[seq]
		}
		messages = append(messages, `{"rooms":[`+strings.Join(rows, ",")+`]}`)
	}
	return messages, nil
}

// head is what has changed besides the rooms: members of a JSON object.
func (v *pageView) head(n *Node) (parts []string, err error) {
	status, err := pageJSON.Marshal(n.status())
	if err != nil {
		return nil, errors.Wrap(err, "encode the status")
	}
	if s := string(status); s != v.node {
		v.node = s
		parts = append(parts, `"status":`+s)
	}
	list, err := (&engine{n: n}).Peers(n.life, nil)
	if err != nil {
		return nil, err
	}
	peers, err := pageJSON.Marshal(list.Msg)
	if err != nil {
		return nil, errors.Wrap(err, "encode the peers")
	}
	if p := string(peers); p != v.peers {
		v.peers = p
		parts = append(parts, `"peers":`+p)
	}
	return parts, nil
}

// sse begins a stream of server-sent events.
func sse(w http.ResponseWriter) *http.ResponseController {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	c := http.NewResponseController(w)
	_, _ = io.WriteString(w, "retry: 1000\n\n")
	_ = c.Flush()
	return c
}

// pageLive streams the state of the node: all of it, then what changes.
func (n *Node) pageLive(w http.ResponseWriter, r *http.Request) {
	out := sse(w)
	tick := time.NewTicker(pageEvery)
	defer tick.Stop()
	v := &pageView{rooms: map[uint64]string{}}
	for {
		d, err := v.delta(n)
		if err != nil {
			return // the node ends
		}
		for _, m := range d {
			if _, err := fmt.Fprintf(w, "data: %s\n\n", m); err != nil {
				return
			}
		}
		if len(d) > 0 && out.Flush() != nil {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		case <-n.halt:
			return
		}
	}
}

// eventFilter is what people type: words that an event's JSON has to hold, and
// type=, room=, rank= for fields.
type eventFilter struct {
	typ, room, rank string
	words           []string
}

func parseFilter(s string) eventFilter {
	var f eventFilter
	for _, w := range strings.Fields(strings.ToLower(s)) {
		switch key, value, _ := strings.Cut(w, "="); key {
		case "type":
			f.typ = value
		case "room":
			f.room = value
		case "rank":
			f.rank = value
		default:
			f.words = append(f.words, w)
		}
	}
	return f
}

func (f *eventFilter) match(e *events.Event, line string) bool {
	switch {
	case f.typ != "" && !strings.Contains(strings.ToLower(e.TypeName()), f.typ):
		return false
	case f.room != "" && formatRoom(e.Room) != f.room:
		return false
	case f.rank != "" && !strings.EqualFold(e.Rank, f.rank):
		return false
	}
	if len(f.words) == 0 {
		return true
	}
	line = strings.ToLower(line)
	for _, w := range f.words {
		if !strings.Contains(line, w) {
			return false
		}
	}
	return true
}

// pageEvents streams the durable log from a sequence on, or its newest events.
func (n *Node) pageEvents(w http.ResponseWriter, r *http.Request) {
	f := parseFilter(r.FormValue("filter"))
	from, err := strconv.ParseUint(cmp.Or(r.Header.Get("Last-Event-ID"), r.FormValue("after")), 10, 64)
	if err != nil {
		back := uint64(200)
		if r.FormValue("filter") != "" { // few of many pass: look further back for them
			back = 200000
		}
		from = n.store.Durable() - min(n.store.Durable(), back)
	}
	out := sse(w)
	for next := from + 1; ; {
		changed := n.store.Changed()
		evs, err := n.store.ReadFrom(max(next, n.store.First()), eventsDefault)
		if err != nil {
			return
		}
		for _, e := range evs {
			next = e.Seq + 1
			line := string(events.AppendJSON(nil, e))
			if !f.match(e, line) {
				continue
			}
			if _, err := fmt.Fprintf(w, "id: %d\ndata: %s\n\n", e.Seq, line); err != nil {
				return
			}
		}
		if out.Flush() != nil {
			return
		}
		if len(evs) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		case <-n.halt:
			return
		}
	}
}

// pageRoom gives one room incarnation: its view and the events of its life.
func (n *Node) pageRoom(w http.ResponseWriter, r *http.Request) {
	room, err := strconv.ParseUint(r.FormValue("room"), 10, 64)
	if err != nil {
		answerJSON(w, http.StatusBadRequest, map[string]string{"error": "room is not a number"})
		return
	}
	seq, _ := strconv.ParseUint(r.FormValue("seq"), 10, 64)
	var view *enginepb.RoomView
	err = n.loop.see(func(m *projector.Machine, _ uint64) {
		v, ok := m.RoomViewAt(seq)
		if !ok {
			v = m.RoomView(room)
		}
		view = roomView(m, &v)
		view.WaitingChunks = n.gate.waiting(v.RoomSeq)
	})
	if err != nil {
		answerJSON(w, http.StatusServiceUnavailable, map[string]string{"error": err.Error()})
		return
	}
	b, err := pageJSON.Marshal(view)
	if err != nil {
		answerJSON(w, http.StatusInternalServerError, map[string]string{"error": err.Error()})
		return
	}
	lines, err := n.lifeOf(view.RoomSeq)
	if err != nil {
		answerJSON(w, http.StatusInternalServerError, map[string]string{"error": err.Error()})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"view":%s,"events":[%s]}`, b, strings.Join(lines, ","))
}

// lifeOf reads a room incarnation's events; it begins where they begin.
func (n *Node) lifeOf(roomSeq uint64) (lines []string, err error) {
	if roomSeq == 0 {
		return nil, nil
	}
	last := n.store.Durable()
	for from, seen := max(roomSeq, n.store.First()), 0; from <= last && seen < roomScan; {
		evs, err := n.store.ReadFrom(from, eventsMax)
		if err != nil || len(evs) == 0 {
			return lines, err
		}
		for _, e := range evs {
			if e.RoomSeq != roomSeq {
				continue
			}
			if lines = append(lines, string(events.AppendJSON(nil, e))); len(lines) == roomEvents {
				return lines, nil
			}
		}
		seen += len(evs)
		from = evs[len(evs)-1].Seq + 1
	}
	return lines, nil
}
