package cli

import (
	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/node"
)

func configCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{Use: "print", Short: "the effective configuration and where each value came from", Args: command.ExactArgs()}
	file := c.Flags().String("config", "", "YAML file (environment PDNODE_CONFIG)")
	out := outputFlag(c.Flags())
	node.BindFlags(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		path := configPath(sys, *file)
		l, err := node.Load(path, sys.Environ, c.Flags())
		if err != nil {
			return err
		}
		if out.value == "json" {
			list := []map[string]string{}
			for _, s := range l.Effective() {
				list = append(list, map[string]string{"key": s.Key, "value": s.Value, "origin": s.Origin})
			}
			return writeJSON(sys.Stdout, list)
		}
		rows := [][]string{{"KEY", "VALUE", "FROM"}}
		for _, s := range l.Effective() {
			from := s.Origin
			switch from {
			case node.OriginFile:
				from += " " + path
			case node.OriginEnv:
				from += " " + node.EnvName(s.Key)
			case node.OriginFlag:
				from += " --" + node.FlagName(s.Key)
			}
			rows = append(rows, []string{s.Key, s.Value, from})
		}
		return writeTable(sys.Stdout, rows)
	}
	return command.Group("config", "the configuration", c)
}

// configPath is the file of --config, else of PDNODE_CONFIG; "" for none.
func configPath(sys Sys, flag string) string {
	if flag != "" {
		return flag
	}
	return lookup(sys.Environ, "PDNODE_CONFIG")
}
