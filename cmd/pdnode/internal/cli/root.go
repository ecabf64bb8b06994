package cli

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pdlog/pdlog/node"
)

// Sys is what a command may touch of the process around it.
type Sys struct {
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Environ []string
	// Terminal: stderr is one, so that progress may be drawn.
	Terminal bool
}

// System is the real one.
func System() Sys {
	return Sys{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(),
		Terminal: term.IsTerminal(int(os.Stderr.Fd())), //nolint:gosec // a descriptor
	}
}

func newRoot(sys Sys) *cobra.Command {
	root := group("pdnode", "pdlog's node: an event-sourced control plane for prefill/decode disaggregation",
		runCommand(sys), demoCommand(sys), demoEngineCommand(sys),
		statusCommand(sys), roomsCommand(sys), roomCommand(sys), peersCommand(sys), pagesCommand(sys),
		drainCommand(sys), abortCommand(sys), releaseCommand(sys), fenceCommand(sys), backupCommand(sys),
		wireCommand(sys), configCommand(sys), versionCommand(sys), completionCommand(sys),
	)
	root.Version = node.Version
	root.SetVersionTemplate(versionText() + "\n")
	root.SilenceErrors, root.SilenceUsage = true, true
	root.DisableSuggestions = true // the error stays one line
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(helpCommand())
	root.SetOut(sys.Stdout)
	root.SetErr(sys.Stderr)
	root.SetIn(sys.Stdin)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%s: %v", c.CommandPath(), err)
	})
	return root
}

func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [command]", Short: "help about a command",
		RunE: func(c *cobra.Command, args []string) error {
			about, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usagef("help: unknown command %q", args[len(args)-1])
			}
			return about.Help()
		},
	}
}

func versionText() string {
	revision := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				revision = ", " + s.Value[:12]
			}
		}
	}
	return fmt.Sprintf("pdnode %s (%s, %s/%s%s)", node.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, revision)
}

func versionCommand(sys Sys) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the version", Args: exactArgs(),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(sys.Stdout, versionText())
			return err
		},
	}
}

func completionCommand(sys Sys) *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "print a shell completion script",
		Args: exactArgs("bash, zsh or fish"), ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(c *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return c.Root().GenBashCompletionV2(sys.Stdout, true)
			case "zsh":
				return c.Root().GenZshCompletion(sys.Stdout)
			case "fish":
				return c.Root().GenFishCompletion(sys.Stdout, true)
			}
			return usagef("completion: %q is none of bash, zsh, fish", args[0])
		},
	}
}
