package bench

import (
	"context"
	"slices"
	"time"
)

// Side measures one side of a comparison once, for about as long as it is
// given, and says what it came to.
type Side func(ctx context.Context, d time.Duration) (float64, error)

// Compare measures two sides in turn, after a round that does not count. It
// gives the median of each side, and the median of the rounds' ratios.
func Compare(ctx context.Context, t Timing, ours, limit Side) (value, against, ratio float64, err error) {
	slice := t.Slice(2)
	var a, b, q []float64
	for round := -1; round < t.Rounds; round++ {
		x, err := ours(ctx, slice)
		if err != nil {
			return 0, 0, 0, err
		}
		y, err := limit(ctx, slice)
		if err != nil {
			return 0, 0, 0, err
		}
		if round >= 0 && y > 0 {
			a, b, q = append(a, x), append(b, y), append(q, x/y)
		}
	}
	return Median(a), Median(b), Median(q), nil
}

// Median of the values; of none 0. An even number gives the mean of the middle
// two.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// Rate makes a Side of work that does n units at a time: units times per a
// second. It repeats batches until the time is over.
func Rate(per float64, n int, work func(ctx context.Context, n int) error) Side {
	return func(ctx context.Context, d time.Duration) (float64, error) {
		start := time.Now()
		for done := 0; ; {
			if err := work(ctx, n); err != nil {
				return 0, err
			}
			done += n
			if took := time.Since(start); took >= d {
				return float64(done) * per / took.Seconds(), nil
			}
		}
	}
}
