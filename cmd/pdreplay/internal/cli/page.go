package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/replay"
)

func pageCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "page N SRC… --node D", Short: "who owned a page when, and every write to it", Args: sources("page number N"),
		Long: "Who owned a page of a decode node when, and every write to it. --node may be left out if there is one decode node.",
	}
	out := outputFlag(c.Flags())
	node := c.Flags().String("node", "", "the decode node")
	c.RunE = func(c *cobra.Command, args []string) error {
		page, err := parsePage(args[0])
		if err != nil {
			return err
		}
		f := &replay.Filter{Pages: []uint32{page}}
		if *node != "" {
			f.Nodes = []string{*node}
		}
		v, err := gatherFor(c.Context(), sys, f, args[1:])
		if err != nil {
			return err
		}
		if *node == "" {
			names := v.history.DecodeNodes()
			if len(names) > 1 {
				return command.Usagef("page: --node is needed: nodes %s have a page %d", strings.Join(names, ", "), page)
			}
			*node = strings.Join(names, "")
		}
		log := replay.PageHistory(v.history, *node, page, v.gaps())
		if out.value == "json" {
			return either(writeJSON(sys.Stdout, log), v.damage)
		}
		return either(log.Write(sys.Stdout), v.damage)
	}
	return c
}
