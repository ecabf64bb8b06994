package demo

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/node/enginepb"
)

// refusedWith is the word of the Refusal among an error's details, "" if the
// call was not refused.
func refusedWith(err error) string {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return ""
	}
	for _, d := range ce.Details() {
		if v, derr := d.Value(); derr == nil {
			if r, ok := v.(*enginepb.Refusal); ok {
				return r.GetWord()
			}
		}
	}
	return ""
}

// away says that the node could not be reached or is not up yet, as opposed to
// having answered.
func away(err error) bool {
	return !connect.IsWireError(err) || connect.CodeOf(err) == connect.CodeUnavailable
}

const (
	retryFirst = 5 * time.Millisecond
	retryMax   = 250 * time.Millisecond
)

// persist calls fn until it is answered. again tells fn that an earlier try may
// have been carried out although its answer was lost.
func persist(ctx context.Context, fn func(again bool) error) error {
	wait := retryFirst
	for again := false; ; again = true {
		err := fn(again)
		if err == nil || !away(err) || ctx.Err() != nil {
			return err
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		wait = min(2*wait, retryMax)
	}
}
