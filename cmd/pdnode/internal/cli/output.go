package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// choice is a flag that takes one of a few words.
type choice struct {
	value string
	words []string
}

// Set implements pflag.Value.
func (c *choice) Set(s string) error {
	for _, w := range c.words {
		if s == w {
			c.value = s
			return nil
		}
	}
	return fmt.Errorf("want one of %s", strings.Join(c.words, ", "))
}

// String implements pflag.Value.
func (c *choice) String() string { return c.value }

// Type implements pflag.Value.
func (c *choice) Type() string { return strings.Join(c.words, "|") }

// outputFlag adds -o text|json.
func outputFlag(fs *pflag.FlagSet) *choice {
	c := &choice{value: "text", words: []string{"text", "json"}}
	fs.VarP(c, "output", "o", "form of the result")
	return c
}

// writeJSON prints v as one JSON document on one line.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// writeTable prints rows in columns; the first row is the head.
func writeTable(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, r := range rows {
		if _, err := fmt.Fprintln(tw, strings.Join(r, "\t")); err != nil {
			return err
		}
	}
	return tw.Flush()
}

// plain is a message as JSON values with the rules of cli.md: snake_case keys,
// 64-bit integers as exact numbers, boots as hex, unix milliseconds as
// RFC 3339 times (opened_ms becomes opened_at).
func plain(m proto.Message) map[string]any { return plainMessage(m.ProtoReflect()) }

func plainMessage(m protoreflect.Message) map[string]any {
	out := map[string]any{}
	fds := m.Descriptor().Fields()
	for i := range fds.Len() {
		fd := fds.Get(i)
		name, v := string(fd.Name()), m.Get(fd)
		switch {
		case name == "opened_ms" || name == "deadline_ms":
			if at := timeText(v.Uint()); at != "" {
				out[strings.TrimSuffix(name, "_ms")+"_at"] = at
			}
		case name == "boot":
			out[name] = fmt.Sprintf("%016x", v.Uint())
		case fd.IsMap():
			mm := map[string]any{}
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				mm[k.String()] = plainValue(fd.MapValue(), v)
				return true
			})
			out[name] = mm
		case fd.IsList():
			list := make([]any, 0, v.List().Len())
			for j := range v.List().Len() {
				list = append(list, plainValue(fd, v.List().Get(j)))
			}
			out[name] = list
		default:
			out[name] = plainValue(fd, v)
		}
	}
	return out
}

func plainValue(fd protoreflect.FieldDescriptor, v protoreflect.Value) any {
	if fd.Kind() == protoreflect.MessageKind {
		return plainMessage(v.Message())
	}
	return v.Interface()
}

// timeText is an RFC 3339 time in UTC, "" for 0, which is no time.
func timeText(unixMS uint64) string {
	if unixMS == 0 {
		return ""
	}
	return time.UnixMilli(int64(unixMS)).UTC().Format("2006-01-02T15:04:05.000000000Z07:00") //nolint:gosec // ms fit
}
