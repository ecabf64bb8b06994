package projector

import (
	"strings"
	"testing"
)

// TestParkedWritesBoundAdmission: with as many writes of unknown end as the
// limit allows, a decode node gets no new room until one has ended, over a
// snapshot too; another node, and a room that is under way, go on.
func TestParkedWritesBoundAdmission(t *testing.T) {
	cfg := prefillConfig()
	cfg.MaxParked = 2
	m := New(cfg)
	m.Step(At(t0), Start{Boot: 7, Incarnation: 1, LogID: make([]byte, 16)})
	addresses := map[string]string{"d": "10.0.0.2:5000", "e": "10.0.0.3:5000"}
	ext := func(node string, room uint64) *Ext {
		return &Ext{Node: node, Boot: 3, Incarnation: 1, LogID: []byte(node + "-log-0123456789")[:16], RoomSeq: 100 + room}
	}
	for node, address := range addresses {
		m.Step(At(t0), WireRegister{At: "p/0", Address: address, Session: "s", Ext: ext(node, 0)})
	}
	// open sends metadata and one chunk of it; the token is that of its write, 0
	// when the room was refused.
	open := func(node string, room uint64) (token uint64, refused string) {
		t.Helper()
		for _, f := range m.Step(At(t0), WireMetadata{At: "p/0", Room: room, Address: addresses[node], Pages: []uint32{1}, Required: 1, Ext: ext(node, room)}).Effects {
			if s, ok := f.Do.(SendStatus); ok && !s.Success {
				return 0, s.Reason
			}
		}
		for _, f := range m.Step(At(t0), SendChunk{Room: room, Rank: "p/0", Count: 1, Last: true}).Effects {
			if w, ok := f.Do.(PostWrite); ok {
				return w.Token, ""
			}
		}
		t.Fatalf("room %d of %s was neither refused nor written", room, node)
		return 0, ""
	}
	var parked []uint64
	for room := range uint64(2) {
		token, why := open("d", room+1)
		if token == 0 {
			t.Fatalf("room %d: %s", room+1, why)
		}
		m.Step(At(t0), WriteDone{Token: token, Outcome: WriteUncertain, Reason: "lost"})
		parked = append(parked, token)
	}
	back := New(cfg)
	if err := back.Restore(m.Snapshot()); err != nil {
		t.Fatal(err)
	}
	if got := back.Parked()["d"]; got != 2 || m.Parked()["d"] != 2 {
		t.Fatalf("parked: %d, after a snapshot %d; want 2", m.Parked()["d"], got)
	}
	if _, why := open("d", 3); !strings.Contains(why, "2 writes to d are not known") {
		t.Fatalf("the third room of d was answered %q, want the limit", why)
	}
	if token, why := open("e", 4); token == 0 {
		t.Fatalf("a room of e was refused: %s", why)
	}
	m.Step(At(t0), WriteDone{Token: parked[0], Outcome: WriteFailed, Reason: "fenced"})
	if m.Parked()["d"] != 1 {
		t.Fatalf("after the end of one, %d are parked", m.Parked()["d"])
	}
	if token, why := open("d", 5); token == 0 {
		t.Fatalf("with room under the limit, room 5 was refused: %s", why)
	}
}
