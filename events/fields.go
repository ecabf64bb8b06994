package events

import (
	"encoding/hex"
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// HasField says whether an event of a type has a field of that name: one of the
// payload's, or the envelope's rank, room_seq, boot, incarnation and seq.
func HasField(typeName, field string) bool {
	switch field {
	case "rank", "room_seq", "boot", "incarnation", "seq", "room":
		return true
	}
	fds := payloadOneof.Fields()
	for i := range fds.Len() {
		if fds.Get(i).Message().Name() == protoreflect.Name(typeName) {
			return fds.Get(i).Message().Fields().ByName(protoreflect.Name(field)) != nil
		}
	}
	return false
}

// FieldText is a field's value as text, as it stands in JSON but without
// quotes; false if the event has no such field, or leaves it out.
func FieldText(e *Event, field string) (string, bool) {
	switch field {
	case "rank":
		return e.Rank, true
	case "room":
		return strconv.FormatUint(e.Room, 10), true
	case "room_seq":
		return strconv.FormatUint(e.RoomSeq, 10), true
	case "boot":
		return string(appendHex64(nil, e.Boot)), true
	case "incarnation":
		return strconv.FormatUint(e.Incarnation, 10), true
	case "seq":
		return strconv.FormatUint(e.Seq, 10), true
	}
	m := e.PayloadMessage()
	if m == nil {
		return "", false
	}
	fd := m.Descriptor().Fields().ByName(protoreflect.Name(field))
	if fd == nil || fd.IsList() || fd.IsMap() || fd.HasPresence() && !m.Has(fd) {
		return "", false
	}
	v := m.Get(fd)
	switch fd.Kind() {
	case protoreflect.StringKind:
		return v.String(), true
	case protoreflect.BytesKind:
		return hex.EncodeToString(v.Bytes()), true
	case protoreflect.MessageKind:
		return "", false
	default:
		b := appendValue(nil, fd, v)
		if len(b) > 1 && b[0] == '"' {
			b = b[1 : len(b)-1]
		}
		return string(b), true
	}
}
