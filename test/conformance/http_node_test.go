package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/node"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/test/conformance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// exchange is a line of http.jsonl: requests to a fresh bootstrap server and
// what it must answer (http.md 6).
type exchange struct {
	ID     string
	Note   string
	Config struct {
		Node                   string
		Extension              *bool
		TopologyKeys           string            `json:"topology_keys"`
		DecodeAllocationPolicy string            `json:"decode_allocation_policy"`
		OwnRanks               []json.RawMessage `json:"own_ranks"`
	}
	Steps []step
}

type step struct {
	Method  string
	Path    string
	Body    json.RawMessage
	RawBody *string `json:"raw_body"`
	Expect  struct {
		Status      int
		JSON        json.RawMessage
		JSONHas     json.RawMessage `json:"json_has"`
		Text        *string
		ContentType string `json:"content_type"`
	}
}

// Every exchange against the bootstrap server of a running prefill node, each
// with a node of its own whose own ranks are not registered.
func TestBootstrapServerOfARunningNode(t *testing.T) {
	file, err := os.ReadFile("http.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for line := range bytes.Lines(file) {
		var x exchange
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&x); err != nil {
			t.Fatalf("line %d: %v", lines+1, err)
		}
		lines++
		t.Run(x.ID, func(t *testing.T) {
			n := startPrefill(t, &x)
			for i, s := range x.Steps {
				if len(x.Config.OwnRanks) > 0 {
					s = withPort(t, s, ownPort(t, n))
				}
				s.run(t, i, n.Bootstrap())
			}
		})
	}
	if lines < 46 {
		t.Errorf("%d lines: the file is cut", lines)
	}
}

func startPrefill(t *testing.T, x *exchange) *node.Node {
	t.Helper()
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // a test's own directory is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := node.DefaultConfig()
	c.Node, c.Role, c.DataDir, c.Bootstrap = "p0", "prefill", filepath.Join(dir, "p"), "127.0.0.1:0"
	c.NATS.Embedded, c.RegisterOwn = false, false
	c.Log.SegmentBytes = 1 << 20
	if x.Config.Node != "" {
		c.Node = x.Config.Node
	}
	if x.Config.Extension != nil {
		c.Extension = *x.Config.Extension
	}
	if x.Config.TopologyKeys != "" {
		c.TopologyKeys = x.Config.TopologyKeys
	}
	if x.Config.DecodeAllocationPolicy != "" {
		c.DecodeAllocationPolicy = x.Config.DecodeAllocationPolicy
	}
	c.Ranks = len(x.Config.OwnRanks)
	if c.Ranks > 1 {
		t.Fatalf("%d own ranks: the nodes of this test have one at most", c.Ranks)
	}
	if c.Ranks == 1 {
		c.Advertise = "10.0.0.2" // the vectors' own rank is 10.0.0.2:41001
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	n, err := node.Start(ctx, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return n
}

// ownPort is the control port of the node's rank, as its engine API says.
func ownPort(t *testing.T, n *node.Node) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", n.Socket())
	}}}
	defer client.CloseIdleConnections()
	r, err := enginepb.NewEngineClient(client, "http://node").Status(context.Background(), connect.NewRequest(&enginepb.StatusRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(r.Msg.RankAddresses[0])
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// withPort puts a rank's real port in the place of the vectors' in what the
// node says of itself: a node takes any free one.
func withPort(t *testing.T, s step, port string) step {
	t.Helper()
	if s.Path == "/pdlog/v1/node" {
		if p, err := strconv.Atoi(port); err != nil || p < 1 {
			t.Fatalf("port %q: %v", port, err)
		}
		s.Expect.JSON = bytes.ReplaceAll(s.Expect.JSON, []byte("41001"), []byte(port))
		s.Expect.JSONHas = bytes.ReplaceAll(s.Expect.JSONHas, []byte("41001"), []byte(port))
	}
	return s
}

func (s *step) run(t *testing.T, i int, address string) {
	t.Helper()
	var body io.Reader
	switch {
	case s.RawBody != nil:
		body = strings.NewReader(*s.RawBody)
	case s.Body != nil:
		body = bytes.NewReader(s.Body)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, s.Method, "http://"+address+s.Path, body)
	if err != nil {
		t.Fatalf("step %d: %v", i, err)
	}
	if s.Body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("step %d %s %s: %v", i, s.Method, s.Path, err)
	}
	got, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		t.Fatalf("step %d: %v", i, err)
	}
	want := s.Expect
	if resp.StatusCode != want.Status {
		t.Errorf("step %d %s %s: status %d, want %d (%s)", i, s.Method, s.Path, resp.StatusCode, want.Status, got)
	}
	if want.Text != nil && string(got) != *want.Text {
		t.Errorf("step %d: text %q, want %q", i, got, *want.Text)
	}
	contentType, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	if want.ContentType != "" && contentType != want.ContentType {
		t.Errorf("step %d: content type %q, want %q", i, contentType, want.ContentType)
	}
	if len(want.JSON) > 0 && !reflect.DeepEqual(exact(t, got), exact(t, want.JSON)) {
		t.Errorf("step %d: json %s, want %s", i, got, want.JSON)
	}
	if len(want.JSONHas) > 0 {
		if err := conformance.Contains(got, want.JSONHas); err != nil {
			t.Errorf("step %d: json %s: %v", i, got, err)
		}
	}
}

// exact decodes JSON without floating point.
func exact(t *testing.T, b []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Errorf("%s: %v", b, err)
	}
	return v
}
