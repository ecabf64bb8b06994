package demo

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/node/engineclient"
	"github.com/pdlog/pdlog/node/enginepb"
)

// fakeNode streams one list of notices per Watch call, then ends the stream;
// the last stream stays open until the client goes.
type fakeNode struct {
	enginepb.UnimplementedEngineHandler
	mu      sync.Mutex
	streams [][]*enginepb.Notice
}

func (f *fakeNode) Watch(ctx context.Context, _ *connect.Request[enginepb.WatchRequest], st *connect.ServerStream[enginepb.Notice]) error {
	f.mu.Lock()
	list := f.streams[0]
	last := len(f.streams) == 1
	if !last {
		f.streams = f.streams[1:]
	}
	f.mu.Unlock()
	for _, n := range list {
		if err := st.Send(n); err != nil {
			return err
		}
	}
	if last {
		<-ctx.Done()
	}
	return nil
}

// serveFake runs f on a socket and returns a client of it.
func serveFake(t *testing.T, f *fakeNode) *engineclient.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(enginepb.NewEngineHandler(f))
	srv := &http.Server{Handler: mux} //nolint:gosec // a test
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(ln) })
	t.Cleanup(func() { _ = srv.Close(); wg.Wait() })
	c := engineclient.Dial(path)
	t.Cleanup(c.CloseIdle)
	return c
}

func read(ctx context.Context, t *testing.T, b *inbox) enginepb.Notice_Kind {
	t.Helper()
	for {
		if n := b.pop(); n != nil {
			return n.GetKind()
		}
		select {
		case <-b.wake:
		case <-ctx.Done():
			t.Fatal("nothing was told")
		}
	}
}

func TestNoticesReachTheirRoomThroughARestart(t *testing.T) {
	t.Parallel()
	caughtUp := &enginepb.Notice{Kind: enginepb.Notice_KIND_CAUGHT_UP}
	f := &fakeNode{streams: [][]*enginepb.Notice{
		{caughtUp, {Kind: enginepb.Notice_KIND_SUCCEEDED, RoomSeq: 7}, {Kind: enginepb.Notice_KIND_FAILED, RoomSeq: 8}},
		// The node was away: room 7 was released meanwhile, room 8 is held.
		{{Kind: enginepb.Notice_KIND_HELD, RoomSeq: 8, Resumed: true}, caughtUp},
	}}
	c := serveFake(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	h := newHub()
	restarts := make(chan struct{}, 1)
	h.onRestart = func(context.Context) error {
		select {
		case restarts <- struct{}{}:
		default:
		}
		return nil
	}
	done := make(chan struct{})
	go func() { defer close(done); h.run(ctx, c) }()
	if err := h.awaitLive(ctx); err != nil {
		t.Fatal(err)
	}
	// The inboxes are asked for after the notices may have come: none is lost.
	for seq, want := range map[uint64][]enginepb.Notice_Kind{
		7: {enginepb.Notice_KIND_SUCCEEDED, kindGone},
		8: {enginepb.Notice_KIND_FAILED, enginepb.Notice_KIND_HELD},
	} {
		for i, k := range want {
			if got := read(ctx, t, h.room(seq)); got != k {
				t.Errorf("room %d, notice %d: %v, want %v", seq, i, got, k)
			}
		}
	}
	<-restarts
	if err := h.awaitLive(ctx); err != nil {
		t.Error(err)
	}
	cancel()
	<-done
	if err := h.awaitLive(ctx); err == nil {
		t.Error("live after the end")
	}
}
