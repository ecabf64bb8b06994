package cli

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/replay"
)

func stateCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "state SRC… --at SEQ|TIME", Short: "time travel: a node's rooms and pages as of then", Args: sources(),
		Long: `The state that each node had right after event SEQ, or at TIME, folded from its
log by the machine that the node itself runs. Of a log folder whose beginning was
let go, from the newest snapshot in it that is not younger than that. A SEQ is of
one node: choose it with --node if the sources have several.`,
	}
	out := outputFlag(c.Flags())
	at := c.Flags().String("at", "", "sequence or time (required)")
	ff := addFilter(c.Flags(), "node")
	c.RunE = func(c *cobra.Command, args []string) error {
		when, err := parseInstant(*at)
		if err != nil {
			return err
		}
		logs, err := replay.Open(c.Context(), args)
		if err != nil {
			return err
		}
		if len(ff.nodes) > 0 {
			logs = slices.DeleteFunc(logs, func(l *replay.Log) bool { return !slices.Contains(ff.nodes, l.Node) })
			if len(logs) == 0 {
				return command.Usagef("state: no log of node %v", ff.nodes)
			}
		}
		if when.Seq != 0 && len(logs) > 1 {
			return command.Usagef("state: sequence %d is of one node, and there are %d logs: choose with --node, or give a time", when.Seq, len(logs))
		}
		states := []*replay.NodeState{}
		for _, l := range logs {
			st, err := replay.StateAt(c.Context(), l, when)
			if err != nil {
				return err
			}
			states = append(states, st)
		}
		if out.value == "json" {
			return writeJSON(sys.Stdout, map[string]any{"nodes": states})
		}
		for i, st := range states {
			if i > 0 {
				fmt.Fprintln(sys.Stdout)
			}
			if err := st.Write(sys.Stdout); err != nil {
				return err
			}
		}
		return nil
	}
	return c
}

func parseInstant(s string) (replay.Instant, error) {
	if s == "" {
		return replay.Instant{}, command.Usagef("state: --at is missing")
	}
	if n, err := strconv.ParseUint(s, 10, 64); err == nil && n > 0 {
		return replay.Instant{Seq: n}, nil
	}
	t, err := parseTime(s)
	if err != nil {
		return replay.Instant{}, command.Usagef("state: --at: %q is neither a sequence nor a time", s)
	}
	return replay.Instant{Time: t}, nil
}
