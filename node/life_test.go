package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	zmq "github.com/pebbe/zmq4"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/store"
	"github.com/pdlog/pdlog/store/mirror"
)

func TestDecodeComesBackAndReleasesWhatItHeld(t *testing.T) {
	q := startPair(t, testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0"), 4096)
	q.run(70, []uint32{6, 7})
	q.finish(70)
	q.open(71, 0, 1, 2, 3)
	q.p.await(enginepb.Notice_KIND_READY, 71)
	q.chunk(71, 0, 0, []uint32{4, 5}, false)
	q.d.awaitEvent("WriteLanded", 71, 0)
	last := q.d.node.store.Durable()
	q.d.close() // as a crash: no NodeStopped
	q.d.start(q.dc)
	q.d.awaitEvent("NodeStarted", 0, last)
	if n := q.d.await(enginepb.Notice_KIND_OPEN, 71); !n.Resumed || len(n.Pages) != 4 {
		t.Fatalf("the engine was told %v", n)
	}
	if _, err := q.d.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: 71, Reason: "after the restart"})); err != nil {
		t.Fatal(err)
	}
	n := q.d.await(enginepb.Notice_KIND_RELEASED, 71)
	if n.Unsafe || n.Basis != "acks" && n.Basis != "fence" {
		t.Fatalf("released with %v", n)
	}
	q.run(72, []uint32{0, 1, 2, 3})
	q.finish(72)
	s, err := q.d.client.Status(testContext(t), connect.NewRequest(&enginepb.StatusRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if s.Msg.Incarnation != 2 || s.Msg.PagesFree != testPages || !s.Msg.Ready {
		t.Fatalf("status %v", s.Msg)
	}
}

func TestPrefillComesBackAndServesAgain(t *testing.T) {
	q := startPair(t, testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0"), 4096)
	q.open(75, 0, 1)
	q.p.await(enginepb.Notice_KIND_READY, 75)
	last := q.d.node.store.Durable()
	q.p.close()
	q.p.start(q.pc)
	if n := q.d.await(enginepb.Notice_KIND_FAILED, 75); n.Cause != "peer_lost" {
		t.Fatalf("failed with %v", n)
	}
	if n := q.d.await(enginepb.Notice_KIND_RELEASED, 75); n.Unsafe {
		t.Fatalf("released with %v", n)
	}
	q.d.awaitEvent("PeerRegistered", 0, last)
	q.run(76, []uint32{0, 1})
	q.finish(76)
}

func TestGarbageOnTheWireIsRecordedAndEndsNothing(t *testing.T) {
	q := startPair(t, testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0"), 4096)
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	soc, err := ctx.NewSocket(zmq.PUSH)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = soc.SetLinger(0)
		_ = soc.Close()
		_ = ctx.Term()
	})
	for _, at := range []string{q.p.node.rankAddress(0), q.d.node.rankAddress(0)} {
		if err := soc.Connect("tcp://" + at); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // PUSH deals round to both
		for _, m := range [][]any{
			{"\x00\xff"},
			{""},
			{"ABORT", "not a room"},
			{"ABORT_ACK", "x", "y", "z"},
			{"None", "1", "2"},
			{strings.Repeat("9", 1<<16)},
			{"7", "127.0.0.1", "0", "s", "\x01", "", "", "1"},
		} {
			for range 2 {
				if _, err := soc.SendMessage(m...); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	q.p.awaitEvent("MessageRejected", 0, 0)
	q.d.awaitEvent("MessageRejected", 0, 0)
	q.run(81, []uint32{0, 1})
	q.finish(81)
}

func TestMemoryRegisteredAnewAbortsWhatIsOpen(t *testing.T) {
	q := startPair(t, testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0"), 4096)
	q.open(85, 0, 1)
	q.d.register(0) // the same again is no news
	q.p.await(enginepb.Notice_KIND_READY, 85)
	startMemory(t, q.d)
	q.d.register(0)
	if n := q.d.await(enginepb.Notice_KIND_FAILED, 85); n.Cause != "memory" {
		t.Fatalf("failed with %v", n)
	}
	q.d.await(enginepb.Notice_KIND_RELEASED, 85)
	q.run(86, []uint32{0, 1})
	q.finish(86)
}

func TestEngineThatStaysAwayLosesItsRooms(t *testing.T) {
	dc := testConfig(t, "decode", "d0")
	dc.EngineTimeout = 50 * time.Millisecond
	q := startPair(t, testConfig(t, "prefill", "p0"), dc, 4096)
	q.open(88, 0, 1)
	q.d.stop()
	q.d.awaitEvent("Released", 88, 0)
}

func TestSecondProcessOnTheLogIsTurnedAway(t *testing.T) {
	cfg := testConfig(t, "prefill", "p0")
	s := startSide(t, cfg, 4096)
	if _, err := Start(testContext(t), cfg, nil); !errors.Is(err, store.ErrLocked) {
		t.Fatalf("have %v, want ErrLocked", err)
	}
	s.close()
}

func TestMirrorFollowsAndHealthTells(t *testing.T) {
	cfg := testConfig(t, "decode", "d0")
	cfg.NATS.Embedded, cfg.NATS.Port = true, -1
	n, err := Start(testContext(t), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := unixClient(n.Socket())
	if code, body := get(t, c, "/healthz"); code != http.StatusOK {
		t.Errorf("healthz %d %s", code, body)
	}
	if code, body := get(t, c, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "memory") {
		t.Errorf("readyz %d %s", code, body)
	}
	if code, body := get(t, c, "/"); code != http.StatusOK || !strings.Contains(body, `"nats_url"`) {
		t.Errorf("status page %d %s", code, body)
	}
	if err := n.mirror.m.WaitMirrored(testContext(t), n.store.Durable()); err != nil {
		t.Error(err)
	}
	c.CloseIdleConnections()
	if err := n.Stop(testContext(t), 0); err != nil {
		t.Error(err)
	}
	if lag := n.mirror.m.Lag(); lag != 0 {
		t.Errorf("%d events were not mirrored at the end", lag)
	}
}

// A wiped log, and an older copy of one, are told by what the mirror remembers:
// the past is unknown, and generations that were lost do not come again.
func TestWipedNodeIsRememberedByTheMirror(t *testing.T) {
	nats, err := mirror.StartEmbedded(mirror.EmbeddedOptions{StoreDir: t.TempDir(), Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nats.Shutdown)
	life := func(dir string) *events.NodeStarted {
		cfg := testConfig(t, "prefill", "p0")
		cfg.DataDir, cfg.NATS.URL = dir, nats.ClientURL()
		n, err := Start(testContext(t), cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.store.Sync(testContext(t)); err != nil {
			t.Fatal(err)
		}
		evs, err := n.store.ReadFrom(1, 1000)
		if err != nil {
			t.Fatal(err)
		}
		var out *events.NodeStarted
		for _, e := range evs {
			if s := e.GetNodeStarted(); s != nil {
				out = s
			}
		}
		if !out.UnknownPast { // the mirror does not take the end of another log as ours
			if err := n.mirror.m.WaitMirrored(testContext(t), n.store.Durable()); err != nil {
				t.Error(err)
			}
		}
		if err := n.Stop(testContext(t), 0); err != nil {
			t.Error(err)
		}
		return out
	}
	dir, older := shortDir(t), filepath.Join(shortDir(t), "copy")
	first := life(dir)
	if first.UnknownPast || first.GenerationBase == 0 {
		t.Errorf("a new name begins as %v, want a known past and a generation base", first)
	}
	if err := os.CopyFS(older, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if s := life(dir); s.UnknownPast || s.GenerationBase != 0 {
		t.Errorf("a restart begins as %v, want a known past and its own generations", s)
	}
	for _, c := range []struct{ what, dir string }{
		{"an older copy", older}, {"a wiped log", shortDir(t)}, {"the first log, after another", dir},
	} {
		what := c.what
		if s := life(c.dir); !s.UnknownPast || s.GenerationBase < first.GenerationBase {
			t.Errorf("%s begins as %v, want an unknown past and a generation base of at least %d", what, s, first.GenerationBase)
		} else if bytes.Equal(s.LogId, first.LogId) { // its sequences would come twice
			t.Errorf("%s goes on as log %x", what, s.LogId)
		}
	}
}

func get(t *testing.T, c *http.Client, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(testContext(t), http.MethodGet, "http://node"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func TestEventsAndViewsOverTheSocket(t *testing.T) {
	q := startPair(t, testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0"), 4096)
	q.open(91, 0, 1)
	ctx := context.Background()
	rooms, err := q.d.client.Rooms(ctx, connect.NewRequest(&enginepb.RoomsRequest{}))
	if err != nil || len(rooms.Msg.Rooms) != 1 || rooms.Msg.Rooms[0].RequestId != "req-91" || len(rooms.Msg.Rooms[0].Pairs) != 1 {
		t.Fatalf("rooms %v, %v", rooms, err)
	}
	pages, err := q.d.client.Pages(ctx, connect.NewRequest(&enginepb.PagesRequest{}))
	if err != nil || pages.Msg.Owned != 2 || pages.Msg.Free != testPages-2 || len(pages.Msg.Pages) != 2 {
		t.Fatalf("pages %v, %v", pages, err)
	}
	peers, err := q.d.client.Peers(ctx, connect.NewRequest(&enginepb.PeersRequest{}))
	if err != nil || len(peers.Msg.Peers) != 1 || peers.Msg.Peers[0].Fence != "reader_stopped" || !peers.Msg.Peers[0].Pdlog {
		t.Fatalf("peers %v, %v", peers, err)
	}
	evs, err := q.d.client.Events(ctx, connect.NewRequest(&enginepb.EventsRequest{FromSeq: 1, Limit: 2}))
	if err != nil || len(evs.Msg.Json) != 2 || evs.Msg.LastSeq != 2 || !strings.Contains(evs.Msg.Json[0], `"NodeStarted"`) {
		t.Fatalf("events %v, %v", evs, err)
	}
	frames, err := q.d.client.Events(ctx, connect.NewRequest(&enginepb.EventsRequest{FromSeq: 1, Frames: true}))
	if err != nil || frames.Msg.FirstSeq != 1 || len(frames.Msg.Frames) == 0 {
		t.Fatalf("frames %v, %v", frames, err)
	}
	fenced, err := q.d.client.Fence(ctx, connect.NewRequest(&enginepb.FenceRequest{Peer: "p0"}))
	if err != nil {
		t.Fatalf("fence: %v, %v", fenced, err)
	}
	for _, name := range []string{"copy.jsonl", "copy.db", "copy.db", "copy/"} { // a second one takes the first one's place
		back, err := q.d.client.Backup(ctx, connect.NewRequest(&enginepb.BackupRequest{Path: q.dc.DataDir + "/" + name}))
		if err != nil || back.Msg.DurableSeq < evs.Msg.LastSeq || back.Msg.Bytes == 0 {
			t.Fatalf("backup to %s: %v, %v", name, back, err)
		}
	}
	if _, err := q.d.client.Backup(ctx, connect.NewRequest(&enginepb.BackupRequest{Path: q.dc.DataDir + "/copy/"})); err == nil {
		t.Error("a backup over a folder that holds a log")
	}
	if info, err := store.StatDir(q.dc.DataDir + "/copy/log"); err != nil || info.LastSeq < evs.Msg.LastSeq || info.Node != "d0" {
		t.Errorf("the copied folder is %+v, %v", info, err)
	}
}
