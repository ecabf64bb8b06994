package soak

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/node/engineclient"
	"github.com/pdlog/pdlog/node/enginepb"
)

const patience = 60 * time.Second // a deadline, never a delay

// node is a pdnode process.
type node struct {
	name   string
	cmd    *exec.Cmd
	client *engineclient.Client
	http   *http.Client
}

func startNode(t *testing.T, bin, dir, name, role, nats string, more ...string) *node {
	t.Helper()
	data := filepath.Join(dir, name)
	if err := os.MkdirAll(data, 0o700); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(data, "pdnode.sock")
	n := &node{name: name, client: engineclient.Dial(socket), http: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
	t.Cleanup(n.client.CloseIdle)
	lines := append([]string{
		"node: " + name, "role: " + role, "data_dir: " + data, "heartbeat: 500ms", "ack_timeout: 500ms", "transfer_timeout: 5s", "waiting_timeout: 10s", "bootstrap_timeout: 10s",
		"log: {level: warn, segment_bytes: 33554432, max_bytes: 268435456}", fmt.Sprintf("nats: {url: %q}", nats),
	}, more...)
	config := filepath.Join(dir, name+".yaml")
	if err := os.WriteFile(config, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.cmd = exec.Command(bin, "run", "--config", config) //nolint:gosec // this test's binary
	n.cmd.Stdout, n.cmd.Stderr = os.Stderr, os.Stderr
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = n.cmd.Process.Signal(syscall.SIGTERM)
		_ = n.cmd.Wait()
	})
	eventually(t, name+" answers", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := n.client.Status(ctx, connect.NewRequest(&enginepb.StatusRequest{}))
		return err == nil
	})
	return n
}

func (n *node) status(t *testing.T) *enginepb.StatusResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := n.client.Status(ctx, connect.NewRequest(&enginepb.StatusRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	return s.Msg
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// measure is what a node uses: its metrics, labels summed up, and the memory of
// its own, without the pages of its log that are mapped.
func (n *node) measure(t *testing.T) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://node/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := n.http.Do(req)
	if err != nil {
		t.Fatalf("metrics of %s: %v", n.name, err)
	}
	defer func() { _ = res.Body.Close() }()
	sc := bufio.NewScanner(res.Body)
	for sc.Scan() {
		line := sc.Text()
		key, value, ok := strings.Cut(line, " ")
		if i := strings.IndexByte(line, '}'); i > 0 && !strings.HasPrefix(line, "#") {
			key, value, ok = line[:strings.IndexByte(line, '{')], strings.TrimSpace(line[i+1:]), true
		}
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			out[key] += v
		}
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			if err != nil {
				t.Fatal(err)
			}
			out["rss"] = kb / 1024
		}
	}
	return out
}

// measureIdle waits until a node holds nothing, as long as that may take.
func (n *node) measureIdle(t *testing.T) map[string]float64 {
	t.Helper()
	var m map[string]float64
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if m = n.measure(t); m["pdnode_rooms"]+m["pdnode_open_tokens"]+m["pdnode_effects_pending"] == 0 {
			break
		}
		<-time.After(200 * time.Millisecond)
	}
	return m
}
