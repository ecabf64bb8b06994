package store

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pdlog/pdlog/events"
)

// Two halves of a crowd, one in the commit and one waiting, become one: whoever
// was acknowledged is waited for, for a share of the commit's time.
func TestCrowdGoesTogether(t *testing.T) {
	now := time.Unix(0, 0)
	var c crowd
	c.pending = 64
	c.leave(now)
	c.pending = 64 // the other half comes during the commit
	now = now.Add(time.Millisecond)
	c.acknowledge(now)
	if got, want := c.wait(now), time.Millisecond/crowdShare; got != want {
		t.Fatalf("waits %v, want %v", got, want)
	}
	c.pending = 127
	if c.here() {
		t.Error("127 of 128 are all")
	}
	c.pending = 128
	if !c.here() || c.wait(now) != 0 {
		t.Error("128 are there and it still waits")
	}
	c.leave(now)
	if c.taken != 128 || c.pending != 0 {
		t.Errorf("%d went, want 128", c.taken)
	}
}

func TestCrowdIsWaitedForOnceAndNotForLong(t *testing.T) {
	now := time.Unix(0, 0)
	c := crowd{pending: 100}
	c.leave(now)
	now = now.Add(time.Second) // a slow disk
	c.acknowledge(now)
	if got := c.wait(now); got != crowdMost {
		t.Errorf("waits %v, want %v", got, crowdMost)
	}
	c.pending = 3 // the others do not come back
	if got := c.wait(now.Add(crowdMost)); got != 0 {
		t.Errorf("still waits %v", got)
	}
	c.leave(now)
	c.acknowledge(now.Add(time.Second))
	if got := c.wait(now.Add(time.Second)); got != 0 {
		t.Errorf("three are no crowd, and are waited for %v", got)
	}
}

// After a crowd, one who is alone waits for nobody, and a Sync event does not
// wait out the linger of a Group event before it.
func TestOneAfterACrowdIsNotHeldUp(t *testing.T) {
	l, rec := openLog(t, t.TempDir(), Options{Linger: time.Hour})
	src := newSource(l, rec, 1)
	var wg sync.WaitGroup
	for range 32 {
		mustAppend(t, l, src.next(1), events.Sync)
		seq := src.seq
		wg.Go(func() {
			if err := l.Wait(context.Background(), seq); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for range 3 {
		mustAppend(t, l, src.next(1), events.Group)
		mustAppend(t, l, src.next(1), events.Sync)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		for changed := l.Changed(); l.Durable() < src.seq; changed = l.Changed() {
			select {
			case <-changed:
			case <-ctx.Done():
				t.Fatalf("record %d is not durable, %d is", src.seq, l.Durable())
			}
		}
		cancel()
	}
}
