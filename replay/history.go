package replay

import (
	"iter"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/pdlog/pdlog/backends/geometry"
	"github.com/pdlog/pdlog/events"
)

// Mark is a place in a history: an event, when it was, and its place in the
// merged order. The zero value means that it did not happen, as far as the
// logs say.
type Mark struct {
	Node string
	Seq  uint64
	HLC  uint64
	pos  uint64
	life int   // of Clocks
	at   int64 // by that life's own clock, ms
}

// Is says whether it happened.
func (m Mark) Is() bool { return m.Seq != 0 }

// Time is the event's time, UTC, to the millisecond.
func (m Mark) Time() time.Time { return events.HLC(m.HLC).Time() }

// Since is the time from another mark to this one in milliseconds; not ok if
// either did not happen. Within one node it cannot be negative; between nodes
// it is as good as their clocks.
func (m Mark) Since(from Mark) (ms int64, ok bool) {
	if !m.Is() || !from.Is() {
		return 0, false
	}
	return int64(events.HLC(m.HLC).Millis()) - int64(events.HLC(from.HLC).Millis()), true //nolint:gosec // 48 bits
}

// RoomKey names a room incarnation: the node and its log's sequence.
type RoomKey struct {
	Node string
	Seq  uint64
}

// PairKey is a prefill rank and a decode rank.
type PairKey struct{ Rank, To string }

// Room is what a history tells of one room incarnation on one node.
type Room struct {
	RoomKey
	Number    uint64
	Role      events.Role
	RequestID string
	Opened    Mark
	Last      Mark
	Outcome   string // succeeded, failed, "" = none yet
	Cause     string // of a failure
	Reason    string
	Ended     Mark

	// Decode.
	Pages       []uint32
	Aux         uint32
	Reserved    Mark
	Pairs       map[PairKey]*Pair
	Generation  uint64
	Armed       Mark
	Quarantined Mark
	Released    *Release
	Peers       []*Room // prefill incarnations that took its metadata

	// Prefill.
	Dests  map[PairKey]RoomKey
	Writes []*Write
}

// Pair is one published pair of a decode room.
type Pair struct {
	Published Mark
	Dummy     bool
	Acked     Mark
	Succeeded Mark
	Fenced    Mark // Fenced or PeerRestartProven
	Rejected  Mark // a late write was refused
	inTime    map[uint32]bool
}

// Release is a Released event.
type Release struct {
	Mark
	Basis   string
	Unsafe  bool
	Missing []string // prefill ranks without evidence
	proven  map[PairKey]bool
}

// Write is one posted write of a prefill rank.
type Write struct {
	Room    *Room // on the prefill node
	Rank    string
	To      string
	Chunk   uint32
	Pages   []uint32
	Bytes   uint64
	Last    bool
	Posted  Mark
	Ended   Mark   // zero: still open
	How     string // completed, failed, drained
	Landed  bool
	Unsure  Mark // ChunkUncertain
	Dest    RoomKey
	vouched bool // an ACK or a success left while it was open
	shape   *geometry.Logged
}

// Landing is a WriteLanded event: a write placed in a decode node's memory.
type Landing struct {
	Mark
	Room  *Room // the writer's room, on the decode node
	Rank  string
	To    string
	Chunk uint32
	Pages []uint32
	After bool // the node says that the pages had been released

	off, len, pageBytes uint64 // of each page: it wrote len bytes from off on; 0: not known
}

// PageCheck is a PageCheckFailed event.
type PageCheck struct {
	Mark
	Room   *Room
	Page   uint32
	To     string
	Detail string
	Off    uint64 // the wrong bytes lie in Len bytes of the page from Off on
	Len    uint64 // 0: not known
}

// Tenure is the time a room owned a page.
type Tenure struct {
	Room *Room
	From Mark
	To   Mark // zero: it still does
}

// History is the fold of a stream of events that the views work on.
type History struct {
	Rooms    []*Room // in order of their first event
	Landings []*Landing
	Refusals []*Landing // LateWriteRejected
	Checks   []*PageCheck
	First    Mark
	Last     Mark
	Events   int

	rooms  map[RoomKey]*Room
	tokens map[RoomKey]*Write // prefill node and token
	pages  map[string]map[uint32][]*Tenure
	pos    uint64
	named  named
	memory layouts

	// Clocks is what the messages tell of the nodes' clocks.
	Clocks Clocks
}

// NewHistory is a history without events.
func NewHistory() *History {
	return &History{
		rooms: map[RoomKey]*Room{}, tokens: map[RoomKey]*Write{}, pages: map[string]map[uint32][]*Tenure{},
		memory: layouts{},
	}
}

// Gather folds a whole stream. It stops at the stream's first error.
func Gather(seq iter.Seq2[*events.Event, error]) (*History, error) {
	h := NewHistory()
	for e, err := range seq {
		if err != nil {
			return h, err
		}
		h.Add(e)
	}
	return h, nil
}

// Room finds a room incarnation, nil if the history has none.
func (h *History) Room(k RoomKey) *Room { return h.rooms[k] }

// Writes are all posted writes, by room.
func (h *History) Writes() iter.Seq[*Write] {
	return func(yield func(*Write) bool) {
		for _, r := range h.Rooms {
			for _, w := range r.Writes {
				if !yield(w) {
					return
				}
			}
		}
	}
}

// Tenures are the owners of a page, in order.
func (h *History) Tenures(node string, page uint32) []*Tenure { return h.pages[node][page] }

// PagesOf are the pages of a node that ever had an owner, ascending.
func (h *History) PagesOf(node string) []uint32 {
	var out []uint32
	for p := range h.pages[node] {
		out = append(out, p)
	}
	slices.Sort(out)
	return out
}

// ownerAt is who owned a page at a place, nil if nobody did.
func (h *History) ownerAt(node string, page uint32, at Mark) *Tenure {
	ts := h.pages[node][page]
	i := sort.Search(len(ts), func(i int) bool { return !h.before(ts[i].From, at) })
	if i == 0 {
		return nil
	}
	if t := ts[i-1]; !t.To.Is() || h.before(at, t.To) {
		return t
	}
	return nil
}

// closeBy is a distance at which two nodes' clocks decide nothing, in ms: what a
// message takes, and the grain of their stamps.
const closeBy = 2

// before says whether a happened before b: in one log by its order, between two
// nodes by their clocks, as far as their messages tell how those differ.
func (h *History) before(a, b Mark) bool {
	if a.Node == b.Node {
		return a.pos < b.pos
	}
	off := h.Clocks.offsets()
	if d := (a.at - off[a.life]) - (b.at - off[b.life]); d > closeBy || d < -closeBy {
		return d < 0
	}
	return a.pos < b.pos
}

// Add folds one event. Events come in merged order.
func (h *History) Add(e *events.Event) {
	h.pos++
	at := Mark{Node: e.Node, Seq: e.Seq, HLC: e.Hlc, pos: h.pos}
	at.life, at.at = h.Clocks.observe(e)
	if h.Events == 0 {
		h.First = at
	}
	h.Last = at
	h.Events++
	h.named.add(e)
	if e.RoomSeq == 0 {
		h.memory.add(e)
		if p := e.GetWriteLanded(); p != nil {
			h.landed(h.stray(e, p), at, e, p)
		}
		return
	}
	r := h.room(e, at)
	r.Last = at
	switch p := e.Payload.(type) {
	case *events.Event_RoomOpened:
		r.Role, r.RequestID = p.RoomOpened.GetRole(), p.RoomOpened.GetRequestId()
	case *events.Event_RoomSucceeded:
		r.end(at, "succeeded", "", "")
	case *events.Event_RoomFailed:
		f := p.RoomFailed
		r.end(at, "failed", events.EnumWord(f.GetCause().Descriptor(), f.GetCause().Number()), f.GetReason())
	}
	h.addDecode(r, at, e)
	h.addPrefill(r, at, e)
}

func (h *History) room(e *events.Event, at Mark) *Room {
	k := RoomKey{e.Node, e.RoomSeq}
	r := h.rooms[k]
	if r == nil {
		r = &Room{RoomKey: k, Number: e.Room, Opened: at}
		h.rooms[k] = r
		h.Rooms = append(h.Rooms, r)
	}
	return r
}

// stray is the room of a write that the decode node could no longer give to an
// incarnation: the newest of that number that was published to the pair, else one
// that stands for what the log does not name.
func (h *History) stray(e *events.Event, p *events.WriteLanded) *Room {
	for _, r := range slices.Backward(h.Rooms) {
		if r.Node == e.Node && r.Number == e.Room && r.Pairs[PairKey{e.Rank, p.GetTo()}] != nil {
			return r
		}
	}
	return &Room{RoomKey: RoomKey{Node: e.Node}, Number: e.Room}
}

func (r *Room) end(at Mark, outcome, cause, reason string) {
	if r.Outcome == "" {
		r.Ended, r.Outcome, r.Cause, r.Reason = at, outcome, cause, reason
	}
}

// Ranks are the prefill ranks of the room, sorted.
func (r *Room) Ranks() []string {
	var out []string
	for k := range r.Pairs {
		out = append(out, k.Rank)
	}
	for k := range r.Dests {
		out = append(out, k.Rank)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Missing are the prefill ranks that were published to and have given no
// evidence so far, sorted.
func (r *Room) Missing() []string {
	var out []string
	for k, p := range r.Pairs {
		if p.Published.Is() && !p.Acked.Is() && !p.Fenced.Is() && !(p.Succeeded.Is() && r.Outcome == "succeeded") {
			out = append(out, k.Rank)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// State is the room's state in the words of scenarios.md.
func (r *Room) State() string {
	decode := r.Role == events.Role_ROLE_DECODE
	switch {
	case r.Released != nil:
		return "released"
	case r.Quarantined.Is():
		return "quarantined"
	case decode && r.Outcome == "failed" && r.Reserved.Is():
		return "held"
	case r.Outcome != "":
		return r.Outcome
	case decode && len(r.Pairs) == 0, !decode && len(r.Dests) == 0:
		return "bootstrapping"
	case decode && r.landed(), !decode && len(r.Writes) > 0:
		return "transferring"
	default:
		return "waiting"
	}
}

func (r *Room) landed() bool {
	for _, p := range r.Pairs {
		if len(p.inTime) > 0 {
			return true
		}
	}
	return false
}

// rankNode is the node of a rank "node/rank".
func rankNode(rank string) string {
	if i := strings.LastIndexByte(rank, '/'); i >= 0 {
		return rank[:i]
	}
	return rank
}

// DecodeNodes are the nodes that own pages in this history, sorted.
func (h *History) DecodeNodes() []string { return slices.Sorted(maps.Keys(h.pages)) }
