package e2e

import (
	"testing"

	"github.com/pdlog/pdlog/events"
)

// checkReleases checks a decode log by itself, over all of its lives: every
// release has evidence for every pair that was published to (events.md I2), is
// told once, and no generation comes twice (I4).
func checkReleases(t *testing.T, evs []*events.Event) {
	t.Helper()
	type pair struct{ rank, to string }
	published := map[uint64]map[pair]bool{}
	released := map[uint64]bool{}
	generation := uint64(0)
	for _, e := range evs {
		switch p := e.Payload.(type) {
		case *events.Event_PublishStarted:
			if published[e.RoomSeq] == nil {
				published[e.RoomSeq] = map[pair]bool{}
			}
			published[e.RoomSeq][pair{e.Rank, p.PublishStarted.GetTo()}] = true
		case *events.Event_AbortArmed:
			if g := p.AbortArmed.GetGeneration(); g <= generation {
				t.Errorf("seq %d: generation %d after %d", e.Seq, g, generation)
			} else {
				generation = g
			}
		case *events.Event_Released:
			if released[e.RoomSeq] {
				t.Errorf("seq %d: room incarnation %d is released twice", e.Seq, e.RoomSeq)
			}
			released[e.RoomSeq] = true
			have := map[pair]bool{}
			for _, v := range p.Released.GetEvidence() {
				have[pair{v.GetRank(), v.GetTo()}] = true
			}
			for want := range published[e.RoomSeq] {
				if !have[want] {
					t.Errorf("seq %d: release of room incarnation %d without evidence for %s to %s", e.Seq, e.RoomSeq, want.rank, want.to)
				}
			}
			if p.Released.GetUnsafe() {
				t.Errorf("seq %d: unsafe release", e.Seq)
			}
		}
	}
	if len(released) == 0 {
		t.Error("nothing was released")
	}
}
