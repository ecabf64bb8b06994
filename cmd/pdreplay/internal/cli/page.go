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
		h, damage, err := gather(c.Context(), args[1:])
		if err != nil {
			return err
		}
		if *node == "" {
			names := h.DecodeNodes()
			if len(names) != 1 {
				return command.Usagef("page: --node is needed: these logs have decode nodes %s", strings.Join(names, ", "))
			}
			*node = names[0]
		}
		log := replay.PageHistory(h, *node, page)
		if out.value == "json" {
			return either(writeJSON(sys.Stdout, log), damage)
		}
		return either(log.Write(sys.Stdout), damage)
	}
	return c
}
