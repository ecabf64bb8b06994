package projector

import (
	"testing"

	"github.com/pdlog/pdlog/events"
)

// notifiedRoom is a decode node with room 7 open to two ranks of an SGLang
// prefill that are sources 0 and 1.
func notifiedRoom(t *testing.T) *Machine {
	t.Helper()
	m := New(decodeConfig(events.Policy_POLICY_HOLD))
	m.Step(At(t0), Start{Boot: 9, Incarnation: 1, LogID: make([]byte, 16), GenerationBase: 1})
	m.Step(At(t0), PeerDiscovered{
		Node: "p", Form: events.AckForm_ACK_FORM_V2, Fence: events.FenceKind_FENCE_KIND_NONE, PageSize: 64,
		Ranks: []PeerRank{{Rank: "p/0", Address: "10.0.0.1:5000"}, {Rank: "p/1", Address: "10.0.0.1:5001", WireID: 1, Source: 1}},
	})
	openNotified(t, m)
	return m
}

func openNotified(t *testing.T, m *Machine) {
	t.Helper()
	res := m.Step(At(t0+1), OpenRoom{Room: 7, Pages: []uint32{1, 2}, Aux: -1, Pairs: []OpenPair{{Rank: "p/0", To: "d/0"}, {Rank: "p/1", To: "d/0"}}})
	if res.Refused != nil {
		t.Fatal(res.Refused)
	}
	for _, rank := range []RankID{"p/0", "p/1"} {
		m.Step(At(t0+2), PublishResult{RoomSeq: res.RoomSeq, Rank: rank, To: "d/0"})
	}
}

func kv(source, chunk uint32, last bool) WireNotification {
	return WireNotification{At: "d/0", Room: 7, What: "kv", Source: source, Chunk: chunk, Last: last, Parts: 1}
}

func aux() WireNotification { return WireNotification{At: "d/0", Room: 7, What: "aux", Parts: 1} }

func TestRoomSucceedsByNotifications(t *testing.T) {
	part := func(source, chunk uint32, last bool, i, n uint32) WireNotification {
		c := kv(source, chunk, last)
		c.Part, c.Parts = i, n
		return c
	}
	nokv := func(source, n uint32) WireNotification {
		return WireNotification{At: "d/0", Room: 7, What: "aux_nokv", Source: source, Expected: n, Parts: 1}
	}
	elsewhere := kv(1, 0, true)
	elsewhere.At = "d/1"
	for _, c := range []struct {
		name string
		told []WireNotification
		want string
	}{
		{"each source and the aux row", []WireNotification{kv(0, 0, true), kv(1, 0, true), aux()}, "succeeded"},
		{"aux first, chunks in any order", []WireNotification{aux(), kv(1, 1, true), kv(0, 0, true), kv(1, 0, false)}, "succeeded"},
		{"no aux row", []WireNotification{kv(0, 0, true), kv(1, 0, true)}, "transferring"},
		{"one source twice", []WireNotification{kv(0, 0, true), kv(0, 0, true), aux()}, "transferring"},
		{"a chunk before the last is missing", []WireNotification{kv(0, 0, true), kv(1, 1, true), aux()}, "transferring"},
		{"no last chunk", []WireNotification{kv(0, 0, true), kv(1, 0, false), aux()}, "transferring"},
		{"parts", []WireNotification{aux(), kv(0, 0, true), part(1, 0, true, 1, 2), part(1, 0, true, 0, 2)}, "succeeded"},
		{"half of a chunk", []WireNotification{aux(), kv(0, 0, true), part(1, 0, true, 1, 2), part(1, 0, true, 1, 2)}, "transferring"},
		{"parts that disagree", []WireNotification{aux(), kv(0, 0, true), part(1, 0, true, 0, 2), part(1, 0, true, 0, 1)}, "transferring"},
		{"a last chunk without pages", []WireNotification{kv(0, 0, true), kv(1, 0, false), nokv(1, 1)}, "succeeded"},
		{"nothing but the aux row", []WireNotification{nokv(0, 0), nokv(1, 0)}, "succeeded"},
		{"fewer chunks than said", []WireNotification{kv(0, 0, true), kv(1, 0, false), nokv(1, 2)}, "transferring"},
		{"a source nobody has", []WireNotification{kv(0, 0, true), kv(2, 0, true), aux()}, "transferring"},
		{"told to another rank", []WireNotification{kv(0, 0, true), elsewhere, aux()}, "transferring"},
		{"another room's", []WireNotification{{At: "d/0", Room: 8, What: "aux", Parts: 1}}, "waiting"},
		{"more chunks than a room has", []WireNotification{kv(0, 1<<20, true)}, "waiting"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := notifiedRoom(t)
			for _, n := range c.told {
				m.Step(At(t0+10), n)
			}
			if v := m.RoomView(7); v.State != c.want {
				t.Errorf("the room is %s, want %s", v.State, c.want)
			}
			if v := m.RoomView(8); v.State != "unknown" {
				t.Errorf("room 8 came into being: %s", v.State)
			}
		})
	}
}

// What was said late of a use that failed must not end a later use of the
// number; after one that succeeded there is nothing late.
func TestNotificationsOfAFailedUseDoNotCount(t *testing.T) {
	m := notifiedRoom(t)
	m.Step(At(t0+10), AbortRoom{Room: 7})
	m.Step(At(t0+11), kv(0, 0, true))
	for id := range uint32(2) {
		m.Step(At(t0+12), WireAck{At: "d/0", Room: 7, Rank: &id})
	}
	if v := m.RoomView(7); v.State != "released" {
		t.Fatalf("the room is %s", v.State)
	}
	openNotified(t, m)
	for _, n := range []WireNotification{kv(0, 0, true), kv(1, 0, true), aux()} {
		m.Step(At(t0+20), n)
	}
	if v := m.RoomView(7); v.State != "waiting" {
		t.Fatalf("the second use is %s", v.State)
	}

	m = notifiedRoom(t)
	for range 2 {
		for _, n := range []WireNotification{kv(0, 0, true), kv(1, 0, true), aux()} {
			m.Step(At(t0+20), n)
		}
		if v := m.RoomView(7); v.State != "succeeded" {
			t.Fatalf("the room is %s", v.State)
		}
		m.Step(At(t0+21), FinishRoom{Room: 7})
		openNotified(t, m)
	}
}
