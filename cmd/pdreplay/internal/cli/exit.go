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

	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/replay/scenario"
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
}

func (e *coded) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &coded{code: exitUsage, text: fmt.Sprintf(format, args...)}
}

// errBad ends a command whose answer is bad and was printed.
var errBad = &coded{code: exitBad}

// either is the first error there is; an answer that is bad gives way to what
// says that it is not whole, which has the same exit code and more to say.
func either(err, damage error) error {
	if damage != nil && (err == nil || errors.Is(err, errBad)) {
		return damage
	}
	return err
}

// exitCode is the one place where errors become exit codes.
func exitCode(err error) int {
	var c *coded
	var syntax *scenario.SyntaxError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &c):
		return c.code
	case errors.As(err, &syntax), errors.Is(err, replay.ErrBadSource):
		return exitUsage
	case errors.IsAny(err, replay.ErrDamaged, replay.ErrConflict):
		return exitBad
	}
	return exitFault
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
