package cli

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/replay"
)

func blameCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "blame SRC…", Short: "who wrote a page that was not theirs any more", Args: sources(),
		Long: `For each page that was written after its release, or whose bytes failed their
check: the victim room, the writer, the release it rests on and which ACKs were
missing. Exit 1 if there is any.`,
	}
	out := outputFlag(c.Flags())
	ff := addFilter(c.Flags(), "node", "room", "page", "since", "until")
	c.RunE = func(c *cobra.Command, args []string) error {
		f, err := ff.filter()
		if err != nil {
			return err
		}
		h, damage, err := gather(c.Context(), args)
		if err != nil {
			return err
		}
		found := slices.DeleteFunc(replay.Blame(h), func(in *replay.Incident) bool { return !incidentMatches(f, in) })
		if out.value == "json" {
			err = writeJSON(sys.Stdout, map[string]any{"incidents": found})
		} else {
			err = replay.WriteBlame(sys.Stdout, found)
		}
		if err == nil && len(found) > 0 {
			err = command.ErrBad
		}
		return either(err, damage)
	}
	return c
}

func incidentMatches(f *replay.Filter, in *replay.Incident) bool {
	ofRoom := func(p *uint64) bool { return p != nil && slices.Contains(f.Rooms, *p) }
	at := in.WriteLandedAt
	return (len(f.Nodes) == 0 || slices.Contains(f.Nodes, in.Node)) &&
		(len(f.Pages) == 0 || slices.Contains(f.Pages, in.Page)) &&
		(len(f.Rooms) == 0 || ofRoom(in.VictimRoom) || ofRoom(in.WriterRoom)) &&
		(at == nil || (f.Since.IsZero() || !at.Before(f.Since)) && (f.Until.IsZero() || !at.After(f.Until)))
}
