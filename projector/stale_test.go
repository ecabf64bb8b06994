package projector

import (
	"slices"
	"testing"

	"github.com/pdlog/pdlog/events"
)

// An ABORT with a lower generation than the endpoint has asked with changes
// nothing and is not answered, whether its room is still in the table or a receipt
// (F47).
func TestLowerGenerationIsStaleForAnEndedRoomToo(t *testing.T) {
	for _, cleared := range []bool{false, true} {
		c := DefaultConfig()
		c.Node, c.Role, c.Ranks = "p0", events.Role_ROLE_PREFILL, []LocalRank{{Address: "10.0.0.2:41001"}}
		m, now := New(c), uint64(1000)
		var answered []uint64
		step := func(c Command) {
			now += 10
			r := m.Step(At(now), c)
			if r.Refused != nil {
				t.Fatalf("%T is refused: %v", c, r.Refused)
			}
			for _, e := range r.Effects {
				if a, ok := e.Do.(SendAck); ok {
					answered = append(answered, *a.Generation)
				}
			}
		}
		abort := func(gen uint64) {
			step(WireAbort{At: "p0/0", Room: 7, Address: "10.0.0.1:5000", Generation: &gen})
		}
		step(Start{Boot: 1, Incarnation: 1, LogID: make([]byte, 16), GenerationBase: 1})
		step(WireRegister{At: "p0/0", Address: "10.0.0.1:5000", Session: "s:1"})
		step(AwaitRoom{Room: 7})
		step(WireMetadata{At: "p0/0", Room: 7, Address: "10.0.0.1:5000", Session: "s:1", Pages: []uint32{1}, Required: 1})
		abort(5)
		if cleared {
			step(ClearRoom{Room: 7})
		}
		for _, gen := range []uint64{4, 9, 5, 9} {
			abort(gen)
		}
		if want := []uint64{5, 9, 9}; !slices.Equal(answered, want) {
			t.Errorf("cleared %v: answered generations %v, want %v", cleared, answered, want)
		}
	}
}
