package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/node/demo"
	"github.com/pdlog/pdlog/node/enginepb"
)

// exitWith is the script command exit.
func exitWith() {
	want, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "exit:", err)
		os.Exit(125)
	}
	cmd := exec.Command(os.Args[2], os.Args[3:]...) //nolint:gosec // of a script
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		fmt.Fprintln(os.Stderr, "exit:", err)
		os.Exit(125)
	}
	if have := cmd.ProcessState.ExitCode(); have != want {
		fmt.Fprintf(os.Stderr, "exit: have %d, want %d\n", have, want)
		os.Exit(124)
	}
}

func TestErrorsBecomeExitCodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  error
		want int
	}{
		{"none", nil, 0},
		{"a bad answer", command.ErrBad, 1},
		{"bad usage", command.Usagef("no"), 2},
		{"bad flag of the demo", &demo.OptionError{Flag: "pages", What: "no"}, 2},
		{"bad line of a trace, wrapped", fmt.Errorf("x: %w", &demo.LineError{}), 2},
		{"the unexpected", errors.New("disk on fire"), 3},
		{"no such node", connect.NewError(connect.CodeUnavailable, errors.New("refused")), 3},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestReportIsOneLine(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	report(&b, errors.New("a\n\tb   c"))
	if b.String() != "pdnode: a b c\n" {
		t.Errorf("have %q", b.String())
	}
	b.Reset()
	report(&b, command.ErrBad)
	if b.Len() != 0 {
		t.Errorf("an answer that was printed is reported again: %q", b.String())
	}
}

func TestMessagesPrintWithTheRulesOfTheContract(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	err := writeJSON(&b, plain(&enginepb.RoomsResponse{Rooms: []*enginepb.RoomView{{
		Room: 9007199254740993, State: "held", Pages: []uint32{3}, OpenedMs: 1_700_000_000_123,
	}}}))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"room":9007199254740993`, `"opened_at":"2023-11-14T22:13:20.123000000Z"`, `"pages":[3]`, `"room_seq":0`, `"pairs":[]`,
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s is not in %s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "deadline") {
		t.Error("a deadline that is not set is printed")
	}
}

func TestPageListsPrintAsRanges(t *testing.T) {
	t.Parallel()
	for want, pages := range map[string][]uint32{
		"-": nil, "7": {7}, "10-12,30": {10, 11, 12, 30}, "5 pages": {1, 3, 5, 7, 9},
	} {
		if got := pageText(pages); got != want {
			t.Errorf("%v prints %q, want %q", pages, got, want)
		}
	}
}
