package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pdlog/pdlog/node/demo"
)

// With --keep everything stays up for a look around, until it is interrupted;
// then nothing is left running.
func TestKeptDemoAnswersUntilItIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), demoLimit)
	defer cancel()
	dir := t.TempDir()
	cmd := exec.CommandContext(ctx, pdnode, "demo", "--requests", "12", "--bytes-per-token", "256", "--keep", "--data-dir", dir, "-o", "json")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatalf("no summary: %v", err)
	}
	var s demo.Summary
	if err := json.Unmarshal(line, &s); err != nil {
		t.Fatal(err)
	}
	if !s.OK() || s.Requests != 12 || len(s.Nodes) != 2 || s.Nodes[1].Events == 0 {
		t.Errorf("have %+v", s)
	}
	socket := filepath.Join(dir, "d0", "pdnode.sock")
	ask := func(want string, code int, args ...string) {
		t.Helper()
		got := exec.CommandContext(ctx, pdnode, args...)
		got.Env = append(os.Environ(), "PDNODE_SOCKET="+socket)
		text, _ := got.CombinedOutput()
		if !strings.Contains(string(text), want) || got.ProcessState.ExitCode() != code {
			t.Errorf("pdnode %s: exit %d, %s; want exit %d and %q", strings.Join(args, " "), got.ProcessState.ExitCode(), text, code, want)
		}
	}
	ask(`"ready":true`, 0, "status", "-o", "json")
	ask("d0 (decode)", 0, "status")
	ask(`"node":"p0"`, 0, "peers", "-o", "json")
	ask("4096 free", 0, "pages")
	ask(`{"rooms":[]}`, 0, "rooms", "-o", "json")
	ask("no state for room 7", 1, "room", "7")
	ask("unknown_room", 1, "abort", "7")
	ask("for 0 rooms", 0, "fence", "p0/1")
	if len(readMirror(ctx, t, s.NATSURL, "d0")) == 0 {
		t.Error("the mirror has nothing of d0")
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after the interrupt: %v", err)
	}
	ask("no node answers", 3, "status")
	for _, node := range []string{"p0", "d0"} {
		evs := readLog(t, filepath.Join(dir, node, "log"))
		if last := evs[len(evs)-1].TypeName(); last != "NodeStopped" {
			t.Errorf("%s: the log ends with %s", node, last)
		}
	}
}
