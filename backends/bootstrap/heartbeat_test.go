package bootstrap

import (
	"testing"
	"time"
)

func TestHeartbeatLosesAfterFailuresInARow(t *testing.T) {
	h := NewHeartbeat(0, 0)
	if h.Interval() != 5*time.Second || h.MaxFailures() != 2 {
		t.Fatalf("%v %d", h.Interval(), h.MaxFailures())
	}
	const a, longer = "10.0.0.1:80", "10.0.0.1:8000"
	for i, step := range []struct {
		addr     string
		ok       bool
		lost     bool // told now
		aIsLost  bool
		itIsLost bool // the one with the longer port
	}{
		{a, false, false, false, false},
		{longer, false, false, false, false},
		{a, true, false, false, false}, // a blip
		{a, false, false, false, false},
		{a, false, true, true, false}, // F31: only the exact address
		{a, false, false, true, false},
		{longer, false, true, true, true},
		{a, true, false, false, true},
		{a, false, false, false, true},
		{a, false, true, true, true}, // told anew after it had answered
	} {
		if lost := h.Observe(step.addr, step.ok); lost != step.lost || h.Lost(a) != step.aIsLost || h.Lost(longer) != step.itIsLost {
			t.Errorf("step %d: told %v, lost %v %v", i, lost, h.Lost(a), h.Lost(longer))
		}
	}
	h.Forget(a)
	if h.Lost(a) || !h.Lost(longer) || h.Observe(a, false) {
		t.Error("forgetting one prefill")
	}
}

func TestHeartbeatBounds(t *testing.T) {
	h := NewHeartbeat(time.Millisecond, -3)
	if h.Interval() != 2*time.Second || h.MaxFailures() != 1 || !h.Observe("a:1", false) {
		t.Errorf("%v %d", h.Interval(), h.MaxFailures())
	}
}
