// Package python holds the Python client and the tests that run it against
// real nodes.
package python

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/node"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	poolPages = 16
	patience  = 90 * time.Second // a deadline, never a delay
)

// python3 names the interpreter, or skips.
func python3(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3 (3.10 or newer)")
	}
	if err := exec.Command(path, "-c", "import sys; sys.exit(sys.version_info < (3, 10))").Run(); err != nil {
		t.Skipf("needs python3 3.10 or newer: %v", err)
	}
	return path
}

type testLog struct{ t *testing.T }

func (w testLog) Write(b []byte) (int, error) {
	w.t.Logf("%s", b)
	return len(b), nil
}

func start(t *testing.T, cfg node.Config) *node.Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n, err := node.Start(ctx, cfg, slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func stop(t *testing.T, n *node.Node) {
	t.Helper()
	if err := n.Close(); err != nil {
		t.Errorf("close node: %v", err)
	}
}

// nodes starts a prefill and a decode node; their configurations start them
// again.
func nodes(t *testing.T) (p, d *node.Node) {
	t.Helper()
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := func(role, name string) node.Config {
		c := node.DefaultConfig()
		c.Node, c.Role, c.DataDir = name, role, filepath.Join(dir, name)
		c.Pages, c.AuxRows = poolPages, 64
		c.NATS.Embedded = false
		c.Log.SegmentBytes = 1 << 20
		c.AckTimeout, c.AbortRetry, c.Heartbeat = 2*time.Second, 100*time.Millisecond, 100*time.Millisecond
		return c
	}
	pc, dc := config("prefill", "p0"), config("decode", "d0")
	pc.Bootstrap = "127.0.0.1:0"
	p = start(t, pc)
	dc.Peers = []string{p.Bootstrap()}
	return p, start(t, dc)
}

func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, python3(t), append([]string{"-B", "-S", "-W", "error"}, args...)...)
	c.WaitDelay = 5 * time.Second
	return c
}

func TestExampleMovesPagesBetweenTwoPythonEngines(t *testing.T) {
	t.Parallel()
	python3(t)
	p, d := nodes(t)
	defer stop(t, p)
	defer stop(t, d)
	var stderr strings.Builder
	c := command(t, "examples/pages.py", "--prefill", p.Socket(), "--decode", d.Socket(),
		"--rooms", "6", "--pool", "16", "--page-bytes", "8192", "--first", "9223372036854775800")
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, stderr.String())
	}
	var s struct {
		Prefill struct{ Sent, Failed int }
		Decode  struct {
			Received, Aborted, Corrupt int
			Bases                      []string
			PagesNotFree               *int `json:"pages_not_free"`
		}
	}
	if err := json.Unmarshal(out, &s); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if s.Decode.Received != 4 || s.Decode.Aborted != 2 || s.Decode.Corrupt != 0 || s.Prefill.Sent != 4 || s.Prefill.Failed != 2 {
		t.Errorf("have %s, want 4 rooms received and 2 aborted", out)
	}
	if s.Decode.PagesNotFree == nil || *s.Decode.PagesNotFree != 0 {
		t.Errorf("pages are not free at the end: %s", out)
	}
	if got := strings.Join(s.Decode.Bases, " "); got != "acks success" {
		t.Errorf("released on %q, want success, and acks after the aborts", got)
	}
}

func TestPythonSuite(t *testing.T) {
	t.Parallel()
	python3(t)
	p, d := nodes(t)
	defer stop(t, p)
	defer stop(t, d)
	c := command(t, "-m", "unittest", "-v", "tests.test_codec", "tests.test_live")
	c.Env = append(os.Environ(), "PDLOG_PREFILL_SOCKET="+p.Socket(), "PDLOG_DECODE_SOCKET="+d.Socket())
	out, err := c.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), "skipped") {
		t.Error("the live tests were skipped although there are nodes")
	}
}

func TestEngineComesBackToANodeThatDied(t *testing.T) {
	t.Parallel()
	python3(t)
	p, d := nodes(t)
	defer stop(t, p)
	c := command(t, "tests/reattach.py", d.Socket())
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	c.Stderr = &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	hear := func(want string) {
		t.Helper()
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), want) {
			_ = c.Wait()
			t.Fatalf("heard %q, want %q\n%s", lines.Text(), want, stderr.String())
		}
	}
	tell := func() {
		t.Helper()
		if _, err := io.WriteString(in, "\n"); err != nil {
			t.Fatal(err)
		}
	}
	tell()
	hear("open")
	cfg := d.Config()
	stop(t, d) // for the protocol and for the engine this is a crash
	tell()
	hear("gone")
	d = start(t, cfg)
	defer stop(t, d)
	tell()
	hear("released ")
	if got := lines.Text(); !strings.HasSuffix(got, " [61]") || strings.Contains(got, "forced") || strings.Contains(got, "timeout") {
		t.Errorf("heard %q", got)
	}
	hear("done 16")
	if err := c.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
}
