package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/node"
	"github.com/pdlog/pdlog/node/demo"
)

// exitCode is the one place where errors become exit codes.
func exitCode(err error) int {
	var (
		c      *command.Error
		option *demo.OptionError
		trace  *demo.LineError
		wire   *backends.LineError
		refuse *connect.Error
	)
	switch {
	case err == nil:
		return command.ExitOK
	case errors.As(err, &c):
		return c.Code
	case errors.As(err, &option), errors.As(err, &trace), errors.As(err, &wire), errors.Is(err, node.ErrConfig):
		return command.ExitUsage
	case errors.As(err, &refuse) && connect.IsWireError(err):
		switch refuse.Code() {
		case connect.CodeFailedPrecondition, connect.CodeNotFound:
			return command.ExitBad
		case connect.CodeInvalidArgument:
			return command.ExitUsage
		default:
			return command.ExitFault
		}
	}
	return command.ExitFault
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
