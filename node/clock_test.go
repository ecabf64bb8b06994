package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// The wall was set back by hours between two lives: the next life's clock goes on
// from the log's last instant, so that hlc grows (events.md I9) and deadlines of
// the earlier life neither come again nor come early. While it runs the clock
// follows the monotonic one: what the wall does then cannot be seen in it.
func TestWallSetBackBetweenLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last := uint64(time.Now().Add(5 * time.Hour).UnixMilli()) //nolint:gosec // after 1970
		c := startClock(last)
		if got := c.now().Clock; got != last {
			t.Fatalf("the clock begins at %d, the log ended at %d", got, last)
		}
		deadline := last + 2000
		if got := c.until(deadline); got != 2*time.Second {
			t.Errorf("a deadline 2 s after the log's end is %v away", got)
		}
		time.Sleep(2 * time.Second)
		if got := c.until(deadline); got != 0 {
			t.Errorf("2 s later it is %v away", got)
		}
	})
}

// The wall jumped forward between two lives: deadlines of the earlier life have
// passed, as they would have while the node was down for as long.
func TestWallSetForwardBetweenLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last := uint64(time.Now().UnixMilli()) //nolint:gosec // after 1970
		time.Sleep(6 * time.Hour)              // of the bubble: the log is that old now
		c := startClock(last)
		if got := c.until(last + 60_000); got != 0 {
			t.Errorf("a deadline of six hours ago is %v away", got)
		}
	})
}

// A machine that was on a clock hours ahead is started with the wall set back:
// every event of the new life is above every one of the old, and one that a peer
// with a right clock sends does not pull it back.
func TestEventsGrowWhenTheWallGoesBack(t *testing.T) {
	cfg := projector.DefaultConfig()
	cfg.Node, cfg.Role, cfg.Pages = "d0", events.Role_ROLE_DECODE, 8
	cfg.Ranks = []projector.LocalRank{{Address: "127.0.0.1:1"}}
	m, next := projector.New(cfg), projector.New(cfg)          // next folds what m writes, as the next life does
	ahead := uint64(time.Now().Add(7 * time.Hour).UnixMilli()) //nolint:gosec // after 1970
	id := make([]byte, 16)
	var last uint64
	grow := func(what string, r projector.Result) {
		t.Helper()
		if len(r.Events) == 0 {
			t.Fatalf("%s: no event", what)
		}
		for _, e := range r.Events {
			if e.Hlc <= last {
				t.Errorf("%s: %s has hlc %d after %d", what, e.TypeName(), e.Hlc, last)
			}
			last = e.Hlc
			next.Apply(e)
		}
	}
	grow("a clock seven hours ahead", m.Step(projector.At(ahead), projector.Start{Boot: 1, Incarnation: 1, LogID: id, GenerationBase: 1}))
	c := startClock(events.HLC(last).Millis())
	m, next = next, projector.New(cfg)
	grow("set back", m.Step(c.now(), projector.Start{Boot: 2, Incarnation: 2, LogID: id, GenerationBase: 1}))
	now := uint64(time.Now().UnixMilli()) //nolint:gosec // after 1970
	grow("an instant of the wall itself", m.Step(projector.At(now), projector.Stop{Grace: 1000}))
}
