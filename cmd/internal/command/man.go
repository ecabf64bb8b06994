package command

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCommand writes man pages: for packages, not for people, so it is hidden.
func manCommand(version string) *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "write man pages into DIR", Hidden: true, Args: ExactArgs("DIR"),
		RunE: func(c *cobra.Command, args []string) error {
			c.Root().DisableAutoGenTag = true
			day := time.Unix(0, 0).UTC() // the same source gives the same bytes
			return doc.GenManTree(c.Root(), &doc.GenManHeader{Section: "1", Source: "pdlog " + version, Manual: "pdlog", Date: &day}, args[0])
		},
	}
}
