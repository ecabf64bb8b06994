package events

import (
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// The JSON form of an event (cli.md): the envelope's keys, "type", and the
// payload's fields in snake_case. Integers are exact JSON numbers, 64-bit ones
// too; bytes and boots are hex; enums are their lower-case words. Key order is
// fixed and nothing depends on the reader, so equal logs print equal bytes.

// hexKeys are the fixed64 fields that are names, not quantities: 16 hex digits.
var hexKeys = map[protoreflect.Name]bool{
	"boot": true, "peer_boot": true, "old_boot": true, "new_boot": true, "decode_boot": true,
}

// AppendJSON appends the event as one JSON object without a line feed.
func AppendJSON(b []byte, e *Event) []byte {
	b = append(b, `{"seq":`...)
	b = strconv.AppendUint(b, e.Seq, 10)
	b = append(b, `,"hlc":`...)
	b = strconv.AppendUint(b, e.Hlc, 10)
	b = append(b, `,"time":"`...)
	b = HLC(e.Hlc).Time().AppendFormat(b, "2006-01-02T15:04:05.000000000Z07:00")
	b = append(b, `","node":`...)
	b = appendString(b, e.Node)
	b = append(b, `,"boot":"`...)
	b = appendHex64(b, e.Boot)
	b = append(b, `","incarnation":`...)
	b = strconv.AppendUint(b, e.Incarnation, 10)
	b = append(b, `,"room":`...)
	b = strconv.AppendUint(b, e.Room, 10)
	b = append(b, `,"room_seq":`...)
	b = strconv.AppendUint(b, e.RoomSeq, 10)
	b = append(b, `,"rank":`...)
	b = appendString(b, e.Rank)
	if c := e.Cause; c != nil { // two keys: several payloads have a "cause" of their own
		b = append(b, `,"cause_node":`...)
		b = appendString(b, c.Node)
		b = append(b, `,"cause_seq":`...)
		b = strconv.AppendUint(b, c.Seq, 10)
	}
	b = append(b, `,"prev_hash":"`...)
	b = append(b, hex.EncodeToString([]byte{byte(e.PrevHash >> 24), byte(e.PrevHash >> 16), byte(e.PrevHash >> 8), byte(e.PrevHash)})...)
	b = append(b, `","time_offset_ms":`...)
	b = strconv.AppendInt(b, e.TimeOffsetMs, 10)
	b = append(b, `,"type":`...)
	b = appendString(b, e.TypeName())
	if m := e.PayloadMessage(); m != nil {
		b = appendFields(b, m)
	}
	return append(b, '}')
}

// MarshalJSON implements json.Marshaler by AppendJSON.
func (x *Event) MarshalJSON() ([]byte, error) { return AppendJSON(nil, x), nil }

func appendFields(b []byte, m protoreflect.Message) []byte {
	fds := m.Descriptor().Fields()
	for i := range fds.Len() {
		fd := fds.Get(i)
		if fd.HasPresence() && !m.Has(fd) {
			continue
		}
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = appendString(b, string(fd.Name()))
		b = append(b, ':')
		v := m.Get(fd)
		switch {
		case fd.IsMap():
			b = appendMap(b, fd, v.Map())
		case fd.IsList():
			b = append(b, '[')
			for j := range v.List().Len() {
				if j > 0 {
					b = append(b, ',')
				}
				b = appendValue(b, fd, v.List().Get(j))
			}
			b = append(b, ']')
		default:
			b = appendValue(b, fd, v)
		}
	}
	return b
}

func appendMap(b []byte, fd protoreflect.FieldDescriptor, m protoreflect.Map) []byte {
	keys := make([]string, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k.String())
		return true
	})
	slices.Sort(keys)
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, k)
		b = append(b, ':')
		b = appendValue(b, fd.MapValue(), m.Get(protoreflect.ValueOfString(k).MapKey()))
	}
	return append(b, '}')
}

func appendValue(b []byte, fd protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return strconv.AppendBool(b, v.Bool())
	case protoreflect.EnumKind:
		return appendString(b, EnumWord(fd.Enum(), v.Enum()))
	case protoreflect.StringKind:
		return appendString(b, v.String())
	case protoreflect.BytesKind:
		return appendString(b, hex.EncodeToString(v.Bytes()))
	case protoreflect.MessageKind:
		b = append(b, '{')
		return append(appendFields(b, v.Message()), '}')
	case protoreflect.Int32Kind, protoreflect.Int64Kind, protoreflect.Sint32Kind, protoreflect.Sint64Kind:
		return strconv.AppendInt(b, v.Int(), 10)
	default: // unsigned kinds; the schema has no floats
		if hexKeys[fd.Name()] {
			b = append(b, '"')
			b = appendHex64(b, v.Uint())
			return append(b, '"')
		}
		return strconv.AppendUint(b, v.Uint(), 10)
	}
}

// EnumWord is the word of an enum value in JSON, scenarios and text: the value's
// name without the enum's prefix, lower case; "" for the unspecified value.
func EnumWord(ed protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	if words := enumWords[ed]; n >= 0 && int(n) < len(words) {
		return words[n]
	}
	return enumWord(ed, n)
}

// enumWords has the words of each enum of this schema by number: they are asked
// for on every event that metrics count.
var enumWords = func() map[protoreflect.EnumDescriptor][]string {
	file_events_proto_init()
	out := map[protoreflect.EnumDescriptor][]string{}
	for enums, i := File_events_proto.Enums(), 0; i < enums.Len(); i++ {
		out[enums.Get(i)] = wordsOf(enums.Get(i))
	}
	return out
}()

func wordsOf(ed protoreflect.EnumDescriptor) []string {
	words := make([]string, ed.Values().Len())
	for n := range words {
		words[n] = enumWord(ed, protoreflect.EnumNumber(n)) //nolint:gosec // small
	}
	return words
}

func enumWord(ed protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	vd := ed.Values().ByNumber(n)
	if vd == nil {
		return strconv.Itoa(int(n))
	}
	if n == 0 {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(string(vd.Name()), screaming(string(ed.Name()))+"_"))
}

func screaming(camel string) string {
	var sb strings.Builder
	for i, r := range camel {
		if i > 0 && r >= 'A' && r <= 'Z' {
			sb.WriteByte('_')
		}
		sb.WriteRune(r)
	}
	return strings.ToUpper(sb.String())
}

func appendHex64(b []byte, v uint64) []byte {
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, digits[v>>uint(shift)&15])
	}
	return b
}

func appendString(b []byte, s string) []byte {
	const digits = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
			i++
		case c < 0x20 || c == 0x7f:
			b = append(b, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
			i++
		case c < utf8.RuneSelf:
			b = append(b, c)
			i++
		default:
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				b = append(b, `\ufffd`...)
			} else {
				b = append(b, s[i:i+n]...)
			}
			i += n
		}
	}
	return append(b, '"')
}

// Clock is the event's time on the node's deadline clock, in unix
// milliseconds: what deadlines are counted from.
func (x *Event) Clock() uint64 {
	return uint64(int64(HLC(x.Hlc).Millis()) + x.TimeOffsetMs) //nolint:gosec // ms fit
}

// Time is the event's hybrid-clock time as wall time, UTC.
func (x *Event) Time() time.Time { return HLC(x.Hlc).Time() }
