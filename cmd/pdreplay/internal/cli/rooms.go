package cli

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/replay"
)

func roomsCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "rooms SRC…", Short: "a line per room incarnation: outcome, ranks, pages, release", Args: sources(),
		Long: `A line per room incarnation. IN is the time from open to outcome, AFTER from the
outcome to the release, HELD from the armed abort to the release. A prefill
incarnation whose decode room is in view is part of that room's line.`,
	}
	out := outputFlag(c.Flags())
	ff := addFilter(c.Flags(), "node", "room", "page", "request", "since", "until")
	c.RunE = func(c *cobra.Command, args []string) error {
		f, err := ff.filter()
		if err != nil {
			return err
		}
		v, err := gatherFor(c.Context(), sys, f, args)
		if err != nil {
			return err
		}
		rows := slices.DeleteFunc(replay.RoomTable(v.history), func(r replay.RoomRow) bool { return !rowMatches(f, r) })
		if out.value == "json" {
			return either(writeJSON(sys.Stdout, map[string]any{"rooms": rows}), v.damage)
		}
		return either(replay.WriteRooms(sys.Stdout, rows), v.damage)
	}
	return c
}

func rowMatches(f *replay.Filter, r replay.RoomRow) bool {
	return (len(f.Nodes) == 0 || slices.Contains(f.Nodes, r.Node)) &&
		(len(f.Rooms) == 0 || slices.Contains(f.Rooms, r.Room)) &&
		(len(f.Pages) == 0 || slices.ContainsFunc(r.Pages, func(p uint32) bool { return slices.Contains(f.Pages, p) })) &&
		(len(f.Requests) == 0 || slices.Contains(f.Requests, r.RequestID)) &&
		(f.Since.IsZero() || !r.OpenedAt.Before(f.Since)) &&
		(f.Until.IsZero() || !r.OpenedAt.After(f.Until))
}
