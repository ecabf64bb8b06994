package demo

import (
	"context"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/node/enginepb"
)

// client is a stand-in's end of the engine API. Calls to a node that is away
// (restarting) are repeated until it is back or the context ends; everything
// else is answered at once.
type client struct {
	enginepb.EngineClient
	closeIdle func()
}

// maxConns to the node: every request of the demo runs in its own goroutine,
// and a socket each would hit the descriptor limit.
const maxConns = 64

func newClient(socket string) *client {
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
		MaxConnsPerHost:     maxConns,
		MaxIdleConnsPerHost: maxConns,
	}
	return &client{
		EngineClient: enginepb.NewEngineClient(&http.Client{Transport: tr}, "http://pdnode"),
		closeIdle:    tr.CloseIdleConnections,
	}
}

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

// Dial is a client of the node whose engine API is on the unix socket at path.
// Nothing is connected before the first call.
func Dial(path string) enginepb.EngineClient { return newClient(path).EngineClient }
