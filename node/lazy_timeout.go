package node

import (
	"context"
	"time"
)

// lazyTimeout is context.WithTimeout(context.Background(), limit) whose timer is
// not made before somebody waits: an exact revoke seldom does, and there is one
// for every lease of every room. It is one goroutine's; end has to follow.
type lazyTimeout struct {
	limit  time.Duration
	ctx    context.Context
	cancel context.CancelFunc
}

var _ context.Context = (*lazyTimeout)(nil)

func (p *lazyTimeout) wait() context.Context {
	if p.ctx == nil {
		p.ctx, p.cancel = context.WithTimeout(context.Background(), p.limit)
	}
	return p.ctx
}

func (p *lazyTimeout) Done() <-chan struct{}       { return p.wait().Done() }
func (p *lazyTimeout) Deadline() (time.Time, bool) { return p.wait().Deadline() }
func (p *lazyTimeout) Value(any) any               { return nil }

// Err is nil as long as nobody has waited.
func (p *lazyTimeout) Err() error {
	if p.ctx == nil {
		return nil
	}
	return p.ctx.Err()
}

func (p *lazyTimeout) end() {
	if p.cancel != nil {
		p.cancel()
	}
}
