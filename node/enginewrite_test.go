package node

import (
	"slices"
	"testing"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
)

// startForeignPair is a pair whose decode is an SGLang rank to the prefill: it
// gives no keys of ours.
func startForeignPair(t *testing.T, engineWrites bool) *pair {
	t.Helper()
	pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
	dc.Extension, pc.RDMA.EngineWrites = false, engineWrites
	q := startPair(t, pc, dc, 4096)
	q.prefill = q.d.peerView().Node
	return q
}

func (s *side) writeDone(token uint64, o enginepb.WriteDoneRequest_Outcome) error {
	_, err := s.client.WriteDone(testContext(s.t), connect.NewRequest(&enginepb.WriteDoneRequest{Token: token, Outcome: o}))
	return err
}

// The engine moves the bytes to a rank that has no key of ours; the node says
// success when the engine says that they are there.
func TestEngineWritesToARankWithoutKeys(t *testing.T) {
	q := startForeignPair(t, true)
	r := q.open(7, 2, 3, 9)
	q.p.await(enginepb.Notice_KIND_READY, 7)
	q.chunk(7, 0, 0, []uint32{4, 5}, false)
	q.chunk(7, 1, 2, []uint32{6}, true)
	var tokens []uint64
	for i, pages := range [][]uint32{{2, 3}, {9}} {
		w := q.p.await(enginepb.Notice_KIND_WRITE, 7).Write
		if w.Address != q.d.node.addresses[0] || w.Session != w.Address || w.Chunk != uint32(i) || !slices.Equal(w.Pages, pages) {
			t.Fatalf("write %d is %v", i, w)
		}
		if last := i == 1; w.Last != last || (w.Aux != nil) != last || last && (*w.Aux != r.Aux || w.SourceAux != 3) {
			t.Fatalf("write %d is %v", i, w)
		}
		tokens = append(tokens, w.Token)
	}
	d, err := q.p.client.Destination(testContext(t), connect.NewRequest(&enginepb.DestinationRequest{Address: q.d.node.addresses[0]}))
	if err != nil || len(d.Msg.Frames) != 20 || string(d.Msg.Frames[0]) != "None" {
		t.Fatalf("the registration is %q (%v)", d, err)
	}
	q.p.stop() // another stream is told what is open
	<-q.p.ended
	q.p.watch()
	for _, token := range tokens {
		if n := q.p.await(enginepb.Notice_KIND_WRITE, 7); n.Write.Token != token || !n.Resumed {
			t.Fatalf("told again %v", n)
		}
		if err := q.p.writeDone(token, enginepb.WriteDoneRequest_OUTCOME_COMPLETED); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.p.writeDone(tokens[0], enginepb.WriteDoneRequest_OUTCOME_COMPLETED); refusalWord(err) != "bad_request" {
		t.Fatalf("a second end is answered %v", err)
	}
	q.d.await(enginepb.Notice_KIND_SUCCEEDED, 7)
	q.finish(7)
}

// An engine's error is no end of its write: no ACK leaves before the library
// has proved one (F1 to F3).
func TestEngineErrorIsNoDrain(t *testing.T) {
	q := startForeignPair(t, true)
	q.open(8, 0, 1)
	q.p.await(enginepb.Notice_KIND_READY, 8)
	q.chunk(8, 0, 0, []uint32{4, 5}, true)
	token := q.p.await(enginepb.Notice_KIND_WRITE, 8).Write.Token
	if err := q.p.writeDone(token, enginepb.WriteDoneRequest_OUTCOME_UNCERTAIN); err != nil {
		t.Fatal(err)
	}
	q.d.await(enginepb.Notice_KIND_FAILED, 8)
	q.p.awaitEvent("AckTargetHeld", 8, 0)
	if n := q.p.count("AckSent"); n != 0 {
		t.Fatalf("%d ACKs before the write has ended", n)
	}
	if err := q.p.writeDone(token, enginepb.WriteDoneRequest_OUTCOME_FAILED); err != nil {
		t.Fatal(err)
	}
	if n := q.d.await(enginepb.Notice_KIND_RELEASED, 8); n.Basis != "acks" {
		t.Fatalf("released with %v", n)
	}
	q.p.await(enginepb.Notice_KIND_SOURCE_RELEASED, 8)
}

// A room number is used again while the last write of its earlier use is still
// open: the end of that leaves the later use its own aux row.
func TestAuxRowIsOfOneUseOfTheNumber(t *testing.T) {
	pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
	dc.Extension, pc.RDMA.EngineWrites = false, true
	dc.AckTimeout, dc.AbortRetry = patience, patience // an ABORT again, which names no use, would end the later one
	q := startPair(t, pc, dc, 4096)
	q.prefill = q.d.peerView().Node
	send := func(row uint32) {
		if _, err := q.p.client.SendChunk(testContext(t), connect.NewRequest(&enginepb.SendChunkRequest{
			Room: 7, Count: 2, SourcePages: []uint32{4, 5}, SourceAux: row, Last: true,
		})); err != nil {
			t.Fatal(err)
		}
	}
	q.open(7, 0, 1)
	q.p.await(enginepb.Notice_KIND_READY, 7)
	send(3)
	first := q.p.await(enginepb.Notice_KIND_WRITE, 7).Write
	if first.SourceAux != 3 {
		t.Fatalf("the first write is %v", first)
	}
	if _, err := q.p.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: 7})); err != nil {
		t.Fatal(err)
	}
	q.p.awaitEvent("AbortReceived", 7, 0)
	if _, err := q.p.client.Clear(testContext(t), connect.NewRequest(&enginepb.RoomRequest{Room: 7})); err != nil {
		t.Fatal(err)
	}
	q.openSend(7)
	send(2) // waits for its metadata
	if err := q.p.writeDone(first.Token, enginepb.WriteDoneRequest_OUTCOME_COMPLETED); err != nil {
		t.Fatal(err)
	}
	q.p.await(enginepb.Notice_KIND_SOURCE_RELEASED, 7)
	q.d.await(enginepb.Notice_KIND_RELEASED, 7)
	q.open(7, 2, 3)
	second := q.p.await(enginepb.Notice_KIND_WRITE, 7).Write
	if second.Token == first.Token || second.SourceAux != 2 {
		t.Fatalf("the second write is %v, want row 2", second)
	}
	if err := q.p.writeDone(second.Token, enginepb.WriteDoneRequest_OUTCOME_COMPLETED); err != nil {
		t.Fatal(err)
	}
	q.d.await(enginepb.Notice_KIND_SUCCEEDED, 7)
}

// An aux row alone is owed too: with no key and no engine it is no success.
func TestAnAuxRowNeedsAKeyToo(t *testing.T) {
	p := newPostPlane(newMemoryTable(1), newShapes(TopologyConfig{TPSize: 1, PPSize: 1}), nil, nil)
	p.memory.ranks[0] = &rankMemory{layout: layout{pageBytes: 64, pages: 1, auxBytes: 8, auxRows: 1}}
	aux := uint32(0)
	if _, err := p.prepare(&projector.PostWrite{Rank: "p0/0", Last: true, Aux: &aux}); err == nil {
		t.Fatal("a row that nobody writes is taken as sent")
	}
}

// Without the switch, and without an engine to ask, a chunk for such a rank
// fails its room at once.
func TestNobodyWritesToARankWithoutKeys(t *testing.T) {
	for _, asked := range []bool{false, true} {
		q := startForeignPair(t, asked)
		q.open(9, 0, 1)
		q.p.await(enginepb.Notice_KIND_READY, 9)
		if asked {
			q.p.stop()
			<-q.p.ended
			for q.p.counters()["watchers"] > 0 { //nolint:revive // the node notices that the stream has ended
			}
		}
		q.chunk(9, 0, 0, []uint32{4, 5}, true)
		if n := q.d.await(enginepb.Notice_KIND_FAILED, 9); n.Cause != "peer_failed" {
			t.Fatalf("failed with %v", n)
		}
		if n := q.d.await(enginepb.Notice_KIND_RELEASED, 9); n.Basis != "acks" {
			t.Fatalf("released with %v", n)
		}
	}
}
