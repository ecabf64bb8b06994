package projector

import (
	"slices"
	"testing"

	"github.com/pdlog/pdlog/events"
)

// stagingPrefill is a prefill node of two ranks whose rank 0 has the metadata of
// room 5 from a decode rank of another TP size with a ring of 64 bytes.
func stagingPrefill(t *testing.T) *Machine {
	t.Helper()
	m := startedNode(t, prefillConfig())
	x := &Ext{Node: "d", Boot: 3, Incarnation: 1, RoomSeq: 8, LogID: make([]byte, 16), Keys: []*events.WriteKey{{Kind: 1}, {Kind: writeKeyStaging}}}
	m.Step(At(t0), WireRegister{At: "p/0", Address: "10.0.0.2:5000", Session: "s", Ext: x, Memory: &events.PeerMemory{
		KvPtrs: []uint64{0}, KvItemBytes: []uint64{16}, TpSize: 1, StagingBytes: 64,
	}})
	row := uint32(0)
	m.Step(At(t0), WireMetadata{At: "p/0", Room: 5, Address: "10.0.0.2:5000", Session: "s", Pages: []uint32{7, 8, 9}, Aux: &row, Required: 1, Ext: x})
	return m
}

// did lists what a step asks for, by kind of interest.
func did(res Result) (posts []PostWrite, asks []SendStagingReq, readys []SendChunkReady) {
	for _, e := range res.Effects {
		switch a := e.Do.(type) {
		case PostWrite:
			posts = append(posts, a)
		case SendStagingReq:
			asks = append(asks, a)
		case SendChunkReady:
			readys = append(readys, a)
		}
	}
	return posts, asks, readys
}

func staging(room uint64, first, n uint32) SendChunk {
	return SendChunk{Room: room, Rank: "p/0", First: first, Count: n, SourcePages: []uint32{1, 2, 3}[:n], Last: true}
}

// A staged chunk is asked for once, posted when the ring has answered and its
// space is free, and told when it has landed.
func TestStagedChunkWaitsForAnswerAndWatermark(t *testing.T) {
	m := stagingPrefill(t)
	posts, asks, _ := did(m.Step(At(t0), staging(5, 1, 2)))
	if len(posts) != 0 || !slices.Equal(asks, []SendStagingReq{{Room: 5, Address: "10.0.0.2:5000", Session: "s", Chunk: 1, Pages: 2}}) {
		t.Fatalf("posted %v, asked %v", posts, asks)
	}
	for _, c := range []struct {
		name string
		cmd  Command
	}{
		{"another chunk's answer", WireStagingRsp{At: "p/0", Room: 5, Chunk: 0, Session: "s", End: 32}},
		{"another room's", WireStagingRsp{At: "p/0", Room: 6, Chunk: 1, Session: "s", End: 32}},
		{"a stranger's", WireStagingRsp{At: "p/0", Room: 5, Chunk: 1, Session: "x", End: 32}},
		{"outside the ring", WireStagingRsp{At: "p/0", Room: 5, Chunk: 1, Session: "s", Offset: 33, End: 65}},
		{"its answer", WireStagingRsp{At: "p/0", Room: 5, Chunk: 1, Session: "s", Offset: 16, Round: 2, End: 48}},
		{"another answer", WireStagingRsp{At: "p/0", Room: 5, Chunk: 1, Session: "s", End: 32}},
		{"a stranger's mark", WireWatermark{At: "p/0", Session: "x", Round: 9}},
		{"a mark below", WireWatermark{At: "p/0", Session: "s", Round: 1, Tail: 47}},
	} {
		if posts, asks, _ := did(m.Step(At(t0), c.cmd)); len(posts)+len(asks) != 0 {
			t.Fatalf("%s: posted %v, asked %v", c.name, posts, asks)
		}
	}
}

func TestStagedChunkIsPostedAndTold(t *testing.T) {
	m := stagingPrefill(t)
	m.Step(At(t0), staging(5, 1, 2))
	m.Step(At(t0), WireStagingRsp{At: "p/0", Room: 5, Chunk: 1, Session: "s", Offset: 16, Round: 2, End: 48})
	if posts, _, _ := did(m.Step(At(t0), WireWatermark{At: "p/0", Session: "s", Round: 1, Tail: 47})); len(posts) != 0 {
		t.Fatalf("posted over what is not free: %v", posts)
	}
	posts, _, _ := did(m.Step(At(t0), WireWatermark{At: "p/0", Session: "s", Round: 1, Tail: 48}))
	if len(posts) != 1 || !posts[0].Staged || posts[0].StagingAt != 16 || !slices.Equal(posts[0].Pages, []uint32{8, 9}) || !slices.Equal(posts[0].SourcePages, []uint32{1, 2}) {
		t.Fatalf("posted %+v", posts)
	}
	res := m.Step(At(t0), WriteDone{Token: posts[0].Token, Outcome: WriteCompleted})
	told := 0
	for i, e := range res.Effects {
		switch a := e.Do.(type) {
		case SendChunkReady:
			told = i + 1
			if a != (SendChunkReady{Room: 5, Address: "10.0.0.2:5000", Session: "s", Chunk: 1, First: 1, Pages: 2}) {
				t.Errorf("told %+v", a)
			}
		case SendStatus:
			if told == 0 || !a.Success {
				t.Errorf("status %+v goes ahead of CHUNK_READY", a)
			}
		}
	}
	if told == 0 {
		t.Fatal("decode is not told that the chunk is in its ring")
	}
	// A mark never goes back: what was free stays free.
	m.Step(At(t0), WireWatermark{At: "p/0", Session: "s", Round: 0, Tail: 1})
	if w := m.marks[stagingRing{"p/0", "s"}]; w != (mark{1, 48}) {
		t.Errorf("the mark went back to %+v", w)
	}
}

// A ring that will never have place, or gave less than is needed, is gone past;
// an aborted room is not written for any more.
func TestStagedChunkThatCannotBe(t *testing.T) {
	for name, c := range map[string]WireStagingRsp{
		"never":      {At: "p/0", Room: 5, Chunk: 1, Session: "s", Never: true},
		"too little": {At: "p/0", Room: 5, Chunk: 1, Session: "s", Offset: 0, End: 31},
	} {
		m := stagingPrefill(t)
		m.Step(At(t0), staging(5, 1, 2))
		if posts, _, _ := did(m.Step(At(t0), c)); len(posts) != 1 || posts[0].Staged {
			t.Errorf("%s: posted %+v", name, posts)
		}
	}
	m := stagingPrefill(t)
	m.Step(At(t0), staging(5, 1, 2))
	gen := uint64(4)
	m.Step(At(t0), WireAbort{At: "p/0", Room: 5, Address: "10.0.0.2:5000", Generation: &gen})
	if posts, _, _ := did(m.Step(At(t0), WireStagingRsp{At: "p/0", Room: 5, Chunk: 1, Session: "s", End: 32})); len(posts) != 0 || len(m.staging) != 0 {
		t.Errorf("posted after the abort: %+v", posts)
	}
}
