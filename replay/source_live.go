package replay

import (
	"context"
	"iter"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node/enginepb"
)

// dialTimeout bounds the wait for a node's socket: it is on this host or near.
const dialTimeout = 5 * time.Second

// pageLimit is the size of one page of a live log, in events: a few short
// transactions for the node (store.md 2.4).
const pageLimit = 2000

// liveLog reads the durable log of a running node up to what is durable when
// the read arrives there.
func liveLog(target, source string) *Log {
	return &Log{Source: source, Kind: FromLive, read: selecting(func(ctx context.Context) iter.Seq2[*events.Event, error] {
		return liveEvents(ctx, target, 1)
	})}
}

// liveEvents reads a running node's log from a sequence on.
func liveEvents(ctx context.Context, target string, from uint64) iter.Seq2[*events.Event, error] {
	return func(yield func(*events.Event, error) bool) {
		client, closeIdle := liveClient(target)
		defer closeIdle()
		var at events.Position
		for from := max(from, 1); ; {
			res, err := client.Events(ctx, connect.NewRequest(&enginepb.EventsRequest{FromSeq: from, Limit: pageLimit, Frames: true}))
			if err != nil {
				yield(nil, mark(errors.Wrapf(err, "read events of %s", target), ErrUnavailable))
				return
			}
			m := res.Msg
			if len(m.GetFrames()) == 0 {
				return
			}
			stopped := false
			first, last, err := events.DecodeFrames(m.GetFrames(), m.GetNode(), func(e *events.Event) error {
				if e.Seq < from || stopped {
					return nil
				}
				stopped = !yield(e, nil)
				return nil
			})
			if stopped {
				return
			}
			if err == nil && at.Seq != 0 && first.FirstSeq == at.Seq+1 && first.PrevChain != at.Chain {
				err = events.ErrChain
			}
			if err != nil {
				yield(nil, mark(errors.Wrapf(err, "events from %d on", from), ErrDamaged))
				return
			}
			if last.LastSeq < from {
				return
			}
			at = events.Position{Seq: last.LastSeq, Chain: last.Chain}
			from = last.LastSeq + 1
		}
	}
}

func liveClient(target string) (enginepb.EngineClient, func()) {
	transport := &http.Transport{DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext}
	base := target
	if path, ok := strings.CutPrefix(target, "unix:"); ok {
		base = "http://node"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "unix", path)
		}
	}
	client := &http.Client{Transport: transport}
	return enginepb.NewEngineClient(client, base), transport.CloseIdleConnections
}
