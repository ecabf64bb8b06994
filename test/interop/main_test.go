package interop

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// The binaries under test, built once.
var pdnode, pdreplay string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "pdlog-interop-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	pdnode, pdreplay = filepath.Join(dir, "pdnode"), filepath.Join(dir, "pdreplay")
	build := exec.Command("go", "build", "-o", dir, "github.com/pdlog/pdlog/cmd/pdnode", "github.com/pdlog/pdlog/cmd/pdreplay")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "interop: build:", err)
		return 1
	}
	rc := m.Run()
	if err := goleak.Find(); rc == 0 && err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		return 1
	}
	return rc
}

// python names an interpreter that has pyzmq, or skips.
func python(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		path, err := exec.LookPath(name)
		if err == nil && exec.Command(path, "-c", "import zmq, sys; sys.exit(sys.version_info < (3, 10))").Run() == nil {
			return path
		}
	}
	t.Skip("needs python3 (3.10 or newer) with pyzmq (apt-get install python3-zmq)")
	return ""
}
