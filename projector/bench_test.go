package projector

import (
	"testing"

	"github.com/pdlog/pdlog/events"
)

// BenchmarkAbortAck is one room's open, publish, abort, ACK and release on a
// decode node: five commands, some twelve events.
func BenchmarkAbortAck(b *testing.B) {
	cfg := decodeConfig(events.Policy_POLICY_FENCE)
	cfg.Pages = 64
	m := New(cfg)
	logID := make([]byte, 16)
	logID[0] = 1
	m.Step(At(t0), Start{Boot: 7, Incarnation: 1, LogID: logID})
	m.Step(At(t0), PeerDiscovered{
		Node: "p", PDLog: true, Boot: 1, Incarnation: 1, LogID: logID, Fence: events.FenceKind_FENCE_KIND_READER_STOPPED, Form: events.AckForm_ACK_FORM_V3,
		PageSize: 64, Ranks: []PeerRank{{Rank: "p/0", Address: "10.0.0.1:5000"}},
	})
	pages := []uint32{1, 2, 3, 4}
	rank := uint32(0)
	b.ReportAllocs()
	n := uint64(0)
	for b.Loop() {
		n++
		now := At(t0 + n/100)
		r := m.Step(now, OpenRoom{Room: n, Pages: pages, Aux: -1, Pairs: []OpenPair{{Rank: "p/0", To: "d/0"}}})
		if r.Refused != nil {
			b.Fatal(r.Refused)
		}
		m.Step(now, PublishResult{RoomSeq: r.RoomSeq, Rank: "p/0", To: "d/0"})
		m.Step(now, AbortRoom{Room: n})
		gen := m.st.LastGen
		m.Step(now, WireAck{At: "d/0", Room: n, Rank: &rank, Generation: &gen, Ext: &Ext{
			Node: "p", Boot: 1, Incarnation: 1, RoomSeq: r.RoomSeq, Proof: events.Proof_PROOF_DRAINED, LogID: logID,
		}})
	}
	if left := m.Rooms(); left != 0 {
		b.Fatalf("%d rooms are left", left)
	}
}
