package replay

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pdlog/pdlog/events"
)

// ParseJSON reads one event as events.AppendJSON prints it, or as a milestone of
// the audit stream, whose room is a string. Keys this build does not know are skipped; an event of an unknown type keeps its envelope
// alone. AppendJSON of the result prints the same bytes for every event of
// this schema.
func ParseJSON(line []byte) (*events.Event, error) {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	var obj map[string]any
	if err := dec.Decode(&obj); err != nil {
		return nil, fmt.Errorf("not a JSON object: %w", err)
	}
	e := &events.Event{}
	p := jsonReader{obj: obj}
	e.Seq, e.Hlc = p.uint("seq"), p.uint("hlc")
	e.Node, e.Rank = p.str("node"), p.str("rank")
	e.Boot = p.hex64("boot")
	e.Incarnation, e.Room, e.RoomSeq = p.uint("incarnation"), p.uint("room"), p.uint("room_seq")
	e.PrevHash = uint32(p.hex64("prev_hash")) //nolint:gosec // 8 digits
	e.TimeOffsetMs = p.int("time_offset_ms")
	if _, ok := obj["cause_seq"]; ok {
		e.Cause = &events.Cause{Node: p.str("cause_node"), Seq: p.uint("cause_seq")}
	}
	name := p.str("type")
	if p.err != nil {
		return nil, p.err
	}
	if e.Seq == 0 || e.Node == "" || name == "" {
		return nil, fmt.Errorf("not an event: seq, node and type are needed")
	}
	fd := payloadField(name)
	if fd == nil {
		return e, nil
	}
	m := e.ProtoReflect()
	body := m.NewField(fd)
	if err := setFields(body.Message(), obj); err != nil {
		return nil, err
	}
	m.Set(fd, body)
	return e, nil
}

func payloadField(name string) protoreflect.FieldDescriptor {
	fds := (&events.Event{}).ProtoReflect().Descriptor().Oneofs().ByName("payload").Fields()
	for i := range fds.Len() {
		if string(fds.Get(i).Message().Name()) == name {
			return fds.Get(i)
		}
	}
	return nil
}

func setFields(m protoreflect.Message, obj map[string]any) error {
	fds := m.Descriptor().Fields()
	for i := range fds.Len() {
		fd := fds.Get(i)
		raw, ok := obj[string(fd.Name())]
		if !ok {
			continue
		}
		if err := setField(m, fd, raw); err != nil {
			return fmt.Errorf("%s: %w", fd.Name(), err)
		}
	}
	return nil
}

func setField(m protoreflect.Message, fd protoreflect.FieldDescriptor, raw any) error {
	switch {
	case fd.IsMap():
		obj, ok := raw.(map[string]any)
		if !ok {
			return fmt.Errorf("have %T, want an object", raw)
		}
		mp := m.Mutable(fd).Map()
		for k, v := range obj {
			val, err := scalar(fd.MapValue(), v)
			if err != nil {
				return err
			}
			mp.Set(protoreflect.ValueOfString(k).MapKey(), val)
		}
	case fd.IsList():
		list, ok := raw.([]any)
		if !ok {
			return fmt.Errorf("have %T, want an array", raw)
		}
		if len(list) == 0 {
			return nil
		}
		to := m.Mutable(fd).List()
		for _, v := range list {
			if fd.Kind() == protoreflect.MessageKind {
				obj, ok := v.(map[string]any)
				if !ok {
					return fmt.Errorf("have %T, want an object", v)
				}
				if err := setFields(to.AppendMutable().Message(), obj); err != nil {
					return err
				}
				continue
			}
			val, err := scalar(fd, v)
			if err != nil {
				return err
			}
			to.Append(val)
		}
	case fd.Kind() == protoreflect.MessageKind:
		obj, ok := raw.(map[string]any)
		if !ok {
			return fmt.Errorf("have %T, want an object", raw)
		}
		return setFields(m.Mutable(fd).Message(), obj)
	default:
		val, err := scalar(fd, raw)
		if err != nil {
			return err
		}
		m.Set(fd, val)
	}
	return nil
}

func scalar(fd protoreflect.FieldDescriptor, raw any) (protoreflect.Value, error) {
	var none protoreflect.Value
	switch v := raw.(type) {
	case bool:
		if fd.Kind() == protoreflect.BoolKind {
			return protoreflect.ValueOfBool(v), nil
		}
	case json.Number:
		return number(fd, v.String())
	case string:
		switch fd.Kind() {
		case protoreflect.StringKind:
			return protoreflect.ValueOfString(v), nil
		case protoreflect.BytesKind:
			b, err := hex.DecodeString(v)
			if err != nil {
				return none, err
			}
			if len(b) == 0 {
				b = nil
			}
			return protoreflect.ValueOfBytes(b), nil
		case protoreflect.EnumKind:
			return enumValue(fd.Enum(), v)
		case protoreflect.Fixed64Kind: // a name in hex
			n, err := strconv.ParseUint(v, 16, 64)
			return protoreflect.ValueOfUint64(n), err
		}
	}
	return none, fmt.Errorf("have %v, want %s", raw, fd.Kind())
}

func number(fd protoreflect.FieldDescriptor, s string) (protoreflect.Value, error) {
	switch fd.Kind() {
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		n, err := strconv.ParseUint(s, 10, 32)
		return protoreflect.ValueOfUint32(uint32(n)), err //nolint:gosec // 32 bits
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		n, err := strconv.ParseUint(s, 10, 64)
		return protoreflect.ValueOfUint64(n), err
	case protoreflect.Int64Kind, protoreflect.Sint64Kind:
		n, err := strconv.ParseInt(s, 10, 64)
		return protoreflect.ValueOfInt64(n), err
	case protoreflect.Int32Kind, protoreflect.Sint32Kind:
		n, err := strconv.ParseInt(s, 10, 32)
		return protoreflect.ValueOfInt32(int32(n)), err //nolint:gosec // 32 bits
	}
	return protoreflect.Value{}, fmt.Errorf("have number %s, want %s", s, fd.Kind())
}

// enumValue is the inverse of events.EnumWord.
func enumValue(ed protoreflect.EnumDescriptor, w string) (protoreflect.Value, error) {
	if n, err := strconv.ParseInt(w, 10, 32); err == nil {
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(n)), nil
	}
	vs := ed.Values()
	for i := range vs.Len() {
		if n := vs.Get(i).Number(); events.EnumWord(ed, n) == w {
			return protoreflect.ValueOfEnum(n), nil
		}
	}
	return protoreflect.Value{}, fmt.Errorf("%q is no %s", w, strings.ToLower(string(ed.Name())))
}

// jsonReader takes envelope keys; the first error stays.
type jsonReader struct {
	obj map[string]any
	err error
}

func (r *jsonReader) fail(key string, v any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: unexpected %v", key, v)
	}
}

func (r *jsonReader) str(key string) string {
	v, ok := r.obj[key]
	if !ok {
		return ""
	}
	s, ok := v.(string)
	if !ok {
		r.fail(key, v)
	}
	return s
}

func (r *jsonReader) uint(key string) uint64 {
	v, ok := r.obj[key]
	if !ok {
		return 0
	}
	n, ok := v.(json.Number)
	if word, is := v.(string); is && key == "room" { // as a milestone has it
		n, ok = json.Number(word), true
	}
	u, err := strconv.ParseUint(string(n), 10, 64)
	if err != nil || !ok {
		r.fail(key, v)
	}
	return u
}

func (r *jsonReader) int(key string) int64 {
	v, ok := r.obj[key]
	if !ok {
		return 0
	}
	n, _ := v.(json.Number)
	i, err := n.Int64()
	if err != nil {
		r.fail(key, v)
	}
	return i
}

func (r *jsonReader) hex64(key string) uint64 {
	s := r.str(key)
	if s == "" {
		return 0
	}
	u, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		r.fail(key, s)
	}
	return u
}
