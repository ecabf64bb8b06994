package store

import "time"

const (
	// crowdFrom Sync appends in one commit are a crowd: fewer are never made to wait.
	crowdFrom = 8
	// crowdShare of the time the last commit took is how long a crowd is waited for.
	crowdShare = 4
	crowdMost  = 500 * time.Microsecond
)

// crowd makes many producers, each waiting for its own Sync event, go together.
// Without it they fall into two halves, of which one is being written while the
// other comes: each of them then waits for two commits. So the committer gives
// those whose events have just become durable a moment to come back with their
// next ones. One caller that appends in batches, as a node's loop does, is no
// crowd and waits for nobody. Under Log.mu.
type crowd struct {
	pending int // Sync appends not yet taken
	taken   int // those of the commit that is being written
	want    int // those who may come
	began   time.Time
	until   time.Time // the wait ends; zero = none
}

// here: there is no need to wait, or no longer.
func (c *crowd) here() bool { return c.until.IsZero() || c.pending >= c.want }

// leave starts a commit.
func (c *crowd) leave(now time.Time) {
	c.taken, c.pending, c.began, c.until = c.pending, 0, now, time.Time{}
}

// acknowledge ends it: who was in it may come back, who came meanwhile is here.
func (c *crowd) acknowledge(now time.Time) {
	c.want, c.taken = c.taken+c.pending, 0
	if c.want < crowdFrom {
		return
	}
	c.until = now.Add(min(now.Sub(c.began)/crowdShare, crowdMost))
}

// wait is how much longer to wait for the others, 0 = no longer.
func (c *crowd) wait(now time.Time) time.Duration {
	if c.here() {
		return 0
	}
	return max(0, c.until.Sub(now))
}
