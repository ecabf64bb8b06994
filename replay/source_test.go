package replay_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/store"
	"github.com/pdlog/pdlog/store/mirror"
)

func TestSourcesOfEveryFormGiveTheSameEvents(t *testing.T) {
	h := lateWrite()
	dir := t.TempDir()
	d := writeLog(t, dir, h.Of("d"))
	p := writeLog(t, dir, h.Of("p"))
	seg := func(log string) string { return filepath.Join(log, "00000000000000000001.db") }
	renamed := filepath.Join(t.TempDir(), "incident.db")
	b, err := os.ReadFile(seg(p))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(renamed, b, 0o600); err != nil {
		t.Fatal(err)
	}
	want := jsonl(collect(t, replay.Merge(t.Context(), open(t, writeFile(t, h.All)))))
	for _, sources := range [][]string{
		{dir}, {d, p}, {filepath.Dir(d), filepath.Dir(p)}, {seg(d), seg(p)}, {d, renamed}, {writeFile(t, h.Of("d")), p},
	} {
		if got := jsonl(collect(t, replay.Merge(t.Context(), open(t, sources...)))); got != want {
			t.Errorf("%v: other events", sources)
		}
	}
}

func TestBadSourcesAreNamed(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(text, []byte("{\"seq\":1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	db := filepath.Join(dir, "x.db")
	if err := os.WriteFile(db, []byte("no database"), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]error{
		filepath.Join(dir, "nowhere"): replay.ErrBadSource,
		dir:                           replay.ErrBadSource,
		text:                          replay.ErrBadSource,
		db:                            replay.ErrBadSource,
		"nats://127.0.0.1/a/b":        replay.ErrBadSource,
		"nats://127.0.0.1:1":          replay.ErrUnavailable,
		"unix:" + dir + "/sock":       replay.ErrUnavailable,
	}
	for src, want := range cases {
		_, err := replay.Open(t.Context(), []string{src})
		if !errors.Is(err, want) || !strings.HasPrefix(err.Error(), src) {
			t.Errorf("%s: have %v, want %v", src, err, want)
		}
	}
}

// engine serves the events of a log as a node does.
type engine struct {
	enginepb.UnimplementedEngineHandler
	log *store.Log
}

func (e engine) Events(_ context.Context, req *connect.Request[enginepb.EventsRequest]) (*connect.Response[enginepb.EventsResponse], error) {
	frames, err := e.log.ReadFrames(req.Msg.GetFromSeq(), 4096) // small pages
	if err != nil {
		return nil, err
	}
	res := &enginepb.EventsResponse{Node: e.log.Node()}
	for _, f := range frames {
		res.Frames = append(res.Frames, f.Data...)
	}
	return connect.NewResponse(res), nil
}

func TestALiveNodeIsReadThroughItsSocket(t *testing.T) {
	h := lateWrite()
	for i := range 300 { // several frames and pages
		h.At(uint64(5000+i)).Reserve(uint64(100+i), "d/0", []uint32{uint32(i)}, "p/0") //nolint:gosec // small
	}
	dir := t.TempDir()
	d := h.Of("d")
	log := openLog(t, filepath.Join(dir, "log"), d[0])
	defer log.Close()
	if err := log.Append(d, events.Sync); err != nil {
		t.Fatal(err)
	}
	if err := log.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := replay.Open(t.Context(), []string{dir}); !errors.Is(err, replay.ErrUnavailable) || !strings.Contains(err.Error(), "unix:") {
		t.Errorf("a live log without a socket: have %v, want a hint at the socket", err)
	}
	sock := filepath.Join(dir, "engine.sock")
	ln, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(enginepb.NewEngineHandler(engine{log: log}))
	srv := &http.Server{Handler: mux}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	defer func() {
		_ = srv.Close()
		<-done
	}()
	for _, src := range []string{"unix:" + sock, sock, dir} {
		got := collect(t, replay.Merge(t.Context(), open(t, src)))
		if jsonl(got) != jsonl(d) {
			t.Errorf("%s: have %d events, want %d", src, len(got), len(d))
		}
	}
}

// A node that stops lets go of its socket before its files: a reader that comes
// in between waits for the files. What was sealed it has read from them already.
func TestANodeThatIsStoppingIsRead(t *testing.T) {
	h := lateWrite()
	for i := range 6000 { // over the end of a segment
		h.At(uint64(5000+i)).Reserve(uint64(100+i), "d/0", []uint32{uint32(i)}, "p/0") //nolint:gosec // small
	}
	dir, d := t.TempDir(), h.Of("d")
	log, _, err := store.Open(t.Context(), filepath.Join(dir, "log"), store.Options{
		Node: d[0].Node, Boot: d[0].Boot, SegmentBytes: 256 << 10, Socket: filepath.Join(dir, "gone.sock"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Append(d, events.Sync); err != nil {
		t.Fatal(err)
	}
	if err := log.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if log.Sealed() == 0 {
		t.Fatal("no segment was sealed")
	}
	logs := open(t, dir)
	n := 0
	for e, err := range logs[0].Events(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; e.Seq == log.Sealed() { // the reader is at the segment that is held
			if err := log.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n != len(d) {
		t.Errorf("%d of %d events", n, len(d))
	}
}

func TestTheMirrorIsASourceAndIsCompared(t *testing.T) {
	srv, err := mirror.StartEmbedded(mirror.EmbeddedOptions{StoreDir: t.TempDir(), Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown()
	h := lateWrite()
	d := h.Of("d")
	path := filepath.Join(t.TempDir(), "d", "log")
	log := openLog(t, path, d[0])
	if err := log.Append(d, events.Sync); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(srv.ClientURL(), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	m, err := mirror.New(mirror.Options{Conn: nc, Cluster: "test", Node: "d", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- m.Run(ctx) }()
	if err := m.WaitMirrored(t.Context(), uint64(len(d))); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-ran
	nc.Close()
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	url := srv.ClientURL() + "/test"
	if got := collect(t, replay.Merge(t.Context(), open(t, url))); jsonl(got) != jsonl(d) {
		t.Errorf("mirror: have %d events, want %d", len(got), len(d))
	}
	res, err := replay.Diff(t.Context(), open(t, path), open(t, url), "")
	if err != nil || !res.Equal {
		t.Errorf("diff: have %+v, %v", res, err)
	}
	short := t.TempDir() // a log that lost its end, as the mirror shows
	writeLog(t, short, d[:len(d)-2])
	v := verify(t, short, srv.ClientURL())
	found := false
	for _, f := range v.Violations {
		found = found || f.Invariant == "I10" && strings.Contains(f.Detail, "lost from the log")
	}
	if !found {
		t.Errorf("violations %v, want I10", v.Violations)
	}
}
