package projector

import (
	"testing"

	"github.com/pdlog/pdlog/events"
)

// armedRoom is a decode node whose room 7, open to two ranks of an SGLang
// prefill, was aborted; gen is its generation.
func armedRoom(t *testing.T) (m *Machine, r *Room, gen uint64) {
	t.Helper()
	m = notifiedRoom(t)
	m.Step(At(t0+3), AbortRoom{Room: 7})
	r = m.current(7)
	return m, r, r.Gen
}

func ackOf(room uint64, at RankID, rank uint32, gen uint64) WireAck {
	return WireAck{At: at, Room: room, Rank: &rank, Generation: &gen}
}

// An ACK counts for the generation that is armed, from a rank that is expected,
// at the decode rank that asked: of a peer that sends nothing but the plain
// frames that is all there is to hold it to (F10, F42).
func TestAckCountsForItsGenerationRankAndEndpointAlone(t *testing.T) {
	m, r, gen := armedRoom(t)
	for name, c := range map[string]struct {
		ack WireAck
		why events.NotCounted
	}{
		"a generation before": {ackOf(7, "d/0", 0, gen-1), events.NotCounted_NOT_COUNTED_STALE_GENERATION},
		"a generation behind": {ackOf(7, "d/0", 0, gen+1), events.NotCounted_NOT_COUNTED_STALE_GENERATION},
		"a rank not expected": {ackOf(7, "d/0", 9, gen), events.NotCounted_NOT_COUNTED_UNEXPECTED_RANK},
		"another decode rank": {ackOf(7, "d/1", 0, gen), events.NotCounted_NOT_COUNTED_UNEXPECTED_RANK},
	} {
		res := m.Step(At(t0+4), c.ack)
		if len(res.Events) != 1 || res.Events[0].GetAckReceived().GetCounted() || res.Events[0].GetAckReceived().GetWhy() != c.why {
			t.Errorf("%s: %v", name, res.Events)
		}
		if n := len(m.missing(r)); n != 2 {
			t.Errorf("%s: %d of 2 ranks are missing", name, n)
		}
	}
	m.Step(At(t0+5), ackOf(7, "d/0", 0, gen))
	m.Step(At(t0+5), ackOf(7, "d/0", 1, gen))
	if m.current(7) != nil {
		t.Error("both ranks have acknowledged, and the room is held")
	}
}

// A late ACK creates no state: not of a room that was released, not of one that
// was never open (F40).
func TestLateAckCreatesNothing(t *testing.T) {
	m, r, gen := armedRoom(t)
	m.Step(At(t0+5), ackOf(7, "d/0", 0, gen))
	m.Step(At(t0+5), ackOf(7, "d/0", 1, gen))
	rooms, known, unsafe := len(m.st.Rooms), m.st.Known.Len(), len(m.st.Unsafe)
	for range 3 {
		m.Step(At(t0+6), ackOf(7, "d/0", 1, gen))
		m.Step(At(t0+6), ackOf(7, "d/0", 1, gen+9))
		m.Step(At(t0+6), ackOf(8, "d/0", 1, gen))
	}
	if len(m.st.Rooms) != rooms || m.st.Known.Len() != known || len(m.st.Unsafe) != unsafe || rooms != 0 || m.st.Known.find(8) != nil {
		t.Errorf("%d rooms, %d known, %d unsafe after late ACKs of room_seq %d; before %d, %d, %d", len(m.st.Rooms), m.st.Known.Len(), len(m.st.Unsafe), r.Seq, rooms, known, unsafe)
	}
	if len(m.st.Current) != 0 {
		t.Errorf("room numbers in use: %v", m.st.Current)
	}
}

// An ABORT or metadata that names an endpoint nobody has registered changes
// nothing, and is answered nowhere (F42).
func TestStrangersEndpointIsNoReturnAddress(t *testing.T) {
	m := prefillWith(t, Start{Boot: 7, Incarnation: 1, LogID: make([]byte, 16)})
	m.Step(At(t0), metadata("p/0", false))
	gen := uint64(3)
	for name, c := range map[string]Command{
		"ABORT":    WireAbort{At: "p/0", Room: 5, Address: "10.9.9.9:1", Generation: &gen},
		"metadata": WireMetadata{At: "p/0", Room: 6, Address: "10.9.9.9:1", Pages: []uint32{1}, Required: 1},
		"another node's ABORT": WireAbort{At: "p/0", Room: 5, Address: "10.0.0.2:5000", Generation: &gen, Ext: &Ext{
			Node: "x", Boot: 3, Incarnation: 1, LogID: make([]byte, 16), RoomSeq: 44,
		}},
	} {
		res := m.Step(At(t0+1), c)
		if len(res.Effects) != 0 {
			t.Errorf("%s: %+v", name, res.Effects)
		}
		for _, e := range res.Events {
			if e.GetMessageRejected() == nil {
				t.Errorf("%s: %v", name, e)
			}
		}
	}
	if r := m.pcurrent(5); r == nil || !r.live() || len(r.Targets) != 0 || m.pcurrent(6) != nil {
		t.Errorf("room 5: %+v, room 6: %+v", r, m.pcurrent(6))
	}
}
