package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pdlog/pdlog/node/engineclient"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/rdma"
)

// h2Client speaks HTTP/2 without TLS, for streams in both directions.
func h2Client(path string) *http.Client {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: &p, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
}

func refusedWith(t *testing.T, err error) string {
	t.Helper()
	var ce *connect.Error
	if !asConnect(err, &ce) {
		t.Fatalf("not a refusal: %v", err)
	}
	for _, d := range ce.Details() {
		if v, derr := d.Value(); derr == nil {
			if r, ok := v.(*enginepb.Refusal); ok {
				return r.Word
			}
		}
	}
	t.Fatalf("no refusal in %v", err)
	return ""
}

func asConnect(err error, to **connect.Error) bool {
	ce, ok := err.(*connect.Error)
	*to = ce
	return ok
}

func TestMemoryIsPassedAsADescriptor(t *testing.T) {
	q := startPair(t, testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0"), 4096)
	m, err := rdma.AllocMemfd("passed-memory", testPages*4096+testAux*auxBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	req := func() *connect.Request[enginepb.RegisterMemoryRequest] {
		return connect.NewRequest(&enginepb.RegisterMemoryRequest{
			PassedFd: true, PageBytes: 4096, Pages: testPages, AuxBytes: auxBytes, AuxRows: testAux,
		})
	}
	if _, err := q.d.client.RegisterMemory(testContext(t), req()); err == nil || refusedWith(t, err) != "bad_request" {
		t.Fatalf("a call without its descriptor gives %v", err)
	}
	c := engineclient.Dial(q.d.node.Socket()).Passing(m.FD())
	r, err := c.RegisterMemory(testContext(t), req())
	if err != nil || !r.Msg.Ready {
		t.Fatalf("have %v, %v", r, err)
	}
	q.d.mem[0] = m
	q.run(41, []uint32{2, 3})
	q.finish(41)
	passInHTTP10(t, q.d.node.Socket(), m.FD(), req().Msg)
	dmabuf := req()
	dmabuf.Msg.Kind = enginepb.MemoryKind_MEMORY_KIND_DMABUF
	c = engineclient.Dial(q.d.node.Socket()).Passing(m.FD())
	if _, err := c.RegisterMemory(testContext(t), dmabuf); err == nil || !strings.Contains(err.Error(), "dma-buf") {
		t.Fatalf("a dma-buf gives %v", err)
	}
}

// passInHTTP10 registers the memory once more, in a request that the loop of
// callserver hands to net/http: the descriptor was read before.
func passInHTTP10(t *testing.T, socket string, fd int, req *enginepb.RegisterMemoryRequest) {
	t.Helper()
	body, err := protojson.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // a test's connection
	text := fmt.Appendf(nil, "POST /pdlog.engine.v1.Engine/RegisterMemory HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if _, _, err := c.WriteMsgUnix(text, unix.UnixRights(fd), nil); err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(c)
	if err != nil || !bytes.HasPrefix(said, []byte("HTTP/1.0 200 OK\r\n")) || !bytes.Contains(said, []byte(`"ready":true`)) {
		t.Fatalf("have %q, %v", said, err)
	}
}

// descriptors counts this process's open files that are the memfd of a name.
func mapped(t *testing.T, name string) (fds, maps int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	links, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink("/proc/self/fd/" + l.Name()); err == nil && strings.Contains(to, "memfd:"+name) {
			fds++
		}
	}
	return fds, bytes.Count(b, []byte("memfd:"+name+" "))
}

func TestMemoryOfALostEngineGoesWithItsLastRoom(t *testing.T) {
	dc := testConfig(t, "decode", "d0")
	dc.EngineTimeout = 50 * time.Millisecond
	dc.ReleasePolicy = "hold" // pages are held until prefill answers
	pc := testConfig(t, "prefill", "p0")
	pc.EngineTimeout = 50 * time.Millisecond
	q := startPair(t, pc, dc, 4096)
	m, err := rdma.AllocMemfd("lost-engine", testPages*4096+testAux*auxBytes)
	if err != nil {
		t.Fatal(err)
	}
	c := engineclient.Dial(q.d.node.Socket()).Passing(m.FD())
	if _, err := c.RegisterMemory(testContext(t), connect.NewRequest(&enginepb.RegisterMemoryRequest{
		PassedFd: true, PageBytes: 4096, Pages: testPages, AuxBytes: auxBytes, AuxRows: testAux,
	})); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil { // the engine's own end of it
		t.Fatal(err)
	}
	q.open(61, 0, 1)
	q.p.await(enginepb.Notice_KIND_READY, 61)
	if fds, maps := mapped(t, "lost-engine"); fds == 0 || maps == 0 {
		t.Fatalf("%d descriptors and %d mappings of the engine's memory", fds, maps)
	}
	q.d.stop()
	released := q.d.awaitEvent("Released", 61, 0)
	gone := q.d.awaitEvent("MemoryUnregistered", 0, released)
	if gone < released {
		t.Fatalf("memory went at %d, its last room at %d", gone, released)
	}
	q.d.eventually("the memory is unmapped", func() bool {
		fds, maps := mapped(t, "lost-engine")
		return fds+maps == 0
	})
	if _, err := q.d.client.OpenReceive(testContext(t), connect.NewRequest(&enginepb.OpenReceiveRequest{Room: 62, Count: 1})); refusedWith(t, err) != "not_ready" {
		t.Fatalf("a room without memory gives %v", err)
	}
	startMemory(t, q.d) // the engine's next life
	q.d.register(0)
	q.d.watch()
	q.run(63, []uint32{0, 1})
	q.finish(63)
}

// eventually waits for something that is told by no event. It looks again at
// every new one, and at every tick.
func (s *side) eventually(what string, done func() bool) {
	s.t.Helper()
	ctx := testContext(s.t)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.t.Fatalf("not in time: %s", what)
		}
	}
}

func (q *pair) openSend(room uint64) {
	q.t.Helper()
	if _, err := q.p.client.OpenSend(testContext(q.t), connect.NewRequest(&enginepb.OpenSendRequest{Room: room})); err != nil {
		q.t.Fatal(err)
	}
}

func TestChunksWaitForTheirTimelines(t *testing.T) {
	q := startPair(t, testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0"), 4096)
	after := func(points ...*enginepb.Point) []*enginepb.Point { return points }
	send := func(room uint64, chunk, page uint32, last bool, points []*enginepb.Point) error {
		fill(q.p.bytesOf(0, page), room, 0, int(chunk))
		fill(q.p.auxOf(0, 3), room, 0, -1)
		_, err := q.p.client.SendChunk(testContext(t), connect.NewRequest(&enginepb.SendChunkRequest{
			Room: room, Chunk: chunk, First: chunk, Count: 1, SourcePages: []uint32{page}, SourceAux: 3, Last: last, After: points,
		}))
		return err
	}
	if err := send(51, 0, 0, false, after(&enginepb.Point{Timeline: 1, Value: 1})); err == nil || refusedWith(t, err) != "unknown_room" {
		t.Fatalf("a chunk that waits in no room gives %v", err)
	}
	opened := q.open(51, 4, 5)
	q.openSend(51)
	q.p.await(enginepb.Notice_KIND_READY, 51)
	for i, p := range [][]*enginepb.Point{after(&enginepb.Point{Timeline: 1, Value: 2}, &enginepb.Point{Timeline: 9, Value: 1}), nil} {
		if err := send(51, uint32(i), uint32(i), i == 1, p); err != nil {
			t.Fatal(err)
		}
	}
	signal := func(want uint64, points ...*enginepb.Point) {
		t.Helper()
		r, err := q.p.client.Signal(testContext(t), connect.NewRequest(&enginepb.SignalRequest{Points: points}))
		if err != nil || r.Msg.Released != want {
			t.Fatalf("signal: %v, %v; want %d chunks to leave", r, err, want)
		}
	}
	signal(0, &enginepb.Point{Timeline: 1, Value: 1})
	signal(0, &enginepb.Point{Timeline: 9, Value: 5})
	view, err := q.p.client.Room(testContext(t), connect.NewRequest(&enginepb.RoomViewRequest{Room: 51}))
	if err != nil || view.Msg.Rooms[0].WaitingChunks != 2 || view.Msg.Rooms[0].State != "waiting" {
		t.Fatalf("have %v, %v; want two chunks waiting", view, err)
	}
	signal(2, &enginepb.Point{Timeline: 1, Value: 2})
	q.d.await(enginepb.Notice_KIND_SUCCEEDED, 51)
	q.check(51, opened.Pages, opened.Aux)
	q.finish(51)

	// What waits in a room that ends is recorded as skipped, and never leaves.
	q.open(52, 4, 5)
	q.openSend(52)
	q.p.await(enginepb.Notice_KIND_READY, 52)
	if err := send(52, 0, 0, false, after(&enginepb.Point{Timeline: 1, Value: 3})); err != nil {
		t.Fatal(err)
	}
	if _, err := q.d.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: 52})); err != nil {
		t.Fatal(err)
	}
	q.p.awaitEvent("ChunkSkipped", 52, 0)
	signal(0, &enginepb.Point{Timeline: 1, Value: 3})
	q.d.await(enginepb.Notice_KIND_RELEASED, 52)
}

func TestChunksThatWaitAreBounded(t *testing.T) {
	pc := testConfig(t, "prefill", "p0")
	pc.Limits.Chunks = 2
	s := startSide(t, pc, 4096)
	if _, err := s.client.OpenSend(testContext(t), connect.NewRequest(&enginepb.OpenSendRequest{Room: 5})); err != nil {
		t.Fatal(err)
	}
	var err error
	for i := range uint32(3) {
		_, err = s.client.SendChunk(testContext(t), connect.NewRequest(&enginepb.SendChunkRequest{
			Room: 5, Chunk: i, First: i, Count: 1, SourcePages: []uint32{0}, After: []*enginepb.Point{{Timeline: 1, Value: 1}},
		}))
	}
	if connect.CodeOf(err) != connect.CodeResourceExhausted || refusedWith(t, err) != "limit" {
		t.Fatalf("the third chunk gives %v", err)
	}
}

func TestRoomsAreBounded(t *testing.T) {
	pc := testConfig(t, "prefill", "p0")
	pc.Limits.Rooms = 1
	s := startSide(t, pc, 4096)
	var err error
	for room := range uint64(2) {
		_, err = s.client.OpenSend(testContext(t), connect.NewRequest(&enginepb.OpenSendRequest{Room: room + 1}))
	}
	if connect.CodeOf(err) != connect.CodeResourceExhausted || refusedWith(t, err) != "limit" {
		t.Fatalf("the second room gives %v", err)
	}
}

func TestChunksInAStream(t *testing.T) {
	q := startPair(t, testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0"), 4096)
	opened := q.open(53, 4, 5, 6)
	q.openSend(53)
	q.p.await(enginepb.Notice_KIND_READY, 53)
	hc := h2Client(q.p.node.Socket())
	defer hc.CloseIdleConnections()
	stream := enginepb.NewEngineClient(hc, "http://node", connect.WithGRPC()).SendChunks(testContext(t))
	fill(q.p.auxOf(0, 3), 53, 0, -1)
	for i := range uint32(3) {
		fill(q.p.bytesOf(0, i), 53, 0, int(i))
		bad := &enginepb.SendChunkRequest{Room: 53, Rank: 7}
		good := &enginepb.SendChunkRequest{Room: 53, Chunk: i, First: i, Count: 1, SourcePages: []uint32{i}, SourceAux: 3, Last: i == 2}
		if err := stream.Send(&enginepb.SendChunksRequest{Chunks: []*enginepb.SendChunkRequest{bad, good}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseRequest(); err != nil {
		t.Fatal(err)
	}
	var taken uint64
	var refused []uint64
	for {
		r, err := stream.Receive()
		if err != nil {
			if endOf(err) != nil {
				t.Fatal(err)
			}
			break
		}
		taken = r.Taken
		for _, no := range r.Refused {
			refused = append(refused, no.Index)
			if no.Refusal.Word != "bad_request" || no.Room != 53 {
				t.Errorf("have %v", no)
			}
		}
	}
	if taken != 6 || fmt.Sprint(refused) != "[0 2 4]" {
		t.Fatalf("%d taken, %v refused", taken, refused)
	}
	q.d.await(enginepb.Notice_KIND_SUCCEEDED, 53)
	q.check(53, opened.Pages, opened.Aux)
	q.finish(53)
}

func TestPollSpeaksSGLang(t *testing.T) {
	q := startPair(t, testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0"), 4096)
	poll := func(s *side, room uint64) *enginepb.RoomState {
		t.Helper()
		r, err := s.client.Poll(testContext(t), connect.NewRequest(&enginepb.PollRequest{Rooms: []uint64{room}}))
		if err != nil || len(r.Msg.Rooms) != 1 {
			t.Fatalf("poll: %v, %v", r, err)
		}
		return r.Msg.Rooms[0]
	}
	if s := poll(q.d, 54); s.Poll != enginepb.RoomState_POLL_UNKNOWN {
		t.Fatalf("a room nobody opened: %v", s)
	}
	q.openSend(54)
	if s := poll(q.p, 54); s.Poll != enginepb.RoomState_POLL_BOOTSTRAPPING {
		t.Fatalf("prefill without metadata: %v", s)
	}
	q.open(54, 0, 1)
	q.p.await(enginepb.Notice_KIND_READY, 54)
	if s := poll(q.p, 54); s.Poll != enginepb.RoomState_POLL_WAITING_FOR_INPUT || s.PagesFree {
		t.Fatalf("prefill with metadata: %v", s)
	}
	q.d.awaitEvent("MetadataPublished", 54, 0)
	if s := poll(q.d, 54); s.Poll != enginepb.RoomState_POLL_TRANSFERRING || s.PagesFree {
		t.Fatalf("decode, published: %v", s)
	}
	if _, err := q.d.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: 54})); err != nil {
		t.Fatal(err)
	}
	q.d.await(enginepb.Notice_KIND_RELEASED, 54)
	if s := poll(q.d, 54); s.Poll != enginepb.RoomState_POLL_FAILED || !s.PagesFree || s.Cause != "client" || s.Basis != "acks" {
		t.Fatalf("decode, aborted: %v", s)
	}
	q.p.await(enginepb.Notice_KIND_SOURCE_RELEASED, 54)
	if s := poll(q.p, 54); s.Poll != enginepb.RoomState_POLL_FAILED || !s.PagesFree {
		t.Fatalf("prefill, aborted: %v", s)
	}
}

func TestReleasesAreToldAgainUntilAcknowledged(t *testing.T) {
	q := startPair(t, testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0"), 4096)
	var seqs []uint64
	for room := uint64(55); room < 58; room++ {
		q.run(room, []uint32{0, 1})
		if _, err := q.d.client.Finish(testContext(t), connect.NewRequest(&enginepb.RoomRequest{Room: room})); err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, q.d.await(enginepb.Notice_KIND_RELEASED, room).Seq)
	}
	resumed := func(after uint64) string {
		t.Helper()
		ctx, cancel := context.WithCancel(testContext(t))
		defer cancel()
		st, err := q.d.client.Watch(ctx, connect.NewRequest(&enginepb.WatchRequest{AfterSeq: after}))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { cancel(); _ = st.Close() }()
		var rooms []uint64
		for st.Receive() {
			switch n := st.Msg(); n.Kind {
			case enginepb.Notice_KIND_RELEASED:
				if !n.Resumed || n.Basis != "success" || len(n.Pages) != 2 {
					t.Errorf("have %v", n)
				}
				rooms = append(rooms, n.Room)
			case enginepb.Notice_KIND_CAUGHT_UP:
				return fmt.Sprint(rooms)
			}
		}
		t.Fatal(st.Err())
		return ""
	}
	if got := resumed(0); got != "[]" {
		t.Errorf("an engine that said nothing is told of %s", got)
	}
	if got := resumed(seqs[0]); got != "[56 57]" {
		t.Errorf("after the first: %s", got)
	}
	if _, err := q.d.client.Acknowledge(testContext(t), connect.NewRequest(&enginepb.AcknowledgeRequest{Seq: seqs[1]})); err != nil {
		t.Fatal(err)
	}
	if got := resumed(0); got != "[57]" {
		t.Errorf("after an acknowledgement of the second: %s", got)
	}
	if _, err := q.d.client.Acknowledge(testContext(t), connect.NewRequest(&enginepb.AcknowledgeRequest{Seq: 1 << 40})); err == nil || refusedWith(t, err) != "bad_request" {
		t.Errorf("the future is acknowledged: %v", err)
	}
	q.d.close()
	q.d.start(q.dc)
	if got := resumed(seqs[0]); got != "[56 57]" {
		t.Errorf("after a restart: %s", got)
	}
}

func TestARequestsOwnTimeEndsItsRoom(t *testing.T) {
	q := startPair(t, testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0"), 4096)
	r, err := q.d.client.OpenReceive(testContext(t), connect.NewRequest(&enginepb.OpenReceiveRequest{Room: 58, Count: 2, Prefill: "p0", TimeoutMs: 50}))
	if err != nil {
		t.Fatal(err)
	}
	if n := q.d.await(enginepb.Notice_KIND_FAILED, 58); n.Cause != "request_timeout" || n.RoomSeq != r.Msg.RoomSeq {
		t.Fatalf("failed with %v", n)
	}
	q.d.await(enginepb.Notice_KIND_RELEASED, 58)
	if _, err := q.p.client.OpenSend(testContext(t), connect.NewRequest(&enginepb.OpenSendRequest{Room: 59, TimeoutMs: 50})); err != nil {
		t.Fatal(err)
	}
	if n := q.p.await(enginepb.Notice_KIND_FAILED, 59); n.Cause != "request_timeout" {
		t.Fatalf("failed with %v", n)
	}
}

func TestHealthAndReflectionSpeakGRPC(t *testing.T) {
	s := startSide(t, testConfig(t, "decode", "d0"), 4096)
	check := func(service string) (status, code string) {
		t.Helper()
		body := `{"service":"` + service + `"}`
		req, err := http.NewRequestWithContext(testContext(t), http.MethodPost, "http://node/grpc.health.v1.Health/Check", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := s.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		b, _ := io.ReadAll(res.Body)
		if res.StatusCode != http.StatusOK {
			return "", string(b)
		}
		return string(b), ""
	}
	if status, _ := check("pdlog.engine.v1.Engine"); !strings.Contains(status, `STATUS_SERVING`) {
		t.Errorf("health %s", status)
	}
	if _, code := check("nobody"); !strings.Contains(code, "not_found") {
		t.Errorf("an unknown service: %s", code)
	}
	hc := h2Client(s.node.Socket())
	defer hc.CloseIdleConnections()
	ask := grpcreflect.NewClient(hc, "http://node", connect.WithGRPC()).NewStream(testContext(t))
	names, err := ask.ListServices()
	if err != nil || !slices.Contains(names, "pdlog.engine.v1.Engine") {
		t.Errorf("reflection lists %v, %v", names, err)
	}
	if files, err := ask.FileContainingSymbol("pdlog.engine.v1.Engine"); err != nil || len(files) == 0 {
		t.Errorf("reflection gives %d files, %v", len(files), err)
	}
	if _, err := ask.Close(); err != nil {
		t.Error(err)
	}
	if err := s.node.Drain(time.Minute, "test"); err != nil {
		t.Fatal(err)
	}
	if status, _ := check(""); status != "" && !strings.Contains(status, `NOT_SERVING`) {
		t.Errorf("health while draining %s", status)
	}
}

func TestEngineAPIOnTCPTakesMutualTLS(t *testing.T) {
	ca := newTestCA(t)
	cfg := testConfig(t, "decode", "d0")
	cfg.Engine.Listen = "127.0.0.1:0"
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "engine.tls.client_ca") {
		t.Fatalf("the API on TCP without client certificates: %v", err)
	}
	cfg.Engine.TLS.Cert, cfg.Engine.TLS.Key = ca.issue(t, "server")
	cfg.Engine.TLS.ClientCA = ca.file
	s := startSide(t, cfg, 4096)
	call := func(certs ...tls.Certificate) error {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool, Certificates: certs, MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true}
		defer tr.CloseIdleConnections()
		_, err := enginepb.NewEngineClient(&http.Client{Transport: tr}, "https://"+s.node.engineAddr).
			Status(testContext(t), connect.NewRequest(&enginepb.StatusRequest{}))
		return err
	}
	if err := call(); err == nil {
		t.Error("a client without a certificate was served")
	}
	if err := call(newTestCA(t).pair(t, "stranger")); err == nil {
		t.Error("a stranger's certificate was taken")
	}
	if err := call(ca.pair(t, "engine")); err != nil {
		t.Error(err)
	}
}

func TestSocketHasItsModeAndCallsAreBounded(t *testing.T) {
	cfg := testConfig(t, "decode", "d0")
	cfg.Limits.MessageBytes = 2048
	s := startSide(t, cfg, 4096)
	st, err := os.Stat(s.node.Socket())
	if err != nil || st.Mode().Perm() != 0o660 {
		t.Fatalf("socket mode %v, %v", st.Mode(), err)
	}
	_, err = s.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: 1, Reason: strings.Repeat("x", 4096)}))
	if connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Fatalf("a call of 4096 bytes gives %v", err)
	}
}
