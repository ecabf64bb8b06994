package node

import (
	"time"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// clock gives the instants of commands. It starts at the later of the wall
// clock and the last instant of the log and goes on by the monotonic clock: it
// never goes back, over restarts too, and does not jump with the wall
// (projector.Instant).
type clock struct {
	anchor uint64 // unix ms at began
	began  time.Time
}

func startClock(lastMillis uint64) clock {
	now := time.Now()
	return clock{anchor: max(uint64(now.UnixMilli()), lastMillis), began: now} //nolint:gosec // after 1970
}

func (c *clock) now() projector.Instant { return c.at(time.Now()) }

// at is the instant of a reading of the time.
func (c *clock) at(t time.Time) projector.Instant {
	return projector.At(c.anchor + uint64(t.Sub(c.began).Milliseconds())) //nolint:gosec // monotonic
}

// until is how long it takes to ms on the clock; 0 when it has passed.
func (c *clock) until(ms uint64) time.Duration {
	const far = time.Hour // a deadline further away is looked at again by then
	now := c.now().Clock
	if ms <= now {
		return 0
	}
	if ms-now > uint64(far.Milliseconds()) {
		return far
	}
	return time.Duration(ms-now) * time.Millisecond //nolint:gosec // below an hour
}

// deadlineClock is the instant on the deadline clock that an event was written
// at (events.proto, time_offset_ms).
func deadlineClock(e *events.Event) uint64 {
	return uint64(int64(events.HLC(e.Hlc).Millis()) + e.TimeOffsetMs) //nolint:gosec // 48 bits
}
