package e2e

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The commands of docs/quickstart.md, as they stand there, but with ports and a
// folder of the test's own, and built already.
func TestQuickstartRunsAsWritten(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "quickstart.md"))
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	script.WriteString("set -eo pipefail\n")
	blocks := strings.Split(string(doc), "```sh\n")[1:]
	for _, b := range blocks {
		commands, _, _ := strings.Cut(b, "```")
		script.WriteString(commands)
	}
	if len(blocks) < 6 {
		t.Fatalf("%d blocks of commands in the document", len(blocks))
	}
	dir, err := os.MkdirTemp("", "pdq") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	text := strings.NewReplacer("make build\n", "", "/tmp/pdlog-quickstart", dir, "127.0.0.1:8998", freePort(t), "127.0.0.1:8080", freePort(t),
		"bin/pdnode", pdnode, "bin/pdreplay", pdreplay, "python3 ", "python3 -B -S ").Replace(script.String())
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "bash", "-c", text)
	c.Dir = filepath.Join("..", "..")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) } // with what it left running
	c.WaitDelay = 5 * time.Second
	out, err := c.CombinedOutput()
	defer func() { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		`"corrupt": 0`, `"aborted": 4`, "aborted, pages free: False", "released on acks", "8 held", "0 held", "AbortArmed", "AckReceived", "basis=acks", "ok",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not in what it printed:\n%s", want, out)
		}
	}
}

// freePort is an address that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().String()
}
