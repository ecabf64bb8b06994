package historytest

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/pdlog/pdlog/events"
)

// epoch is the wall time of millisecond 0 of every history:
// 2026-01-01T00:00:00Z, in unix ms.
const epoch = 1_767_225_600_000

// History is a growing history of several nodes. New is the only way in.
type History struct {
	// All are the events in the order they were told: a causal order.
	All   []*events.Event
	nodes map[string]*log
	now   uint64
	// generations count up from here, over all nodes
	generation uint64
}

type log struct {
	at          events.Position
	boot        uint64
	incarnation uint64
	skew        int64
}

// New is a history in which nothing has happened.
func New() *History { return &History{nodes: map[string]*log{}} }

// At moves the clock to ms milliseconds after the epoch.
func (h *History) At(ms uint64) *History {
	h.now = ms
	return h
}

// Skew sets a node's clock off by ms milliseconds from now on.
func (h *History) Skew(node string, ms int64) { h.log(node).skew = ms }

func (h *History) log(node string) *log {
	l := h.nodes[node]
	if l == nil {
		l = &log{boot: uint64(len(h.nodes) + 1), incarnation: 1}
		h.nodes[node] = l
	}
	return l
}

// Start begins a life of a node.
func (h *History) Start(node string, role events.Role, pages uint64) *events.Event {
	l := h.log(node)
	if l.at.Seq > 0 {
		l.boot += 100
		l.incarnation++
	}
	id := make([]byte, 16)
	copy(id, node)
	return h.Add(node, 0, 0, "", nil, &events.NodeStarted{Role: role, LogId: id, Ranks: 1, Pages: pages, Version: "test"})
}

// Add appends one event. roomSeq 0 with a room: the event opens the
// incarnation. cause may be nil.
func (h *History) Add(node string, room, roomSeq uint64, rank string, cause *events.Event, payload proto.Message) *events.Event {
	if room != 0 && roomSeq == 0 {
		roomSeq = h.log(node).at.Seq + 1
	}
	return h.add(node, room, roomSeq, rank, cause, payload)
}

// Stray appends an event of a room number of which no incarnation is known.
func (h *History) Stray(node string, room uint64, rank string, payload proto.Message) *events.Event {
	return h.add(node, room, 0, rank, nil, payload)
}

func (h *History) add(node string, room, roomSeq uint64, rank string, cause *events.Event, payload proto.Message) *events.Event {
	l := h.log(node)
	e := Wrap(payload)
	e.Node, e.Boot, e.Incarnation = node, l.boot, l.incarnation
	e.Room, e.RoomSeq, e.Rank = room, roomSeq, rank
	e.Seq = l.at.Seq + 1
	wall := uint64(int64(epoch+h.now) + l.skew) //nolint:gosec // near the epoch
	e.Hlc = uint64(events.HLC(l.at.HLC).Next(wall))
	if cause != nil {
		e.Cause = &events.Cause{Seq: cause.Seq}
		if cause.Node != node {
			e.Cause.Node = cause.Node
		}
	}
	h.put(l, e)
	return e
}

func (h *History) put(l *log, e *events.Event) {
	e.PrevHash = l.at.Chain
	w := events.NewFrameWriter(l.at)
	if err := w.Append(e); err != nil {
		panic(fmt.Sprintf("historytest: %s %d: %v", e.Node, e.Seq, err))
	}
	l.at = w.Position()
	h.All = append(h.All, e)
}

// Of are the events of one node.
func (h *History) Of(node string) []*events.Event {
	var out []*events.Event
	for _, e := range h.All {
		if e.Node == node {
			out = append(out, e)
		}
	}
	return out
}

// Nodes are the names, in order of their first event.
func (h *History) Nodes() []string {
	var out []string
	seen := map[string]bool{}
	for _, e := range h.All {
		if !seen[e.Node] {
			seen[e.Node] = true
			out = append(out, e.Node)
		}
	}
	return out
}

// Without is a copy of the history that lacks what drop says true to; the
// events keep their sequences.
func (h *History) Without(drop func(*events.Event) bool) []*events.Event {
	var out []*events.Event
	for _, e := range h.All {
		if !drop(e) {
			out = append(out, e)
		}
	}
	return out
}

// With are copies of all events, changed.
func (h *History) With(change func(*events.Event)) []*events.Event {
	var out []*events.Event
	for _, e := range h.All {
		e = proto.CloneOf(e)
		change(e)
		out = append(out, e)
	}
	return out
}

// Wrap makes an event of a payload message.
func Wrap(payload proto.Message) *events.Event {
	e := &events.Event{}
	m := e.ProtoReflect()
	fds := m.Descriptor().Oneofs().ByName("payload").Fields()
	want := payload.ProtoReflect().Descriptor().FullName()
	for i := range fds.Len() {
		if fds.Get(i).Message().FullName() == want {
			m.Set(fds.Get(i), protoValue(payload))
			return e
		}
	}
	panic("historytest: " + string(want) + " is no payload")
}

// Node is the node of a rank "node/rank".
func Node(rank string) string { return rank[:strings.LastIndexByte(rank, '/')] }
