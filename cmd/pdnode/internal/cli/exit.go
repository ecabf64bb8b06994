package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"
	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/node"
	"github.com/pdlog/pdlog/node/demo"
)

// Exit codes of cli.md.
const (
	exitOK    = 0
	exitBad   = 1 // answered, and the answer is bad
	exitUsage = 2
	exitFault = 3 // could not run
)

// coded is an error that knows its exit code. An empty text prints nothing:
// the answer stands on stdout already.
type coded struct {
	code int
	text string
	err  error
}

func (e *coded) Error() string { return e.text }
func (e *coded) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &coded{code: exitUsage, text: fmt.Sprintf(format, args...)}
}

// errBad ends a command whose answer is bad and was printed.
var errBad = &coded{code: exitBad}

// exitCode is the one place where errors become exit codes.
func exitCode(err error) int {
	var (
		c      *coded
		option *demo.OptionError
		trace  *demo.LineError
		wire   *backends.LineError
		refuse *connect.Error
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &c):
		return c.code
	case errors.As(err, &option), errors.As(err, &trace), errors.As(err, &wire), errors.Is(err, node.ErrConfig):
		return exitUsage
	case errors.As(err, &refuse) && connect.IsWireError(err):
		switch refuse.Code() {
		case connect.CodeFailedPrecondition, connect.CodeNotFound:
			return exitBad
		case connect.CodeInvalidArgument:
			return exitUsage
		default:
			return exitFault
		}
	}
	return exitFault
}

// report prints an error as one line.
func report(w io.Writer, err error) {
	text := err.Error()
	var ce *connect.Error
	if errors.As(err, &ce) {
		text = strings.TrimPrefix(text, ce.Error()) + ce.Message()
	}
	if text = strings.Join(strings.Fields(text), " "); text != "" {
		_, _ = fmt.Fprintln(w, "pdnode: "+text)
	}
}

// Main runs pdnode with args and returns its exit code.
func Main(args []string, sys Sys) int {
	root := newRoot(sys)
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	if err != nil {
		report(sys.Stderr, err)
	}
	return exitCode(err)
}

// group is a command that only holds others.
func group(use, short string, sub ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q for %q", args[0], c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			return usagef("%s: a command is missing (see %s --help)", c.CommandPath(), c.CommandPath())
		},
	}
	c.AddCommand(sub...)
	return c
}

// exactArgs is cobra.ExactArgs with our words.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usagef("%s: %s is missing", c.CommandPath(), names[len(args)])
		}
		if len(args) > len(names) {
			return usagef("%s: unexpected argument %q", c.CommandPath(), args[len(names)])
		}
		return nil
	}
}
