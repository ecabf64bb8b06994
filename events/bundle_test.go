package events

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Whatever memory an event is decoded into, it is the event that the plain
// protobuf library reads from the same bytes, for every type of the schema.
func TestBundledEventsAreWhatProtobufReads(t *testing.T) {
	fields := (&Event{}).ProtoReflect().Descriptor().Oneofs().ByName("payload").Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		e := &Event{Room: 9, RoomSeq: 3, Rank: "p0/1"}
		payload := e.ProtoReflect().NewField(fd)
		fill(payload.Message(), 2)
		e.ProtoReflect().Set(fd, payload)
		rec, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		h, ok := peek(rec)
		if !ok || h.Type != fd.Number() {
			t.Fatalf("%s: peek says %d, %v", fd.Name(), h.Type, ok)
		}
		got := newEvent(h.Type)
		if err := got.UnmarshalVT(rec); err != nil {
			t.Fatalf("%s: %v", fd.Name(), err)
		}
		if !proto.Equal(got, e) {
			t.Errorf("%s: have %v, want %v", fd.Name(), got, e)
		}
	}
}

// fill sets every field of a message to something that is not its zero.
func fill(m protoreflect.Message, depth int) {
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		var v protoreflect.Value
		switch fd.Kind() {
		case protoreflect.MessageKind:
			if depth == 0 || fd.IsMap() {
				continue
			}
			if fd.IsList() {
				l := m.Mutable(fd).List()
				fill(l.AppendMutable().Message(), depth-1)
			} else {
				fill(m.Mutable(fd).Message(), depth-1)
			}
			continue
		case protoreflect.StringKind:
			v = protoreflect.ValueOfString("s")
		case protoreflect.BytesKind:
			v = protoreflect.ValueOfBytes([]byte{1, 2})
		case protoreflect.BoolKind:
			v = protoreflect.ValueOfBool(true)
		case protoreflect.EnumKind:
			v = protoreflect.ValueOfEnum(1)
		case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
			v = protoreflect.ValueOfUint64(1 << 40)
		case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
			v = protoreflect.ValueOfUint32(300)
		case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
			v = protoreflect.ValueOfInt64(-5)
		case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
			v = protoreflect.ValueOfInt32(-5)
		case protoreflect.DoubleKind:
			v = protoreflect.ValueOfFloat64(0.5)
		default:
			panic("no value for " + fd.FullName())
		}
		if fd.IsMap() {
			continue
		}
		if fd.IsList() {
			m.Mutable(fd).List().Append(v)
		} else {
			m.Set(fd, v)
		}
	}
}
