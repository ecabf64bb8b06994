package node

import (
	"context"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
)

// notifications are the texts that go with a write, for a backend whose decode
// side hears of its data by them (wire.md 1.10).
func (n *Node) notifications(a *projector.PostWrite) ([]string, error) {
	d, ok := n.dialect.(backends.Notifier)
	if !ok {
		return nil, nil
	}
	source := n.sourceOf(a.Rank)
	var told []backends.Notification
	if len(a.Pages) > 0 {
		told = append(told, backends.Notification{Room: a.Room, What: backends.NotifyKV, Chunk: int32(a.Chunk), Last: a.Last, Source: source, Parts: 1}) //nolint:gosec // Format checks
	}
	switch {
	case a.Last && len(a.Pages) > 0:
		told = append(told, backends.Notification{Room: a.Room, What: backends.NotifyAux})
	case a.Last:
		told = append(told, backends.Notification{Room: a.Room, What: backends.NotifyAuxNoKV, Source: source, Expected: int32(a.Chunk)}) //nolint:gosec // as above
	}
	var out []string
	for _, x := range told {
		text, err := d.FormatNotification(x)
		if err != nil {
			return nil, err
		}
		out = append(out, text)
	}
	return out, nil
}

// Notify takes what the engine's transfer agent was told in-band. It is
// answered when all of it is decided.
func (e *engine) Notify(ctx context.Context, req *connect.Request[enginepb.NotifyRequest]) (*connect.Response[enginepb.NotifyResponse], error) {
	q := req.Msg
	switch {
	case e.n.peers == nil:
		return nil, refuse("bad_request", "this is a prefill node")
	case int(q.Rank) >= e.n.cfg.Ranks:
		return nil, refuse("bad_request", "rank %d of %d", q.Rank, e.n.cfg.Ranks)
	}
	at := projector.MakeRank(e.n.cfg.Node, int(q.Rank))
	var out enginepb.NotifyResponse
	for _, text := range q.Notifications {
		cmd := backends.NotificationToCommand(e.n.dialect, at, text)
		if _, bad := cmd.(projector.Rejected); bad {
			out.Malformed++
		}
		if _, err := e.n.loop.ask(ctx, task{cmd: cmd}); err != nil {
			return nil, apiError(err)
		}
	}
	return connect.NewResponse(&out), nil
}
