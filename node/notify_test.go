package node

import (
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/node/enginepb"
)

// notify hands over what decode's transfer agent was told.
func (q *pair) notify(texts ...string) *enginepb.NotifyResponse {
	q.t.Helper()
	m := &enginepb.NotifyRequest{}
	for _, s := range texts {
		m.Notifications = append(m.Notifications, []byte(s))
	}
	r, err := q.d.client.Notify(testContext(q.t), connect.NewRequest(m))
	if err != nil {
		q.t.Fatal(err)
	}
	return r.Msg
}

// Between NIXL ranks that are no pdlog nodes to each other the engines move the
// bytes, and success travels beside them: the texts that prefill's engine is
// given to send are those that decode's engine hands to its node.
func TestSuccessTravelsBesideTheData(t *testing.T) {
	pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
	pc.Dialect, dc.Dialect = "nixl", "nixl"
	pc.Extension, pc.RDMA.EngineWrites = false, true
	q := startPair(t, pc, dc, 4096)
	q.prefill = q.p.node.Bootstrap()
	const room = 7
	pages := []uint32{2, 3, 9, 1}
	aux := q.open(room, pages...).Aux
	q.p.await(enginepb.Notice_KIND_READY, room)
	q.chunk(room, 0, 0, []uint32{4, 5}, false)
	q.chunk(room, 1, 2, []uint32{7, 8}, true)
	var texts []string
	for range 2 {
		w := q.p.await(enginepb.Notice_KIND_WRITE, room).Write
		for i, dst := range w.Pages {
			copy(q.d.bytesOf(0, dst), q.p.bytesOf(0, w.SourcePages[i]))
		}
		if w.Last {
			copy(q.d.auxOf(0, *w.Aux), q.p.auxOf(0, w.SourceAux))
		}
		if err := q.p.writeDone(w.Token, enginepb.WriteDoneRequest_OUTCOME_COMPLETED); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, w.Notifications...)
	}
	if have := strings.Join(texts, " "); have != "7_kv_0_0_0 7_kv_1_1_0 7_aux" {
		t.Fatalf("notifications %q", have)
	}
	q.p.await(enginepb.Notice_KIND_SUCCEEDED, room)
	if r := q.notify("7_kv_x_1_0", "8_aux", "8_kv_0_1_0"); r.Malformed != 1 {
		t.Fatalf("%v", r)
	}
	if n := q.d.count("StatusReceived"); n != 0 {
		t.Fatalf("decode was told %d statuses", n)
	}
	q.notify(texts...)
	q.d.await(enginepb.Notice_KIND_SUCCEEDED, room)
	q.check(room, pages, aux)
	if n := q.finish(room); n.Basis != "success" || n.Unsafe {
		t.Fatalf("released with %v", n)
	}
	if n := q.d.count("MessageRejected"); n != 2 { // malformed; of unknown rooms, told together
		t.Fatalf("%d rejected", n)
	}
}

// What comes to a node that has no such messages, or from a rank that is not
// its own, is refused or recorded.
func TestNotifyWhereItDoesNotBelong(t *testing.T) {
	q := startPair(t, testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0"), 4096)
	if r := q.notify("7_aux"); r.Malformed != 1 {
		t.Fatalf("mooncake takes %v", r)
	}
	bad := connect.NewRequest(&enginepb.NotifyRequest{Rank: 1})
	if _, err := q.d.client.Notify(testContext(t), bad); refusalWord(err) != "bad_request" {
		t.Fatalf("rank 1 of 1: %v", err)
	}
	if _, err := q.p.client.Notify(testContext(t), connect.NewRequest(&enginepb.NotifyRequest{})); refusalWord(err) != "bad_request" {
		t.Fatalf("a prefill node: %v", err)
	}
}
