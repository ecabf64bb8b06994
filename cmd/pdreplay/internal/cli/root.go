package cli

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the release build (-ldflags -X).
var version = "0.1.0"

// Sys is what a command may touch of the process around it.
type Sys struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
}

// System is the real one.
func System() Sys { return Sys{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr} }

func newRoot(sys Sys) *cobra.Command {
	root := &cobra.Command{
		Use: "pdreplay", Short: "pdlog's post-mortem: reads event logs and answers questions about the past",
		Long: `pdreplay reads event logs and answers questions about the past. It never writes to a node.

SRC is a node's log folder, its data directory or one above it, a segment file
(.db), an export (.jsonl), unix:PATH or http://… of a live node, or
nats://HOST:PORT[/CLUSTER] of the mirror. Several sources are merged in causal
order.

Exit codes: 0 done or holds, 1 the answer is bad, 2 bad usage or input,
3 could not run.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q for \"pdreplay\"", args[0])
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error {
			return usagef("a command is missing (see pdreplay --help)")
		},
	}
	root.AddCommand(
		eventsCommand(sys), roomsCommand(sys), roomCommand(sys), pageCommand(sys), blameCommand(sys),
		stateCommand(sys), verifyCommand(sys), diffCommand(sys), exportCommand(sys), importCommand(sys),
		simulateCommand(sys), whatifCommand(sys), timelineCommand(sys), reportCommand(sys), reduceCommand(sys), auditCommand(sys), versionCommand(sys), completionCommand(sys),
	)
	root.Version = version
	root.SetVersionTemplate(versionText() + "\n")
	root.SilenceErrors, root.SilenceUsage = true, true
	root.DisableSuggestions = true // the error stays one line
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetOut(sys.Stdout)
	root.SetErr(sys.Stderr)
	root.SetIn(sys.Stdin)
	root.SetHelpCommand(helpCommand())
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%s: %v", c.Name(), err)
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
	return fmt.Sprintf("pdreplay %s (%s, %s/%s%s)", version, runtime.Version(), runtime.GOOS, runtime.GOARCH, revision)
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
