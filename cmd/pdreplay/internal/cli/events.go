package cli

import (
	"bufio"
	"encoding/json"
	"strconv"

	"github.com/cockroachdb/errors"
	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
)

func eventsCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "events SRC…", Short: "the events, in causal order", Args: sources(),
		Long: "The events of all sources in causal order. -o json: a JSON object a line; -o cloudevents: a CloudEvent 1.0 a line.",
	}
	out := outputFlag(c.Flags(), "cloudevents")
	ff := addFilter(c.Flags(), "node", "room", "page", "request", "type", "since", "until")
	c.RunE = func(c *cobra.Command, args []string) error {
		f, err := ff.filter()
		if err != nil {
			return err
		}
		logs, err := replay.Open(c.Context(), args)
		if err != nil {
			return err
		}
		var damage error
		merged := replay.Merge(c.Context(), logs)
		if len(f.Requests) > 0 {
			focus, err := replay.FocusOnRequests(c.Context(), logs, f.Requests)
			if err != nil {
				return err
			}
			merged = replay.MergeFocus(c.Context(), logs, focus)
		}
		seq := replay.Readable(merged, &damage)
		if out.value == "json" {
			_, err := replay.WriteJSONL(sys.Stdout, filtered(seq, f))
			return either(err, damage)
		}
		w := bufio.NewWriterSize(sys.Stdout, 64<<10)
		for e, err := range filtered(seq, f) {
			if err == nil && out.value == "cloudevents" {
				err = writeJSON(w, cloudEvent(e))
			} else if err == nil {
				err = replay.TextLine(w, e)
			}
			if err != nil {
				return errors.CombineErrors(err, w.Flush())
			}
		}
		return either(w.Flush(), damage)
	}
	return c
}

// cloudEvent is an event in the structured form of CloudEvents 1.0. Its id and
// type are those of the mirror's audit stream (store.md 6.5).
func cloudEvent(e *events.Event) any {
	return struct {
		SpecVersion string          `json:"specversion"`
		ID          string          `json:"id"`
		Source      string          `json:"source"`
		Type        string          `json:"type"`
		Time        replay.Time     `json:"time"`
		ContentType string          `json:"datacontenttype"`
		Data        json.RawMessage `json:"data"`
	}{
		"1.0", e.Node + "/" + strconv.FormatUint(e.Seq, 10), "/pdlog/" + e.Node, "pdlog.events.v1." + e.TypeName(),
		replay.Time{Time: e.Time()}, "application/json", events.AppendJSON(nil, e),
	}
}
