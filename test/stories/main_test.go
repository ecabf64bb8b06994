package stories

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/store/mirror/mirrortest"
	"github.com/pdlog/pdlog/test/built"
)

// The binaries under test, built once.
var pdnode, pdreplay string

func TestMain(m *testing.M) {
	mirrortest.Main() // this binary is the NATS servers,
	proxyMain()       // and the proxy that delays
	dir, err := os.MkdirTemp("", "pdlog-stories-")
	if err == nil {
		pdnode, pdreplay = filepath.Join(dir, "pdnode"), filepath.Join(dir, "pdreplay")
		err = built.Into(context.Background(), dir, "pdnode", "pdreplay")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stories:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// buildIn builds packages of the module in dir.
func buildIn(dir, into string, packages ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-buildvcs=false", "-o", into + string(filepath.Separator)}, packages...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
