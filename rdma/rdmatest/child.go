package rdmatest

import (
	"bufio"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pdlog/pdlog/rdma"
)

// Environment of the child: its role, and for a writer where to write to.
const (
	envRole     = "PDLOG_RDMATEST_ROLE"
	envEndpoint = "PDLOG_RDMATEST_ENDPOINT" // of a target: where to listen
	envKey      = "PDLOG_RDMATEST_KEY"
	roleWriter  = "writer"
	roleTarget  = "target"
	childSize   = 1 << 20
	metaStall   = 0xdead           // a write with this Meta makes the child's target stand still
	mark        = "rdmatest-child" // start of the line that a ready target prints
	stalled     = "rdmatest-stalled"
)

func await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("waited %s for %s", patience, what)
	}
}

// runChild plays the child's part, if this process is one, until it is killed
// or its parent is gone.
func runChild(t *testing.T, newProvider func(*testing.T) rdma.Provider) bool {
	role := os.Getenv(envRole)
	if role == "" {
		return false
	}
	orphan := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends when the parent does
		close(orphan)
	}()
	switch role {
	case roleWriter:
		childWriter(t, newProvider(t), orphan)
	case roleTarget:
		p := newProvider(t)
		at := cmp.Or(os.Getenv(envEndpoint), listenAt(p))
		d := open(t, p, rdma.Config{Self: targetName, Listen: at, OnNotif: func(v rdma.Notif) {
			if v.Meta == metaStall {
				fmt.Println(stalled)
				<-orphan
			}
		}})
		r := register(t, d, memory(t, childSize).Memory())
		l := grant(t, r, 1, all(r))
		fmt.Printf("%s %s %s\n", mark, d.Info().Endpoint, hex.EncodeToString(l.Desc().Key))
		<-orphan
	}
	return true
}

// childWriter streams without an end.
func childWriter(t *testing.T, p rdma.Provider, orphan <-chan struct{}) {
	key, err := hex.DecodeString(os.Getenv(envKey))
	if err != nil {
		t.Fatal(err)
	}
	free := make(chan struct{}, 16)
	w := open(t, p, rdma.Config{Self: writerName, OnCompletion: func(rdma.Completion) { free <- struct{}{} }})
	m := memory(t, childSize)
	src := m.Bytes()
	register(t, w, m.Memory())
	for i := range src {
		src[i] = 0xcc
	}
	ep := connect(t, w, rdma.PeerInfo{Provider: p.Name(), Endpoint: os.Getenv(envEndpoint), Peer: targetName})
	for range cap(free) {
		free <- struct{}{}
	}
	for {
		select {
		case <-free:
		case <-orphan:
			return
		}
		if _, err := ep.PostBatch(rdma.Batch{Tag: 1, Key: key, Writes: []rdma.Write{{Src: src[:page]}, {Src: src[page:]}}}); err != nil {
			return
		}
	}
}

// child is a running peer process.
type child struct {
	cmd *exec.Cmd
	out *bufio.Reader
}

func startChild(t *testing.T, role string, env ...string) *child {
	t.Helper()
	top, _, _ := strings.Cut(t.Name(), "/") // the test that called Run
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^"+top+"$", "-test.count=1")
	cmd.Env = append(append(os.Environ(), envRole+"="+role), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: cmd, out: bufio.NewReader(out)}
	t.Cleanup(func() {
		_ = in.Close()         // asks the child to end
		_ = cmd.Process.Kill() // may be dead already
		_ = cmd.Wait()         // killed: always an error
	})
	return c
}

// line reads what the child prints until it has the mark, and gives that line
// from the mark on.
func (c *child) line(t *testing.T, mark string) string {
	t.Helper()
	for {
		line, err := c.out.ReadString('\n')
		if err != nil {
			t.Fatalf("read the child's output: %v", err)
		}
		if at := strings.Index(line, mark); at >= 0 {
			return line[at:]
		}
	}
}

func (c *child) kill(t *testing.T) {
	t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := c.cmd.Wait(); !errors.As(err, &exit) {
		t.Fatalf("wait for the killed child: %v", err)
	}
}

// testKilledWriter kills a writer in the middle of its stream. After PeerGone
// nothing lands.
func testKilledWriter(t *testing.T, p rdma.Provider) {
	dst := memory(t, childSize)
	target := open(t, p, rdma.Config{Self: targetName, Listen: listenAt(p)})
	r := register(t, target, dst.Memory())
	l := grant(t, r, 5, all(r))
	c := startChild(t, roleWriter, envEndpoint+"="+target.Info().Endpoint, envKey+"="+hex.EncodeToString(l.Desc().Key))
	target.notifs.count(t, "landed", 20, func(v rdma.Notif) bool { return v.Kind == rdma.WriteLanded && v.Tag == 5 })
	c.kill(t)
	v := target.notifs.find(t, "peer gone", func(v rdma.Notif) bool { return v.Kind == rdma.PeerGone })
	if v.Peer != writerName || v.Fence != target.Caps().Fence || v.Left != 0 || v.Err == nil {
		t.Errorf("notif %+v", v)
	}
	clear(r.Bytes())
	revoke(t, target, l)
	if !zero(r.Bytes()) {
		t.Error("bytes landed after PeerGone")
	}
	told, _ := target.notifs.list()
	if last := told[len(told)-1]; last.Kind != rdma.PeerGone {
		t.Errorf("told after PeerGone: %+v", last)
	}
}

// testKilledTarget kills a target that a writer streams to, then connects to
// the process that has taken its address.
func testKilledTarget(t *testing.T, p rdma.Provider) {
	src := memory(t, childSize)
	writer := open(t, p, rdma.Config{Self: writerName})
	run := func(at string) (*child, string, []byte) {
		c := startChild(t, roleTarget, envEndpoint+"="+at)
		f := strings.Fields(c.line(t, mark))
		k, err := hex.DecodeString(f[2])
		if err != nil {
			t.Fatal(err)
		}
		return c, f[1], k
	}
	c, at, key := run("")
	info := rdma.PeerInfo{Provider: p.Name(), Endpoint: at, Peer: targetName}
	ep := connect(t, writer, info)
	batch := rdma.Batch{Tag: 1, Key: key, Writes: []rdma.Write{{Src: src.Bytes()}}}
	first := post(t, ep, batch)
	if c := writer.of(t, first); c.Status != rdma.Completed {
		t.Fatalf("completion %+v", c)
	}
	batch.Meta = metaStall // from here on nothing is answered
	posted := 1
	for ; posted < 64; posted++ {
		post(t, ep, batch)
	}
	c.line(t, stalled) // so that one of them is out
	c.kill(t)
	for ; posted < 100000; posted++ { // until the loss is known
		if _, err := ep.PostBatch(batch); errors.Is(err, rdma.ErrConnLost) {
			break
		} else if errors.Is(err, rdma.ErrQueueFull) {
			await(t, ep.Done(), "the endpoint's end")
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	await(t, ep.Done(), "the endpoint's end")
	if err := ep.Err(); !errors.Is(err, rdma.ErrConnLost) {
		t.Errorf("endpoint's error: %v", err)
	}
	ends, _ := writer.completions.list()
	if len(ends) != posted {
		t.Errorf("%d completions of %d transfers", len(ends), posted)
	}
	var uncertain, proven int
	for _, c := range ends {
		switch {
		case c.Status == rdma.Completed && uncertain+proven == 0:
		case c.Status == rdma.Uncertain && !c.Proven && errors.Is(c.Err, rdma.ErrConnLost):
			uncertain++
		case c.Status == rdma.Failed && c.Proven && c.Bytes == 0:
			proven++
		default:
			t.Fatalf("completion %+v", c)
		}
	}
	if uncertain == 0 {
		t.Errorf("no write is uncertain; %d never left", proven)
	}
	ep.Seal(1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if r, err := ep.Drain(ctx, 1); err != nil || r.Clean || r.Uncertain != uncertain || r.Failed != proven {
		t.Errorf("drain: %+v, %v", r, err)
	}
	_, _, key2 := run(at) // another process at the same address
	again := connect(t, writer, info)
	if c := writer.of(t, post(t, again, rdma.Batch{Tag: 1, Key: key2, Writes: []rdma.Write{{Src: src.Bytes()}}})); c.Status != rdma.Completed {
		t.Errorf("after reconnecting: %+v", c)
	}
	if c := writer.of(t, post(t, again, rdma.Batch{Tag: 1, Key: key, Writes: []rdma.Write{{Src: src.Bytes()}}})); c.Status != rdma.Failed || !c.Proven {
		t.Errorf("a key of the killed target: %+v", c)
	}
}
