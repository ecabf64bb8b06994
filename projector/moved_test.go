package projector

import (
	"slices"
	"testing"

	"github.com/pdlog/pdlog/events"
)

// An SGLang prefill that comes back with another port is another process. Its ACK
// frees nothing of what was published to the one before, and it is not asked; what
// is published to it from then on is its own (wire.md F12).
func TestAckOfAnotherProcessProvesNothing(t *testing.T) {
	for _, aborted := range []bool{false, true} { // before the prefill comes back
		c := DefaultConfig()
		c.Node, c.Role, c.Ranks = "d0", events.Role_ROLE_DECODE, []LocalRank{{Address: "10.0.0.1:5000"}}
		m, now := New(c), uint64(1000)
		var types []string
		step := func(c Command) (addresses []string) {
			now += 10
			r := m.Step(At(now), c)
			if r.Refused != nil {
				t.Fatalf("%T is refused: %v", c, r.Refused)
			}
			for _, e := range r.Events {
				types = append(types, e.TypeName())
			}
			for _, e := range r.Effects {
				switch a := e.Do.(type) {
				case SendAbort:
					addresses = append(addresses, a.Address)
				case SendMetadata:
					addresses = append(addresses, a.Address)
				}
			}
			return addresses
		}
		step(Start{Boot: 1, Incarnation: 1, LogID: make([]byte, 16), GenerationBase: 1})
		found := func(address string) PeerDiscovered {
			return PeerDiscovered{
				Node: "p", Form: events.AckForm_ACK_FORM_V2, Fence: events.FenceKind_FENCE_KIND_NONE, PageSize: 64,
				Ranks: []PeerRank{{Rank: "p/0", Address: address}},
			}
		}
		open := func(room uint64, page uint32) {
			step(OpenRoom{Room: room, Pages: []uint32{page}, Aux: -1, Pairs: []OpenPair{{Rank: "p/0", To: "d0/0"}}})
			step(PublishResult{RoomSeq: m.current(room).Seq, Rank: "p/0", To: "d0/0"})
		}
		step(found("10.0.0.2:1"))
		open(7, 3)
		if aborted {
			step(AbortRoom{Room: 7})
		}
		if sent := step(found("10.0.0.2:2")); slices.Contains(sent, "10.0.0.2:2") {
			t.Errorf("the new process is asked for the old one's writes: %v", sent)
		}
		r := m.current(7)
		if r.Outcome != OutcomeFailed || r.Gen == 0 {
			t.Fatalf("the room is %+v", r)
		}
		zero, gen := uint32(0), r.Gen
		step(WireAck{At: "d0/0", Room: 7, Rank: &zero, Generation: &gen})
		step(WireAck{At: "d0/0", Room: 7, Rank: &zero})
		step(FenceResult{RoomSeq: r.Seq, Lease: r.Pairs[0].Lease, Evidence: events.FenceKind_FENCE_KIND_NONE})
		if slices.Contains(types, "Released") || m.Page(3).State != "quarantined" {
			t.Errorf("aborted first %v: page 3 is %v after %v", aborted, m.Page(3), types)
		}
		open(8, 4)
		step(AbortRoom{Room: 8})
		gen = m.current(8).Gen
		step(WireAck{At: "d0/0", Room: 8, Rank: &zero, Generation: &gen})
		if m.Page(4).State != "free" || m.Page(3).State != "quarantined" {
			t.Errorf("page 4 is %v, page 3 %v", m.Page(4), m.Page(3))
		}
	}
}
