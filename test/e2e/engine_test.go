package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/node/engineclient"
	"github.com/pdlog/pdlog/node/enginepb"
)

const patience = 60 * time.Second // a deadline, never a delay

// daemon is a pdnode process.
type daemon struct {
	t      *testing.T
	cmd    *exec.Cmd
	args   []string
	socket string
	client enginepb.EngineClient
}

func startDaemon(t *testing.T, dir, name, role string, args ...string) *daemon {
	t.Helper()
	data := filepath.Join(dir, name)
	d := &daemon{t: t, socket: filepath.Join(data, "pdnode.sock"), args: append([]string{
		"run", "--node", name, "--role", role, "--data-dir", data, "--nats.embedded=false", "--log.level", "warn",
		"--pages", "16", "--aux-rows", "64", "--heartbeat", "100ms", "--ack-timeout", "2s", "--abort-retry", "100ms",
	}, args...)}
	d.start()
	t.Cleanup(d.kill)
	return d
}

// start runs the process; after kill it is the next life.
func (d *daemon) start() {
	d.t.Helper()
	d.cmd = exec.Command(pdnode, d.args...)
	d.cmd.Stderr = os.Stderr
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.client = engineclient.Dial(d.socket)
	d.until("it answers", func() bool { _, err := d.status(); return err == nil })
}

func (d *daemon) kill() {
	if d.cmd.ProcessState == nil {
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait()
	}
}

func (d *daemon) status() (*enginepb.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := d.client.Status(ctx, connect.NewRequest(&enginepb.StatusRequest{}))
	if err != nil {
		return nil, err
	}
	return r.Msg, nil
}

func (d *daemon) until(what string, done func() bool) {
	d.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !done(); <-tick.C {
		if time.Now().After(end) {
			d.t.Fatalf("%s: not in time: %s", d.args[2], what)
		}
	}
}

// events is the node's log: the types of a room's events (0: of none), in order.
func (d *daemon) events(room uint64) (types []string) {
	d.t.Helper()
	r, err := d.client.Events(context.Background(), connect.NewRequest(&enginepb.EventsRequest{FromSeq: 1, Limit: 10000}))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, line := range r.Msg.Json {
		var e struct {
			Room uint64
			Type string
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			d.t.Fatal(err)
		}
		if e.Room == room {
			types = append(types, e.Type)
		}
	}
	return types
}

// engine is a Python process that is driven line by line.
type engine struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.Writer
	lines *bufio.Scanner
}

func startEngine(t *testing.T, script, socket string) *engine {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	e := &engine{t: t, cmd: exec.Command(python, "-B", "-S", filepath.Join("..", "..", "clients", "python", "tests", script), socket)}
	e.cmd.Stderr = os.Stderr
	if e.in, err = e.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.cmd.Process.Kill(); _ = e.cmd.Wait() })
	e.lines = bufio.NewScanner(out)
	return e
}

func (e *engine) tell() {
	e.t.Helper()
	if _, err := io.WriteString(e.in, "\n"); err != nil {
		e.t.Fatal(err)
	}
}

func (e *engine) hear(want string) string {
	e.t.Helper()
	if !e.lines.Scan() || !strings.HasPrefix(e.lines.Text(), want) {
		e.t.Fatalf("heard %q, want %q", e.lines.Text(), want)
	}
	return e.lines.Text()
}

// daemons are a prefill and a decode process that find each other.
func daemons(t *testing.T, decode ...string) (p, d *daemon) {
	t.Helper()
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p = startDaemon(t, dir, "p0", "prefill", "--bootstrap", "127.0.0.1:0")
	s, err := p.status()
	if err != nil {
		t.Fatal(err)
	}
	return p, startDaemon(t, dir, "d0", "decode", append([]string{"--peers", s.Bootstrap}, decode...)...)
}

// pdnode is killed at once under a running Python engine: the engine attaches
// again by itself, its open rooms are where they were, no page is lost and none
// freed early.
func TestKilledNodeUnderAPythonEngine(t *testing.T) {
	t.Parallel()
	_, d := daemons(t)
	e := startEngine(t, "reattach.py", d.socket)
	d.until("it has the memory", func() bool { s, err := d.status(); return err == nil && s.Ready })
	e.tell()
	e.hear("open")
	for _, room := range []uint64{61, 62} { // one that dies while it publishes gives the room up, rightly
		d.until("the room is published", func() bool { return slices.Contains(d.events(room), "MetadataPublished") })
	}
	d.kill()
	e.tell()
	e.hear("gone")
	d.start()
	e.tell()
	if said := e.hear("released "); !strings.HasSuffix(said, " [61]") || strings.Contains(said, "forced") || strings.Contains(said, "timeout") {
		t.Errorf("heard %q", said)
	}
	e.hear("done 16")
	if err := e.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, room := range []uint64{61, 62} {
		types := strings.Join(d.events(room), " ")
		if strings.Count(types, "Released") != 1 || strings.Index(types, "AckReceived") > strings.Index(types, "Released") {
			t.Errorf("room %d: %s", room, types)
		}
	}
}

// The engine is killed at once: its rooms end, its memory is let go after the
// last of them is released, and nothing of it stays in the node.
func TestKilledPythonEngineLeavesNothing(t *testing.T) {
	t.Parallel()
	_, d := daemons(t, "--engine-timeout", "200ms")
	e := startEngine(t, "doomed.py", d.socket)
	d.until("it has the memory", func() bool { s, err := d.status(); return err == nil && s.Ready })
	e.tell()
	e.hear("open")
	if !d.holds("memfd:doomed-engine") {
		t.Fatal("the node does not hold the engine's memory")
	}
	if err := e.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	d.until("the rooms are released", func() bool { s, err := d.status(); return err == nil && s.Rooms == 0 && s.PagesFree == 16 })
	d.until("the memory is let go", func() bool { return !d.holds("memfd:doomed-engine") })
	for _, room := range []uint64{71, 72} {
		if types := strings.Join(d.events(room), " "); !strings.Contains(types, "RoomFailed") || !strings.Contains(types, "Released") {
			t.Errorf("room %d: %s", room, types)
		}
	}
	if types := d.events(0); types[len(types)-1] != "MemoryUnregistered" {
		t.Errorf("the memory's end is not on the log: %v", types)
	}
	if s, err := d.status(); err != nil || s.Ready || s.NotReady != "memory is not registered" || s.Engine {
		t.Errorf("status %v, %v", s, err)
	}
	next := startEngine(t, "doomed.py", d.socket) // the engine's next life is served
	d.until("the next engine is served", func() bool { s, err := d.status(); return err == nil && s.Ready })
	next.tell()
	next.hear("open")
}

// holds: the process has a file of that name mapped or open.
func (d *daemon) holds(name string) bool {
	d.t.Helper()
	proc := fmt.Sprintf("/proc/%d", d.cmd.Process.Pid)
	maps, err := os.ReadFile(proc + "/maps")
	if err != nil {
		d.t.Fatal(err)
	}
	links, err := os.ReadDir(proc + "/fd")
	if err != nil {
		d.t.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink(proc + "/fd/" + l.Name()); err == nil && strings.Contains(to, name) {
			return true
		}
	}
	return strings.Contains(string(maps), name)
}
