package cli

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
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
				return command.Usagef("unknown command %q for \"pdreplay\"", args[0])
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error {
			return command.Usagef("a command is missing (see pdreplay --help)")
		},
	}
	root.AddCommand(
		eventsCommand(sys), roomsCommand(sys), roomCommand(sys), pageCommand(sys), blameCommand(sys),
		stateCommand(sys), verifyCommand(sys), diffCommand(sys), exportCommand(sys), importCommand(sys),
		simulateCommand(sys), whatifCommand(sys), timelineCommand(sys), reportCommand(sys), reduceCommand(sys), auditCommand(sys),
	)
	return command.Root(root, version, command.Streams{Stdin: sys.Stdin, Stdout: sys.Stdout, Stderr: sys.Stderr})
}
