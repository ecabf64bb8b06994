package mirror

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestAskSendsAgainWhatWasDropped: a request without an answer is sent again, a
// refusal is not, and the caller's own time bounds it all.
func TestAskSendsAgainWhatWasDropped(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		dropped int           // requests that get no answer
		answer  error         // of the one after these
		limit   time.Duration // the caller's
		sent    int
		want    error
		took    time.Duration
	}{
		"answered at once":    {limit: time.Minute, sent: 1},
		"dropped twice":       {dropped: 2, limit: time.Minute, sent: 3, took: 2 * askTime},
		"refused":             {answer: refused, limit: time.Minute, sent: 1, want: refused},
		"dropped, refused":    {dropped: 1, answer: refused, limit: time.Minute, sent: 2, want: refused, took: askTime},
		"always dropped":      {dropped: 1000, limit: time.Minute, sent: asks, want: context.DeadlineExceeded, took: asks * askTime},
		"the caller is short": {dropped: 1000, limit: 7 * time.Second, sent: 2, want: context.DeadlineExceeded, took: 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.limit)
				defer cancel()
				began, sent := time.Now(), 0
				v, err := ask(ctx, func(ctx context.Context) (int, error) {
					if sent++; sent <= c.dropped {
						<-ctx.Done()
						return 0, ctx.Err()
					}
					return 7, c.answer
				})
				if !errors.Is(err, c.want) || err == nil && v != 7 || sent != c.sent || time.Since(began) != c.took {
					t.Errorf("%d, %v after %d requests and %v; want %v after %d and %v", v, err, sent, time.Since(began), c.want, c.sent, c.took)
				}
			})
		})
	}
}
