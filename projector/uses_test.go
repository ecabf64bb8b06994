package projector

import (
	"testing"

	"github.com/pdlog/pdlog/events"
)

// The ABORT of an SGLang rank names no use of its room number. The engine has
// opened the number again while the write of the use before is still under way:
// nothing is answered before that has ended (I1).
func TestAbortWithoutAUseWaitsForAllOfThem(t *testing.T) {
	for _, cleared := range []bool{false, true} {
		m := prefillWith(t, Start{Boot: 7, Incarnation: 1, LogID: make([]byte, 16)})
		step := func(c Command) Result {
			t.Helper()
			res := m.Step(At(t0), c)
			if res.Refused != nil {
				t.Fatalf("%T: %v", c, res.Refused)
			}
			return res
		}
		step(WireRegister{At: "p/0", Address: "10.0.0.3:5000", Session: "s"})
		step(WireMetadata{At: "p/0", Room: 5, Address: "10.0.0.3:5000", Pages: []uint32{1}, Required: 1})
		var token uint64
		for _, do := range step(SendChunk{Room: 5, Rank: "p/0", Count: 1, SourcePages: []uint32{3}, Last: true}).Effects {
			if w, ok := do.Do.(PostWrite); ok {
				token = w.Token
			}
		}
		if token == 0 {
			t.Fatal("nothing was posted: this test says nothing")
		}
		step(AbortRoom{Room: 5})
		if cleared {
			step(ClearRoom{Room: 5})
		}
		step(AwaitRoom{Room: 5, Ranks: []RankID{"p/0"}})
		gen := uint64(9)
		abort := WireAbort{At: "p/0", Room: 5, Address: "10.0.0.3:5000", Generation: &gen}
		for _, when := range []string{"the first", "its repeat"} {
			if p := proofs(step(abort)); len(p) != 0 {
				t.Errorf("cleared %v: %s is answered %v with a write under way", cleared, when, p)
			}
		}
		if p := proofs(step(WriteDone{Token: token, Outcome: WriteCompleted})); len(p) != 1 || p[0] != events.Proof_PROOF_DRAINED {
			t.Errorf("cleared %v: at the end of the write it is answered %v, want drained", cleared, p)
		}
		if p := proofs(step(abort)); len(p) != 1 || p[0] != events.Proof_PROOF_DRAINED {
			t.Errorf("cleared %v: a repeat after that is answered %v, want drained", cleared, p)
		}
	}
}
