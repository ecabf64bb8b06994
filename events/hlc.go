package events

import "time"

// HLC is a hybrid logical clock value: 48 bits of unix milliseconds, 16 bits
// of counter. It orders events and never decides anything: no rule reads it.
type HLC uint64

const hlcCounterBits = 16

// MakeHLC builds a value from unix milliseconds and a counter.
func MakeHLC(ms uint64, counter uint16) HLC {
	return HLC(ms<<hlcCounterBits | uint64(counter))
}

// Millis is the physical part, in unix milliseconds.
func (h HLC) Millis() uint64 { return uint64(h) >> hlcCounterBits }

// Counter is the logical part.
func (h HLC) Counter() uint16 { return uint16(h) }

// Time is the physical part as a time, UTC, millisecond resolution.
func (h HLC) Time() time.Time { return time.UnixMilli(int64(h.Millis())).UTC() } //nolint:gosec // 48 bits

// Next is the clock after a local event at wall milliseconds: strictly above
// h whatever the wall says (events.md I9).
func (h HLC) Next(wallMillis uint64) HLC {
	if now := MakeHLC(wallMillis, 0); now > h {
		return now
	}
	return h + 1
}

// Merge is the clock after a message that carried remote, without a local
// event of its own: not below either.
func (h HLC) Merge(remote HLC) HLC { return max(h, remote) }
