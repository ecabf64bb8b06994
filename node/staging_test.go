package node

import (
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/node/enginepb"
)

// Chunks of a prefill with another TP size go through decode's staging ring and
// are copied into the room's pages; the ring is far smaller than what goes
// through it, so each part of it is handed out again and again (wire.md 1.7).
func TestStagedRoomsShareASmallRing(t *testing.T) {
	for _, c := range []struct {
		dialect         string
		prefill, decode int
	}{{"mooncake", 2, 1}, {"nixl", 2, 1}, {"mooncake", 1, 2}} {
		t.Run(c.dialect, func(t *testing.T) {
			pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
			pc.Dialect, dc.Dialect = c.dialect, c.dialect
			pc.Ranks, dc.Ranks = c.prefill, c.decode
			q := startPairWithRing(t, pc, dc, 4096, 7*4096)
			for room := uint64(1); room <= 5; room++ {
				q.run(room, []uint32{0, 1, 2, 3, 5, 4})
				if n := q.finish(room); n.Basis != "success" {
					t.Fatalf("room %d released with %v", room, n)
				}
			}
			if have, want := q.d.count("LocalCopyEnded"), 5*2*c.decode; have != want {
				t.Errorf("%d copies out of the ring, want %d\n%s", have, want, q.d.events())
			}
			if have, want := q.d.count("StagingAllocated"), 5*2*c.decode; have != want {
				t.Errorf("%d parts of the ring, want %d", have, want)
			}
		})
	}
}

// A chunk larger than the ring is written into its pages; so is everything of
// ranks that run the same TP size.
func TestWhatDoesNotFitTheRingGoesPastIt(t *testing.T) {
	for _, c := range []struct {
		name    string
		prefill int
		ring    int
		asked   bool
	}{{"too large", 2, 2 * 4096, true}, {"same TP size", 1, 64 * 4096, false}} {
		t.Run(c.name, func(t *testing.T) {
			pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
			pc.Ranks = c.prefill
			q := startPairWithRing(t, pc, dc, 4096, c.ring)
			q.run(1, []uint32{0, 1, 2, 3, 5, 4})
			q.finish(1)
			if q.d.count("StagingAllocated") != 0 || q.p.count("StagingAsked") > 0 != c.asked {
				t.Errorf("%d parts given out, asked for %d\n%s", q.d.count("StagingAllocated"), q.p.count("StagingAsked"), q.p.events())
			}
		})
	}
}

// A chunk that waits for the ring is posted when another room's release has made
// place for it.
func TestChunkWaitsForPlaceInTheRing(t *testing.T) {
	pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
	pc.Ranks = 2
	q := startPairWithRing(t, pc, dc, 4096, 6*4096)
	first := []uint32{0, 1, 2, 3, 5, 4}
	q.run(1, first) // holds all of the ring
	second := []uint32{6, 7}
	r := q.open(2, second...)
	q.p.await(enginepb.Notice_KIND_READY, 2)
	q.chunk(2, 0, 0, []uint32{4, 5}, true)
	q.p.awaitEvent("StagingAsked", 2, 0)
	s := newStranger(t, q.d.node.addresses[0])
	s.dialect = "mooncake"
	s.send(&backends.ChunkReady{Room: 2, NumPages: 2, WriterID: q.d.node.addresses[0]}) // of a chunk that has no place yet
	q.d.awaitEvent("MessageRejected", 0, 0)
	if n := q.p.count("StagingAnswered"); n != 2*2 {
		t.Fatalf("%d answers, want those of room 1 alone\n%s", n, q.p.events())
	}
	q.finish(1)
	q.d.await(enginepb.Notice_KIND_SUCCEEDED, 2)
	q.check(2, second, r.Aux)
	q.finish(2)
}

// After an abort no copy out of the ring begins, whatever CHUNK_READY comes, and
// the ring comes back with the release.
func TestNoScatterAfterTheAbort(t *testing.T) {
	pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
	pc.Ranks = 2
	pc.RDMA.Fault = "hang:100%"
	q := startPairWithRing(t, pc, dc, 4096, 4*4096)
	q.open(1, 0, 1, 2, 3)
	q.p.await(enginepb.Notice_KIND_READY, 1)
	q.chunk(1, 0, 0, []uint32{4, 5, 6, 7}, true)
	q.p.awaitEvent("ChunkPosted", 1, 0)
	if _, err := q.d.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: 1})); err != nil {
		t.Fatal(err)
	}
	q.d.await(enginepb.Notice_KIND_FAILED, 1)
	s := newStranger(t, q.d.node.addresses[0])
	s.dialect = "mooncake"
	for rank := range int32(2) {
		s.send(&backends.ChunkReady{Room: 1, NumPages: 4, WriterID: q.d.node.addresses[0], PrefillRank: rank})
	}
	q.d.awaitEvent("MessageRejected", 0, 0)
	if n := q.d.await(enginepb.Notice_KIND_RELEASED, 1); n.Basis != "fence" {
		t.Fatalf("released with %v", n)
	}
	if n := q.d.count("LocalCopyStarted"); n != 0 {
		t.Fatalf("%d copies of an aborted room\n%s", n, q.d.events())
	}
}

func TestStagingIsRefusedWhereItCannotBe(t *testing.T) {
	mori, decode := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
	mori.Dialect, mori.RDMA.Staging, decode.RDMA.Staging = "mori", true, true
	for name, c := range map[string]Config{"mori": mori, "decode": decode} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "rdma.staging") {
			t.Errorf("%s: %v", name, err)
		}
	}
	l := layout{pageBytes: 100, pages: 10, auxRows: 2, auxBytes: 10, stagingBytes: 100}
	if err := l.check(); err != nil || l.stagingOffset != 1020 {
		t.Errorf("a ring behind the aux rows: at %d, %v", l.stagingOffset, err)
	}
	for _, at := range []uint64{1, 999, 1019, maxBuffer + 1} {
		m := layout{pageBytes: 100, pages: 10, auxRows: 2, auxBytes: 10, stagingBytes: 100, stagingOffset: at}
		if err := m.check(); err == nil {
			t.Errorf("a ring at %d is taken", at)
		}
	}
	q := startPair(t, testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0"), 4096)
	_, err := q.p.client.RegisterMemory(testContext(t), connect.NewRequest(&enginepb.RegisterMemoryRequest{
		Path: "/dev/zero", PageBytes: 4096, Pages: testPages, AuxBytes: auxBytes, AuxRows: testAux, StagingBytes: 4096,
	}))
	var ce *connect.Error
	if !errors.As(err, &ce) || !strings.Contains(err.Error(), "staging ring") {
		t.Errorf("a ring on prefill: %v", err)
	}
}
