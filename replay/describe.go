package replay

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pdlog/pdlog/events"
)

// Describe is an event's payload in one line for people: its type and the
// fields that say something, in the schema's order.
func Describe(e *events.Event) string {
	m := e.PayloadMessage()
	if m == nil {
		return e.TypeName()
	}
	return e.TypeName() + describeFields(m)
}

func describeFields(m protoreflect.Message) string {
	var sb strings.Builder
	fds := m.Descriptor().Fields()
	for i := range fds.Len() {
		fd := fds.Get(i)
		if !m.Has(fd) && !counted[fd.Name()] || quiet[fd.Name()] {
			continue
		}
		if s := describeValue(fd, m.Get(fd)); s != "" {
			sb.WriteString(" ")
			sb.WriteString(string(fd.Name()))
			if s != "true" {
				sb.WriteString("=" + s)
			}
		}
	}
	return sb.String()
}

// quiet are fields that tell a person nothing at 3 a.m.; -o json has them.
var quiet = map[protoreflect.Name]bool{
	"address": true, "write_keys": true, "session": true, "peer_log_id": true, "decode_log_id": true, "log_id": true,
	"peer_log_since": true, "log_since": true, "wire_id": true, "source_pages": true, "rank_addresses": true, "trace_id": true,
}

// counted are numbers whose 0 is a number like any other.
var counted = map[protoreflect.Name]bool{"chunk": true, "page": true}

func describeValue(fd protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch {
	case fd.IsMap():
		var parts []string
		v.Map().Range(func(k protoreflect.MapKey, mv protoreflect.Value) bool {
			parts = append(parts, k.String()+":"+describeScalar(fd.MapValue(), mv))
			return true
		})
		slices.Sort(parts)
		return strings.Join(parts, ",")
	case fd.IsList() && fd.Kind() == protoreflect.Uint32Kind:
		pages := make([]uint32, v.List().Len())
		for i := range pages {
			pages[i] = uint32(v.List().Get(i).Uint()) //nolint:gosec // uint32 field
		}
		return Ranges(pages)
	case fd.IsList():
		parts := make([]string, v.List().Len())
		for i := range parts {
			parts[i] = describeScalar(fd, v.List().Get(i))
		}
		return strings.Join(parts, ",")
	}
	return describeScalar(fd, v)
}

func describeScalar(fd protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch fd.Kind() {
	case protoreflect.EnumKind:
		return events.EnumWord(fd.Enum(), v.Enum())
	case protoreflect.StringKind:
		if s := v.String(); strings.ContainsAny(s, " \"\n") {
			return strconv.Quote(s)
		}
		return v.String()
	case protoreflect.BytesKind:
		return fmt.Sprintf("%x", v.Bytes())
	case protoreflect.MessageKind:
		switch m := v.Message().Interface().(type) {
		case *events.Pair:
			return m.GetRank() + ">" + m.GetTo()
		case *events.Evidence:
			s := m.GetRank() + ">" + m.GetTo() + ":" + events.EnumWord(m.GetBasis().Descriptor(), m.GetBasis().Number())
			if m.GetSeq() != 0 {
				s += "@" + strconv.FormatUint(m.GetSeq(), 10)
			}
			return s
		}
		return "{" + strings.TrimSpace(describeFields(v.Message())) + "}"
	case protoreflect.BoolKind:
		return strconv.FormatBool(v.Bool())
	case protoreflect.Fixed64Kind:
		return fmt.Sprintf("%016x", v.Uint())
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Int32Kind, protoreflect.Sint32Kind:
		return strconv.FormatInt(v.Int(), 10)
	default:
		return strconv.FormatUint(v.Uint(), 10)
	}
}

// Ranges writes a page list as in scenarios: "10-19,30"; "none" if it is empty.
// The list's own order stays.
func Ranges(pages []uint32) string {
	if len(pages) == 0 {
		return "none"
	}
	var sb strings.Builder
	for i := 0; i < len(pages); {
		j := i
		for j+1 < len(pages) && pages[j+1] == pages[j]+1 {
			j++
		}
		if sb.Len() > 0 {
			sb.WriteByte(',')
		}
		sb.WriteString(strconv.FormatUint(uint64(pages[i]), 10))
		if j > i {
			sb.WriteString("-" + strconv.FormatUint(uint64(pages[j]), 10))
		}
		i = j + 1
	}
	return sb.String()
}

// millisText is a duration of whole milliseconds for a table.
func millisText(ms int64) string {
	switch d := time.Duration(ms) * time.Millisecond; {
	case ms < 0:
		return "-" + millisText(-ms)
	case d < 10*time.Second:
		return strconv.FormatInt(ms, 10) + "ms"
	case d < 10*time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
	default:
		return d.Round(time.Second).String()
	}
}

// clockText is a time of day in UTC; the date stands once, in a heading.
func clockText(t time.Time) string { return t.Format("15:04:05.000") }

// TextLine is an event as one line of fixed columns: time, node, seq, room, rank
// and payload. The eye finds the node by its column.
func TextLine(w io.Writer, e *events.Event) error {
	room := ""
	if e.RoomSeq != 0 || e.Room != 0 {
		room = fmt.Sprintf("%d/%d", e.Room, e.RoomSeq)
	}
	cause := ""
	if c := e.Cause; c != nil && c.Node != "" {
		cause = fmt.Sprintf("  <- %s#%d", c.Node, c.Seq)
	}
	_, err := fmt.Fprintf(w, "%s %-8s %7d  %-14s %-6s %s%s\n",
		e.Time().Format("2006-01-02T15:04:05.000Z"), e.Node, e.Seq, room, e.Rank, Describe(e), cause)
	return err
}
