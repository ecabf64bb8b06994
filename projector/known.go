package projector

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pdlog/pdlog/events"
)

// KnownRooms are the receipts of the room numbers that a decode node has used,
// kept for knownFor at least: what the last incarnation of each came to. A busy
// node has millions of them, so they hold no pointer, which the garbage collector
// would follow, and what is only ever shown stays encoded, as a snapshot has it.
type KnownRooms struct {
	index numberTable
	slots []*[slotsAtOnce]KnownRoom
	used  uint32   // slots that were ever handed out
	free  []uint32 // and of these, those that nobody has now
	texts texts    // the endings
	queue []knownRef
	coder coder // of one ending at a time
}

// KnownRoom is the receipt of one room number.
type KnownRoom struct {
	Room     uint64
	Seq      roomKey // its newest incarnation
	At       uint64  // it was used then, unix ms
	Released uint64  // seq of that incarnation's Released; 0 = open
	ending   place
	Uses     uint32
	// FailedUse: one of them failed. What its writers say late and without
	// naming the use cannot be told from what is said of a later one.
	FailedUse bool
}

// ending is what is shown of a room incarnation after its release.
type ending struct {
	Generation, OpenedAt, ArmedAt, Until uint64
	Basis                                events.Basis
	Cause                                events.AbortCause
	Reason, RequestID                    string
	Acked, Pairs                         int
	Unsafe, Fenced                       bool
	Missing                              []RankID
	Pages                                []uint32
	Aux                                  uint32
}

// knownRef is one release, in the order in which they are forgotten.
type knownRef struct {
	room uint64
	at   uint64
}

// knownFor is how long decode remembers the use of a room number at least
// (release rule 2: an hour), in ms.
const knownFor = 3600 * 1000

const slotsAtOnce = 1024

func newKnownRooms() *KnownRooms { return &KnownRooms{} }

// Len is how many there are.
func (k *KnownRooms) Len() int { return k.index.n }

// find is the receipt of a room number, nil if it was never used, or too long ago.
func (k *KnownRooms) find(room uint64) *KnownRoom {
	_, _, r := k.lookup(room)
	return r
}

func (k *KnownRooms) slot(i uint32) *KnownRoom { return &k.slots[i/slotsAtOnce][i%slotsAtOnce] }

func (k *KnownRooms) add(room uint64) *KnownRoom {
	i := k.take()
	r := k.slot(i)
	r.Room = room
	k.enter(i, room)
	return r
}

// take gives an empty slot.
func (k *KnownRooms) take() (i uint32) {
	if n := len(k.free); n > 0 {
		i, k.free = k.free[n-1], k.free[:n-1]
	} else {
		if i = k.used; i%slotsAtOnce == 0 {
			k.slots = append(k.slots, new([slotsAtOnce]KnownRoom))
		}
		k.used++
	}
	return i
}

// opened records a use of the number.
func (k *KnownRooms) opened(room uint64, seq roomKey, at uint64) {
	r := k.find(room)
	if r == nil {
		r = k.add(room)
	}
	k.texts.drop(r.ending)
	r.Uses++
	r.Seq, r.At, r.Released, r.ending = seq, at, 0, place{}
}

// released records the end of one, which need not be the number's newest.
func (k *KnownRooms) released(room uint64, seq roomKey, at, released uint64, end *ending) {
	r := k.find(room)
	if r == nil {
		r = k.add(room)
		r.Uses = 1
	}
	r.At = at
	if r.Seq <= seq {
		k.texts.drop(r.ending)
		k.coder.b = k.coder.b[:0]
		k.coder.ending(end)
		r.Seq, r.Released, r.ending = seq, released, k.texts.put(k.coder.b)
	}
	k.queue = append(k.queue, knownRef{room: room, at: at})
}

// forget drops what was used last before an instant and is not in use.
func (k *KnownRooms) forget(now uint64, inUse func(room uint64) bool) {
	for len(k.queue) > 0 && k.queue[0].at+knownFor < now {
		ref := k.queue[0]
		k.queue = k.queue[1:]
		if r := k.find(ref.room); r != nil && r.At == ref.at && !inUse(ref.room) {
			i := k.leave(ref.room)
			k.texts.drop(r.ending)
			*r = KnownRoom{}
			k.free = append(k.free, i)
		}
	}
}

func (r *KnownRoom) failedBefore() bool { return r != nil && r.FailedUse }

// view is what people see of the number.
func (k *KnownRooms) view(r *KnownRoom) RoomView {
	v := RoomView{Room: r.Room, RoomSeq: r.Seq}
	if r.Released == 0 {
		return v
	}
	var end ending
	(&coder{b: k.texts.get(r.ending), reading: true}).ending(&end)
	v.State, v.ReleasedSeq = "released", r.Released
	v.Basis = events.EnumWord(end.Basis.Descriptor(), end.Basis.Number())
	if end.Cause != 0 {
		v.Cause = events.EnumWord(end.Cause.Descriptor(), end.Cause.Number())
	}
	v.Generation, v.OpenedAt, v.ArmedAt, v.Until = end.Generation, end.OpenedAt, end.ArmedAt, end.Until
	v.Reason, v.RequestID, v.Acked, v.Pairs = end.Reason, end.RequestID, end.Acked, end.Pairs
	v.Unsafe, v.Fenced, v.Missing, v.Pages, v.Aux = end.Unsafe, end.Fenced, end.Missing, end.Pages, end.Aux
	return v
}

// ReleasedAfter are the newest incarnations of their numbers that were released
// after an event, in order.
func (k *KnownRooms) ReleasedAfter(seq uint64) []RoomView {
	var out []RoomView
	for i := range k.used {
		if r := k.slot(i); r.Released > seq {
			out = append(out, k.view(r))
		}
	}
	slices.SortFunc(out, func(a, b RoomView) int { return cmp.Compare(a.ReleasedSeq, b.ReleasedSeq) })
	return out
}

// endingOf is what is kept of a room that is released.
func endingOf(v RoomView, cause events.AbortCause, p *events.Released) ending {
	return ending{
		Generation: v.Generation, OpenedAt: v.OpenedAt, ArmedAt: v.ArmedAt, Until: v.Until,
		Basis: p.Basis, Cause: cause, Reason: v.Reason, RequestID: v.RequestID, Acked: v.Acked, Pairs: v.Pairs,
		Unsafe: p.Unsafe, Fenced: v.Fenced, Missing: v.Missing, Pages: v.Pages, Aux: v.Aux,
	}
}

func (c *coder) ending(e *ending) {
	c.u64(&e.Generation)
	c.u64(&e.OpenedAt)
	c.behind(e.OpenedAt, &e.ArmedAt)
	c.behind(e.OpenedAt, &e.Until)
	number(c, &e.Basis)
	number(c, &e.Cause)
	text(c, &e.Reason)
	text(c, &e.RequestID)
	number(c, &e.Acked)
	number(c, &e.Pairs)
	c.flag(&e.Unsafe)
	c.flag(&e.Fenced)
	c.ranks(&e.Missing)
	c.pages(&e.Pages)
	aux := e.Aux + 1 // none is the highest
	number(c, &aux)
	if c.reading {
		e.Aux = aux - 1
	}
}

// behind is a number that is 0, or not below another.
func (c *coder) behind(base uint64, p *uint64) {
	v := uint64(0)
	if *p != 0 {
		v = *p - base + 1
	}
	if v = c.uvarint(v); c.reading && v != 0 {
		*p = base + v - 1
	}
}

// knownRooms writes the receipts by number, each as the distance to the one
// before it.
func (c *coder) knownRooms(k *KnownRooms) {
	n, before := c.count(k.index.n), uint64(0)
	one := func(room uint64, r *KnownRoom, end []byte) []byte {
		c.u64(&r.Seq)
		c.u64(&r.At)
		c.behind(r.Seq, &r.Released)
		number(c, &r.Uses)
		c.flag(&r.FailedUse)
		before = room
		return c.blob(end)
	}
	if c.reading {
		for i := 0; i < n && c.err == nil; i++ {
			step := c.uvarint(0)
			room := before + step
			if i > 0 && room <= before {
				c.fail(fmt.Errorf("room %d after room %d", room, before))
				return
			}
			r := k.slot(k.take())
			r.Room = room
			r.ending = k.texts.put(one(room, r, nil))
		}
		k.enterAll()
	} else {
		for _, i := range k.byNumber() {
			r := k.slot(i)
			room := r.Room
			c.uvarint(room - before)
			one(room, r, k.texts.get(r.ending))
		}
	}
	at := uint64(0)
	if n = c.count(len(k.queue)); c.reading {
		k.queue = make([]knownRef, n)
	}
	for i := 0; i < n && c.err == nil; i++ {
		q := &k.queue[i]
		c.u64(&q.room)
		at += c.uvarint(q.at - at)
		q.at = at
	}
}

// byNumber are the slots in order of their room numbers.
func (k *KnownRooms) byNumber() []uint32 {
	all := make([]uint32, 0, k.index.n)
	for p := range k.index.parts {
		for _, i := range k.index.parts[p].slots {
			if i != 0 {
				all = append(all, i-1)
			}
		}
	}
	slices.SortFunc(all, func(a, b uint32) int { return cmp.Compare(k.slot(a).Room, k.slot(b).Room) })
	return all
}

// numberTable finds the slot of a room number: a hash table of slots, in parts that
// grow one at a time, so that no event waits for the whole.
type numberTable struct {
	parts [numberParts]numberPart
	n     int
}

type numberPart struct {
	slots []uint32 // slot + 1, 0 = none; a power of two of them, a quarter free
	n     int
}

const (
	numberParts     = 256
	numberPartLeast = 8
)

func (x *numberTable) place(room uint64) (p *numberPart, at uint64) {
	part, at := x.partOf(room)
	return &x.parts[part], at
}

func (x *numberTable) partOf(room uint64) (part, at uint64) {
	room ^= room >> 33
	room *= 0xff51afd7ed558ccd
	room ^= room >> 33
	room *= 0xc4ceb9fe1a85ec53
	room ^= room >> 33
	return room % numberParts, room / numberParts
}

// lookup gives where a number stands, and its receipt; nil: it is not there.
func (k *KnownRooms) lookup(room uint64) (p *numberPart, at uint64, r *KnownRoom) {
	p, at = k.index.place(room)
	if p.n == 0 {
		return p, 0, nil
	}
	for mask := uint64(len(p.slots) - 1); ; at++ {
		at &= mask
		if p.slots[at] == 0 {
			return p, at, nil
		}
		if r := k.slot(p.slots[at] - 1); r.Room == room {
			return p, at, r
		}
	}
}

// enter notes the slot of a number that is not there yet.
func (k *KnownRooms) enter(slot uint32, room uint64) {
	p, at := k.index.place(room)
	if p.n >= len(p.slots)/4*3 {
		old := p.slots
		p.slots = make([]uint32, max(2*len(old), numberPartLeast))
		for _, i := range old {
			if i != 0 {
				_, at := k.index.place(k.slot(i - 1).Room)
				p.put(at, i)
			}
		}
	}
	p.put(at, slot+1)
	p.n++
	k.index.n++
}

// enterAll notes the numbers of all slots in an empty table, part by part: each
// is small enough to stay at hand meanwhile.
func (k *KnownRooms) enterAll() {
	type entry struct {
		at   uint64
		slot uint32
	}
	x := &k.index
	var ends [numberParts]int
	for i := range k.used {
		p, _ := x.place(k.slot(i).Room)
		p.n++
	}
	for i := range x.parts {
		ends[i] = x.n
		x.n += x.parts[i].n
	}
	all := make([]entry, x.n)
	for i := range k.used {
		room := k.slot(i).Room
		part, at := x.partOf(room)
		all[ends[part]] = entry{at: at, slot: i + 1}
		ends[part]++
	}
	for i := range x.parts {
		p := &x.parts[i]
		size := numberPartLeast
		for size/4*3 <= p.n {
			size *= 2
		}
		p.slots = make([]uint32, size)
		for _, e := range all[ends[i]-p.n : ends[i]] {
			p.put(e.at, e.slot)
		}
	}
}

func (p *numberPart) put(at uint64, i uint32) {
	mask := uint64(len(p.slots) - 1)
	for at &= mask; p.slots[at] != 0; at = (at + 1) & mask {
	}
	p.slots[at] = i
}

// leave takes a number that is there out of the table, and moves up those
// behind it that stand where they do for want of its place.
func (k *KnownRooms) leave(room uint64) (slot uint32) {
	p, hole, _ := k.lookup(room)
	slot = p.slots[hole] - 1
	mask := uint64(len(p.slots) - 1)
	for at := (hole + 1) & mask; p.slots[at] != 0; at = (at + 1) & mask {
		if _, home := k.index.place(k.slot(p.slots[at] - 1).Room); (at-home)&mask >= (at-hole)&mask {
			p.slots[hole], hole = p.slots[at], at
		}
	}
	p.slots[hole] = 0
	p.n--
	k.index.n--
	return slot
}

// texts keep byte strings in pieces. A piece goes when the last of its strings
// does: they go in about the order in which they came.
type texts struct {
	pieces map[uint32]*textPiece
	last   *textPiece
	lastID uint32
}

type textPiece struct {
	b    []byte
	live int
}

// place is where a string is; that of the empty one is zero.
type place struct{ piece, at, size uint32 }

const textPieceBytes = 64 << 10

func (t *texts) put(b []byte) place {
	if len(b) == 0 {
		return place{}
	}
	if t.last == nil || len(t.last.b)+len(b) > cap(t.last.b) {
		if t.pieces == nil {
			t.pieces = map[uint32]*textPiece{}
		}
		if t.last != nil && t.last.live == 0 {
			delete(t.pieces, t.lastID)
		}
		t.lastID++
		t.last = &textPiece{b: make([]byte, 0, max(textPieceBytes, len(b)))}
		t.pieces[t.lastID] = t.last
	}
	p := t.last
	at := place{piece: t.lastID, at: uint32(len(p.b)), size: uint32(len(b))} //nolint:gosec // a piece is small, or one string
	p.b = append(p.b, b...)
	p.live++
	return at
}

// get gives the string. It is not to be changed.
func (t *texts) get(at place) []byte {
	if at.size == 0 {
		return nil
	}
	return t.pieces[at.piece].b[at.at : at.at+at.size : at.at+at.size]
}

func (t *texts) drop(at place) {
	if at.size == 0 {
		return
	}
	p := t.pieces[at.piece]
	if p.live--; p.live == 0 && p != t.last {
		delete(t.pieces, at.piece)
	}
}
