package cli

import (
	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/backends"
	_ "github.com/pdlog/pdlog/backends/all" // every dialect
	"github.com/pdlog/pdlog/cmd/internal/command"
)

func wireCommand(sys Sys) *cobra.Command {
	return command.Group("wire", "captured wire messages", &cobra.Command{
		Use: "decode", Short: "decode captured frames: JSONL on stdin, JSONL on stdout", Args: command.ExactArgs(),
		Long: `Reads one JSON object a line from stdin:
  {"dialect":"mooncake|nixl|mori","at":"prefill|decode","frames":["hex",...]}
and writes one a line: {"claimed":bool,"kind":"...","fields":{...},"error":"..."}.
A bad frame is an answer, not an error; a line that is not the object above ends it with exit 2.`,
		RunE: func(*cobra.Command, []string) error { return backends.WireDecode(sys.Stdin, sys.Stdout) },
	})
}
