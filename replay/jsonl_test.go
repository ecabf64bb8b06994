package replay_test

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
)

// fill sets every field of a message to something that shows a mix-up.
func fill(m protoreflect.Message, n *uint64) {
	fds := m.Descriptor().Fields()
	for i := range fds.Len() {
		fd := fds.Get(i)
		*n++
		switch {
		case fd.IsMap():
			m.Mutable(fd).Map().Set(protoreflect.ValueOfString("k \"ü").MapKey(), protoreflect.ValueOfString("v\n"))
		case fd.IsList() && fd.Kind() == protoreflect.MessageKind:
			fill(m.Mutable(fd).List().AppendMutable().Message(), n)
		case fd.IsList():
			m.Mutable(fd).List().Append(value(fd, *n))
		case fd.Kind() == protoreflect.MessageKind:
			fill(m.Mutable(fd).Message(), n)
		default:
			m.Set(fd, value(fd, *n))
		}
	}
}

func value(fd protoreflect.FieldDescriptor, n uint64) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(1 + n%2)) //nolint:gosec // small
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("s\t" + strings.Repeat("x", int(n%5))) //nolint:gosec // small
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{byte(n), 0, 255})
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(n)) //nolint:gosec // small
	case protoreflect.Sint64Kind, protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(-int64(n)) //nolint:gosec // small
	default:
		return protoreflect.ValueOfUint64(1<<63 + n) // beyond what a float64 holds
	}
}

func TestEveryEventTypeSurvivesItsJSON(t *testing.T) {
	fds := (&events.Event{}).ProtoReflect().Descriptor().Oneofs().ByName("payload").Fields()
	for i := range fds.Len() {
		e := &events.Event{
			Seq: 9, Hlc: 1<<62 + 5, Node: "d", Boot: 0xfeedfacecafebeef, Incarnation: 3, Room: 5009007199254740993, RoomSeq: 7,
			Rank: "p/0", Cause: &events.Cause{Node: "p", Seq: 44}, PrevHash: 0xdeadbeef, TimeOffsetMs: -12,
		}
		body := e.ProtoReflect().NewField(fds.Get(i))
		n := uint64(i)
		fill(body.Message(), &n)
		e.ProtoReflect().Set(fds.Get(i), body)
		line := events.AppendJSON(nil, e)
		got, err := replay.ParseJSON(line)
		if err != nil {
			t.Errorf("%s: %v", e.TypeName(), err)
			continue
		}
		if !proto.Equal(got, e) {
			t.Errorf("%s: have %v, want %v", e.TypeName(), got, e)
		}
		if again := events.AppendJSON(nil, got); !bytes.Equal(again, line) {
			t.Errorf("%s: prints %s, was %s", e.TypeName(), again, line)
		}
	}
}

func TestParseJSONRefusesWhatIsNoEvent(t *testing.T) {
	for _, line := range []string{
		``, `null`, `[]`, `{`, `{}`, `{"seq":1,"node":"d"}`, `{"seq":-1,"node":"d","type":"Drained"}`,
		`{"seq":1,"node":7,"type":"Drained"}`, `{"seq":1,"node":"d","type":"Released","pages":[1.5]}`,
		`{"seq":1,"node":"d","type":"Released","basis":"wishful"}`, `{"seq":1,"node":"d","type":"Released","pages":7}`,
		`{"seq":1,"node":"d","type":"Released","evidence":[3]}`,
	} {
		if e, err := replay.ParseJSON([]byte(line)); err == nil {
			t.Errorf("%s: no error, have %v", line, e)
		}
	}
	e, err := replay.ParseJSON([]byte(`{"seq":4,"node":"d","type":"Teleported","where":"mars"}`))
	if err != nil || e.TypeName() != "Unknown" || e.Seq != 4 {
		t.Errorf("a newer type: have %v, %v; want its envelope", e, err)
	}
}

func FuzzParseJSON(f *testing.F) {
	for _, e := range lateWrite().All {
		f.Add(events.AppendJSON(nil, e))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := replay.ParseJSON(line)
		if err != nil {
			return
		}
		out := events.AppendJSON(nil, e)
		again, err := replay.ParseJSON(out)
		if err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if !bytes.Equal(events.AppendJSON(nil, again), out) {
			t.Fatalf("%s prints another way", out)
		}
	})
}
