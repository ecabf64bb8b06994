package bootstrap

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

const notReady0 = "Prefill server not fully registered yet (0 workers registered)."

func routeTarget(dp, cp, tp, pp string) string {
	return "/route?prefill_dp_rank=" + dp + "&prefill_cp_rank=" + cp + "&target_tp_rank=" + tp + "&target_pp_rank=" + pp
}

func TestBadQueriesComeBeforeNotReadyAndNotFound(t *testing.T) {
	empty := newTestServer(t, testConfig())
	ready := newTestServer(t, testConfig())
	if err := ready.Register(aRank(0, 1)); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Server{empty, ready} {
		for _, v := range []string{
			"", "+1", "%2B1", "-0", "00", "01", "-01", "--1", "-", "1.0", "1e0", "0x1", "1_0", "%201", "1%20", "1+", "%091",
			"-2", "2147483648", "9223372036854775807", "9223372036854775808", "99999999999999999999", "-9223372036854775809",
			"true", "null", "%00", "0%00", "%D9%A1", "%zz", "0%", "0;", "1,1", "%EF%BC%91", "%22" + "0%22",
		} {
			for i := range 4 {
				q := []string{"0", "0", "0", "0"}
				q[i] = v
				expect(t, s, "GET", routeTarget(q[0], q[1], q[2], q[3]), "", 400, "Bad request: …")
			}
		}
		for _, target := range []string{
			"/route", "/route?", "/route?&&", "/route?prefill_dp_rank&prefill_cp_rank&target_tp_rank&target_pp_rank",
			strings.Replace(allMinusOne, "target_pp_rank", "Target_pp_rank", 1),
			strings.Replace(allMinusOne, "?", "?target_pp_rank=&", 1),    // the first counts: empty
			strings.Replace(allMinusOne, "?", "?target_pp_rank=%zz&", 1), // the first counts: broken
			strings.Replace(allMinusOne, "&", ";", 1),
		} {
			expect(t, s, "GET", target, "", 400, "Bad request: …")
		}
	}
	expect(t, empty, "GET", routeTarget("7", "7", "7", "7"), "", 503, notReady0)
	expect(t, ready, "GET", routeTarget("2147483647", "0", "0", "0"), "", 404, "Rank not registered.")
	expect(t, ready, "GET", routeTarget("-1", "-1", "-1", "0"), "", 404, "Rank not registered.")
	const rank = `{"rank_ip":"10.0.0.2","rank_port":41000}`
	expect(t, ready, "GET", routeTarget("0", "0", "0", "0")+"&target_tp_rank=x&%zz=1&who", "", 200, rank)
	expect(t, ready, "GET", "/route?prefill%5Fdp_rank=%30&prefill_cp_rank=0&&target_tp_rank=0&target_pp_rank=0", "", 200, rank)
}

func TestMethodsAndPaths(t *testing.T) {
	s := newTestServer(t, testConfig())
	allow := map[string]string{
		"/route": "GET, PUT", "/register_dp_rank": "POST", "/query_dp_ranks": "POST", "/health": "GET",
		"/pdlog/v1/node": "GET", "/pdlog/v1/outstanding": "GET",
	}
	for path, allowed := range allow {
		for _, method := range []string{"GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "get", "BREW"} {
			w := call(s, method, path, "")
			isAllowed := strings.Contains(", "+allowed+",", ", "+method+",")
			if isAllowed == (w.Code == 405) {
				t.Errorf("%s %s: %d", method, path, w.Code)
			}
			if isAllowed {
				continue
			}
			contentType := "text/plain; charset=utf-8"
			if path == "/route" {
				contentType = "application/json"
			}
			if w.Header().Get("Allow") != allowed || w.Header().Get("Content-Type") != contentType || w.Body.String() != "Method not allowed" {
				t.Errorf("%s %s: %v %q", method, path, w.Header(), w.Body)
			}
		}
	}
	for _, path := range []string{
		"/", "/route/", "/Route", "//route", "/route/x", "/./route", "/x/../route", "/ROUTE", "/health/", "/healthz", "/pdlog",
		"/pdlog/v1", "/pdlog/v1/", "/pdlog/v1/node/", "/pdlog/v1/Node", "/metrics", "/route%20", "/route%00", "/route%2F",
	} {
		for _, method := range []string{"GET", "PUT", "POST"} {
			expect(t, s, method, path, "", 404, "Not found")
		}
	}
}

func TestBodyLimit(t *testing.T) {
	s := newTestServer(t, testConfig())
	addr := serve(t, s)
	pad := func(n int) string { return goodBody + strings.Repeat(" ", n-len(goodBody)) }
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	send := func(method, path string, body io.Reader) (int, string) {
		t.Helper()
		req, err := http.NewRequest(method, "http://"+addr+path, body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	chunked := func(body string) io.Reader { return struct{ io.Reader }{strings.NewReader(body)} }
	for _, c := range []struct {
		method, path string
		body         io.Reader
		status       int
		text         string
	}{
		{"PUT", "/route", strings.NewReader(pad(maxBody)), 200, "OK"},
		{"PUT", "/route", chunked(pad(maxBody)), 200, "OK"},
		{"PUT", "/route", strings.NewReader(pad(maxBody + 1)), 413, "Request too large"},
		{"PUT", "/route", chunked(pad(maxBody + 1)), 413, "Request too large"},
		{"PUT", "/route", strings.NewReader(strings.Repeat("x", 5<<20)), 413, "Request too large"},
		{"PUT", "/route", chunked(strings.Repeat("x", 5<<20)), 413, "Request too large"},
		{"POST", "/register_dp_rank", strings.NewReader(strings.Repeat("x", maxBody+1)), 413, "Request too large"},
		{"POST", "/query_dp_ranks", chunked(strings.Repeat("x", maxBody+1)), 413, "Request too large"},
		{"GET", allMinusOne, chunked(strings.Repeat("x", maxBody+1)), 413, "Request too large"},
		{"POST", "/route", strings.NewReader(strings.Repeat("x", 5<<20)), 405, "Method not allowed"},
		{"PUT", "/nowhere", strings.NewReader(strings.Repeat("x", 5<<20)), 404, "Not found"},
		{"GET", "/health", nil, 200, "OK"},
	} {
		if status, text := send(c.method, c.path, c.body); status != c.status || text != c.text {
			t.Errorf("%s %s: %d %.80q, want %d %q", c.method, c.path, status, text, c.status, c.text)
		}
	}
	if st := s.Stats(); st.Registrations != 2 || st.Ranks != 1 {
		t.Errorf("%+v", st)
	}
}

// rawExchange writes bytes to a socket and reads one answer.
func rawExchange(t *testing.T, addr, request string) (status int, body string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%.80q: %v", request, err)
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestRawRequests(t *testing.T) {
	s := newTestServer(t, testConfig())
	addr := serve(t, s)
	for _, c := range []struct {
		request string
		status  int
		text    string
	}{
		// A length is not believed, and not waited for where leave is asked.
		{"PUT /route HTTP/1.1\r\nHost: x\r\nContent-Length: 9223372036854775807\r\nExpect: 100-continue\r\n\r\n", 413, "Request too large"},
		{"POST /route HTTP/1.1\r\nHost: x\r\nContent-Length: 900000000\r\nExpect: 100-continue\r\n\r\n", 405, "Method not allowed"},
		{"PUT /route HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "Bad request: the body cannot be read"},
		{"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 404, "Not found"},
		{"GET http://elsewhere/health HTTP/1.1\r\nHost: x\r\n\r\n", 200, "OK"},
		{"GET /health HTTP/1.0\r\n\r\n", 200, "OK"},
		{"PUT /route HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: " + fmt.Sprint(len(goodBody)) + "\r\n\r\n" + goodBody, 200, "OK"},
		// A client that reads nothing before it has written all.
		{"PUT /route HTTP/1.1\r\nHost: x\r\nContent-Length: 12000000\r\n\r\n" + strings.Repeat("x", 12000000), 413, "Request too large"},
		{"PUT /x HTTP/1.1\r\nHost: x\r\nContent-Length: 12000000\r\n\r\n" + strings.Repeat("x", 12000000), 404, "Not found"},
	} {
		if status, text := rawExchange(t, addr, c.request); status != c.status || text != c.text {
			t.Errorf("%.100q: %d %q, want %d %q", c.request, status, text, c.status, c.text)
		}
	}
}

func TestNodeAnswer(t *testing.T) {
	cfg := testConfig()
	cfg.Incarnation = 1<<64 - 1
	cfg.LogSince = func() uint64 { return 9007199254740993 }
	cfg.OwnRanks = func() []Rank {
		return []Rank{
			{DP: 1, IP: "::1", Port: 5}, {PP: 1, IP: "::1", Port: 4}, {TP: 1, IP: "::1", Port: 3},
			{CP: 1, IP: "::1", Port: 9}, {IP: "::1", Port: 1}, {TP: 1, PP: 1, IP: "::1", Port: 8},
		}
	}
	const ranks = `[{"dp":0,"tp":0,"cp":0,"pp":0,"ip":"::1","port":1},{"dp":0,"tp":0,"cp":0,"pp":1,"ip":"::1","port":4},` +
		`{"dp":0,"tp":1,"cp":0,"pp":0,"ip":"::1","port":3},{"dp":0,"tp":1,"cp":0,"pp":1,"ip":"::1","port":8},` +
		`{"dp":0,"tp":0,"cp":1,"pp":0,"ip":"::1","port":9},{"dp":1,"tp":0,"cp":0,"pp":0,"ip":"::1","port":5}]`
	const head = `{"node":"p0","boot":"9f0c3a5577e1b2d4","incarnation":18446744073709551615,"version":"0.1.0","ranks":`
	s := newTestServer(t, cfg)
	expect(t, s, "GET", "/pdlog/v1/node", "", 200, head+ranks+`,"log_since":9007199254740993,"features":["pdx1"]}`)

	cfg.LogID = []byte("\x5f\x0e\x2c\x4b\x9a\x7d\x41\xe8\xb3\xc6\xd2\xa1\xf0\xe9\xc8\xb7")
	s = newTestServer(t, cfg)
	expect(t, s, "GET", "/pdlog/v1/node?x=y", "", 200,
		head+ranks+`,"log_since":9007199254740993,"log_id":"5f0e2c4b9a7d41e8b3c6d2a1f0e9c8b7","features":["pdx1"]}`)
}

func TestOutstandingAnswer(t *testing.T) {
	const good = "/pdlog/v1/outstanding?node=d0&boot=00000000000000ff"
	badQueries := []string{
		"", "node=d0", "boot=00000000000000ff", "node=&boot=00000000000000ff", "node=d0&boot=", "node=d0&boot=ff",
		"node=d0&boot=00000000000000FF", "node=d0&boot=0000000000000000", "node=d0&boot=0x000000000000ff",
		"node=d/0&boot=00000000000000ff", "node=d%200&boot=00000000000000ff", "node=d+0&boot=00000000000000ff",
		"node=d%C3%A9&boot=00000000000000ff", "node=" + strings.Repeat("d", 129) + "&boot=00000000000000ff",
		"node=d0&boot=+0000000000000ff", "node=d0&boot=00000000000000fg", "node=d0&boot=000000000000000ff",
		"node=d0&boot=&boot=00000000000000ff", "node=d0&boot=00000000000000ff&log_id=", "node=d0&boot=00000000000000ff&log_id=5f0e",
		"node=d0&boot=00000000000000ff&log_id=5F0E2C4B9A7D41E8B3C6D2A1F0E9C8B7",
	}
	cfg := testConfig()
	cfg.Outstanding = func(a Asker) (bool, uint64, error) {
		switch {
		case a.Node == "broken":
			return false, 0, errors.New("log is closed")
		case a.Node == "d0" && a.Boot == 0xff && (a.LogID == nil || a.LogID[0] == 0x5f):
			return true, 1<<64 - 1, nil
		}
		return false, 0, nil
	}
	on := newTestServer(t, cfg)
	expect(t, on, "GET", good, "", 200,
		`{"node":"p0","boot":"9f0c3a5577e1b2d4","incarnation":1,"known":true,"open":18446744073709551615}`)
	expect(t, on, "GET", good+"&log_id=5f0e2c4b9a7d41e8b3c6d2a1f0e9c8b7", "", 200,
		`{"node":"p0","boot":"9f0c3a5577e1b2d4","incarnation":1,"known":true,"open":18446744073709551615}`)
	expect(t, on, "GET", "/pdlog/v1/outstanding?boot=0000000000000001&node=d%2b0&node=d0", "", 200,
		`{"node":"p0","boot":"9f0c3a5577e1b2d4","incarnation":1,"known":false,"open":0}`)
	expect(t, on, "GET", "/pdlog/v1/outstanding?node=broken&boot=0000000000000001", "", 503, "Cannot tell")
	cfg.Extension = false
	off := newTestServer(t, cfg)
	expect(t, off, "GET", good, "", 404, "Not found")
	for _, q := range badQueries {
		expect(t, on, "GET", "/pdlog/v1/outstanding?"+q, "", 400, "Bad request: …")
		expect(t, off, "GET", "/pdlog/v1/outstanding?"+q, "", 400, "Bad request: …")
	}
	// Without a log to ask nobody may hear that nothing is outstanding.
	expect(t, newTestServer(t, testConfig()), "GET", good, "", 503, "Cannot tell")
}

func TestNewRefusesBadConfigurations(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no node":         func(c *Config) { c.Node = "" },
		"slash":           func(c *Config) { c.Node = "a/b" },
		"blank":           func(c *Config) { c.Node = "a b" },
		"long node":       func(c *Config) { c.Node = strings.Repeat("n", 129) },
		"boot 0":          func(c *Config) { c.Boot = 0 },
		"incarnation 0":   func(c *Config) { c.Incarnation = 0 },
		"short log id":    func(c *Config) { c.LogID = []byte("x") },
		"topology keys":   func(c *Config) { c.TopologyKeys = "new" },
		"allocate policy": func(c *Config) { c.DecodeAllocationPolicy = "late" },
	} {
		cfg := testConfig()
		change(&cfg)
		if s, err := New(cfg); err == nil || s != nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestAnswerThatCannotBeWrittenIsLetGo(t *testing.T) {
	s := newTestServer(t, testConfig())
	s.ServeHTTP(&deaf{httptest.NewRecorder()}, httptest.NewRequest("GET", "/health", nil))
	expect(t, s, "GET", "/health", "", 200, "OK")
}

type deaf struct{ *httptest.ResponseRecorder }

func (*deaf) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
