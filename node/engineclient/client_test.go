package engineclient

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"
	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/node/enginepb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a node that knows a few calls.
type fake struct {
	enginepb.UnimplementedEngineHandler
	hold  chan struct{} // Drain waits for it, or for the caller's end
	ended chan struct{} // the caller of Drain has ended
}

func (fake) Poll(_ context.Context, req *connect.Request[enginepb.PollRequest]) (*connect.Response[enginepb.PollResponse], error) {
	out := &enginepb.PollResponse{}
	for _, r := range req.Msg.Rooms {
		out.Rooms = append(out.Rooms, &enginepb.RoomState{Room: r})
	}
	return connect.NewResponse(out), nil
}

func (fake) Abort(_ context.Context, req *connect.Request[enginepb.AbortRequest]) (*connect.Response[enginepb.Done], error) {
	return nil, connect.NewError(connect.CodeNotFound, errors.New(req.Msg.Reason))
}

func (f fake) Drain(ctx context.Context, _ *connect.Request[enginepb.DrainRequest]) (*connect.Response[enginepb.Done], error) {
	select {
	case <-f.hold:
	case <-ctx.Done(): // the caller's own deadline comes with the call, and may be seen here first
		close(f.ended)
		return nil, ctx.Err()
	}
	return connect.NewResponse(&enginepb.Done{}), nil
}

func (fake) Finish(context.Context, *connect.Request[enginepb.RoomRequest]) (*connect.Response[enginepb.Done], error) {
	return connect.NewResponse(&enginepb.Done{}), nil // an empty body
}

func (fake) Watch(ctx context.Context, _ *connect.Request[enginepb.WatchRequest], s *connect.ServerStream[enginepb.Notice]) error {
	for i := range uint64(3) {
		if err := s.Send(&enginepb.Notice{Room: i}); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

func (fake) SendChunks(_ context.Context, s *connect.BidiStream[enginepb.SendChunksRequest, enginepb.SendChunksResponse]) error {
	for {
		m, err := s.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&enginepb.SendChunksResponse{Taken: uint64(len(m.Chunks))}); err != nil {
			return err
		}
	}
}

// serve runs a node at path until the returned func is called.
func serve(t *testing.T, path string, f fake) (stop func()) {
	t.Helper()
	_ = os.Remove(path)
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	mux := http.NewServeMux()
	mux.Handle(enginepb.NewEngineHandler(f))
	s := &http.Server{Handler: mux, Protocols: &p, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { _ = s.Serve(ln); close(done) }()
	return func() { _ = s.Close(); <-done }
}

func start(t *testing.T, f fake) (c *Client, path string, stop func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path = filepath.Join(dir, "s")
	stop = serve(t, path, f)
	c = Dial(path)
	return c, path, stop
}

func poll(t *testing.T, c enginepb.EngineClient, rooms ...uint64) {
	t.Helper()
	r, err := c.Poll(t.Context(), connect.NewRequest(&enginepb.PollRequest{Rooms: rooms}))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Msg.Rooms) != len(rooms) {
		t.Fatalf("%d rooms of %d", len(r.Msg.Rooms), len(rooms))
	}
	for i, room := range rooms {
		if r.Msg.Rooms[i].Room != room {
			t.Fatalf("room %d is %d", room, r.Msg.Rooms[i].Room)
		}
	}
}

func TestOneConnectionServesCallAfterCall(t *testing.T) {
	c, _, stop := start(t, fake{})
	defer stop()
	defer c.CloseIdle()
	for range 100 {
		poll(t, c, 1, 2, 3)
		if _, err := c.Finish(t.Context(), connect.NewRequest(&enginepb.RoomRequest{Room: 1})); err != nil {
			t.Fatal(err)
		}
		_, err := c.Abort(t.Context(), connect.NewRequest(&enginepb.AbortRequest{Reason: "no such room"}))
		if connect.CodeOf(err) != connect.CodeNotFound || !strings.Contains(err.Error(), "no such room") {
			t.Fatalf("an error of the node is %v", err)
		}
	}
	if n := len(c.calls.idle); n != 1 || len(c.calls.free) != maxConns {
		t.Errorf("%d connections were made, %d of %d tokens are back", n, len(c.calls.free), maxConns)
	}
}

func TestLargeMessagesGoBothWays(t *testing.T) {
	c, _, stop := start(t, fake{})
	defer stop()
	defer c.CloseIdle()
	rooms := make([]uint64, 10_000)
	for i := range rooms {
		rooms[i] = uint64(i) + 1<<40
	}
	for range 3 {
		poll(t, c, rooms...)
		poll(t, c, 7)
	}
}

func TestANodeThatWasRestartedIsCalledAgain(t *testing.T) {
	c, path, stop := start(t, fake{})
	defer c.CloseIdle()
	poll(t, c, 1)
	stop()
	_, err := c.Poll(t.Context(), connect.NewRequest(&enginepb.PollRequest{}))
	if connect.CodeOf(err) != connect.CodeUnavailable {
		t.Fatalf("a node that is away gives %v", err)
	}
	stop = serve(t, path, fake{})
	defer stop()
	poll(t, c, 2)
	if len(c.calls.free) != maxConns {
		t.Errorf("%d of %d tokens are back", len(c.calls.free), maxConns)
	}
}

// A node that closes a kept connection between the look at it and the write has
// nothing of the call: it goes over another. One that breaks after the write is
// told to the caller, for the node may have made the call.
func TestACallThatFoundItsConnectionClosedIsMadeAgain(t *testing.T) {
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer ln.Close() //nolint:errcheck // a test's listener
	deaf, over, asked := make(chan struct{}), make(chan struct{}), make(chan string, 8)
	defer close(over)
	wg.Go(func() {
		for n := 1; ; n++ {
			c, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close() //nolint:errcheck // a test's connection
				r := bufio.NewReader(c)
				for {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					b, err := io.ReadAll(req.Body)
					if err != nil {
						return
					}
					asked <- string(b)
					if n == 3 {
						return // took the call, and is gone
					}
					if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); err != nil {
						return
					}
					if n == 1 { // reads no more, and does not say so
						if err := c.CloseRead(); err != nil {
							t.Error(err)
						}
						close(deaf)
						<-over
						return
					}
					if n == 2 {
						return
					}
				}
			})
		}
	})
	tr := newTransport(ln.Addr().String(), -1)
	defer tr.closeIdle()
	call := func(ctx context.Context, text string) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://pdnode/x", strings.NewReader(text))
		if err != nil {
			return err
		}
		res, err := tr.Do(req)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, res.Body)
		return errors.CombineErrors(err, res.Body.Close())
	}
	if err := call(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	<-deaf
	if err := call(t.Context(), "second"); err != nil {
		t.Fatalf("a call over a connection that was closed just now gives %v", err)
	}
	if one, two := <-asked, <-asked; one != "first" || two != "second" || len(asked) != 0 {
		t.Fatalf("the node was asked %q, %q and %d more", one, two, len(asked))
	}
	tr.closeIdle()
	if err := call(t.Context(), "third"); err == nil {
		t.Fatal("a call without its answer has succeeded")
	}
	if three := <-asked; three != "third" || len(asked) != 0 {
		t.Fatalf("the node was asked %q and %d times more", three, len(asked))
	}
	if len(tr.free) != maxConns {
		t.Errorf("%d of %d tokens are back", len(tr.free), maxConns)
	}
}

func TestACallEndsWithItsContext(t *testing.T) {
	f := fake{hold: make(chan struct{}), ended: make(chan struct{})}
	c, _, stop := start(t, f)
	defer stop()
	defer c.CloseIdle()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Drain(ctx, connect.NewRequest(&enginepb.DrainRequest{}))
	if connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		t.Fatalf("have %v", err)
	}
	<-f.ended // the node knows that nobody waits
	poll(t, c, 1)
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := c.Poll(ctx, connect.NewRequest(&enginepb.PollRequest{})); connect.CodeOf(err) != connect.CodeCanceled {
		t.Fatalf("have %v", err)
	}
}

func TestStreamsOfNoticesEnd(t *testing.T) {
	c, _, stop := start(t, fake{})
	defer stop()
	defer c.CloseIdle()
	for _, closes := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := c.Watch(ctx, connect.NewRequest(&enginepb.WatchRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(3) {
			if !s.Receive() || s.Msg().Room != i {
				t.Fatalf("notice %d: %v, %v", i, s.Msg(), s.Err())
			}
		}
		var other sync.WaitGroup
		if closes { // while this goroutine reads
			other.Go(func() { _ = s.Close() })
		} else {
			other.Go(cancel)
		}
		if s.Receive() {
			t.Fatal("a stream that has ended gives a notice")
		}
		_ = s.Close()
		other.Wait()
		cancel()
	}
	if len(c.calls.free) != maxConns {
		t.Errorf("%d of %d tokens are back", len(c.calls.free), maxConns)
	}
}

func TestStreamsOfChunks(t *testing.T) {
	c, _, stop := start(t, fake{})
	defer stop()
	defer c.CloseIdle()
	s := c.SendChunks(t.Context())
	for n := range 5 {
		if err := s.Send(&enginepb.SendChunksRequest{Chunks: make([]*enginepb.SendChunkRequest, n)}); err != nil {
			t.Fatal(err)
		}
		if r, err := s.Receive(); err != nil || r.Taken != uint64(n) {
			t.Fatalf("have %v, %v", r, err)
		}
	}
	if err := errors.CombineErrors(s.CloseRequest(), s.CloseResponse()); err != nil {
		t.Fatal(err)
	}
}

func TestMoreCallsThanConnections(t *testing.T) {
	f := fake{hold: make(chan struct{})}
	c, _, stop := start(t, f)
	defer stop()
	defer c.CloseIdle()
	var wg sync.WaitGroup
	for range maxConns {
		wg.Go(func() {
			if _, err := c.Drain(t.Context(), connect.NewRequest(&enginepb.DrainRequest{})); err != nil {
				t.Error(err)
			}
		})
	}
	for range 20 {
		wg.Go(func() { poll(t, c, 5) })
	}
	close(f.hold)
	wg.Wait()
	if n := len(c.calls.idle); n > maxConns {
		t.Errorf("%d connections, the bound is %d", n, maxConns)
	}
}
