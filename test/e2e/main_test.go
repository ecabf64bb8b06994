package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/test/built"
)

// The binaries under test, built once.
var pdnode, pdreplay string

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
	pdreplay = filepath.Join(dir, "pdreplay")
	err = built.Into(context.Background(), dir, "pdnode", "pdreplay")
	if err == nil {
		err = os.Setenv("PDNODE_LOG_SEGMENT_BYTES", "1048576") // they are filled with zeroes at each start
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	rc := m.Run()
	if err := goleak.Find(); rc == 0 && err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	return rc
}
