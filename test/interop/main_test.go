package interop

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/test/built"
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
	err = built.Into(context.Background(), dir, "pdnode", "pdreplay")
	if err == nil {
		err = os.Setenv("PDNODE_LOG_SEGMENT_BYTES", "1048576") // they are filled with zeroes at each start
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
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
