package invariants

import "github.com/pdlog/pdlog/events"

// node is what is known of one log.
type node struct {
	name        string
	role        events.Role
	first, last uint64 // first: history is complete from here on
	hlc         uint64
	boot        uint64
	incarnation uint64
	millis      uint64 // of the last event

	chainNext  uint32
	chainKnown bool

	rooms   map[uint64]*room // by room_seq
	current *room            // of the event before

	// decode
	generation uint64
	pages      owners
	aux        map[uint32]uint64

	// prefill
	tokens     map[uint64]*token         // open ones
	watermarks map[string]uint64         // decode node → room_seq up to which receipts were dropped
	destinies  map[destination][]uint64  // decode incarnation → room_seq of ours, in order
	targets    map[ackTarget]*targetHeld // held and not answered yet
}

func newNode(name string, first uint64) *node {
	return &node{
		name: name, first: first,
		rooms: map[uint64]*room{}, aux: map[uint32]uint64{},
		tokens: map[uint64]*token{}, watermarks: map[string]uint64{},
		destinies: map[destination][]uint64{}, targets: map[ackTarget]*targetHeld{},
	}
}

// hole forgets what missing events may have ended: a view that has a hole before
// seq accuses nobody of what may stand in it.
func (n *node) hole(seq uint64) {
	n.first = seq // what came before is not all known any more
	for _, r := range n.rooms {
		r.whole, r.open = false, nil
	}
	n.pages, n.aux = owners{}, map[uint32]uint64{}
	n.targets = map[ackTarget]*targetHeld{}
}

// pair is a prefill rank and a decode rank.
type pair struct{ rank, to string }

// destination names a decode room incarnation as a prefill node knows it.
type destination struct {
	node  string
	logID string
	seq   uint64
}

// room is one room incarnation on one node.
type room struct {
	number, seq uint64
	whole       bool // every event of it is in view
	outcome     uint64
	failed      bool
	refused     bool
	endMillis   uint64
	endBoot     uint64
	gone        bool // queued for eviction

	// decode
	reserved  bool
	pages     []uint32
	auxRow    uint32
	published small[pair, *publish]
	facts     small[uint64, fact] // evidence on the log, by seq
	covered   bool
	succeeded bool
	armed     uint64 // generation, 0 = not armed
	released  *release
	lostTold  bool // that its pages were never released

	// prefill
	aborted     uint64                // seq of the first AbortReceived that counts
	open        small[uint64, *token] // writes that have not ended
	drained     small[string, drain]  // by rank
	dests       small[pair, destination]
	generations small[pair, uint64] // highest generation received
	told        small[pair, bool]   // a first terminal status was sent
	success     small[string, bool] // rank → success was sent
	source      uint64              // seq of SourceReleased
	again       bool                // its metadata is of an incarnation that had ended
	againEvent  *events.Event
}

type publish struct {
	dummy    bool
	rejected bool     // LateWriteRejected of this pair
	fenced   bool     // Fenced or PeerRestartProven of this pair
	landed   chunkSet // chunks that landed before the release
}

type release struct {
	seq      uint64
	basis    events.Basis
	evidence small[pair, events.Basis] // proven ones only
}

// fact is an event that can be evidence.
type fact struct {
	kind       events.Basis
	rank, to   string
	generation uint64
	form       events.AckForm
	ok         bool   // it counts
	why        string // why it does not
}

// drain is when a rank said that it has no open write.
type drain struct{ seq, millis, boot uint64 }

type token struct {
	room    *room
	pair    pair
	chunk   uint32
	pages   []uint32
	posted  uint64
	vouched bool // an ACK or a success left while it was open
}

// room finds or makes the record of the event's room incarnation; nil for an
// event of no room.
func (n *node) room(e *events.Event) *room {
	if e.RoomSeq == 0 {
		return nil
	}
	if n.current != nil && n.current.seq == e.RoomSeq {
		return n.current
	}
	r := n.rooms[e.RoomSeq]
	if r == nil {
		r = &room{number: e.Room, seq: e.RoomSeq, whole: e.RoomSeq == e.Seq}
		n.rooms[e.RoomSeq] = r
	}
	n.current = r
	return r
}

// end queues a room for eviction once it owes nothing more.
func (c *Checker) end(n *node, r *room) {
	if r.gone {
		return
	}
	r.gone = true
	r.facts, r.pages = nil, nil
	c.ended = append(c.ended, endedRoom{n, r.seq})
	if len(c.ended) <= c.keep {
		return
	}
	oldest := c.ended[0]
	c.ended = c.ended[1:]
	oldest.node.forget(oldest.seq)
}

func (n *node) forget(seq uint64) {
	old := n.rooms[seq]
	if old == nil {
		return
	}
	for _, d := range old.dests {
		delete(n.destinies, d.value)
	}
	delete(n.rooms, seq)
	if n.current == old {
		n.current = nil
	}
}
