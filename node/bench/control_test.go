package bench

import (
	"testing"
	"time"

	"github.com/cockroachdb/errors"
)

// TestTransferCasesMeasure: the same of the rows of transfers, with the log and a
// JetStream server on each side.
func TestTransferCasesMeasure(t *testing.T) {
	if testing.Short() {
		t.Skip("moves some hundred megabytes")
	}
	for _, c := range transferCases() {
		t.Run(c.Name, func(t *testing.T) {
			r, err := c.Run(t.Context(), Timing{Rounds: 2, Budget: time.Millisecond})
			if err != nil || !(r.Value > 0 && r.Ratio > 0) || r.Bar <= 0 || r.Unit == "" || r.Against == "" {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// TestControlAndRoomCasesMeasure: every row of these groups runs and has a
// value and a ratio. What they come to is this machine's affair.
func TestControlAndRoomCasesMeasure(t *testing.T) {
	cases := append(controlCases(),
		Case{Name: "rooms/bytes", Run: roomBytes(1000)},
		Case{Name: "rooms/event-cost", Run: roomCost(10, 1000)},
	)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			r, err := c.Run(t.Context(), Timing{Rounds: 2, Budget: 100 * time.Millisecond})
			switch {
			case errors.Is(err, ErrUnavailable):
				t.Skip(err)
			case err != nil:
				t.Fatal(err)
			case r.Value <= 0 || r.Ratio <= 0 || r.Bar <= 0 || r.Unit == "" || r.Against == "":
				t.Errorf("%+v has no value, ratio, bar, unit or peer", r)
			}
		})
	}
}
