package cli

import (
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pdlog/pdlog/cmd/internal/command"
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
	// Screen: stdout is one, so that a picture may be drawn again.
	Screen bool
}

// System is the real one.
func System() Sys {
	return Sys{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(),
		Terminal: term.IsTerminal(int(os.Stderr.Fd())), //nolint:gosec // a descriptor
		Screen:   term.IsTerminal(int(os.Stdout.Fd())), //nolint:gosec // a descriptor
	}
}

func newRoot(sys Sys) *cobra.Command {
	root := command.Group("pdnode", "pdlog's node: an event-sourced control plane for prefill/decode disaggregation",
		runCommand(sys), demoCommand(sys), demoEngineCommand(sys),
		statusCommand(sys), roomsCommand(sys), roomCommand(sys), peersCommand(sys), pagesCommand(sys), topCommand(sys),
		drainCommand(sys), abortCommand(sys), releaseCommand(sys), fenceCommand(sys), backupCommand(sys),
		wireCommand(sys), configCommand(sys), keygenCommand(sys), benchCommand(sys),
	)
	return command.Root(root, node.Version, command.Streams{Stdin: sys.Stdin, Stdout: sys.Stdout, Stderr: sys.Stderr})
}
