package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/replay"
)

func exportCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "export SRC… --out F.jsonl", Short: "a portable copy of logs, in causal order", Args: sources(),
		Long: "Writes the events of all sources to one file, a JSON object a line. The file is complete or not there.",
	}
	path := c.Flags().String("out", "", "file to write (required)")
	ff := addFilter(c.Flags(), "node")
	c.RunE = func(c *cobra.Command, args []string) error {
		if *path == "" {
			return command.Usagef("export: --out is missing")
		}
		f, err := ff.filter()
		if err != nil {
			return err
		}
		seq, err := stream(c.Context(), args)
		if err != nil {
			return err
		}
		n, err := replay.Export(*path, filtered(seq, f))
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(sys.Stderr, "%d events in %s\n", n, *path)
		return err
	}
	return c
}

func importCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "import F.jsonl --out DIR", Short: "logs made of an export", Args: command.ExactArgs("export F.jsonl"),
		Long: "Makes a log of each node in an export, as DIR/<node>/log. Only whole logs, from event 1 on, can be imported.",
	}
	dir := c.Flags().String("out", "", "directory to put the logs in (required)")
	c.RunE = func(c *cobra.Command, args []string) error {
		if *dir == "" {
			return command.Usagef("import: --out is missing")
		}
		n, err := replay.Import(c.Context(), args[0], *dir)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(sys.Stderr, "%d events in %s\n", n, *dir)
		return err
	}
	return c
}
