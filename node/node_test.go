package node

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testPages = 16
	testAux   = 64
	auxBytes  = 48
	patience  = 20 * time.Second // a deadline, never a delay
)

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// shortDir is a directory whose socket path fits the 108 bytes of the kernel.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // a test's own directory is too long a path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func testConfig(t testing.TB, role, name string) Config {
	t.Helper()
	c := DefaultConfig()
	c.Node, c.Role, c.DataDir = name, role, filepath.Join(shortDir(t), name)
	c.Pages, c.AuxRows = testPages, testAux
	c.NATS.Embedded = false
	c.Log.SegmentBytes = 1 << 20 // made of zeroes at each start, and one ahead
	c.AckTimeout, c.AbortRetry = 500*time.Millisecond, 100*time.Millisecond
	c.TransferTimeout = 2 * patience // no test waits for it, also not on a busy machine
	c.Heartbeat = 100 * time.Millisecond
	if role == "prefill" {
		c.Bootstrap = "127.0.0.1:0"
	}
	return c
}

type testLog struct{ t *testing.T }

func (w testLog) Write(b []byte) (int, error) {
	w.t.Logf("%s", b)
	return len(b), nil
}

// side is a running node with its engine's end: a client, memory, a stream.
type side struct {
	t      *testing.T
	node   *Node
	client enginepb.EngineClient
	http   *http.Client
	mem    []*rdma.Memfd
	page   int // bytes
	ring   int // bytes of the staging ring; 0 = none
	notes  chan *enginepb.Notice
	stop   context.CancelFunc
	ended  chan struct{}
}

func startSide(t *testing.T, cfg Config, page int) *side {
	t.Helper()
	return startSideWithRing(t, cfg, page, 0)
}

func startSideWithRing(t *testing.T, cfg Config, page, ring int) *side {
	t.Helper()
	s := &side{t: t, page: page, ring: ring}
	for i := range cfg.Ranks {
		m, err := rdma.AllocMemfd(fmt.Sprintf("%s-%d", cfg.Node, i), testPages*page+testAux*auxBytes+ring)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		s.mem = append(s.mem, m)
	}
	s.start(cfg)
	t.Cleanup(func() { s.close() })
	return s
}

// start runs a node on the side's memory; after close it is the next life.
func (s *side) start(cfg Config) {
	s.t.Helper()
	log := slog.New(slog.NewTextHandler(testLog{s.t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	n, err := Start(testContext(s.t), cfg, log)
	if err != nil {
		s.t.Fatal(err)
	}
	s.node = n
	s.http = unixClient(n.Socket())
	s.client = enginepb.NewEngineClient(s.http, "http://node")
	for i := range s.mem {
		s.register(i)
	}
	s.watch()
}

func unixClient(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
}

func (s *side) register(rank int) {
	s.t.Helper()
	_, err := s.client.RegisterMemory(testContext(s.t), connect.NewRequest(&enginepb.RegisterMemoryRequest{
		Rank: uint32(rank), Path: fmt.Sprintf("/proc/self/fd/%d", s.mem[rank].FD()),
		PageBytes: uint64(s.page), Pages: testPages, AuxBytes: auxBytes, AuxRows: testAux, StagingBytes: uint64(s.ring),
	}))
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *side) watch() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	st, err := s.client.Watch(ctx, connect.NewRequest(&enginepb.WatchRequest{}))
	if err != nil {
		cancel()
		s.t.Fatal(err)
	}
	notes, ended := make(chan *enginepb.Notice, 1000), make(chan struct{})
	s.notes, s.ended, s.stop = notes, ended, cancel
	go func() {
		defer close(ended)
		for st.Receive() {
			notes <- st.Msg()
		}
		_ = st.Close()
	}()
}

// close ends the node as a crash does.
func (s *side) close() {
	s.t.Helper()
	if s.node == nil {
		return
	}
	s.stop()
	<-s.ended
	s.http.CloseIdleConnections()
	if err := s.node.Close(); err != nil {
		s.t.Errorf("close: %v", err)
	}
	s.node = nil
}

// await gives the next notice of a kind about a room; what comes before it
// about other rooms or kinds is passed over.
func (s *side) await(kind enginepb.Notice_Kind, room uint64) *enginepb.Notice {
	s.t.Helper()
	ctx := testContext(s.t)
	var seen []string
	match := func(n *enginepb.Notice) bool {
		seen = append(seen, fmt.Sprintf("%s room=%d %s", n.Kind, n.Room, n.Reason))
		return n.Kind == kind && n.Room == room
	}
	for {
		select {
		case n := <-s.notes:
			if match(n) {
				return n
			}
		case <-s.ended:
			for len(s.notes) > 0 {
				if n := <-s.notes; match(n) {
					return n
				}
			}
			s.t.Fatalf("stream ended before %s of room %d; seen %q", kind, room, seen)
		case <-ctx.Done():
			s.t.Fatalf("no %s of room %d; seen %q\n%s", kind, room, seen, s.events())
		}
	}
}

// events is the durable log as text.
func (s *side) events() string {
	evs, err := s.node.store.ReadFrom(s.node.store.First(), 10000)
	if err != nil {
		return err.Error()
	}
	var out []byte
	for _, e := range evs {
		out = append(events.AppendJSON(out, e), '\n')
	}
	return string(out)
}

// awaitEvent waits until the durable log has an event of a type (about a room;
// 0 = any) with a sequence above after.
func (s *side) awaitEvent(typ string, room, after uint64) uint64 {
	s.t.Helper()
	ctx := testContext(s.t)
	for from := max(after+1, s.node.store.First()); ; {
		ch := s.node.store.Changed()
		evs, err := s.node.store.ReadFrom(from, 1000)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, e := range evs {
			if e.TypeName() == typ && (room == 0 || e.Room == room) {
				return e.Seq
			}
			from = e.Seq + 1
		}
		if len(evs) > 0 {
			continue
		}
		select {
		case <-ch:
		case <-ctx.Done():
			s.t.Fatalf("no %s of room %d in the log:\n%s", typ, room, s.events())
		}
	}
}

func (s *side) bytesOf(rank int, page uint32) []byte {
	at := int(page) * s.page
	return s.mem[rank].Bytes()[at : at+s.page]
}

func (s *side) auxOf(rank int, row uint32) []byte {
	at := testPages*s.page + int(row)*auxBytes
	return s.mem[rank].Bytes()[at : at+auxBytes]
}

// pair is a prefill and a decode node that know each other.
type pair struct {
	t       *testing.T
	p, d    *side
	pc, dc  Config
	prefill string
}

func startPair(t *testing.T, pc, dc Config, page int) *pair {
	t.Helper()
	return startPairWithRing(t, pc, dc, page, 0)
}

// startPairWithRing: decode registers a staging ring, and prefill uses it if it
// is there.
func startPairWithRing(t *testing.T, pc, dc Config, page, ring int) *pair {
	t.Helper()
	pc.RDMA.Staging = ring > 0
	q := &pair{t: t, pc: pc, dc: dc, prefill: pc.Node}
	total := page * dc.Ranks
	q.p = startSide(t, pc, total/pc.Ranks)
	q.pc.Bootstrap = q.p.node.Bootstrap() // the next life serves at the same address
	q.dc.Peers = []string{q.p.node.Bootstrap()}
	q.d = startSideWithRing(t, q.dc, page, ring)
	q.d.awaitEvent("PeerRegistered", 0, 0)
	return q
}

func (q *pair) open(room uint64, pages ...uint32) *enginepb.OpenReceiveResponse {
	q.t.Helper()
	r, err := q.d.client.OpenReceive(testContext(q.t), connect.NewRequest(&enginepb.OpenReceiveRequest{
		Room: room, Pages: pages, Prefill: q.prefill, RequestId: fmt.Sprintf("req-%d", room),
	}))
	if err != nil {
		q.t.Fatalf("open room %d: %v\n%s", room, err, q.d.events())
	}
	return r.Msg
}

// chunk sends pages of a room from every prefill rank, out of source pages
// that hold a pattern of room, rank and page.
func (q *pair) chunk(room uint64, chunk uint32, first int, sources []uint32, last bool) {
	q.t.Helper()
	for rank := range q.p.mem {
		for i, src := range sources {
			fill(q.p.bytesOf(rank, src), room, rank, first+i)
		}
		fill(q.p.auxOf(rank, 3), room, 0, -1)
		_, err := q.p.client.SendChunk(testContext(q.t), connect.NewRequest(&enginepb.SendChunkRequest{
			Room: room, Rank: uint32(rank), Chunk: chunk, First: uint32(first), Count: uint32(len(sources)),
			SourcePages: sources, SourceAux: 3, Last: last,
		}))
		if err != nil {
			q.t.Fatalf("send chunk %d of room %d: %v", chunk, room, err)
		}
	}
}

func fill(b []byte, room uint64, rank, page int) {
	for i := range b {
		b[i] = patternByte(room, rank, page, i)
	}
}

func patternByte(room uint64, rank, page, i int) byte {
	return byte(int(room)*31 + rank*101 + (page+1)*7 + i)
}

// check compares the bytes of a room's pages with what was sent.
func (q *pair) check(room uint64, pages []uint32, aux uint32) {
	q.t.Helper()
	share := q.p.page // bytes of a page that one prefill rank holds
	for rank := range q.d.mem {
		for i, p := range pages {
			b := q.d.bytesOf(rank, p)
			for at := range b {
				writer, off := 0, at
				switch {
				case share < q.d.page:
					writer, off = at/share, at%share
				case share > q.d.page:
					off = rank*q.d.page + at
				default:
					writer = rank
				}
				if want := patternByte(room, writer, i, off); b[at] != want {
					q.t.Fatalf("room %d, decode rank %d, page %d, byte %d: have %d, want %d", room, rank, p, at, b[at], want)
				}
			}
		}
		for at, have := range q.d.auxOf(rank, aux) {
			if want := patternByte(room, 0, -1, at); have != want {
				q.t.Fatalf("room %d, decode rank %d, aux row %d, byte %d: have %d, want %d", room, rank, aux, at, have, want)
			}
		}
	}
}

// startMemory gives a side's rank 0 other memory, not yet registered.
func startMemory(t *testing.T, s *side) *rdma.Memfd {
	t.Helper()
	m, err := rdma.AllocMemfd("fresh", testPages*s.page+testAux*auxBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	s.mem[0] = m
	return m
}
