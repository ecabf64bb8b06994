package cli

import (
	"fmt"
	"io"

	"github.com/cockroachdb/errors"
	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/replay/reduce"
)

func reduceCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "reduce SRC… --node D --page N --out FILE", Short: "an incident to the smallest scenario that still shows it", Args: sources(),
		Long: `Turns the incident of a page into the smallest scenario file that still shows it:
the corruption and the violated invariants stand in it as expectations, so
pdreplay simulate FILE exits 0 exactly if it reproduces. --out - is stdout. Exit 1
if nothing happened to the page, or no scenario shows it.`,
	}
	node := c.Flags().String("node", "", "decode node of the page (required)")
	page := c.Flags().String("page", "", "page number (required)")
	out := c.Flags().String("out", "", "file to write (required)")
	c.RunE = func(c *cobra.Command, args []string) error {
		for _, f := range []struct{ name, value string }{{"node", *node}, {"page", *page}, {"out", *out}} {
			if f.value == "" {
				return command.Usagef("reduce: --%s is missing", f.name)
			}
		}
		n, err := parsePage(*page)
		if err != nil {
			return err
		}
		logs, err := replay.Open(c.Context(), args)
		if err != nil {
			return err
		}
		res, err := reduce.Run(c.Context(), logs, *node, n)
		switch {
		case errors.IsAny(err, reduce.ErrNoIncident, reduce.ErrNotShown):
			return &command.Error{Code: command.ExitBad, Text: "reduce: " + err.Error()}
		case err != nil:
			return err
		}
		if err := writeOut(sys, *out, func(w io.Writer) error { _, err := io.WriteString(w, res.Text); return err }); err != nil {
			return err
		}
		if *out != "-" {
			fmt.Fprintf(sys.Stdout, "%s: %d lines, found in %d runs\n", *out, res.Lines(), res.Runs)
		}
		return nil
	}
	return c
}
