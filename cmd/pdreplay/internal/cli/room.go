package cli

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
)

func roomCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "room R SRC…", Short: "one room's life across all nodes", Args: sources("room number R"),
	}
	out := outputFlag(c.Flags())
	ff := addFilter(c.Flags(), "node", "type", "since", "until")
	seq := c.Flags().Uint64("seq", 0, "only the incarnation with this room_seq")
	c.RunE = func(c *cobra.Command, args []string) error {
		room, err := parseRoom(args[0])
		if err != nil {
			return err
		}
		f, err := ff.filter()
		if err != nil {
			return err
		}
		logs, err := replay.Open(c.Context(), args[1:])
		if err != nil {
			return err
		}
		var damage error
		all := replay.Readable(replay.MergeRoom(c.Context(), logs, room), &damage)
		defer showProgress(sys, logs, 1)()
		life, err := replay.Lifeline(all, room, *seq)
		if err != nil {
			return err
		}
		if len(life.Events) == 0 {
			return either(damage, &command.Error{Code: command.ExitBad, Text: "room " + args[0] + " is in none of these logs"})
		}
		life.Select(f)
		if out.value == "text" {
			return either(life.Write(sys.Stdout), damage)
		}
		evs := make([]json.RawMessage, len(life.Events))
		for i, e := range life.Events {
			evs[i] = events.AppendJSON(nil, e)
		}
		return either(writeJSON(sys.Stdout, map[string]any{"room": room, "incarnations": life.Rows, "events": evs}), damage)
	}
	return c
}
