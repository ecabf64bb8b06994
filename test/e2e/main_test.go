package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// pdnode is the binary under test, built once.
var pdnode string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if socket := os.Getenv("PDLOG_ECHO"); socket != "" { // bench_test.go starts this binary again
		return serveEcho(socket)
	}
	dir, err := os.MkdirTemp("", "pdlog-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	pdnode = filepath.Join(dir, "pdnode")
	build := exec.Command("go", "build", "-o", pdnode, "github.com/pdlog/pdlog/cmd/pdnode")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: build pdnode:", err)
		return 1
	}
	rc := m.Run()
	if err := goleak.Find(); rc == 0 && err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	return rc
}
