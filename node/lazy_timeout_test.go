package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestALazyTimeoutEndsAfterItsLimit: counted from when somebody waits, and
// nothing is left of one that nobody waited for.
func TestALazyTimeoutEndsAfterItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &lazyTimeout{limit: time.Second}
		if err := c.Err(); err != nil || c.ctx != nil {
			t.Fatalf("before anybody waits: %v, timer made: %v", err, c.ctx != nil)
		}
		began := time.Now()
		<-c.Done()
		if took := time.Since(began); took != time.Second || !errors.Is(c.Err(), context.DeadlineExceeded) {
			t.Fatalf("ended after %v with %v", took, c.Err())
		}
		c.end()
		(&lazyTimeout{limit: time.Second}).end()
	})
}
