package projector

import (
	"testing"

	"github.com/pdlog/pdlog/events"
)

// A registration is on the log once for each memory that it describes, and a
// snapshot carries it.
func TestRegistrationOfOtherMemoryIsOnTheLog(t *testing.T) {
	cfg := Config{Node: "p", Role: events.Role_ROLE_PREFILL, Ranks: []LocalRank{{Address: "10.0.0.1:1"}}}
	m := New(cfg)
	m.Step(Instant{}, Start{Boot: 1, Incarnation: 1, LogID: make([]byte, 16)})
	memory := func(ptr uint64) *events.PeerMemory {
		return &events.PeerMemory{
			KvPtrs: []uint64{ptr, 8}, KvItemBytes: []uint64{64, 64}, AuxPtrs: []uint64{9}, TpSize: 2, TpRank: 1, KvLayers: []uint32{0, 1},
			State: []*events.StateMemory{{Ptrs: []uint64{5}, ItemBytes: []uint64{6}}}, StagingBase: 77, StagingBytes: 1 << 20, DcpSize: 1,
		}
	}
	log := New(cfg)
	told := func(mem *events.PeerMemory) int {
		n := 0
		for _, e := range m.Step(Instant{}, WireRegister{At: "p/0", Address: "10.0.0.2:5000", Session: "s", Memory: mem}).Events {
			if p := e.GetPeerRegistered(); p != nil {
				n++
				if !p.Memory.Same(mem) {
					t.Errorf("registered %v, on the log is %v", mem, p.Memory)
				}
			}
			log.Apply(e)
		}
		return n
	}
	for i, c := range []struct {
		ptr  uint64
		want int
	}{{7, 1}, {7, 0}, {1 << 40, 1}, {1 << 40, 0}} {
		if have := told(memory(c.ptr)); have != c.want {
			t.Errorf("registration %d: %d events, want %d", i, have, c.want)
		}
	}
	if told(nil) != 1 || told(nil) != 0 || told(memory(7)) != 1 {
		t.Error("memory that is not said is other memory")
	}
	again := New(cfg)
	if err := again.Restore(log.Snapshot()); err != nil {
		t.Fatal(err)
	}
	if have := again.st.Endpoints["10.0.0.2:5000"].Memory; !have.Same(memory(7)) {
		t.Errorf("after a snapshot: %v", have)
	}
}
