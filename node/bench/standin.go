package bench

import (
	"bufio"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/errors"
)

//go:embed standin.py
var standinSource string

// standin is a running standin.py.
type standin struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

// python finds an interpreter that has a module: the first of the path, or the
// system's own, which is where packages of the distribution are. Its error is
// ErrUnavailable.
func python(ctx context.Context, module string) (string, error) {
	for _, p := range []string{"python3", "/usr/bin/python3"} {
		if exec.CommandContext(ctx, p, "-c", "import "+module).Run() == nil { //nolint:gosec // ours
			return p, nil
		}
	}
	return "", Unavailablef("python3 with %s is not installed (Debian: python3-zmq)", module)
}

func startStandin(ctx context.Context, args ...string) (*standin, error) {
	p, err := python(ctx, "zmq")
	if err != nil {
		return nil, err
	}
	s := &standin{cmd: exec.CommandContext(ctx, p, append([]string{"-c", standinSource}, args...)...)} //nolint:gosec // ours
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.lines = bufio.NewScanner(out)
	s.lines.Buffer(nil, 1<<20)
	return s, errors.Wrap(s.cmd.Start(), "start the Python stand-in")
}

// line is its next line of output.
func (s *standin) line() (string, error) {
	if s.lines.Scan() {
		return s.lines.Text(), nil
	}
	return "", errors.CombineErrors(errors.New("the Python stand-in has ended"), s.lines.Err())
}

func (s *standin) close() error {
	_ = s.in.Close()
	_ = s.cmd.Process.Kill()
	var exit *exec.ExitError
	if err := s.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return err
	}
	return nil
}

// standinPair is a decode and a prefill stand-in that know each other.
type standinPair struct{ prefill, decode *standin }

func startStandins(ctx context.Context, rooms int) (p standinPair, err error) {
	if p.prefill, err = startStandin(ctx, "prefill"); err != nil {
		return p, err
	}
	port, err := p.prefill.line()
	if err != nil {
		return p, errors.CombineErrors(err, p.close())
	}
	if p.decode, err = startStandin(ctx, "decode", port, strconv.Itoa(rooms)); err != nil {
		return p, errors.CombineErrors(err, p.close())
	}
	return p, nil
}

// burst aborts all rooms at once and gives the latencies.
func (p *standinPair) burst() ([]time.Duration, error) {
	if _, err := io.WriteString(p.decode.in, "go\n"); err != nil {
		return nil, errors.Wrap(err, "ask the Python stand-in")
	}
	text, err := p.decode.line()
	if err != nil {
		return nil, err
	}
	var out []time.Duration
	for f := range strings.FieldsSeq(text) {
		ns, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return nil, errors.Wrapf(err, "the Python stand-in said %q", f)
		}
		out = append(out, time.Duration(ns))
	}
	return out, nil
}

func (p *standinPair) close() error {
	var err error
	for _, s := range []*standin{p.decode, p.prefill} {
		if s != nil {
			err = errors.CombineErrors(err, s.close())
		}
	}
	return err
}

// standinHandles is how many ABORTs a second the stand-in takes from its socket
// and handles; they have all arrived before.
func standinHandles(ctx context.Context, n int) (float64, error) {
	p, err := python(ctx, "zmq")
	if err != nil {
		return 0, err
	}
	out, err := exec.CommandContext(ctx, p, "-c", standinSource, "handle", strconv.Itoa(n)).Output() //nolint:gosec // ours
	if err != nil {
		return 0, errors.Wrap(err, "run the Python stand-in")
	}
	var rate float64
	_, err = fmt.Sscan(string(out), &rate)
	return rate, errors.Wrapf(err, "the Python stand-in said %q", out)
}
