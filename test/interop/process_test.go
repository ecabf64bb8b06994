package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/node/engineclient"
	"github.com/pdlog/pdlog/node/enginepb"
)

const patience = 2 * time.Minute // a deadline, never a delay

// pdnodeProcess is a pdnode process under test.
type pdnodeProcess struct {
	t      *testing.T
	dir    string
	cmd    *exec.Cmd
	output *syncBuffer
	client enginepb.EngineClient
}

// syncBuffer takes a process's output while the test may read it.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// startNode runs pdnode with short time limits and waits until its engine API
// answers. args are flags of pdnode run.
func startNode(t *testing.T, role, dialect string, args ...string) *pdnodeProcess {
	t.Helper()
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &pdnodeProcess{t: t, dir: filepath.Join(dir, "n"), output: &syncBuffer{}}
	name := map[string]string{"prefill": "p0", "decode": "d0"}[role]
	args = append([]string{
		"run", "--node", name, "--role", role, "--dialect", dialect, "--data-dir", n.dir, "--nats.embedded=false",
		"--ack-timeout", "1s", "--abort-retry", "100ms", "--heartbeat", "100ms", "--stop-grace", "1s",
	}, args...)
	n.cmd = exec.Command(pdnode, args...)
	n.cmd.Stdout, n.cmd.Stderr = n.output, n.output
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.stop)
	n.client = engineclient.Dial(n.socket())
	n.status()
	return n
}

func (n *pdnodeProcess) socket() string { return filepath.Join(n.dir, "pdnode.sock") }

// status asks the node, also one that has only just been started.
func (n *pdnodeProcess) status() *enginepb.StatusResponse {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		r, err := n.client.Status(ctx, connect.NewRequest(&enginepb.StatusRequest{}))
		if err == nil {
			return r.Msg
		}
		again := time.NewTimer(10 * time.Millisecond)
		select {
		case <-again.C:
		case <-ctx.Done():
			n.t.Fatalf("pdnode does not answer: %v\n%s", err, n.output)
		}
	}
}

// stop ends the process as an operator does, and says so if it does not end well.
func (n *pdnodeProcess) stop() {
	n.t.Helper()
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(patience, func() { _ = n.cmd.Process.Kill() })
	defer kill.Stop()
	if err := n.cmd.Wait(); err != nil {
		n.t.Errorf("pdnode ended with %v\n%s", err, n.output)
	}
	n.cmd = nil
	if n.t.Failed() {
		n.t.Logf("pdnode said:\n%s", n.output)
	}
}

// verify stops the node and has pdreplay check its log: chain, gaps, invariants.
func (n *pdnodeProcess) verify() {
	n.t.Helper()
	n.stop()
	if out, err := exec.Command(pdreplay, "verify", n.dir).CombinedOutput(); err != nil {
		n.t.Errorf("pdreplay verify: %v\n%s", err, out)
	}
}

// event is what these tests look at in an event.
type event struct {
	Type    string
	Room    json.Number
	Rank    string
	Why     string
	Counted bool
	Kind    string
	Reason  string
	Count   uint64
	Basis   string
}

// events reads the log with pdreplay.
func (n *pdnodeProcess) events() []event {
	n.t.Helper()
	out, err := exec.Command(pdreplay, "events", "-o", "json", n.dir).Output()
	if err != nil {
		n.t.Fatalf("pdreplay events: %v", err)
	}
	var evs []event
	for line := range bytes.Lines(out) {
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			n.t.Fatalf("%v in %s", err, line)
		}
		evs = append(evs, e)
	}
	return evs
}

func count(evs []event, match func(event) bool) int {
	n := 0
	for _, e := range evs {
		if match(e) {
			n++
		}
	}
	return n
}

// peakBytes is the largest resident size that the process has had.
func (n *pdnodeProcess) peakBytes() uint64 {
	n.t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(n.cmd.Process.Pid), "status"))
	if err != nil {
		n.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			kib, err := strconv.ParseUint(f[1], 10, 64)
			if err != nil {
				n.t.Fatal(err)
			}
			return kib << 10
		}
	}
	n.t.Fatal("no VmHWM")
	return 0
}

// peer is a Python program that plays the other side.
type peer struct {
	t      *testing.T
	cmd    *exec.Cmd
	out    *bufio.Reader
	stderr *syncBuffer
}

// startPeer runs a story; told, if not nil, gets the socket's path on stdin when
// it has said where its bootstrap server is.
func startPeer(t *testing.T, args ...string) (p *peer, told func(string)) {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	p = &peer{t: t, stderr: &syncBuffer{}}
	p.cmd = exec.CommandContext(ctx, python(t), append([]string{"-B", "-W", "error", "-m", "peers.run"}, args...)...)
	p.cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(root, "clients", "python"))
	p.cmd.WaitDelay = 5 * time.Second
	p.cmd.Stderr = p.stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p, func(socket string) {
		if _, err := in.Write([]byte(socket + "\n")); err != nil {
			t.Error(err)
		}
	}
}

// line reads one line of JSON.
func (p *peer) line(into any) {
	p.t.Helper()
	b, err := p.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		_ = p.cmd.Wait()
		p.t.Fatalf("read from the peer: %v\n%s", err, p.stderr)
	}
}

// wait waits for the story's end.
func (p *peer) wait() {
	p.t.Helper()
	if err := p.cmd.Wait(); err != nil {
		p.t.Fatalf("%v: %s", err, p.stderr)
	}
}
