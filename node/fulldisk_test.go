package node

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"
	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/store"
	"github.com/pdlog/pdlog/store/disktest"
)

// until looks again and again, as long as patience lasts.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for end := time.After(patience); !is(); {
		select {
		case <-look.C:
		case <-end:
			t.Fatalf("never: %s", what)
		}
	}
}

// damaged are the logs of a node that were set aside.
func damaged(t *testing.T, cfg Config) []string {
	t.Helper()
	dirs, err := filepath.Glob(cfg.LogDir() + ".damaged-*")
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// The disk of a decode node fills up while a room is open: no room is opened any
// more, and the engine and /readyz are told why; the open room ends and its pages
// come free on what was set aside. With room again, rooms open again. When that
// space is gone too the log fails: engines are told, the node ends, and its next
// life has all that was acknowledged.
func TestFullDiskEndsOpenRoomsAndOpensNone(t *testing.T) {
	dc, pc := testConfig(t, "decode", "d0"), testConfig(t, "prefill", "p0")
	disk := disktest.Tmpfs(t, shortDir(t), 24<<20)
	room := disk.Leave(t, 2<<20)
	dc.DataDir, dc.Log.SegmentBytes = filepath.Join(disk.Dir, "d0"), 256<<10
	q := startPair(t, pc, dc, 4096)
	prepared := func() bool {
		st, err := os.Stat(filepath.Join(dc.LogDir(), "next.tmp"))
		return err == nil && st.Size() == dc.Log.SegmentBytes
	}
	until(t, "a segment is prepared ahead", prepared)
	q.open(1, 1)
	q.open(2, 2)
	free := disk.Leave(t, 0)

	open := func(room uint64) error {
		_, err := q.d.client.OpenReceive(testContext(t), connect.NewRequest(&enginepb.OpenReceiveRequest{Room: room, Pages: []uint32{3}, Prefill: "p0"}))
		return err
	}
	write := func(room uint64, page uint32) error { // something for the log, which also ends the room
		_, err := q.d.client.ReportPage(testContext(t), connect.NewRequest(&enginepb.ReportPageRequest{
			Room: room, Page: page, To: "d0/0", Detail: strings.Repeat("x", 1000),
		}))
		return err
	}
	abort := func(room uint64) {
		t.Helper()
		if _, err := q.d.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: room})); err != nil {
			t.Fatalf("abort of room %d: %v", room, err)
		}
		q.d.await(enginepb.Notice_KIND_RELEASED, room)
	}
	ready := func() bool { code, _ := get(t, q.d.http, "/readyz"); return code == http.StatusOK }
	for i := 0; ready(); i++ { // until the next segment is begun, and none can be prepared behind it
		if i > 1000 {
			t.Fatal("a full disk keeps the node ready for ever")
		}
		if err := write(1, 1); err != nil {
			t.Fatal(err)
		}
	}
	const why = "the log takes no new rooms: its volume is full"
	if _, body := get(t, q.d.http, "/readyz"); !strings.Contains(body, why) {
		t.Errorf("readyz: %s", body)
	}
	if err := open(3); err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("the engine is told %v", err)
	}
	abort(2) // in the space that was set aside
	if err := q.d.node.store.Err(); err != nil {
		t.Fatalf("the log: %v", err)
	}

	free()
	until(t, "the node takes rooms again", ready)
	if err := open(3); err != nil {
		t.Fatalf("with room on the disk: %v", err)
	}
	abort(3)
	until(t, "a segment is prepared again", prepared)

	disk.Leave(t, 0)
	acked := uint64(0)
	for write(1, 1) == nil {
		acked = q.d.node.store.Durable()
	}
	if n := q.d.await(enginepb.Notice_KIND_LOG_FAILED, 0); !strings.Contains(n.Reason, "no space left") {
		t.Errorf("engines are told %q", n.Reason)
	}
	<-q.d.node.Done()
	if err := q.d.node.Err(); !errors.Is(err, store.ErrPoisoned) || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("the node ended with %v", err)
	}
	q.d.stop()
	<-q.d.ended
	q.d.http.CloseIdleConnections()
	room()
	q.d.start(q.dc)
	if last := q.d.node.store.Durable(); last < acked || len(damaged(t, dc)) != 0 {
		t.Errorf("the next life goes on at %d, %d were acknowledged; set aside: %q", last, acked, damaged(t, dc))
	}
	until(t, "the next life opens a room", func() bool { return open(4) == nil }) // once it knows its prefill
}

// The file system under a decode node's log fails and becomes read-only while a
// room is open: engines are told, the node ends and says why, and its next life, on
// the disk mounted again, has all that was acknowledged and the room with it.
func TestBrokenDiskEndsTheNode(t *testing.T) {
	dc, pc := testConfig(t, "decode", "d0"), testConfig(t, "prefill", "p0")
	disk := disktest.Ext4(t, shortDir(t), 24<<20)
	dc.DataDir, dc.Log.SegmentBytes = filepath.Join(disk.Dir, "d0"), 256<<10
	q := startPair(t, pc, dc, 4096)
	q.open(1, 1)
	disk.Break(t)
	acked := uint64(0)
	for {
		_, err := q.d.client.ReportPage(testContext(t), connect.NewRequest(&enginepb.ReportPageRequest{
			Room: 1, Page: 1, To: "d0/0", Detail: strings.Repeat("x", 1000),
		}))
		if err != nil {
			break
		}
		acked = q.d.node.store.Durable()
	}
	if n := q.d.await(enginepb.Notice_KIND_LOG_FAILED, 0); n.Reason == "" {
		t.Error("engines are not told why")
	}
	<-q.d.node.Done()
	if err := q.d.node.Err(); !errors.Is(err, store.ErrPoisoned) || !errors.IsAny(err, unix.EROFS, unix.EIO) {
		t.Errorf("the node ended with %v", err)
	}
	q.d.stop()
	<-q.d.ended
	q.d.http.CloseIdleConnections()
	disk.Repair(t)
	q.d.start(q.dc)
	if last := q.d.node.store.Durable(); last < acked || len(damaged(t, dc)) != 0 {
		t.Errorf("the next life goes on at %d, %d were acknowledged; set aside: %q", last, acked, damaged(t, dc))
	}
	if _, err := q.d.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: 1})); err != nil {
		t.Error(err)
	}
	q.d.await(enginepb.Notice_KIND_RELEASED, 1)
}
