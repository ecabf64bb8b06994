package node

import (
	"context"
	"fmt"
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
		stagingOffset: q.StagingOffset, stagingBytes: q.StagingBytes,
	}
	var f *os.File
	if q.PassedFd {
		var err error
		if f, err = passedFile(ctx); err != nil {
			return nil, refuse("bad_request", "memory of rank %d: %v", q.Rank, err)
		}
	}
	if err := e.n.checkMemory(int(q.Rank), &l, q.Kind); err != nil {
		if f != nil {
			_ = f.Close()
		}
		return nil, apiError(err)
	}
	if err := e.n.registerMemory(ctx, int(q.Rank), l, f); err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&enginepb.RegisterMemoryResponse{Ready: e.n.memory.ready()}), nil
}

func badMemory(rank int, format string, args ...any) error {
	return &projector.Refusal{Word: "bad_request", Detail: fmt.Sprintf("memory of rank %d: ", rank) + errors.Newf(format, args...).Error()}
}

// checkMemory says what is wrong with a layout.
func (n *Node) checkMemory(rank int, l *layout, kind enginepb.MemoryKind) error {
	no := func(format string, args ...any) error { return badMemory(rank, format, args...) }
	switch {
	case kind == enginepb.MemoryKind_MEMORY_KIND_DMABUF:
		return no("provider %s cannot register a dma-buf: register a file that it can map", n.cfg.RDMA.Provider)
	case rank >= n.cfg.Ranks:
		return no("rank %d of %d", rank, n.cfg.Ranks)
	case n.cfg.Role == "decode" && l.pages < uint64(n.cfg.Pages): //nolint:gosec // positive
		return no("%d pages, the pool is configured with %d", l.pages, n.cfg.Pages)
	case n.cfg.Role == "prefill" && l.stagingBytes > 0:
		return no("a staging ring is decode's: prefill writes to it")
	case l.auxRows == 0:
		return no("no aux rows: a room's aux row is part of its success")
	case n.cfg.Role == "decode" && l.auxRows < uint64(n.auxRows()): //nolint:gosec // positive
		return no("%d aux rows, configured are %d", l.auxRows, n.auxRows())
	}
	if err := l.check(); err != nil {
		return no("%v", err)
	}
	return nil
}

// registerMemory maps and registers a rank's memory, from its path or from f,
// which it takes over.
func (n *Node) registerMemory(ctx context.Context, rank int, l layout, f *os.File) error {
	n.memoryMu.Lock() // one registration at a time
	defer n.memoryMu.Unlock()
	n.engines.kept()
	old := n.memory.rank(rank)
	m, err := mapMemory(l, f)
	if err != nil {
		return badMemory(rank, "%v", err)
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
	var cmd projector.Command = projector.MemoryAdded{Memory: m.record(rank)}
	if old != nil {
		if n.receive != nil {
			if err := errors.CombineErrors(n.receive.revokeAll(), old.deregister(ctx)); err != nil {
				n.log.Warn("old memory still registered", "rank", rank, "err", err)
			}
		}
		cmd = projector.ReRegister{Memory: m.record(rank)}
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
