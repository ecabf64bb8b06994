package callserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/node/engineclient"
	"github.com/pdlog/pdlog/node/enginepb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// api is an engine API of a few calls.
type api struct {
	enginepb.UnimplementedEngineHandler
	began chan struct{}   // Drain has begun
	hold  chan struct{}   // Drain waits for it, or for the caller's end
	left  chan error      // what Drain's context says at the caller's end
	seen  context.Context // that of the last Finish
}

func (*api) Poll(_ context.Context, req *connect.Request[enginepb.PollRequest]) (*connect.Response[enginepb.PollResponse], error) {
	out := &enginepb.PollResponse{}
	for _, r := range req.Msg.Rooms {
		out.Rooms = append(out.Rooms, &enginepb.RoomState{Room: r})
	}
	res := connect.NewResponse(out)
	res.Header().Set("X-Rooms", fmt.Sprint(len(req.Msg.Rooms)))
	res.Trailer().Set("X-Trailer", "t")
	return res, nil
}

func (*api) Abort(_ context.Context, req *connect.Request[enginepb.AbortRequest]) (*connect.Response[enginepb.Done], error) {
	return nil, connect.NewError(connect.CodeNotFound, errors.New(req.Msg.Reason))
}

func (a *api) Finish(ctx context.Context, _ *connect.Request[enginepb.RoomRequest]) (*connect.Response[enginepb.Done], error) {
	a.seen = ctx
	return connect.NewResponse(&enginepb.Done{}), nil
}

func (a *api) Drain(ctx context.Context, _ *connect.Request[enginepb.DrainRequest]) (*connect.Response[enginepb.Done], error) {
	a.began <- struct{}{}
	select {
	case <-a.hold:
	case <-ctx.Done():
		a.left <- ctx.Err()
		return nil, ctx.Err()
	}
	return connect.NewResponse(&enginepb.Done{}), nil
}

func (*api) Clear(context.Context, *connect.Request[enginepb.RoomRequest]) (*connect.Response[enginepb.Done], error) {
	panic("clear of nothing")
}

func (*api) Publish(context.Context, *connect.Request[enginepb.RoomRequest]) (*connect.Response[enginepb.Done], error) {
	panic(http.ErrAbortHandler)
}

func (*api) Watch(ctx context.Context, _ *connect.Request[enginepb.WatchRequest], s *connect.ServerStream[enginepb.Notice]) error {
	for i := range uint64(3) {
		if err := s.Send(&enginepb.Notice{Room: i}); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

func (*api) SendChunks(_ context.Context, s *connect.BidiStream[enginepb.SendChunksRequest, enginepb.SendChunksResponse]) error {
	for {
		m, err := s.Receive()
		if err != nil {
			return nil //nolint:nilerr // the end of the stream
		}
		if err := s.Send(&enginepb.SendChunksResponse{Taken: uint64(len(m.Chunks))}); err != nil {
			return err
		}
	}
}

const root = "/pdlog.engine.v1.Engine/"

var callNames = func() map[string]bool {
	out := map[string]bool{}
	for _, name := range []string{"Poll", "Abort", "Finish", "Drain", "Clear", "Publish"} {
		out[root+name] = true
	}
	for _, name := range []string{"absent", "nothing", "empty", "forbidden-body", "sniffed", "packed", "closing", "length", "strange", "long", "late", "request"} {
		out["/raw/"+name] = true
	}
	return out
}()

func isCall(path []byte) bool { return callNames[string(path)] }

func newAPI() *api {
	return &api{began: make(chan struct{}, 64), hold: make(chan struct{}), left: make(chan error, 64)}
}

// handler is the API, and handlers that are none of Connect's under /raw.
func (a *api) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(enginepb.NewEngineHandler(a, connect.WithReadMaxBytes(128<<10), connect.WithCompressMinBytes(16<<10)))
	mux.HandleFunc("/raw/nothing", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/raw/empty", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/raw/forbidden-body", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusNotModified)
		if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) {
			panic(fmt.Sprint("a body where there is none: ", err))
		}
	})
	mux.HandleFunc("/raw/sniffed", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("<html>"))
		w.Header().Set("Content-Type", "too/late")
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write([]byte("more"))
	})
	mux.HandleFunc("/raw/packed", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "none")
		_, _ = w.Write([]byte("<html>"))
	})
	mux.HandleFunc("/raw/closing", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = w.Write([]byte("bye"))
	})
	mux.HandleFunc("/raw/length", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "3")
		w.Header().Set("Date", "today")
		w.Header().Add("X-Two", "1")
		w.Header().Add("X-Two", "2\r\nX-Three: 3")
		_, _ = w.Write([]byte("bye"))
	})
	mux.HandleFunc("/raw/strange", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(799)
	})
	mux.HandleFunc("/raw/long", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("0123456789"), 100_000))
	})
	mux.HandleFunc("/raw/late", func(_ http.ResponseWriter, r *http.Request) { // waits on the context before it reads the body
		left := r.Context().Done()
		a.began <- struct{}{}
		<-a.hold
		_, err := io.ReadAll(r.Body)
		a.began <- struct{}{}
		<-left
		a.left <- errors.Join(err, r.Context().Err())
	})
	mux.HandleFunc("/raw/request", func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s %s %d %v %v %q %v\n", r.Method, r.RequestURI, r.URL, r.Proto, r.Host, r.ContentLength, r.TransferEncoding, r.Close, b, err)
		fmt.Fprintln(w, r.RemoteAddr, r.Context().Value(http.LocalAddrContextKey), r.Context().Value(http.ServerContextKey) != nil, r.Context().Value(connKey{}), r.TLS)
		_ = r.Header.Write(w)
	})
	return mux
}

type connKey struct{}

// httpServer is what both servers are made of.
func (a *api) httpServer() *http.Server {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: a.handler(), Protocols: &p, ReadHeaderTimeout: 5 * time.Second, ErrorLog: log.New(io.Discard, "", 0),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, fmt.Sprintf("over %T", c))
		},
	}
}

func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func listen(t *testing.T, path string) net.Listener {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// running is a server on a socket, and what net/http has got of it.
type running struct {
	*Server
	path   string
	handed atomic.Int64 // connections that are net/http's
	log    strings.Builder
	logMu  sync.Mutex
	ended  chan error
}

// Write implements io.Writer, of the log.
func (r *running) Write(p []byte) (int, error) {
	r.logMu.Lock()
	defer r.logMu.Unlock()
	return r.log.Write(p)
}

func (r *running) logged() string {
	r.logMu.Lock()
	defer r.logMu.Unlock()
	return r.log.String()
}

func start(t *testing.T, a *api) *running {
	t.Helper()
	h := a.httpServer()
	r := &running{path: socketPath(t), ended: make(chan error, 1)}
	h.ErrorLog = log.New(r, "", 0)
	h.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			r.handed.Add(1)
		}
	}
	r.Server = New(h, isCall)
	ln := listen(t, r.path)
	go func() { r.ended <- r.Serve(ln) }()
	t.Cleanup(func() {
		_ = r.Close()
		if err := <-r.ended; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve gives %v", err)
		}
		r.loops.Wait()
	})
	return r
}

func dial(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// post is a plain request with a body in JSON.
func post(call, body string) string {
	return fmt.Sprintf("POST %s%s HTTP/1.1\r\nHost: pdnode\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", root, call, len(body), body)
}

// ask sends text and reads one answer to its end.
func ask(t *testing.T, c net.Conn, r *bufio.Reader, text string) (*http.Response, string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return answered(t, r)
}

// answered reads one answer to its end.
func answered(t *testing.T, r *bufio.Reader) (*http.Response, string) {
	t.Helper()
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

func TestACallIsServedWithoutNetHTTP(t *testing.T) {
	a := newAPI()
	r := start(t, a)
	c := engineclient.Dial(r.path)
	defer c.CloseIdle()
	for n := range 50 {
		m, err := c.Poll(t.Context(), connect.NewRequest(&enginepb.PollRequest{Rooms: make([]uint64, n*100)}))
		if err != nil || len(m.Msg.Rooms) != n*100 || m.Header().Get("X-Rooms") != fmt.Sprint(n*100) || m.Trailer().Get("X-Trailer") != "t" {
			t.Fatalf("%d rooms give %v, %v", n*100, m, err)
		}
		if _, err := c.Abort(t.Context(), connect.NewRequest(&enginepb.AbortRequest{Reason: "why"})); connect.CodeOf(err) != connect.CodeNotFound {
			t.Fatalf("a refusal is %v", err)
		}
		if _, err := c.Finish(t.Context(), connect.NewRequest(&enginepb.RoomRequest{Room: 1})); err != nil {
			t.Fatal(err)
		}
		if a.seen.Err() == nil {
			t.Fatal("the context of a call outlives it")
		}
	}
	if n := r.handed.Load(); n != 0 {
		t.Fatalf("net/http was handed %d connections", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, err := c.Watch(ctx, connect.NewRequest(&enginepb.WatchRequest{})) // over the connection that was kept
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(3) {
		if !w.Receive() || w.Msg().Room != i {
			t.Fatalf("notice %d: %v, %v", i, w.Msg(), w.Err())
		}
	}
	s := c.SendChunks(t.Context())
	for n := range 5 {
		if err := s.Send(&enginepb.SendChunksRequest{Chunks: make([]*enginepb.SendChunkRequest, n)}); err != nil {
			t.Fatal(err)
		}
		if m, err := s.Receive(); err != nil || m.Taken != uint64(n) {
			t.Fatalf("have %v, %v", m, err)
		}
	}
	if err := errors.Join(s.CloseRequest(), s.CloseResponse()); err != nil {
		t.Fatal(err)
	}
	cancel()
	_ = w.Close()
	if n := r.handed.Load(); n != 2 {
		t.Fatalf("net/http was handed %d connections for two streams", n)
	}
}

func TestACallerThatLeavesEndsItsCall(t *testing.T) {
	a := newAPI()
	r := start(t, a)
	for name, text := range map[string]string{
		"plain":          post("Drain", `{}`),
		"without a body": strings.Replace(post("Drain", ""), "json", "proto", 1),
		"with a limit":   strings.Replace(post("Drain", `{}`), "\r\n\r\n", "\r\nConnect-Timeout-Ms: 600000\r\n\r\n", 1),
	} {
		c := dial(t, r.path)
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		<-a.began
		_ = c.Close()
		if err := <-a.left; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: the call ended with %v", name, err)
		}
	}
	if n := r.handed.Load(); n != 0 {
		t.Fatalf("net/http was handed %d connections", n)
	}
}

// A body that nobody has read while somebody waits on the context is no next
// request, and the caller's leaving is heard after it.
func TestACallerThatLeavesAfterItsBodyEndsItsCall(t *testing.T) {
	a := newAPI()
	r := start(t, a)
	c := dial(t, r.path)
	if _, err := io.WriteString(c, raw("/raw/late", usual+"Content-Length: 4\r\n", "")); err != nil {
		t.Fatal(err)
	}
	<-a.began
	if _, err := io.WriteString(c, "1234"); err != nil {
		t.Fatal(err)
	}
	<-time.After(20 * watchAfter) // longer than a watch would take to begin
	close(a.hold)
	<-a.began
	_ = c.Close()
	select {
	case err := <-a.left:
		if err == nil || err.Error() != context.Canceled.Error() {
			t.Errorf("the call ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("nobody heard the caller leave")
	}
}

// A caller's next request is no leaving, and the connection is good for more
// after a call that was watched.
func TestAWatchedCallIsFollowedByOthers(t *testing.T) {
	a := newAPI()
	r := start(t, a)
	c := dial(t, r.path)
	in := bufio.NewReader(c)
	for _, ahead := range []bool{false, true} {
		if _, err := io.WriteString(c, post("Drain", `{}`)); err != nil {
			t.Fatal(err)
		}
		<-a.began
		if ahead {
			if _, err := io.WriteString(c, post("Poll", `{"rooms": [4]}`)); err != nil {
				t.Fatal(err)
			}
		}
		select { // longer than the watch takes to begin
		case err := <-a.left:
			t.Fatalf("the call ended with %v", err)
		case <-time.After(20 * watchAfter):
		}
		a.hold <- struct{}{}
		want := []string{`{}`, `"4"`}
		for _, part := range want[:1+map[bool]int{true: 1}[ahead]] {
			if res, body := answered(t, in); res.StatusCode != 200 || !strings.Contains(body, part) {
				t.Fatalf("have %d %s", res.StatusCode, body)
			}
		}
	}
}

func TestShutdownWaitsForAnswersAlone(t *testing.T) {
	a := newAPI()
	r := start(t, a)
	idle, fresh, half, busy := dial(t, r.path), dial(t, r.path), dial(t, r.path), dial(t, r.path)
	ask(t, idle, bufio.NewReader(idle), post("Poll", `{}`))
	if _, err := io.WriteString(half, post("Poll", `{}`)[:30]); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(busy, post("Drain", `{}`)+post("Poll", `{}`)); err != nil {
		t.Fatal(err)
	}
	<-a.began
	for conns := 0; conns < 4; { // all are accepted
		conns = 0
		runtime.Gosched()
		r.each(func(*conn) { conns++ })
	}
	done := make(chan error)
	go func() { done <- r.Shutdown(context.Background()) }()
	for _, c := range []net.Conn{idle, fresh, half} {
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Fatalf("a connection that waited gives %d bytes, %v", n, err)
		}
	}
	if c, err := net.Dial("unix", r.path); err == nil {
		_ = c.Close()
		t.Error("the socket still takes connections")
	}
	select {
	case err := <-done:
		t.Fatalf("Shutdown has ended with %v before the answer", err)
	default:
	}
	close(a.hold)
	in := bufio.NewReader(busy)
	res, body := answered(t, in)
	if res.StatusCode != 200 || !res.Close || body != "{}" {
		t.Errorf("the answer under way is %d %q, close %v", res.StatusCode, body, res.Close)
	}
	if _, err := in.ReadByte(); err == nil {
		t.Error("a request behind it was answered")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestShutdownEndsWithItsContext(t *testing.T) {
	a := newAPI()
	r := start(t, a)
	c := dial(t, r.path)
	if _, err := io.WriteString(c, post("Drain", `{}`)); err != nil {
		t.Fatal(err)
	}
	<-a.began
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("Shutdown gives %v", err)
	}
	select {
	case err := <-a.left:
		t.Fatalf("the call ended with %v", err)
	default:
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-a.left; !errors.Is(err, context.Canceled) {
		t.Fatalf("the call ended with %v", err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatalf("the connection gives %d bytes, %v", n, err)
	}
}

func TestAPanicCostsItsConnection(t *testing.T) {
	r := start(t, newAPI())
	other := dial(t, r.path)
	in := bufio.NewReader(other)
	ask(t, other, in, post("Poll", `{}`))
	for _, call := range []string{"Publish", "Clear"} {
		c := dial(t, r.path)
		if _, err := io.WriteString(c, post(call, `{}`)); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
			t.Errorf("%s: have %q, %v", call, b, err)
		}
		if call == "Publish" && r.logged() != "" {
			t.Errorf("a handler that aborts is logged: %s", r.logged())
		}
	}
	if l := r.logged(); !strings.Contains(l, "clear of nothing") || !strings.Contains(l, "callserver.(*api).Clear") {
		t.Errorf("the log has %q", l)
	}
	if res, _ := ask(t, other, in, post("Poll", `{}`)); res.StatusCode != 200 {
		t.Errorf("another connection has %d", res.StatusCode)
	}
}

// A hundred callers that never finish their heads or bodies keep nobody.
func TestSlowCallersKeepNobody(t *testing.T) {
	r := start(t, newAPI())
	for i := range 100 {
		c := dial(t, r.path)
		text := post("Poll", `{"rooms": [1, 2, 3]}`)
		if _, err := io.WriteString(c, text[:len(text)*i/100]); err != nil {
			t.Fatal(err)
		}
	}
	c := engineclient.Dial(r.path)
	defer c.CloseIdle()
	for range 100 {
		if _, err := c.Poll(t.Context(), connect.NewRequest(&enginepb.PollRequest{Rooms: []uint64{1}})); err != nil {
			t.Fatal(err)
		}
	}
}

func TestManyCallersAtOnce(t *testing.T) {
	r := start(t, newAPI())
	var wg sync.WaitGroup
	for i := range uint64(16) {
		wg.Go(func() {
			c := engineclient.Dial(r.path)
			defer c.CloseIdle()
			for n := range uint64(100) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				m, err := c.Poll(ctx, connect.NewRequest(&enginepb.PollRequest{Rooms: []uint64{i, n}}))
				cancel()
				if err != nil || len(m.Msg.Rooms) != 2 || m.Msg.Rooms[0].Room != i || m.Msg.Rooms[1].Room != n {
					t.Errorf("caller %d, call %d: %v, %v", i, n, m, err)
					return
				}
				if n%25 == i {
					w, err := c.Watch(t.Context(), connect.NewRequest(&enginepb.WatchRequest{}))
					if err != nil || !w.Receive() {
						t.Errorf("caller %d: a stream gives %v", i, err)
						return
					}
					_ = w.Close()
				}
			}
		})
	}
	wg.Wait()
}
