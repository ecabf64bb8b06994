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
missing. Exit 1 if there is any, and if parts of logs are missing that could show
one. With --page only what concerns that page is read.`,
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
		found := slices.DeleteFunc(replay.Blame(v.history), func(in *replay.Incident) bool { return !incidentMatches(v.history, f, in) })
		j := v.history.Judge(found, v.gaps())
		if out.value == "json" {
			err = writeJSON(sys.Stdout, j)
		} else {
			err = replay.WriteBlame(sys.Stdout, j)
		}
		if err == nil && j.Verdict != replay.Clean {
			err = command.ErrBad
		}
		return either(err, v.damage)
	}
	return c
}

func incidentMatches(h *replay.History, f *replay.Filter, in *replay.Incident) bool {
	ofRoom := func(p *uint64) bool { return p != nil && slices.Contains(f.Rooms, *p) }
	ofRequest := func(seq *uint64) bool {
		if seq == nil {
			return false
		}
		r := h.Room(replay.RoomKey{Node: in.Node, Seq: *seq})
		return r != nil && slices.Contains(f.Requests, r.RequestID)
	}
	at := in.WriteLandedAt
	return (len(f.Nodes) == 0 || slices.Contains(f.Nodes, in.Node)) &&
		(len(f.Pages) == 0 || slices.Contains(f.Pages, in.Page)) &&
		(len(f.Rooms) == 0 || ofRoom(in.VictimRoom) || ofRoom(in.WriterRoom)) &&
		(len(f.Requests) == 0 || ofRequest(in.VictimRoomSeq) || ofRequest(in.WriterRoomSeq)) &&
		(at == nil || (f.Since.IsZero() || !at.Before(f.Since)) && (f.Until.IsZero() || !at.After(f.Until)))
}
