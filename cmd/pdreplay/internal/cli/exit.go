package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/replay/scenario"
)

// either is the first error there is; an answer that is bad gives way to what
// says that it is not whole, which has the same exit code and more to say.
func either(err, damage error) error {
	if damage != nil && (err == nil || errors.Is(err, command.ErrBad)) {
		return damage
	}
	return err
}

// exitCode is the one place where errors become exit codes.
func exitCode(err error) int {
	var c *command.Error
	var syntax *scenario.SyntaxError
	switch {
	case err == nil:
		return command.ExitOK
	case errors.As(err, &c):
		return c.Code
	case errors.IsAny(err, replay.ErrDamaged, replay.ErrConflict): // whatever a reader called it that met the damage
		return command.ExitBad
	case errors.As(err, &syntax), errors.Is(err, replay.ErrBadSource):
		return command.ExitUsage
	}
	return command.ExitFault
}

// report prints an error as one line.
func report(w io.Writer, err error) {
	if text := strings.Join(strings.Fields(err.Error()), " "); text != "" {
		_, _ = fmt.Fprintln(w, "pdreplay: "+text)
	}
}

// Main runs pdreplay with args and returns its exit code. An interrupt ends a
// read early.
func Main(args []string, sys Sys) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot(sys)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil {
		report(sys.Stderr, err)
	}
	return exitCode(err)
}
