package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/pdlog/pdlog/node/engineclient"
	"github.com/pdlog/pdlog/node/enginepb"
)

// echo is the engine API with nothing behind it: what Connect, HTTP and the
// socket cost by themselves.
type echo struct {
	enginepb.UnimplementedEngineHandler
}

// Poll answers as a node that knows no room.
func (echo) Poll(_ context.Context, req *connect.Request[enginepb.PollRequest]) (*connect.Response[enginepb.PollResponse], error) {
	out := &enginepb.PollResponse{}
	for _, r := range req.Msg.Rooms {
		out.Rooms = append(out.Rooms, &enginepb.RoomState{Room: r})
	}
	return connect.NewResponse(out), nil
}

// SendChunks counts.
func (echo) SendChunks(_ context.Context, s *connect.BidiStream[enginepb.SendChunksRequest, enginepb.SendChunksResponse]) error {
	var n uint64
	for {
		batch, err := s.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		n += uint64(len(batch.Chunks))
		if err := s.Send(&enginepb.SendChunksResponse{Taken: n}); err != nil {
			return err
		}
	}
}

// serveEcho serves it as a node serves its engine, in a process of its own.
func serveEcho(socket string) int {
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		return 1
	}
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	mux := http.NewServeMux()
	mux.Handle(enginepb.NewEngineHandler(echo{}, connect.WithCompressMinBytes(256<<10)))
	s := &http.Server{Handler: mux, Protocols: &p, ReadHeaderTimeout: time.Minute}
	fmt.Fprintln(os.Stderr, "echo:", s.Serve(ln))
	return 1
}

func startEcho(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "PDLOG_ECHO="+filepath.Join(dir, "s"))
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	d := &daemon{t: t}
	d.until("the echo answers", func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", filepath.Join(dir, "s"))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return filepath.Join(dir, "s")
}

// goRoundTrip is the median of n calls, in microseconds.
func goRoundTrip(t *testing.T, socket string, n int) float64 {
	t.Helper()
	client := engineclient.Dial(socket)
	defer client.CloseIdle()
	var took []time.Duration
	for range n {
		began := time.Now()
		if _, err := client.Poll(t.Context(), connect.NewRequest(&enginepb.PollRequest{Rooms: []uint64{7}})); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return float64(took[n/2].Nanoseconds()) / 1000
}

func pythonRoundTrip(t *testing.T, socket string, n int) float64 {
	t.Helper()
	c := exec.Command("python3", "-B", "-S", filepath.Join("..", "..", "clients", "python", "tests", "roundtrip.py"), socket, strconv.Itoa(n))
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	us, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	if err != nil {
		t.Fatal(err)
	}
	return us
}

// chunkRate is the chunks per second that one stream takes, with batch of them
// in a message. chunks gives the n-th.
func chunkRate(t *testing.T, socket string, n, batch int, chunk func(i int) *enginepb.SendChunkRequest) float64 {
	t.Helper()
	c := engineclient.Dial(socket)
	defer c.CloseIdle()
	s := c.SendChunks(t.Context())
	began := time.Now()
	go func() {
		for i := 0; i < n; {
			m := &enginepb.SendChunksRequest{}
			for ; i < n && len(m.Chunks) < batch; i++ {
				m.Chunks = append(m.Chunks, chunk(i))
			}
			if err := s.Send(m); err != nil {
				return // the receiver hears why
			}
		}
		_ = s.CloseRequest()
	}()
	var taken uint64
	for {
		r, err := s.Receive()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Refused) > 0 {
			t.Fatalf("refused: %v", r.Refused[0])
		}
		taken = r.Taken
	}
	if taken != uint64(n) {
		t.Fatalf("%d chunks were taken of %d", taken, n)
	}
	return float64(n) / time.Since(began).Seconds()
}

// chunkPair is a pair of nodes with a pool of n pages of 64 bytes, in shared
// memory on one host.
func chunkPair(t *testing.T, n int) (p, d *daemon) {
	t.Helper()
	args := []string{"--pages", strconv.Itoa(n), "--rdma.provider", "shm"}
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p = startDaemon(t, dir, "p0", "prefill", append(args, "--bootstrap", "127.0.0.1:0")...)
	s, err := p.status()
	if err != nil {
		t.Fatal(err)
	}
	d = startDaemon(t, dir, "d0", "decode", append(args, "--peers", s.Bootstrap)...)
	for _, x := range []*daemon{p, d} {
		m, err := os.CreateTemp("/dev/shm", "pdlog-bench-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close(); _ = os.Remove(m.Name()) })
		if err := m.Truncate(int64(n*64 + 64*64)); err != nil {
			t.Fatal(err)
		}
		if _, err := x.client.RegisterMemory(t.Context(), connect.NewRequest(&enginepb.RegisterMemoryRequest{
			Path: m.Name(), PageBytes: 64, Pages: uint64(n), AuxBytes: 64, AuxRows: 64,
		})); err != nil {
			t.Fatal(err)
		}
	}
	d.until("they know each other", func() bool {
		r, err := d.client.Peers(t.Context(), connect.NewRequest(&enginepb.PeersRequest{}))
		return err == nil && len(r.Msg.Peers) == 1 && len(r.Msg.Peers[0].Ranks) == 1
	})
	return p, d
}

// openRoom opens a room with every page of the pool and waits until it can be
// written to.
func openRoom(t *testing.T, p, d *daemon, room uint64, n int) {
	t.Helper()
	d.until("the room is opened", func() bool {
		_, err := d.client.OpenReceive(t.Context(), connect.NewRequest(&enginepb.OpenReceiveRequest{Room: room, Count: uint32(n), Prefill: "p0"})) //nolint:gosec // small
		return err == nil
	})
	if _, err := p.client.OpenSend(t.Context(), connect.NewRequest(&enginepb.OpenSendRequest{Room: room})); err != nil {
		t.Fatal(err)
	}
	p.until("its metadata is there", func() bool {
		r, err := p.client.Poll(t.Context(), connect.NewRequest(&enginepb.PollRequest{Rooms: []uint64{room}}))
		return err == nil && r.Msg.Rooms[0].Poll == enginepb.RoomState_POLL_WAITING_FOR_INPUT
	})
}

// The bounds are the issue's. Each figure stands beside the same call to a bare
// echo in the same run, for a machine that is busy or slow.
func TestEngineAPIFigures(t *testing.T) {
	if os.Getenv("PDLOG_BENCH_ENGINE") == "" {
		t.Skip("needs PDLOG_BENCH_ENGINE=1 and a quiet machine: make bench-engine")
	}
	const calls, chunks, batch, rounds = 5000, 30000, 64, 5
	bare := startEcho(t)
	p, d := chunkPair(t, chunks)
	best := func(f func() float64, better func(a, b float64) float64) float64 {
		f() // warms up
		v := f()
		for range rounds - 1 {
			v = better(v, f())
		}
		return v
	}
	least, most := func(a, b float64) float64 { return min(a, b) }, func(a, b float64) float64 { return max(a, b) }
	row := func(what, unit string, value, echoed, bound float64, ok bool) {
		verdict := "ok"
		if !ok {
			verdict = "SHORT"
			t.Errorf("%s: %.0f %s, the bound is %.0f; the bare echo has %.0f", what, value, unit, bound, echoed)
		}
		fmt.Printf("%-34s %10.0f %-8s bare echo %10.0f   bound %8.0f   %s\n", what, value, unit, echoed, bound, verdict)
	}
	goEcho, goNode := best(func() float64 { return goRoundTrip(t, bare, calls) }, least), best(func() float64 { return goRoundTrip(t, p.socket, calls) }, least)
	row("poll, p50, from Go", "us", goNode, goEcho, 80, goNode < 80)
	pyEcho, pyNode := best(func() float64 { return pythonRoundTrip(t, bare, calls) }, least), best(func() float64 { return pythonRoundTrip(t, p.socket, calls) }, least)
	row("poll, p50, from Python", "us", pyNode, pyEcho, 200, pyNode < 200)

	room := uint64(100)
	var rates []float64
	for range rounds {
		room++
		openRoom(t, p, d, room, chunks)
		rates = append(rates, chunkRate(t, p.socket, chunks, batch, func(i int) *enginepb.SendChunkRequest {
			at := uint32(i) //nolint:gosec // small
			return &enginepb.SendChunkRequest{Room: room, Chunk: at, First: at, Count: 1, SourcePages: []uint32{at}, Last: i == chunks-1}
		}))
		d.until("every page has landed", func() bool {
			r, err := d.client.Poll(t.Context(), connect.NewRequest(&enginepb.PollRequest{Rooms: []uint64{room}}))
			return err == nil && r.Msg.Rooms[0].Poll == enginepb.RoomState_POLL_SUCCESS
		})
		if _, err := d.client.Finish(t.Context(), connect.NewRequest(&enginepb.RoomRequest{Room: room})); err != nil {
			t.Fatal(err)
		}
		if _, err := p.client.Clear(t.Context(), connect.NewRequest(&enginepb.RoomRequest{Room: room})); err != nil {
			t.Fatal(err)
		}
	}
	echoRate := best(func() float64 {
		return chunkRate(t, bare, chunks, batch, func(i int) *enginepb.SendChunkRequest {
			at := uint32(i) //nolint:gosec // small
			return &enginepb.SendChunkRequest{Room: 1, Chunk: at, First: at, Count: 1, SourcePages: []uint32{at}}
		})
	}, most)
	rate := slices.Max(rates)
	row(fmt.Sprintf("send-chunk, one stream, %d a message", batch), "/s", rate, echoRate, 50000, rate >= 50000)
}
