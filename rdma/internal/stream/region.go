package stream

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/internal/span"
)

// region is registered memory of a domain.
type region struct {
	id     uint32
	domain *domain
	mem    []byte
	unmap  func() error
	share  *share // how the memory is passed to a target on this host; nil: it is not

	mu     sync.RWMutex // Deregister against the rest
	gone   bool         // deregistered
	leases atomic.Int64 // granted and not revoked
}

var _ rdma.Region = (*region)(nil)

// RegisterMemory maps m, or takes its mapping.
func (d *domain) RegisterMemory(_ context.Context, m rdma.Memory) (rdma.Region, error) {
	mem, unmap, err := m.Map()
	if err != nil {
		return nil, fmt.Errorf("register memory: %w", err)
	}
	r := &region{id: d.regionID.Add(1), domain: d, mem: mem, unmap: unmap}
	if d.transport.Pools || d.transport.Near {
		r.share = newShare(m, mem)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		r.share.close()
		_ = unmap() // nothing of it was used
		return nil, fmt.Errorf("register memory: %w", rdma.ErrClosed)
	}
	d.regions[r] = struct{}{}
	d.reshare()
	return r, nil
}

func (r *region) ID() uint32 { return r.id }

func (r *region) Bytes() []byte { return r.mem }

// Grant makes a lease; it is findable by its key at once.
func (r *region) Grant(_ context.Context, g rdma.Grant) (rdma.Lease, error) {
	ranges, err := span.Merge(g.Ranges, uint64(len(r.mem)))
	if err != nil {
		return nil, fmt.Errorf("grant region %d to %s: %w", r.id, g.Peer, err)
	}
	l := &lease{tag: g.Tag, peer: g.Peer, id: r.id, region: r, ranges: ranges, left: make(chan struct{}, 1), told: make(chan struct{}, 1)}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.gone {
		return nil, fmt.Errorf("grant region %d to %s: %w", r.id, g.Peer, rdma.ErrClosed)
	}
	if err := r.domain.leases.add(l); err != nil {
		return nil, err
	}
	r.leases.Add(1)
	return l, nil
}

// Deregister refuses while a lease is open.
func (r *region) Deregister(context.Context) error {
	r.mu.Lock()
	if r.gone {
		r.mu.Unlock()
		return nil
	}
	if n := r.leases.Load(); n > 0 {
		r.mu.Unlock()
		return fmt.Errorf("deregister region %d: %d leases are open: %w", r.id, n, rdma.ErrBusy)
	}
	r.gone = true
	r.mu.Unlock()
	r.domain.mu.Lock()
	delete(r.domain.regions, r)
	r.domain.reshare()
	r.domain.mu.Unlock()
	r.share.close()
	return r.unmap()
}

// release unmaps on the way out of the domain.
func (r *region) release() error {
	r.mu.Lock()
	gone := r.gone
	r.gone = true
	r.mu.Unlock()
	if gone {
		return nil
	}
	r.share.close()
	return r.unmap()
}
