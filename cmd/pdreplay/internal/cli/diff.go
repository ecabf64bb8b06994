package cli

import (
	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/replay"
)

func diffCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "diff SRC SRC", Short: "first difference between two copies of a log", Args: command.ExactArgs("SRC", "second SRC"),
		Long: "The first difference between two copies of a node's log, such as a log and its mirror. Exit 1 if there is one.",
	}
	out := outputFlag(c.Flags())
	node := c.Flags().String("node", "", "compare this node only")
	c.RunE = func(c *cobra.Command, args []string) error {
		left, err := replay.Open(c.Context(), args[:1])
		if err != nil {
			return err
		}
		right, err := replay.Open(c.Context(), args[1:])
		if err != nil {
			return err
		}
		res, err := replay.Diff(c.Context(), left, right, *node)
		if err != nil {
			return err
		}
		if out.value == "json" {
			err = writeJSON(sys.Stdout, res)
		} else {
			err = res.Write(sys.Stdout)
		}
		if err == nil && !res.Equal {
			return command.ErrBad
		}
		return err
	}
	return c
}
