package callserver

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// pipeConn is one end of a net.Pipe as the server sees it.
type pipeConn struct{ net.Conn }

// SyscallConn implements syscall.Conn; a pipe in memory has no descriptor.
func (pipeConn) SyscallConn() (syscall.RawConn, error) { return nil, errors.New("a pipe in memory") }

// pipes is a listener whose connections are given to it.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

func (p *pipes) dial() net.Conn {
	ours, theirs := net.Pipe()
	p.conns <- pipeConn{theirs}
	return ours
}

// talk is what a server says to some bytes, sent in parts of at most step, and
// whether it closed the connection by itself. It runs in a bubble: the server
// has said all that it is going to say when all of its goroutines wait.
func talk(s interface{ Serve(net.Listener) error }, shut func() error, input []byte, step int) (said []byte, closed bool) {
	ln := newPipes()
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(ln) })
	c := ln.dial()
	var both sync.WaitGroup
	both.Go(func() {
		for part := range slices.Chunk(input, step) {
			if _, err := c.Write(part); err != nil {
				return
			}
		}
	})
	over := false
	both.Go(func() {
		said, _ = io.ReadAll(c)
		over = true
	})
	synctest.Wait()
	closed = over
	_ = c.Close()
	both.Wait()
	_ = shut()
	serving.Wait()
	synctest.Wait()
	return said, closed
}

// meaning is what a caller reads of the bytes that a server said.
func meaning(said []byte, closed bool) string {
	var out strings.Builder
	r := bufio.NewReader(bytes.NewReader(said))
	for {
		if _, err := r.Peek(1); err != nil {
			break
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			fmt.Fprintf(&out, "no answer: %v\n", err)
			break
		}
		body, err := io.ReadAll(res.Body)
		fmt.Fprintf(&out, "%s %s, close %v, body %q, %v\n", res.Proto, res.Status, res.Close, body, err)
		res.Header.Del("Content-Length") // or chunks: the body says it
		_ = res.Header.Write(&out)
	}
	fmt.Fprintf(&out, "closed %v\n", closed)
	return out.String()
}

// both sends input to net/http and to the loop, and says what each answers.
func both(t *testing.T, input []byte, step int) (want, have string) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		h := newAPI().httpServer()
		said, closed := talk(h, h.Close, input, step)
		want = meaning(said, closed)
		s := New(newAPI().httpServer(), isCall)
		said, closed = talk(s, s.Close, input, step)
		have = meaning(said, closed)
		s.loops.Wait()
		time.Sleep(time.Second) // of the bubble: net/http takes half of one to part from who sent too much
	})
	return want, have
}

func raw(path, fields, body string) string {
	return "POST " + path + " HTTP/1.1\r\n" + fields + "\r\n" + body
}

const usual = "Host: pdnode\r\nContent-Type: application/json\r\n"

// inputs are requests of every kind, with what the loop should serve of them.
var inputs = []struct {
	name, text string
	loops      int // requests that the loop serves
}{
	{"a call", post("Poll", `{"rooms":["7"]}`), 1},
	{"a call in protobuf", raw(root+"Poll", "Host: pdnode\r\nContent-Type: application/proto\r\nContent-Length: 3\r\n", "\x0a\x01\x07"), 1},
	{"an empty body", raw(root+"Finish", "Host: x:1\r\ncontent-type: application/proto\r\ncontent-length: 0\r\n", ""), 1},
	{"an error", post("Abort", `{"reason":"no such room"}`), 1},
	{"a call that is not implemented", raw("/raw/absent", usual+"Content-Length: 0\r\n", ""), 1},
	{"a body that is wrong", post("Poll", `{"rooms":`), 1},
	{"a body above the limit of the API", post("Poll", strings.Repeat(" ", 130<<10)+"{}"), 1},
	{"a body above the loop's", post("Poll", strings.Repeat(" ", 257<<10)+"{}"), 0},
	{"an encoding that is not known", raw(root+"Poll", usual+"Content-Encoding: none\r\nContent-Length: 2\r\n", "{}"), 1},
	{"an unread body", raw("/raw/nothing", usual+"Content-Length: 200000\r\n", strings.Repeat("x", 200000)) + post("Poll", `{}`), 2},
	{"a limit of time", raw(root+"Poll", usual+"Connect-Timeout-Ms: 5\r\nContent-Length: 2\r\n", "{}"), 1},
	{"a limit that is none", raw(root+"Poll", usual+"Connect-Timeout-Ms: x\r\nContent-Length: 2\r\n", "{}"), 1},
	{"three in a row", post("Poll", `{"rooms":["1"]}`) + post("Finish", `{}`) + post("Poll", `{"rooms":["2"]}`), 3},
	{"line ends between them", post("Poll", `{}`) + "\r\n" + post("Poll", `{}`) + "\r\n\r\n" + post("Poll", `{}`), 3},
	{"more line ends than are taken", post("Poll", `{}`) + "\r\n\r\n\r\n" + post("Poll", `{}`), 1},
	{"line ends before the first", "\r\n" + post("Poll", `{}`), 0},
	{"kept alive in words", raw(root+"Poll", usual+"Connection: Keep-Alive\r\nContent-Length: 2\r\n", "{}"), 1},
	{"to be closed", raw(root+"Poll", usual+"Connection: close\r\nContent-Length: 2\r\n", "{}") + post("Poll", `{}`), 0},
	{"GET after a call", post("Poll", `{}`) + "GET /raw/request HTTP/1.1\r\nHost: pdnode\r\n\r\n" + post("Poll", `{}`), 1},
	{"HTTP/1.0", "POST " + root + "Poll HTTP/1.0\r\n" + usual + "Content-Length: 2\r\n\r\n{}", 0},
	{"HTTP/1.0 kept alive", "POST " + root + "Poll HTTP/1.0\r\nConnection: keep-alive\r\n" + usual + "Content-Length: 2\r\n\r\n{}", 0},
	{"HTTP/3.0", "POST " + root + "Poll HTTP/3.0\r\n" + usual + "Content-Length: 2\r\n\r\n{}", 0},
	{"chunks", raw(root+"Poll", usual+"Transfer-Encoding: chunked\r\n", "2\r\n{}\r\n0\r\n\r\n"), 0},
	{"chunks and a length", raw(root+"Poll", usual+"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "2\r\n{}\r\n0\r\n\r\n"), 0},
	{"an encoding of transfer", raw(root+"Poll", usual+"Content-Length: 2\r\nTransfer-Encoding: gzip\r\n", "{}"), 0},
	{"two lengths", raw(root+"Poll", usual+"Content-Length: 2\r\nContent-Length: 2\r\n", "{}"), 0},
	{"two lengths that differ", raw(root+"Poll", usual+"Content-Length: 2\r\nContent-Length: 3\r\n", "{}"), 0},
	{"a length with a sign", raw(root+"Poll", usual+"Content-Length: +2\r\n", "{}"), 0},
	{"a length with spaces", raw(root+"Poll", usual+"Content-Length: \t 02 \r\n", "{}"), 1},
	{"no length", raw(root+"Poll", usual, ""), 0},
	{"no host", raw(root+"Poll", "Content-Type: application/json\r\nContent-Length: 2\r\n", "{}"), 0},
	{"two hosts", raw(root+"Poll", usual+"Host: other\r\nContent-Length: 2\r\n", "{}"), 0},
	{"an empty host", raw(root+"Poll", "Host:\r\nContent-Type: application/json\r\nContent-Length: 2\r\n", "{}"), 0},
	{"a host that is none", raw(root+"Poll", "Host: a b\r\nContent-Type: application/json\r\nContent-Length: 2\r\n", "{}"), 0},
	{"two types", raw(root+"Poll", usual+"Content-Type: application/proto\r\nContent-Length: 2\r\n", "{}"), 0},
	{"gRPC", raw(root+"Poll", "Host: x\r\nContent-Type: application/grpc\r\nContent-Length: 5\r\n", "\x00\x00\x00\x00\x00"), 0},
	{"gRPC-Web", raw(root+"Poll", "Host: x\r\nContent-Type: application/grpc-web+proto\r\nContent-Length: 5\r\n", "\x00\x00\x00\x00\x00"), 0},
	{"a stream's type", raw(root+"Poll", "Host: x\r\nContent-Type: application/connect+json\r\nContent-Length: 5\r\n", "\x00\x00\x00\x00\x00"), 0},
	{"another type", raw(root+"Poll", "Host: x\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n", "12345"), 0},
	{"a stream in both directions", raw(root+"SendChunks", "Host: x\r\nContent-Type: application/connect+json\r\nContent-Length: 0\r\n", ""), 0},
	{"expects", raw(root+"Poll", usual+"Expect: 100-continue\r\nContent-Length: 2\r\n", "{}"), 0},
	{"expects what nobody can give", raw(root+"Poll", usual+"Expect: more\r\nContent-Length: 2\r\n", "{}"), 0},
	{"an upgrade", raw(root+"Poll", usual+"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n", "{}"), 0},
	{"a query", raw(root+"Poll?x=1", usual+"Content-Length: 2\r\n", "{}"), 0},
	{"a whole address", raw("http://pdnode"+root+"Poll", usual+"Content-Length: 2\r\n", "{}"), 0},
	{"a path that is not clean", raw("/."+root+"Poll", usual+"Content-Length: 2\r\n", "{}"), 0},
	{"a path of nothing", raw("/x", usual+"Content-Length: 2\r\n", "{}"), 0},
	{"another method", "PUT " + root + "Poll HTTP/1.1\r\n" + usual + "Content-Length: 2\r\n\r\n{}", 0},
	{"lines that end in LF", strings.ReplaceAll(post("Poll", `{}`), "\r\n", "\n"), 0},
	{"a line that goes on", raw(root+"Poll", usual+"X: 1\r\n 2\r\nContent-Length: 2\r\n", "{}"), 0},
	{"a name with a space", raw(root+"Poll", usual+"X : 1\r\nContent-Length: 2\r\n", "{}"), 0},
	{"a name of nothing", raw(root+"Poll", usual+": 1\r\nContent-Length: 2\r\n", "{}"), 0},
	{"no colon", raw(root+"Poll", usual+"X\r\nContent-Length: 2\r\n", "{}"), 0},
	{"a value with a zero", raw(root+"Poll", usual+"X: \x00\r\nContent-Length: 2\r\n", "{}"), 0},
	{"a value with CR", raw(root+"Poll", usual+"X: a\rb\r\nContent-Length: 2\r\n", "{}"), 0},
	{"a value with bytes", raw(root+"Poll", usual+"X: \xff\xfe\t~\r\nContent-Length: 2\r\n", "{}"), 1},
	{"a large head", raw(root+"Poll", usual+"X: "+strings.Repeat("x", 5000)+"\r\nContent-Length: 2\r\n", "{}"), 0},
	{"a head that is too large", raw(root+"Poll", usual+"X: "+strings.Repeat("x", 1100<<10)+"\r\nContent-Length: 2\r\n", "{}"), 0},
	{"a large head after a call", post("Poll", "{}") + raw(root+"Poll", usual+"X: "+strings.Repeat("x", 5000)+"\r\nContent-Length: 2\r\n", "{}"), 1},
	{"junk", "\x16\x03\x01\x00\x00\r\n\r\n", 0},
	{"junk after a call", post("Poll", "{}") + "\x16\x03\x01\x00\x00 junk junk\r\n\r\n", 1},
	{"half a head", post("Poll", "{}")[:40], 0},
	{"half a body", raw(root+"Poll", usual+"Content-Length: 20\r\n", "{}"), 1},
	{"nothing", "", 0},
	{"what a handler sees", raw("/raw/request", usual+"Content-Length: 5\r\nX-B: 1\r\nx-b: 2\r\nPragma: no-cache\r\nTe: trailers\r\nAccept-Encoding: gzip\r\n", "12345"), 1},
	{"an answer of nothing", raw("/raw/nothing", usual+"Content-Length: 0\r\n", "") + post("Poll", "{}"), 2},
	{"an answer without a body", raw("/raw/empty", usual+"Content-Length: 0\r\n", "") + post("Poll", "{}"), 2},
	{"an answer that must have none", raw("/raw/forbidden-body", usual+"Content-Length: 0\r\n", "") + post("Poll", "{}"), 2},
	{"an answer without a type", raw("/raw/sniffed", usual+"Content-Length: 0\r\n", "") + post("Poll", "{}"), 2},
	{"an answer that is packed", raw("/raw/packed", usual+"Content-Length: 0\r\n", "") + post("Poll", "{}"), 2},
	{"an answer that closes", raw("/raw/closing", usual+"Content-Length: 0\r\n", "") + post("Poll", "{}"), 1},
	{"an answer with its length", raw("/raw/length", usual+"Content-Length: 0\r\n", "") + post("Poll", "{}"), 2},
	{"an answer with a strange status", raw("/raw/strange", usual+"Content-Length: 0\r\n", "") + post("Poll", "{}"), 2},
	{"a long answer", raw("/raw/long", usual+"Content-Length: 0\r\n", "") + post("Poll", "{}"), 2},
	{"a handler that panics", post("Clear", `{}`) + post("Poll", "{}"), 1},
	{"a handler that aborts", post("Publish", `{}`) + post("Poll", "{}"), 1},
}

func TestAnswersAreThoseOfNetHTTP(t *testing.T) {
	for _, in := range inputs {
		for _, step := range []int{1 << 30, 1000, 1} {
			if step == 1 && len(in.text) > 10_000 {
				continue
			}
			t.Run(fmt.Sprintf("%s in parts of %d", in.name, step), func(t *testing.T) {
				want, have := both(t, []byte(in.text), step)
				if d := cmp.Diff(want, have); d != "" {
					t.Errorf("net/http and the loop differ:\n%s", d)
				}
			})
		}
	}
}

// divide says how many requests at the beginning of input are the loop's, and
// what follows them.
func divide(t *testing.T, input []byte) (served int, rest []byte) {
	t.Helper()
	for rest = input; ; served++ {
		if served > 0 {
			n := min(4, len(rest))
			rest = append(bytes.TrimLeft(rest[:n:n], "\r\n"), rest[n:]...)
		}
		h := head{calls: isCall}
		if h.read(rest[:min(len(rest), headMax)]) != plain {
			return served, rest
		}
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(rest)))
		if err != nil {
			t.Fatalf("a plain head gives %v", err)
		}
		rest = rest[min(h.at+int(req.ContentLength), len(rest)):]
		if last := req.URL.Path; last == "/raw/closing" || last == root+"Clear" || last == root+"Publish" {
			return served + 1, rest
		}
	}
}

// The table would say nothing if the loop served none of it.
func TestWhatTheLoopServes(t *testing.T) {
	for _, in := range inputs {
		served, _ := divide(t, []byte(in.text))
		if served != in.loops {
			t.Errorf("%s: the loop would serve %d requests, want %d", in.name, served, in.loops)
		}
	}
}

const preface = "PRI * HTTP/2.0" // what net/http looks for first

// FuzzAnswers: whatever bytes come, in whatever parts, the loop and net/http
// answer alike.
func FuzzAnswers(f *testing.F) {
	for _, in := range inputs {
		if len(in.text) < 10_000 {
			f.Add([]byte(in.text), uint16(1000))
			f.Add([]byte(in.text), uint16(7))
		}
	}
	f.Fuzz(func(t *testing.T, input []byte, step uint16) {
		// HTTP/2 may begin after calls here, and says what has no one order.
		if bytes.Contains(input, []byte(preface)) || bytes.Contains(input, []byte("/Drain")) || bytes.Contains(input, []byte("/Watch")) {
			return
		}
		if served, rest := divide(t, input); served > 0 && len(rest) < len(preface) { // may be junk that waits for more
			return
		}
		want, have := both(t, input, max(int(step), 1))
		if d := cmp.Diff(want, have); d != "" {
			t.Errorf("net/http and the loop differ:\n%s", d)
		}
	})
}

// FuzzHead: how the bytes of a head come in parts changes nothing, and what is
// plain is what the parser makes of it.
func FuzzHead(f *testing.F) {
	for _, in := range inputs {
		if len(in.text) < 10_000 {
			f.Add([]byte(in.text), uint16(7))
		}
	}
	f.Fuzz(func(t *testing.T, input []byte, step uint16) {
		input = input[:min(len(input), headMax)]
		whole := head{calls: isCall}
		v := whole.read(input)
		parts := head{calls: isCall}
		last := more
		for n := 0; n < len(input) && last == more; {
			n = min(n+max(int(step), 1), len(input))
			last = parts.read(input[:n])
		}
		if last != v || v != more && parts.at != whole.at {
			t.Fatalf("whole: %v at %d, in parts: %v at %d", v, whole.at, last, parts.at)
		}
		if v != plain {
			return
		}
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(input)))
		if err != nil {
			t.Fatal(err)
		}
		if req.Method != http.MethodPost || req.Proto != "HTTP/1.1" || !isCall([]byte(req.RequestURI)) || req.URL.RequestURI() != req.RequestURI ||
			req.ContentLength < 0 || req.ContentLength > bodyMax || req.Host == "" || req.Close || len(req.TransferEncoding) > 0 || req.Trailer != nil ||
			!plainTypes[req.Header.Get("Content-Type")] || req.Header.Get("Expect")+req.Header.Get("Upgrade") != "" {
			t.Fatalf("plain, and yet: %+v", req)
		}
	})
}

// The head of a request has its time, from the connection's beginning or its
// own first byte on; a kept connection has all of it.
func TestSlowHeadsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, kept := range []bool{false, true} {
			for _, text := range []string{"", "POST /", "GET ", post("Poll", "{}")[:80]} {
				s := New(newAPI().httpServer(), isCall)
				ln := newPipes()
				var serving sync.WaitGroup
				serving.Go(func() { _ = s.Serve(ln) })
				c := ln.dial()
				in := bufio.NewReader(c)
				if kept {
					ask(t, c, in, post("Poll", "{}"))
					time.Sleep(time.Hour) // of the bubble: an idle connection stays
				}
				began := time.Now()
				var over sync.WaitGroup
				over.Go(func() {
					if text != "" {
						_, _ = io.WriteString(c, text)
					}
					_, err := in.ReadByte()
					if took := time.Since(began); (text != "" || !kept) && (took != 5*time.Second || !errors.Is(err, io.EOF)) {
						t.Errorf("kept %v, %q: ended after %v with %v", kept, text, took, err)
					}
				})
				time.Sleep(time.Minute)
				if text == "" && kept {
					_ = c.Close()
				}
				over.Wait()
				_ = c.Close()
				_ = s.Close()
				serving.Wait()
			}
		}
	})
}

func TestIdleConnectionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newAPI().httpServer()
		h.IdleTimeout = time.Minute
		s := New(h, isCall)
		ln := newPipes()
		var serving sync.WaitGroup
		serving.Go(func() { _ = s.Serve(ln) })
		c := ln.dial()
		in := bufio.NewReader(c)
		for range 3 {
			ask(t, c, in, post("Poll", "{}"))
			time.Sleep(59 * time.Second)
		}
		ask(t, c, in, post("Poll", "{}"))
		began := time.Now()
		if _, err := in.ReadByte(); !errors.Is(err, io.EOF) || time.Since(began) != time.Minute {
			t.Errorf("ended after %v with %v", time.Since(began), err)
		}
		_ = c.Close()
		_ = s.Close()
		serving.Wait()
	})
}
