package node

import (
	"slices"

	"github.com/pdlog/pdlog/projector"
)

// apart orders the effects around one that takes its time: the revocation of a
// lease that has to wait for a copy, a device, or a fault that is injected. Such
// an effect is done on a goroutine of its own; behind it waits what must come
// after it, and nothing else (wire.md F43, invariant I12):
//
//   - the rest of its Step, the answer to the call that caused it too;
//   - what is about the same room;
//   - a publish that gives away pages or an aux row whose release is not told
//     yet, since the node itself may have taken them from the free ones;
//   - what gives away or tells of room in the same staging ring, for a part of
//     it may be the released room's;
//   - the end of the node.
//
// Revocations do not wait for one another. It belongs to the outbox's goroutine.
type apart struct {
	last map[topic][]*parked // by what they are about: those that a newcomer has to wait for
	all  []*parked           // in the order of decision; those that are over are dropped from the front
	n    int                 // not over
}

// parked is an effect, or a call of the shell, that is under way apart or waits
// for others.
type parked struct {
	entry
	topics []topic
	waits  int // for so many others
	next   []*parked
	over   bool
}

// topic is something that effects can be about together.
type topic struct {
	what topicKind
	n    uint64
	rank projector.RankID
}

type topicKind uint8

const (
	aboutStep topicKind = iota
	aboutRoom
	aboutRoomSeq
	aboutPage
	aboutAux
	aboutRing
)

// topicsOf lists what an entry is about.
func topicsOf(e *entry) []topic {
	var out []topic
	add := func(what topicKind, n uint64) { out = append(out, topic{what: what, n: n}) }
	ring := func(to projector.RankID) { out = append(out, topic{what: aboutRing, rank: to}) }
	memory := func(pages []uint32, aux uint32) {
		for _, p := range pages {
			add(aboutPage, uint64(p))
		}
		add(aboutAux, uint64(aux))
	}
	if e.step != 0 {
		add(aboutStep, e.step)
	}
	room := func(room, seq uint64) {
		if room != 0 {
			add(aboutRoom, room)
		}
		if seq != 0 {
			add(aboutRoomSeq, seq)
		}
	}
	switch a := e.act.(type) {
	case projector.SendMetadata:
		room(a.Room, a.RoomSeq)
		memory(a.Pages, a.Aux)
	case projector.SendAbort:
		room(a.Room, 0)
	case projector.SendAck:
		room(a.Room, 0)
	case projector.SendStatus:
		room(a.Room, 0)
	case projector.PostWrite:
		room(a.Room, a.RoomSeq)
	case projector.SealRoom:
		room(a.Room, a.RoomSeq)
	case projector.Fence:
		room(a.Room, a.RoomSeq)
	case projector.RevokeLease:
		room(0, a.RoomSeq)
	case projector.CopyAux:
		room(a.Room, a.RoomSeq)
	case projector.CopyStaged:
		room(a.Room, a.RoomSeq)
	case projector.CheckPages:
		room(a.Room, a.RoomSeq)
	case projector.SendStagingReq:
		room(a.Room, 0)
	case projector.SendChunkReady:
		room(a.Room, 0)
	case projector.SendStagingRsp:
		room(a.Room, 0)
		ring(a.To)
	case projector.SendWatermark:
		ring(a.To)
	case projector.Tell:
		room(a.Room, a.RoomSeq)
		if a.Kind == projector.TellReleased {
			memory(a.Pages, a.Aux)
		}
	}
	return out
}

func revokes(e *entry) bool {
	_, ok := e.act.(projector.RevokeLease)
	return ok
}

// add takes an entry in. It may begin when waits is 0.
func (a *apart) add(e entry, topics []topic) *parked {
	p := &parked{entry: e, topics: topics}
	after := func(f *parked) {
		f.next = append(f.next, p)
		p.waits++
	}
	if _, end := e.act.(projector.Stopped); end {
		for _, f := range a.all {
			if !f.over {
				after(f)
			}
		}
	}
	for _, at := range p.topics {
		kept := a.last[at][:0]
		for _, f := range a.last[at] {
			if f == p { // a topic that is named twice
				continue
			}
			if !revokes(&e) || !revokes(&f.entry) {
				after(f)
			}
			if revokes(&e) { // whoever comes next waits for it too
				kept = append(kept, f)
			}
		}
		if a.last == nil {
			a.last = map[topic][]*parked{}
		}
		a.last[at] = append(kept, p)
	}
	a.all = append(a.all, p)
	a.n++
	return p
}

// behind: an entry has to wait.
func (a *apart) behind(e *entry, topics []topic) bool {
	if _, end := e.act.(projector.Stopped); end {
		return true
	}
	for _, at := range topics {
		for _, f := range a.last[at] {
			if !revokes(e) || !revokes(&f.entry) {
				return true
			}
		}
	}
	return false
}

// end notes that an entry was done, and gives those that may begin by it.
func (a *apart) end(p *parked) (begin []*parked) {
	p.over = true
	a.n--
	for _, at := range p.topics {
		rest := slices.DeleteFunc(a.last[at], func(f *parked) bool { return f == p })
		if len(rest) == 0 {
			delete(a.last, at)
			continue
		}
		a.last[at] = rest
	}
	for _, f := range p.next {
		if f.waits--; f.waits == 0 {
			begin = append(begin, f)
		}
	}
	p.next = nil
	gone := 0
	for gone < len(a.all) && a.all[gone].over {
		gone++
	}
	clear(a.all[:gone])
	a.all = a.all[gone:]
	if len(a.all) == 0 {
		a.all = nil
	}
	return begin
}

// told is the sequence up to which everything that an engine is told has been
// told, if an entry of seq is told now: what an engine acknowledges with it must
// not cover a release that it has not heard of.
func (a *apart) told(seq uint64, now *parked) uint64 {
	for _, p := range a.all {
		if _, tell := p.act.(projector.Tell); tell && p != now && !p.over && p.after > 0 {
			return min(seq, p.after-1)
		}
	}
	return seq
}

// untold gives what waits here to be told, in order.
func (a *apart) untold() []projector.Tell {
	var out []projector.Tell
	for _, p := range a.all {
		if t, ok := p.act.(projector.Tell); ok && !p.over {
			out = append(out, t)
		}
	}
	return out
}
