package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/node/enginepb"
)

func (q *pair) run(room uint64, pages []uint32) (aux uint32) {
	q.t.Helper()
	r := q.open(room, pages...)
	q.p.await(enginepb.Notice_KIND_READY, room)
	half := len(pages) / 2
	sources := []uint32{4, 5, 7, 8, 9, 10}[:len(pages)]
	q.chunk(room, 0, 0, sources[:half], false)
	q.chunk(room, 1, half, sources[half:], true)
	q.d.await(enginepb.Notice_KIND_SUCCEEDED, room)
	q.check(room, pages, r.Aux)
	return r.Aux
}

func (q *pair) finish(room uint64) *enginepb.Notice {
	q.t.Helper()
	if _, err := q.d.client.Finish(testContext(q.t), connect.NewRequest(&enginepb.RoomRequest{Room: room})); err != nil {
		q.t.Fatal(err)
	}
	return q.d.await(enginepb.Notice_KIND_RELEASED, room)
}

func TestRoomGoesFromOpenToReleased(t *testing.T) {
	for _, dialect := range []string{"mooncake", "nixl", "mori"} {
		t.Run(dialect, func(t *testing.T) {
			pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
			pc.Dialect, dc.Dialect = dialect, dialect
			q := startPair(t, pc, dc, 4096)
			pages := []uint32{2, 3, 9, 1}
			q.run(7, pages)
			n := q.finish(7)
			if n.Basis != "success" || n.Unsafe || len(n.Pages) != len(pages) {
				t.Fatalf("released with %v", n)
			}
			q.p.await(enginepb.Notice_KIND_SOURCE_RELEASED, 7)
			q.run(8, pages) // the same pages at once again
			q.finish(8)
		})
	}
}

func TestRanksShareThePage(t *testing.T) {
	for _, c := range []struct {
		name            string
		prefill, decode int
	}{{"2to1", 2, 1}, {"1to2", 1, 2}, {"2to2", 2, 2}} {
		t.Run(c.name, func(t *testing.T) {
			pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
			pc.Ranks, dc.Ranks = c.prefill, c.decode
			q := startPair(t, pc, dc, 4096)
			q.run(11, []uint32{0, 1, 2, 3, 5, 4})
			if n := q.finish(11); n.Basis != "success" {
				t.Fatalf("released with %v", n)
			}
		})
	}
}

func TestAbortInMidTransferIsAcknowledged(t *testing.T) {
	q := startPair(t, testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0"), 4096)
	q.open(21, 0, 1, 2, 3)
	q.p.await(enginepb.Notice_KIND_READY, 21)
	q.chunk(21, 0, 0, []uint32{4, 5}, false)
	q.d.awaitEvent("WriteLanded", 21, 0)
	if _, err := q.d.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: 21, Reason: "client went away"})); err != nil {
		t.Fatal(err)
	}
	if n := q.d.await(enginepb.Notice_KIND_FAILED, 21); n.Cause != "client" {
		t.Fatalf("failed with %v", n)
	}
	if n := q.d.await(enginepb.Notice_KIND_RELEASED, 21); n.Basis != "acks" || n.Unsafe {
		t.Fatalf("released with %v", n)
	}
	q.p.await(enginepb.Notice_KIND_FAILED, 21)
	q.p.await(enginepb.Notice_KIND_SOURCE_RELEASED, 21)
	q.run(22, []uint32{0, 1, 2, 3})
	q.finish(22)
}

func TestWriteThatHangsIsFencedAndTheNextRoomIsClean(t *testing.T) {
	pc := testConfig(t, "prefill", "p0")
	pc.RDMA.Fault = "hang:100%"
	q := startPair(t, pc, testConfig(t, "decode", "d0"), 4096)
	q.open(31, 0, 1)
	q.p.await(enginepb.Notice_KIND_READY, 31)
	q.chunk(31, 0, 0, []uint32{4, 5}, true)
	q.p.awaitEvent("ChunkPosted", 31, 0)
	if _, err := q.d.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: 31})); err != nil {
		t.Fatal(err)
	}
	if n := q.d.await(enginepb.Notice_KIND_RELEASED, 31); n.Basis != "fence" || n.Unsafe {
		t.Fatalf("released with %v", n)
	}
	q.d.awaitEvent("Fenced", 31, 0)
}

func TestLateWriteOfAFencedRoomIsRefused(t *testing.T) {
	pc := testConfig(t, "prefill", "p0")
	pc.RDMA.Fault = "late:1500ms:100%"
	q := startPair(t, pc, testConfig(t, "decode", "d0"), 4096)
	q.open(41, 0, 1)
	q.p.await(enginepb.Notice_KIND_READY, 41)
	q.chunk(41, 0, 0, []uint32{4, 5}, true)
	if _, err := q.d.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: 41})); err != nil {
		t.Fatal(err)
	}
	if n := q.d.await(enginepb.Notice_KIND_RELEASED, 41); n.Basis != "fence" {
		t.Fatalf("released with %v", n)
	}
	clear(q.d.bytesOf(0, 0))
	q.d.awaitEvent("LateWriteRejected", 41, 0)
	for i, b := range q.d.bytesOf(0, 0) {
		if b != 0 {
			t.Fatalf("byte %d of the released page is %d", i, b)
		}
	}
}

func TestRefusalsCarryTheirWord(t *testing.T) {
	q := startPair(t, testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0"), 4096)
	q.open(51, 0, 1)
	for _, c := range []struct {
		word string
		req  *enginepb.OpenReceiveRequest
	}{
		{"room_live", &enginepb.OpenReceiveRequest{Room: 51, Pages: []uint32{5}}},
		{"pages_busy", &enginepb.OpenReceiveRequest{Room: 52, Pages: []uint32{1}}},
		{"pages_busy", &enginepb.OpenReceiveRequest{Room: 52, Count: testPages}},
		{"bad_request", &enginepb.OpenReceiveRequest{Room: 52, Pages: []uint32{testPages}}},
		{"not_ready", &enginepb.OpenReceiveRequest{Room: 52, Pages: []uint32{5}, Prefill: "p9"}},
	} {
		_, err := q.d.client.OpenReceive(testContext(t), connect.NewRequest(c.req))
		if have := refusalWord(err); have != c.word {
			t.Errorf("%v: refused with %q (%v), want %q", c.req, have, err, c.word)
		}
	}
	r, err := q.d.client.OpenReceive(testContext(t), connect.NewRequest(&enginepb.OpenReceiveRequest{Room: 53, Count: 3}))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Msg.Pages) != 3 || r.Msg.Pages[0] != 2 {
		t.Fatalf("the node chose %v", r.Msg.Pages)
	}
}

func refusalWord(err error) string {
	var e *connect.Error
	if !errors.As(err, &e) {
		return ""
	}
	for _, d := range e.Details() {
		v, err := d.Value()
		if err != nil {
			continue
		}
		if r, ok := v.(*enginepb.Refusal); ok {
			return r.Word
		}
	}
	return ""
}

func TestGracefulStopEndsTheLogCleanly(t *testing.T) {
	q := startPair(t, testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0"), 4096)
	q.open(61, 0, 1)
	q.p.await(enginepb.Notice_KIND_READY, 61)
	if err := q.d.node.Stop(testContext(t), 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	q.d.await(enginepb.Notice_KIND_STOPPING, 0)
	q.d.close()
	q.d.start(q.dc)
	text := q.d.events()
	if !strings.Contains(text, "NodeStopped") || !strings.Contains(text, `"clean_stop":1`) {
		t.Fatalf("no clean stop in the log:\n%s", text)
	}
}
