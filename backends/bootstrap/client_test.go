package bootstrap

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var local = Local{PageSize: 64, KVCacheDType: "auto"}

// goodTopology is a topology answer to edit.
const goodTopology = `{"attn_tp_size":2,"attn_cp_size":1,"dp_size":3,"pp_size":4,"page_size":64,"kv_cache_dtype":"auto",` +
	`"follow_bootstrap_room":true,"enable_dsa_cache_layer_split":false,"prefill_http_port":null}`

// deadAddr is an address where nobody listens.
func deadAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func TestClientAgainstServer(t *testing.T) {
	cfg := testConfig()
	cfg.TopologyKeys, cfg.DecodeAllocationPolicy = TopologyKeysPolicy, AllocatePrefillComplete
	cfg.LogID = []byte("0123456789abcdef")
	cfg.LogSince = func() uint64 { return 1<<64 - 1 }
	cfg.OwnRanks = func() []Rank { return []Rank{{DP: 1, TP: 2, CP: 3, PP: 4, IP: "2001:DB8::2", Port: 5}} }
	cfg.Outstanding = func(a Asker) (bool, uint64, error) {
		return a.Node == "d+0" && bytes.Equal(a.LogID, []byte("fedcba9876543210")), a.Boot, nil
	}
	s := newTestServer(t, cfg)
	addr := serve(t, s)
	c := newTestClient(t)
	ctx := t.Context()

	if _, err := c.Topology(ctx, addr, local); !errors.Is(err, ErrNotReady) {
		t.Errorf("not ready: %v", err)
	}
	if _, err := c.Rank(ctx, addr, 0, 0, 0, 0); !errors.Is(err, ErrNotReady) {
		t.Errorf("not ready: %v", err)
	}
	reg := aRank(0, 1)
	reg.RankIP, reg.EnableDSACacheLayerSplit, reg.LoadBalanceMethod = "2001:DB8::2", true, "round_robin"
	var states []RegisterState
	if err := c.Register(ctx, addr, reg, func(s RegisterState) { states = append(states, s) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]RegisterState{{}, {Ready: true, Attempts: 1}}, states); diff != "" {
		t.Error(diff)
	}
	topology, err := c.Topology(ctx, addr, local)
	wantTopology := Topology{
		AttnTPSize: 1, AttnCPSize: 1, DPSize: 1, PPSize: 1, PageSize: 64, KVCacheDType: "auto",
		EnableDSACacheLayerSplit: true, PrefillHTTPPort: 30000, DecodeAllocationPolicy: AllocatePrefillComplete,
	}
	if diff := cmp.Diff(wantTopology, topology); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if r, err := c.Rank(ctx, addr, 0, 0, 0, 0); err != nil || r != (Rank{IP: "2001:DB8::2", Port: 41000}) {
		t.Errorf("%+v %v", r, err)
	}
	if _, err := c.Rank(ctx, addr, 0, 0, 1, 0); !errors.Is(err, ErrNoRank) {
		t.Errorf("no such rank: %v", err)
	}
	if !c.Health(ctx, addr) {
		t.Error("not healthy")
	}
	info, ok, err := c.Discover(ctx, addr)
	wantInfo := NodeInfo{
		Node: "p0", Boot: cfg.Boot, Incarnation: 1, Version: "0.1.0", Ranks: cfg.OwnRanks(), LogSince: 1<<64 - 1,
		LogID: cfg.LogID, Features: []string{"pdx1"},
	}
	if diff := cmp.Diff(wantInfo, info); err != nil || !ok || diff != "" {
		t.Errorf("%v %v %s", ok, err, diff)
	}
	out, err := c.Outstanding(ctx, addr, Asker{"d+0", 7, []byte("fedcba9876543210")})
	if err != nil || out != (Outstanding{"p0", cfg.Boot, 1, true, 7}) {
		t.Errorf("%+v %v", out, err)
	}
	for name, boot := range map[string]uint64{"d0+é": 1, "": 1, "d0": 0} { // answered with 400
		if out, err := c.Outstanding(ctx, addr, Asker{Node: name, Boot: boot}); !errors.Is(err, ErrAnswer) || out != (Outstanding{}) {
			t.Errorf("%+v %v", out, err)
		}
	}
}

func TestClientDPRanks(t *testing.T) {
	s := newTestServer(t, testConfig())
	addr := serve(t, s)
	c := newTestClient(t)
	ctx := t.Context()
	rooms := make([]uint64, 2*dpQueryBatch+1) // three questions
	for i := range rooms {
		rooms[i] = uint64(i)
	}
	want := map[uint64]int{0: 7, dpQueryBatch: 8, 2 * dpQueryBatch: 9, maxRoom: 1<<31 - 1, 1<<53 + 1: 1}
	for room, rank := range want {
		if err := c.RegisterDPRank(ctx, addr, room, rank); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.QueryDPRanks(ctx, addr, append(rooms, maxRoom, 1<<53+1, 1<<53))
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if got, err := c.QueryDPRanks(ctx, deadAddr(t), nil); err != nil || len(got) != 0 {
		t.Errorf("nothing to ask: %v %v", got, err)
	}
	if err := c.RegisterDPRank(ctx, addr, 1<<63, 0); err == nil {
		t.Error("room 2^63 registered")
	}
	if err := c.RegisterDPRank(ctx, addr, 1, -1); err == nil {
		t.Error("dp rank -1 registered")
	}
	if _, err := c.QueryDPRanks(ctx, addr, []uint64{1 << 63}); err == nil {
		t.Error("room 2^63 asked")
	}
	if err := c.RegisterDPRank(ctx, answerWith(t, 400, "Bad request: no"), 1, 1); !errors.Is(err, ErrAnswer) || !strings.Contains(err.Error(), "Bad request: no") {
		t.Errorf("%v", err)
	}
	for _, body := range []string{`[]`, `{"01":1}`, `{"-1":1}`, `{"9223372036854775808":1}`, `{"1":-1}`, `{"1":"1"}`, `{"1":1.0}`, `{"1":null}`, `x`} {
		if got, err := c.QueryDPRanks(ctx, answerWith(t, 200, body), []uint64{1}); !errors.Is(err, ErrAnswer) || got != nil {
			t.Errorf("%s: %v %v", body, got, err)
		}
	}
}

func TestTopologyRefusals(t *testing.T) {
	c := newTestClient(t)
	change := func(old, replacement string) string {
		if !strings.Contains(goodTopology, old) {
			t.Fatalf("no %s", old)
		}
		return strings.Replace(goodTopology, old, replacement, 1)
	}
	cases := []struct {
		body   string
		reason error // nil: taken
	}{
		{goodTopology, nil},
		{change(`{`, `{"new_key":[1],"target_tp_rank":null,"required_dst_info_num":null,"decode_allocation_policy":"early",`), nil},
		{change(`"prefill_http_port":null`, `"prefill_http_port":30000`), nil},
		{change(`"page_size":64`, `"page_size":32`), ErrPageSize},
		{change(`"auto"`, `"fp8"`), ErrKVCacheDType},
		{change(`"auto"`, `"AUTO"`), ErrKVCacheDType},
		{change(`"page_size":64`, `"page_size":"64"`), ErrTopologyKey},
		{change(`"page_size":64`, `"page_size":64.0`), ErrTopologyKey},
		{change(`"page_size":64`, `"page_size":null`), ErrTopologyKey},
		{change(`"dp_size":3`, `"dp_size":0`), ErrTopologyKey},
		{change(`"pp_size":4`, `"pp_size":-4`), ErrTopologyKey},
		{change(`"auto"`, `8`), ErrTopologyKey},
		{change(`true`, `1`), ErrTopologyKey},
		{change(`false`, `null`), ErrTopologyKey},
		{change(`"prefill_http_port":null`, `"prefill_http_port":0`), ErrTopologyKey},
		{change(`"prefill_http_port":null`, `"prefill_http_port":"30000"`), ErrTopologyKey},
		{change(`{`, `{"decode_allocation_policy":1,`), ErrTopologyKey},
		{change(`{`, `{"decode_allocation_policy":"late",`), ErrTopologyKey},
		{goodTopology + `{}`, ErrTopologyKey},
		{`OK`, ErrTopologyKey},
		{`null`, ErrTopologyKey},
	}
	for _, key := range []string{
		"attn_tp_size", "attn_cp_size", "dp_size", "pp_size", "page_size", "kv_cache_dtype",
		"follow_bootstrap_room", "enable_dsa_cache_layer_split", "prefill_http_port",
	} {
		cases = append(cases, struct {
			body   string
			reason error
		}{change(`"`+key+`"`, `"x_`+key+`"`), ErrTopologyKey})
	}
	for _, tc := range cases {
		got, err := c.Topology(t.Context(), answerWith(t, 200, tc.body), local)
		var refused *RefusedError
		switch {
		case tc.reason == nil && (err != nil || got.DPSize != 3 || got.PPSize != 4 || got.DecodeAllocationPolicy != AllocateEarly):
			t.Errorf("%s: %+v %v", tc.body, got, err)
		case tc.reason != nil && (!errors.Is(err, tc.reason) || !errors.As(err, &refused) || got != Topology{}):
			t.Errorf("%s: %+v %v", tc.body, got, err)
		}
	}
	_, err := c.Topology(t.Context(), answerWith(t, 200, change(`64`, `32`)), local)
	if err == nil || !strings.HasSuffix(err.Error(), "refused: page size differs: theirs 32, ours 64") {
		t.Errorf("%v", err)
	}
	if _, err := c.Topology(t.Context(), answerWith(t, 500, ""), local); !errors.Is(err, ErrAnswer) {
		t.Errorf("status 500: %v", err)
	}
	if _, err := c.Topology(t.Context(), deadAddr(t), local); err == nil || errors.Is(err, ErrAnswer) {
		t.Errorf("refused connection: %v", err)
	}
	for _, body := range []string{
		`{}`, `[]`, `{"rank_ip":"host","rank_port":1}`, `{"rank_ip":"10.0.0.1","rank_port":0}`, `{"rank_ip":"10.0.0.1","rank_port":"1"}`,
	} {
		if r, err := c.Rank(t.Context(), answerWith(t, 200, body), 0, 0, 0, 0); !errors.Is(err, ErrAnswer) || r != (Rank{}) {
			t.Errorf("%s: %+v %v", body, r, err)
		}
	}
}

func TestAddressesThatAreNone(t *testing.T) {
	c := newTestClient(t)
	for _, addr := range []string{
		"", "10.0.0.1", "::1:80", "http://10.0.0.1:80", "10.0.0.1:80/x", "u@10.0.0.1:80", "10.0.0.1:80?x", ":80", "10.0.0.1:", "10.0.0.1:80#",
		"10.0.0.1:80 ", "10.0.0.1:x",
	} {
		if _, _, err := c.Discover(t.Context(), addr); err == nil {
			t.Errorf("discover %q: no error", addr)
		}
		if err := c.Register(t.Context(), addr, aRank(0, 1), nil); err == nil {
			t.Errorf("register at %q: no error", addr)
		}
		if c.Health(t.Context(), addr) {
			t.Errorf("%q is healthy", addr)
		}
	}
}

// redirect sends every question to target.
func redirect(t *testing.T, target string) string {
	t.Helper()
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+target+r.URL.RequestURI(), http.StatusTemporaryRedirect)
	}))
	t.Cleanup(ts.Close)
	return ts.Listener.Addr().String()
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	s := newTestServer(t, testConfig())
	if err := s.Register(aRank(0, 1)); err != nil {
		t.Fatal(err)
	}
	addr := redirect(t, serve(t, s))
	c := newTestClient(t)
	if c.Health(t.Context(), addr) {
		t.Error("healthy by a redirect")
	}
	if _, ok, err := c.Discover(t.Context(), addr); ok || err != nil {
		t.Errorf("discovered by a redirect: %v", err)
	}
	if _, err := c.Topology(t.Context(), addr, local); !errors.Is(err, ErrAnswer) {
		t.Errorf("%v", err)
	}
	if err := c.RegisterDPRank(t.Context(), addr, 1, 1); !errors.Is(err, ErrAnswer) || s.Stats().DPRanks != 0 {
		t.Errorf("%v", err)
	}
}

func TestHealthIsStatus200Alone(t *testing.T) {
	c := newTestClient(t)
	for status, want := range map[int]bool{200: true, 201: false, 204: false, 404: false, 500: false, 503: false} {
		if got := c.Health(t.Context(), answerWith(t, status, "")); got != want {
			t.Errorf("%d: %v", status, got)
		}
	}
	if c.Health(t.Context(), deadAddr(t)) {
		t.Error("nobody is healthy")
	}
}

func TestAnswersAreBounded(t *testing.T) {
	c := newTestClient(t)
	pad := func(body string, n int) string { return body + strings.Repeat(" ", n-len(body)) }
	if _, err := c.Topology(t.Context(), answerWith(t, 200, pad(goodTopology, 1<<20)), local); err != nil {
		t.Errorf("1 MiB: %v", err)
	}
	if _, err := c.Topology(t.Context(), answerWith(t, 200, pad(goodTopology, 1<<20+1)), local); !errors.Is(err, ErrAnswer) {
		t.Errorf("more: %v", err)
	}
	if _, ok, err := c.Discover(t.Context(), answerWith(t, 200, pad(goodNode, 256<<10))); !ok || err != nil {
		t.Errorf("256 KiB: %v %v", ok, err)
	}
	if _, ok, err := c.Discover(t.Context(), answerWith(t, 200, pad(goodNode, 256<<10+1))); ok || err != nil {
		t.Errorf("more: %v %v", ok, err)
	}
}

func TestRegistrationBodyIsWhatSGLangReads(t *testing.T) {
	var bodies []map[string]any
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m map[string]any
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil || r.Method != "PUT" || r.URL.Path != "/route" || r.Header.Get("Idempotency-Key") != "" {
			t.Errorf("%s %s %v %v", r.Method, r.URL, r.Header, err)
		}
		bodies = append(bodies, m)
	}))
	defer ts.Close()
	bare := aRank(0, 1)
	bare.PrefillHTTPPort = 0
	for _, r := range []Registration{aRank(0, 1), bare} {
		if err := newTestClient(t).Register(t.Context(), ts.Listener.Addr().String(), r, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range requiredKeys() {
		if _, ok := bodies[0][key]; !ok {
			t.Errorf("no %s", key)
		}
	}
	if bodies[0]["prefill_http_port"] != float64(30000) {
		t.Errorf("%v", bodies[0])
	}
	for _, key := range []string{"prefill_http_port", "load_balance_method"} {
		if v, ok := bodies[1][key]; ok {
			t.Errorf("%s is sent as %v", key, v)
		}
	}
}

func TestBadRegistrationIsNotTried(t *testing.T) {
	r := aRank(0, 1)
	r.PageSize = 0
	called := func(s RegisterState) { t.Errorf("told %+v", s) }
	if err := newTestClient(t).Register(t.Context(), deadAddr(t), r, called); err == nil || !strings.Contains(err.Error(), "page_size") {
		t.Errorf("%v", err)
	}
}

func TestCancelledQuestions(t *testing.T) {
	c := newTestClient(t)
	addr := serve(t, newTestServer(t, testConfig()))
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("engine is gone")
	cancel(fmt.Errorf("stop: %w", gone))
	if _, ok, err := c.Discover(ctx, addr); ok || !errors.Is(err, gone) {
		t.Errorf("discover: %v %v", ok, err)
	}
	if _, err := c.Topology(ctx, addr, local); !errors.Is(err, gone) {
		t.Errorf("topology: %v", err)
	}
	if err := c.Register(ctx, addr, aRank(0, 1), nil); !errors.Is(err, gone) {
		t.Errorf("register: %v", err)
	}
}
