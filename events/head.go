package events

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Head is what a record tells without being decoded: enough to look for the few
// events of one room or of some types in a log of millions.
type Head struct {
	Seq     uint64
	Room    uint64
	RoomSeq uint64
	Type    Type // 0: a type of a newer schema, or none
	// Record is what the event is decoded from, good while it is asked about; nil
	// if it was decoded already.
	Record []byte
}

// Type is a payload's number in the schema.
type Type = protoreflect.FieldNumber

// firstType is the lowest number of a payload in the schema.
const firstType = 20

// HeadOf is the head of a decoded event.
func HeadOf(e *Event) Head {
	h := Head{Seq: e.Seq, Room: e.Room, RoomSeq: e.RoomSeq}
	m := e.ProtoReflect()
	if fd := m.WhichOneof(m.Descriptor().Oneofs().ByName("payload")); fd != nil {
		h.Type = fd.Number()
	}
	return h
}

// TypesOf are the types whose events are such as is says.
func TypesOf(is func(*Event) bool) map[Type]bool {
	out := map[Type]bool{}
	fds := payloadOneof.Fields()
	for i := range fds.Len() {
		e := new(Event)
		m := e.ProtoReflect()
		m.Set(fds.Get(i), m.NewField(fds.Get(i)))
		if is(e) {
			out[fds.Get(i).Number()] = true
		}
	}
	return out
}

// peek reads a record up to its payload. Fields come in order, as a FrameWriter
// writes them; a record of any other writer is read to its end.
func peek(rec []byte) (h Head, ok bool) {
	for len(rec) > 0 {
		num, wt, n := protowire.ConsumeTag(rec)
		if n < 0 {
			return h, false
		}
		rec = rec[n:]
		switch {
		case num >= firstType && wt == protowire.BytesType:
			h.Type = num
			return h, true
		case (num == 6 || num == 7) && wt == protowire.VarintType: // room, room_seq
			v, n := protowire.ConsumeVarint(rec)
			if n < 0 {
				return h, false
			}
			if rec = rec[n:]; num == 6 {
				h.Room = v
			} else {
				h.RoomSeq = v
			}
		default:
			n := protowire.ConsumeFieldValue(num, wt, rec)
			if n < 0 {
				return h, false
			}
			rec = rec[n:]
		}
	}
	return h, true
}
