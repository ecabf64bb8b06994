package bootstrap

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const allMinusOne = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"

func testConfig() Config {
	return Config{Node: "p0", Boot: 0x9f0c3a5577e1b2d4, Incarnation: 1, Version: "0.1.0", Extension: true}
}

func newTestServer(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// serve starts s on a real socket and returns its host:port.
func serve(t *testing.T, s *Server) string {
	t.Helper()
	ts := httptest.NewUnstartedServer(s)
	ts.Config = s.HTTPServer()
	ts.Start()
	t.Cleanup(ts.Close)
	return ts.Listener.Addr().String()
}

// answerWith serves one fixed answer.
func answerWith(t *testing.T, status int, body string) string {
	t.Helper()
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(ts.Close)
	return ts.Listener.Addr().String()
}

func newTestClient(t *testing.T) *Client {
	t.Helper()
	c := NewClient(ClientConfig{})
	t.Cleanup(c.Close)
	return c
}

// call asks s directly, without a socket.
func call(s *Server, method, target, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
	return w
}

// callURL is call for a method and a target that httptest would refuse.
func callURL(s *Server, method string, u *url.URL, body []byte) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, &http.Request{
		Method: method, URL: u, Header: http.Header{}, ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
	})
	return w
}

// expect compares status and body; a text that ends with … is a prefix, and
// an empty one is not looked at.
func expect(t *testing.T, s *Server, method, target, body string, status int, text string) {
	t.Helper()
	w := call(s, method, target, body)
	prefix, isPrefix := strings.CutSuffix(text, "…")
	got := w.Body.String()
	if w.Code != status || isPrefix && !strings.HasPrefix(got, prefix) || !isPrefix && text != "" && got != text {
		t.Errorf("%s %s %.200q: %d %q, want %d %q", method, target, body, w.Code, got, status, text)
	}
	if strings.ContainsAny(got, "\r\n") {
		t.Errorf("%s %s %.200q: answer %q has a line break", method, target, body, got)
	}
}

// aRank is a good registration of tp rank of size.
func aRank(rank, size int) Registration {
	return Registration{
		AttnTPSize: size, AttnTPRank: rank, AttnCPSize: 1, AttnDPSize: 1, PPSize: 1, SystemDPSize: 1,
		RankIP: "10.0.0.2", RankPort: uint16(41000 + rank), PageSize: 64, KVCacheDType: "auto",
		PrefillHTTPPort: 30000,
	}
}

// goodBody is aRank(0, 1) with every key, in a fixed spelling to edit.
const goodBody = `{"attn_tp_size":1,"attn_tp_rank":0,"attn_cp_size":1,"attn_cp_rank":0,"attn_dp_size":1,"attn_dp_rank":0,` +
	`"pp_size":1,"pp_rank":0,"system_dp_size":1,"system_dp_rank":0,"rank_ip":"10.0.0.2","rank_port":41000,` +
	`"page_size":64,"kv_cache_dtype":"auto","load_balance_method":"follow_bootstrap_room",` +
	`"enable_dsa_cache_layer_split":false,"prefill_http_port":30000}`

// with replaces the value of a key of goodBody; without drops the key.
func with(t *testing.T, key, value string) string {
	t.Helper()
	start := strings.Index(goodBody, `"`+key+`":`)
	if start < 0 {
		t.Fatalf("no key %s", key)
	}
	start += len(key) + 3
	end := start + strings.IndexAny(goodBody[start:], ",}")
	return goodBody[:start] + value + goodBody[end:]
}

func without(t *testing.T, key string) string {
	t.Helper()
	return strings.Replace(with(t, key, "0"), `"`+key+`"`, `"x_`+key+`"`, 1)
}

// settable is a clock that is set by hand.
type settable struct{ now time.Time }

func (c *settable) Now() time.Time { return c.now }
