package whatif_test

import (
	"math"
	"testing"
	"time"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay/scenario"
	"github.com/pdlog/pdlog/replay/whatif"
)

// byHand is a run whose numbers follow on paper. Room 7 has four pages, is aborted
// at 100 ms, and its write ends at 5 + 3000 ms: the timer frees its pages at 1100 ms,
// two of them go to room 8, and the write lands in all four. Room 9 has two pages
// and an abort that is acknowledged at once: no policy has a say in it.
const byHand = `
prefill p ranks=1
decode  d pages=64
policy  release=timeout ack_timeout=1s
0ms     open   room=7 prefill=p decode=d pages=0-3
5ms     send   room=7 rank=p/0 chunk=0 pages=0-3 takes=3s
100ms   abort  room=7 by=d
2s      open   room=8 prefill=p decode=d pages=0-1
2005ms  send   room=8 rank=p/0 chunk=0 pages=0-1 takes=40ms last
3500ms  finish room=8
4s      open   room=9 prefill=p decode=d pages=20-21
4100ms  abort  room=9 by=d
6s      expect d room=9 state=released basis=acks
end     expect corruption page=0 victim=8 writer=p/0 room=7
end     expect violations I1,I2
`

func TestWhatIfGivesTheNumbersThatFollowOnPaper(t *testing.T) {
	rep, err := scenario.Run("by-hand", byHand)
	if err != nil || !rep.OK {
		t.Fatal(err, rep.FailedLine, rep.Detail)
	}
	recorded := open(t, rep.Logs)
	const way = 30 // ms: an ABORT and its ACK, some commits, on the simulated network
	for _, tc := range []struct {
		name        string
		plan        whatif.Plan
		basis       string // room 7's
		heldMS      int64
		corruptions int
		changed     int
		late        int64 // ms it may be later
	}{
		{"fence, as it was", whatif.Plan{Policy: events.Policy_POLICY_FENCE}, "fence", 1000, 0, 1, way},
		{"fence after 250 ms", whatif.Plan{Policy: events.Policy_POLICY_FENCE, AckTimeout: 250 * time.Millisecond}, "fence", 250, 0, 1, way},
		{"hold until the write has ended", whatif.Plan{Policy: events.Policy_POLICY_HOLD}, "acks", 3005 - 100, 0, 1, way},
		{"a timer that outlasts the write", whatif.Plan{Policy: events.Policy_POLICY_TIMEOUT, AckTimeout: 5 * time.Second}, "acks", 3005 - 100, 0, 1, way},
		{"a shorter timer", whatif.Plan{Policy: events.Policy_POLICY_TIMEOUT, AckTimeout: 500 * time.Millisecond}, "timeout", 500, 4, 0, 0},
	} {
		res := run(t, recorded, tc.plan)
		if res.Corruptions.Recorded != 4 || res.Corruptions.UnderPolicy != tc.corruptions {
			t.Errorf("%s: corruptions %+v, want 4 and %d", tc.name, res.Corruptions, tc.corruptions)
		}
		// Only when room 7's pages come free differs, so that a release that rests on
		// the same counts as changed only with another time.
		if changed := res.ReleasesChanged; changed != tc.changed && !(tc.basis == "timeout" && changed == 1) {
			t.Errorf("%s: %d releases differ, want %d", tc.name, changed, tc.changed)
		}
		for _, f := range res.Rooms {
			switch {
			case f.Room == 7 && (basisOf(f.Recorded) != "timeout" || f.Recorded.HeldMS != 1000):
				t.Errorf("%s: room 7 was held for %d ms (%s), want 1000 (timeout)", tc.name, f.Recorded.HeldMS, basisOf(f.Recorded))
			case f.Room == 7 && (basisOf(f.UnderPolicy) != tc.basis || f.UnderPolicy.HeldMS < tc.heldMS || f.UnderPolicy.HeldMS > tc.heldMS+tc.late):
				t.Errorf("%s: room 7 is held for %d ms (%s), want %d (%s)", tc.name, f.UnderPolicy.HeldMS, basisOf(f.UnderPolicy), tc.heldMS, tc.basis)
			case f.Room == 9 && (f.Changed || basisOf(f.UnderPolicy) != "acks" || f.UnderPolicy.HeldMS > way):
				t.Errorf("%s: room 9 is %+v", tc.name, f)
			}
		}
		// page·seconds: four pages of room 7, and next to nothing for the two of room 9.
		want, slack := 4*float64(tc.heldMS)/1000, (4*float64(tc.late)+2*way)/1000
		if have := res.HeldPageSeconds; math.Abs(have.Recorded-4) > 2*way/1000.0 || have.UnderPolicy < want || have.UnderPolicy > want+slack {
			t.Errorf("%s: page·seconds %+v, want 4 and %.3f", tc.name, have, want)
		}
	}
}
