package fault

import (
	"context"
	"fmt"
	"time"

	"github.com/pdlog/pdlog/rdma"
)

// RegisterMemory wraps the inner region if revocations are to suffer.
func (d *domain) RegisterMemory(ctx context.Context, m rdma.Memory) (rdma.Region, error) {
	r, err := d.Domain.RegisterMemory(ctx, m)
	if err != nil || len(d.p.spec.Target().Rules) == 0 {
		return r, err
	}
	return &region{Region: r, p: d.p}, nil
}

type region struct {
	rdma.Region
	p *provider
}

// Grant draws what becomes of the lease's revocation.
func (r *region) Grant(ctx context.Context, g rdma.Grant) (rdma.Lease, error) {
	l, err := r.Region.Grant(ctx, g)
	if err != nil {
		return nil, err
	}
	rule := r.p.spec.Target().Draw(r.p.seed, g.Tag, 0, g.Peer)
	if rule.Kind == OK {
		return l, nil
	}
	return &lease{Lease: l, rule: rule}, nil
}

type lease struct {
	rdma.Lease
	rule Rule
}

// Revoke is slow, or proves nothing.
func (l *lease) Revoke(ctx context.Context) (rdma.Fence, error) {
	if l.rule.Kind == BadFence {
		return rdma.Fence{}, fmt.Errorf("revoke lease of tag %d: %w", l.Tag(), ErrInjected)
	}
	wait := time.NewTimer(l.rule.After)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
		return rdma.Fence{}, fmt.Errorf("revoke lease of tag %d: %w: %w", l.Tag(), ErrInjected, ctx.Err())
	}
	f, err := l.Lease.Revoke(ctx)
	f.Took += l.rule.After
	return f, err
}
