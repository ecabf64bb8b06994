package mirror

import (
	"context"
	"time"
)

const (
	askTime = 5 * time.Second // for the answer to one request
	asks    = 6               // of the same request, one after the other
)

// ask sends a request to JetStream, again when its answer does not come: a
// cluster that is electing a leader, or whose server has just come back, drops
// requests without a word. The last error is the context's.
func ask[T any](ctx context.Context, request func(context.Context) (T, error)) (v T, err error) {
	for range asks {
		one, cancel := context.WithTimeout(ctx, askTime)
		v, err = request(one)
		lost := err != nil && one.Err() != nil && ctx.Err() == nil
		cancel()
		if !lost {
			break
		}
	}
	return v, err
}
