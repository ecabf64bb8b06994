package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/rdma"
)

// FuzzConfiguration: any file and any variable give a configuration that holds
// what Validate asks for, or an error; and what is shown of it is every key.
func FuzzConfiguration(f *testing.F) {
	f.Add("node: d0\nrole: decode\ndata_dir: /tmp/x\npeers: [127.0.0.1:1]\n", "PDNODE_PAGES=16")
	f.Add("node: p0\nrole: prefill\nranks: 2\nbootstrap: 127.0.0.1:0\nrdma: {provider: tcp, fault: \"late:500ms:30%\"}\nnats: {embedded: true, port: -1}\n", "PDNODE_NATS_EMBEDDED=false")
	f.Add("node: p0\nrole: prefill\nlimits:\n  rooms: 1\nack_timeout: 5s\nlog: {level: warn}\nhttp: {listen: 127.0.0.1:0}\n", "PDNODE_ACK_TIMEOUT=1h")
	f.Add("node: [1, 2]\nrole: {a: b}\n", "PDNODE_RANKS=x")
	path := filepath.Join(f.TempDir(), "pdnode.yaml")
	f.Fuzz(func(t *testing.T, text, variable string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := Load(path, []string{variable}, nil)
		if err != nil {
			if l != nil || err.Error() == "" {
				t.Fatalf("%v, and an error %q", l, err)
			}
			return
		}
		if err := l.Validate(); err != nil {
			t.Fatalf("it is taken, and does not hold: %v", err)
		}
		var shown []string
		for _, s := range l.Effective() {
			shown = append(shown, s.Key)
		}
		if !slices.Equal(shown, Keys()) {
			t.Fatalf("shown: %v", shown)
		}
	})
}

// FuzzFold: what is read of a snapshot's bytes can be written and read again.
func FuzzFold(f *testing.F) {
	cfg := projector.Config{Node: "p0", Role: events.Role_ROLE_PREFILL, Ranks: []projector.LocalRank{{Address: "127.0.0.1:1"}}}
	empty, err := newFold(cfg).encode(0)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(empty)
	f.Add(empty[:7])
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := decodeFold(cfg, b)
		if err != nil {
			return
		}
		again, err := x.encode(0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeFold(cfg, again); err != nil {
			t.Fatalf("what was read cannot be written and read: %v", err)
		}
	})
}

// fuzzed is a pair of running nodes that takes calls as text.
type fuzzed struct {
	nodes map[string]*Node
	http  map[string]*http.Client
	calls map[string]enginepb.EngineClient
	mem   map[string]*rdma.Memfd
}

// oneFuzzed starts the nodes of this process, for as long as it runs.
func oneFuzzed(f *testing.F) *fuzzed {
	x := &fuzzed{nodes: map[string]*Node{}, http: map[string]*http.Client{}, calls: map[string]enginepb.EngineClient{}, mem: map[string]*rdma.Memfd{}}
	peers := []string{}
	for _, side := range []struct{ key, role, name string }{{"p", "prefill", "p0"}, {"d", "decode", "d0"}} {
		cfg := testConfig(f, side.role, side.name)
		cfg.Peers = peers
		m, err := rdma.AllocMemfd("fuzzed-"+side.name, testPages*64+testAux*auxBytes)
		if err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() { _ = m.Close() })
		n, err := Start(context.Background(), cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			f.Fatal(err)
		}
		c := unixClient(n.Socket())
		f.Cleanup(func() {
			c.CloseIdleConnections()
			_ = n.Close()
		})
		x.nodes[side.key], x.http[side.key], x.mem[side.key] = n, c, m
		x.calls[side.key] = enginepb.NewEngineClient(c, "http://node")
		if side.role == "prefill" {
			peers = append(peers, n.Bootstrap())
		}
		if _, err := x.calls[side.key].RegisterMemory(context.Background(), connect.NewRequest(x.memory(side.key))); err != nil {
			f.Fatal(err)
		}
	}
	return x
}

func (x *fuzzed) memory(key string) *enginepb.RegisterMemoryRequest {
	return &enginepb.RegisterMemoryRequest{
		Path: fmt.Sprintf("/proc/self/fd/%d", x.mem[key].FD()), PageBytes: 64, Pages: testPages, AuxBytes: auxBytes, AuxRows: testAux,
	}
}

// body is what is sent: of memory, never another file than the engine's own.
func (x *fuzzed) body(key, method, text string) (string, bool) {
	switch method {
	case "Backup", "Drain": // one writes where it is told to, the other ends the story
		return "", false
	case "RegisterMemory":
		req := new(enginepb.RegisterMemoryRequest)
		if protojson.Unmarshal([]byte(text), req) != nil {
			return "", false
		}
		if req.Path != "" {
			req.Path = x.memory(key).Path
		}
		b, err := protojson.Marshal(req)
		return string(b), err == nil
	}
	return text, true
}

// clean ends what the calls have opened.
func (x *fuzzed) clean(t *testing.T) {
	t.Helper()
	ctx := testContext(t)
	for _, key := range []string{"d", "p"} {
		res, err := x.calls[key].Rooms(ctx, connect.NewRequest(&enginepb.RoomsRequest{}))
		if err != nil {
			t.Fatalf("%s does not answer any more: %v", key, err)
		}
		for _, r := range res.Msg.GetRooms() {
			_, _ = x.calls[key].Abort(ctx, connect.NewRequest(&enginepb.AbortRequest{Room: r.GetRoom()}))
			_, _ = x.calls[key].Clear(ctx, connect.NewRequest(&enginepb.RoomRequest{Room: r.GetRoom()}))
			_, _ = x.calls[key].Finish(ctx, connect.NewRequest(&enginepb.RoomRequest{Room: r.GetRoom()}))
		}
	}
	p, err := x.calls["d"].Pages(ctx, connect.NewRequest(&enginepb.PagesRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if m := p.Msg; m.GetFree()+m.GetOwned()+m.GetHeld()+m.GetQuarantined() != testPages {
		t.Fatalf("pages do not add up: %v", m)
	}
}

// FuzzEngineAPI makes the calls that lines name, "d OpenReceive {…}", on two
// running nodes. Each is answered, none by an internal error, and afterwards both
// nodes answer, and every page is accounted for.
func FuzzEngineAPI(f *testing.F) {
	f.Add("p OpenSend {\"room\":1}\nd OpenReceive {\"room\":1,\"pages\":[1,2],\"prefill\":\"p0\"}\np SendChunk {\"room\":1,\"chunk\":0,\"first\":0,\"count\":2,\"sourcePages\":[0,1],\"sourceAux\":1,\"last\":true}\nd Finish {\"room\":1}\np Clear {\"room\":1}")
	f.Add("d OpenReceive {\"room\":7,\"count\":2,\"pairs\":[{\"rank\":\"p0/0\",\"to\":0}],\"reserveOnly\":true}\nd Publish {\"room\":7}\nd Abort {\"room\":7,\"reason\":\"x\"}\nd Fence {\"room\":7}\nd ForceRelease {\"room\":7}")
	f.Add("d Status {}\nd Rooms {}\nd Room {\"room\":1}\nd Peers {}\nd Pages {\"pages\":[0,1]}\nd Events {\"fromSeq\":1,\"limit\":10}\np Poll {}\np Acknowledge {}")
	f.Add("p Signal {}\np WriteDone {\"token\":1}\np Destination {\"room\":1}\nd Notify {}\nd ReportPage {\"room\":1,\"page\":1}\nd RegisterMemory {\"path\":\"x\",\"pageBytes\":64,\"pages\":16,\"auxBytes\":48,\"auxRows\":64}")
	x := oneFuzzed(f)
	f.Fuzz(func(t *testing.T, text string) {
		lines := strings.Split(text, "\n")
		for _, line := range lines[:min(len(lines), 8)] {
			word := strings.SplitN(line, " ", 3)
			if len(word) < 3 || x.nodes[word[0]] == nil || strings.ContainsAny(word[1], "/?#% \r") {
				continue
			}
			body, ok := x.body(word[0], word[1], word[2])
			if !ok {
				continue
			}
			req, err := http.NewRequestWithContext(testContext(t), http.MethodPost, "http://node/pdlog.engine.v1.Engine/"+word[1], strings.NewReader(body))
			if err != nil {
				continue // no path
			}
			req.Header.Set("Content-Type", "application/json")
			res, err := x.http[word[0]].Do(req)
			if err != nil {
				t.Fatalf("%q is not answered: %v", line, err)
			}
			b, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if err != nil {
				t.Fatalf("%q: the answer ends early: %v", line, err)
			}
			if res.StatusCode == http.StatusInternalServerError {
				t.Fatalf("%q: %s", line, b)
			}
			if res.StatusCode == http.StatusOK && !json.Valid(b) {
				t.Fatalf("%q: the answer is no JSON: %q", line, b)
			}
		}
		x.clean(t)
	})
}
