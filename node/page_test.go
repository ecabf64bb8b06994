package node

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/node/enginepb"
)

func withToken(t *testing.T, c Config) Config {
	t.Helper()
	c.HTTP.TokenFile = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(c.HTTP.TokenFile, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// ask sends a request to the page and gives its status and body.
func (s *side) ask(method, path, token, body string, change func(*http.Request)) (int, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(testContext(s.t), method, "http://"+s.node.httpAddr+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if change != nil {
		change(req)
	}
	tr := &http.Transport{DisableKeepAlives: true}
	res, err := tr.RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func TestPageIsServedToTheHostAlone(t *testing.T) {
	s := startSide(t, testConfig(t, "decode", "d0"), 4096)
	html := func(r *http.Request) { r.Header.Set("Accept", "text/html") }
	for _, c := range []struct {
		path, want string
		change     func(*http.Request)
		code       int
	}{
		{"/", `"node":"d0"`, nil, http.StatusOK},
		{"/", "<canvas", html, http.StatusOK},
		{"/page/page.js", "lifeline", nil, http.StatusOK},
		{"/metrics", "pdnode_ready", nil, http.StatusOK},
		{"/readyz", "ok", nil, http.StatusOK},
		{"/", "127.0.0.1", func(r *http.Request) { r.Host = "evil.example.com" }, http.StatusMisdirectedRequest},
		{"/pdlog.engine.v1.Engine/Status", "", nil, http.StatusNotFound}, // the engine API is not here
	} {
		code, body := s.ask(http.MethodGet, c.path, "", "", c.change)
		body = strings.ReplaceAll(body, `": "`, `":"`)
		body = strings.ReplaceAll(body, `":  "`, `":"`)
		if code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("GET %s: %d %.80s, want %d and %q", c.path, code, body, c.code, c.want)
		}
	}
}

func TestActionsTakeATokenAndAConfirmation(t *testing.T) {
	q := startPair(t, testConfig(t, "prefill", "p0"), withToken(t, testConfig(t, "decode", "d0")), 4096)
	q.open(31, 0, 1)
	act := func(token, body string) (int, string) {
		return q.d.ask(http.MethodPost, "/page/action", token, body, nil)
	}
	for _, c := range []struct {
		what, token, body, want string
		code                    int
	}{
		{"no token", "", `{"action":"abort","room":"31","confirm":"31"}`, "token", http.StatusForbidden},
		{"a wrong token", "open", `{"action":"abort","room":"31","confirm":"31"}`, "token", http.StatusForbidden},
		{"not confirmed", "sesame", `{"action":"abort","room":"31"}`, "not confirmed", http.StatusConflict},
		{"another room confirmed", "sesame", `{"action":"release","room":"31","confirm":"32"}`, "not confirmed", http.StatusConflict},
		{"an unknown action", "sesame", `{"action":"dance","room":"31","confirm":"31"}`, "no action", http.StatusConflict},
		{"an unknown key", "sesame", `{"actio":"abort"}`, "JSON", http.StatusBadRequest},
		{"a refusal", "sesame", `{"action":"abort","room":"99","confirm":"99"}`, "unknown_room", http.StatusConflict},
		{"an abort", "sesame", `{"action":"abort","room":"31","reason":"test","confirm":"31"}`, "aborted", http.StatusOK},
	} {
		if code, body := act(c.token, c.body); code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s, want %d and %q", c.what, code, body, c.code, c.want)
		}
	}
	if n := q.d.await(enginepb.Notice_KIND_FAILED, 31); n.Reason != "test" {
		t.Errorf("failed with %v", n)
	}
	q.d.await(enginepb.Notice_KIND_RELEASED, 31)
	if err := os.WriteFile(q.dc.HTTP.TokenFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, body := act("", `{}`); code != http.StatusForbidden || !strings.Contains(body, "empty") {
		t.Errorf("an empty token file: %d %s", code, body)
	}
	if code, body := q.p.ask(http.MethodPost, "/page/action", "x", `{}`, nil); code != http.StatusForbidden || !strings.Contains(body, "http.token_file") {
		t.Errorf("without a token file: %d %s", code, body)
	}
}

// sseData gives the data of a stream's events until the test says stop.
func (s *side) sseData(path string, each func(data string) (stop bool)) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(testContext(s.t), http.MethodGet, "http://"+s.node.httpAddr+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && each(data) {
			return
		}
	}
	s.t.Fatalf("%s ended: %v", path, lines.Err())
}

func TestPageIsToldWhatChanges(t *testing.T) {
	q := startPair(t, testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0"), 4096)
	q.open(32, 0, 1, 5)
	opened := false
	q.d.sseData("/page/live", func(data string) bool {
		var d struct {
			Rooms []pageRow
			Gone  []uint64
		}
		if err := json.Unmarshal([]byte(data), &d); err != nil {
			t.Fatalf("%v in %s", err, data)
		}
		for _, r := range d.Rooms {
			if r.Room == "32" && !opened {
				opened = true
				if r.Count != 3 || len(r.Pages) != 2 || r.Pages[0] != [2]uint32{0, 1} || r.Request != "req-32" {
					t.Errorf("have %+v", r)
				}
				if _, err := q.d.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: 32})); err != nil {
					t.Fatal(err)
				}
			}
		}
		return opened && len(d.Gone) == 1
	})
	q.d.sseData("/page/events?after=0&filter=type%3DRoomFailed+room%3D32+client", func(data string) bool {
		if !strings.Contains(data, `"RoomFailed"`) || !strings.Contains(data, `"room":32`) {
			t.Errorf("the filter let %s through", data)
		}
		return true
	})
	code, body := q.d.ask(http.MethodGet, "/page/room?room=32", "", "", nil)
	if code != http.StatusOK || !strings.Contains(body, `"AbortArmed"`) || !strings.Contains(body, `"Released"`) || strings.Contains(body, `"PeerRegistered"`) {
		t.Errorf("the room's life: %d %s", code, body)
	}
}
