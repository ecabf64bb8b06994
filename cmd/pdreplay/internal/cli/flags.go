package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
)

// choice is a flag that takes one of a few words.
type choice struct {
	value string
	words []string
}

// Set implements pflag.Value.
func (c *choice) Set(s string) error {
	if !slices.Contains(c.words, s) {
		return fmt.Errorf("want one of %s", strings.Join(c.words, ", "))
	}
	c.value = s
	return nil
}

// String implements pflag.Value.
func (c *choice) String() string { return c.value }

// Type implements pflag.Value.
func (c *choice) Type() string { return strings.Join(c.words, "|") }

// outputFlag adds -o text|json and what else a command knows.
func outputFlag(fs *pflag.FlagSet, more ...string) *choice {
	c := &choice{value: "text", words: append([]string{"text", "json"}, more...)}
	fs.VarP(c, "output", "o", "form of the result")
	return c
}

// moment is a flag that takes a time, UTC unless it says otherwise.
type moment struct{ t time.Time }

// Set implements pflag.Value.
func (m *moment) Set(s string) error {
	t, err := parseTime(s)
	m.t = t
	return err
}

// String implements pflag.Value.
func (m *moment) String() string {
	if m.t.IsZero() {
		return ""
	}
	return m.t.Format(time.RFC3339Nano)
}

// Type implements pflag.Value.
func (*moment) Type() string { return "time" }

func parseTime(s string) (time.Time, error) {
	for _, form := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999", "2006-01-02"} {
		if t, err := time.ParseInLocation(form, s, time.UTC); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time (want 2006-01-02T15:04:05.000Z)", s)
}

// filterFlags are --node, --room, --page, --request, --type, --since and --until.
type filterFlags struct {
	nodes, types []string
	rooms        []string
	pages        []string
	requests     []string
	since, until moment
}

func addFilter(fs *pflag.FlagSet, names ...string) *filterFlags {
	f := &filterFlags{}
	for _, name := range names {
		switch name {
		case "node":
			fs.StringSliceVar(&f.nodes, "node", nil, "only this node (several: repeat, or a,b)")
		case "room":
			fs.StringSliceVar(&f.rooms, "room", nil, "only this room number")
		case "page":
			fs.StringSliceVar(&f.pages, "page", nil, "only what names this page")
		case "request":
			fs.StringSliceVar(&f.requests, "request", nil, "only the rooms of this request id of the engine")
		case "type":
			fs.StringSliceVar(&f.types, "type", nil, "only events of this type, e.g. Released")
		case "since":
			fs.Var(&f.since, "since", "only from this time on")
		case "until":
			fs.Var(&f.until, "until", "only up to this time")
		}
	}
	return f
}

func (f *filterFlags) filter() (*replay.Filter, error) {
	out := &replay.Filter{Nodes: f.nodes, Types: f.types, Requests: f.requests, Since: f.since.t, Until: f.until.t}
	for _, s := range f.rooms {
		n, err := parseRoom(s)
		if err != nil {
			return nil, err
		}
		out.Rooms = append(out.Rooms, n)
	}
	for _, s := range f.pages {
		n, err := parsePage(s)
		if err != nil {
			return nil, err
		}
		out.Pages = append(out.Pages, n)
	}
	if err := out.Check(); err != nil {
		return nil, command.Usagef("--type: %v", err)
	}
	return out, nil
}

func parseRoom(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, command.Usagef("%q is no room number", s)
	}
	return n, nil
}

func parsePage(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, command.Usagef("%q is no page number", s)
	}
	return uint32(n), nil
}

// sources is Args for SRC…: at least one after the named ones.
func sources(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) <= len(names) {
			return command.Usagef("%s: %s is missing", c.Name(), append(names, "SRC")[len(args)])
		}
		return nil
	}
}

// stream opens the sources and merges them. Types are no filter of a view: what
// is left out would be missing from its answer.
func stream(ctx context.Context, srcs []string) (iter.Seq2[*events.Event, error], error) {
	logs, err := replay.Open(ctx, srcs)
	if err != nil {
		return nil, err
	}
	return replay.Merge(ctx, logs), nil
}

func filtered(seq iter.Seq2[*events.Event, error], f *replay.Filter) iter.Seq2[*events.Event, error] {
	return func(yield func(*events.Event, error) bool) {
		for e, err := range seq {
			if (err != nil || f.Match(e)) && !yield(e, err) {
				return
			}
		}
	}
}

// writeJSON prints v as one JSON document on one line.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
