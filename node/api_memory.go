package node

import (
	"context"
	"os"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
)

// RegisterMemory maps a rank's memory. The same memory again is no news; other
// memory in its place voids what was given away of the old.
func (e *engine) RegisterMemory(ctx context.Context, req *connect.Request[enginepb.RegisterMemoryRequest]) (*connect.Response[enginepb.RegisterMemoryResponse], error) {
	q := req.Msg
	l := layout{
		path: q.Path, pageOffset: q.Offset, pageBytes: q.PageBytes, pages: q.Pages,
		auxOffset: q.AuxOffset, auxBytes: q.AuxBytes, auxRows: q.AuxRows,
	}
	if err := l.check(); err != nil {
		return nil, refuse("bad_request", "memory of rank %d: %v", q.Rank, err)
	}
	if err := e.n.registerMemory(ctx, int(q.Rank), l); err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&enginepb.RegisterMemoryResponse{Ready: e.n.memory.ready()}), nil
}

func (n *Node) registerMemory(ctx context.Context, rank int, l layout) error {
	no := func(format string, args ...any) error {
		return &projector.Refusal{Word: "bad_request", Detail: errors.Newf(format, args...).Error()}
	}
	switch {
	case rank >= n.cfg.Ranks:
		return no("rank %d of %d", rank, n.cfg.Ranks)
	case n.cfg.Role == "decode" && l.pages < uint64(n.cfg.Pages): //nolint:gosec // positive
		return no("%d pages, the pool is configured with %d", l.pages, n.cfg.Pages)
	case l.auxRows == 0:
		return no("no aux rows: a room's aux row is part of its success")
	case n.cfg.Role == "decode" && l.auxRows < uint64(n.auxRows()): //nolint:gosec // positive
		return no("%d aux rows, configured are %d", l.auxRows, n.auxRows())
	}
	n.memoryMu.Lock() // one registration at a time
	defer n.memoryMu.Unlock()
	old := n.memory.rank(rank)
	m, err := mapMemory(l)
	if err != nil {
		return no("memory of rank %d: %v", rank, err)
	}
	if old != nil && old.layout == m.layout && os.SameFile(old.file, m.file) {
		return errors.Wrap(m.unmap(), "unmap")
	}
	if n.receive != nil {
		err = n.receive.register(ctx, m)
	} else { // a provider may read registered sources by itself
		err = m.register(ctx, n.domain)
	}
	if err != nil {
		return errors.CombineErrors(err, m.unmap())
	}
	n.memory.put(rank, m)
	name := memoryName(rank)
	var cmd projector.Command = projector.MemoryAdded{Name: name, Bytes: l.bytes(), Pages: l.pages, ItemBytes: l.pageBytes, Kind: "kv"}
	if old != nil {
		if n.receive != nil {
			if err := errors.CombineErrors(n.receive.revokeAll(), old.deregister(ctx)); err != nil {
				n.log.Warn("old memory still registered", "rank", rank, "err", err)
			}
		}
		cmd = projector.ReRegister{Name: name, Bytes: l.bytes(), Pages: l.pages}
	}
	if _, err := n.loop.ask(ctx, task{cmd: cmd, durable: true}); err != nil {
		return err
	}
	if n.peers != nil && n.memory.ready() {
		n.peers.memoryChanged()
		n.offered.Store(true) // our registration is in every queue before any metadata
	}
	return nil
}

// auxRows is the number of rows the core hands out (projector.Config).
func (n *Node) auxRows() int {
	if n.cfg.AuxRows > 0 {
		return n.cfg.AuxRows
	}
	return max(n.cfg.Pages, 64)
}
