package mirror

import (
	"context"
	"sync"

	"github.com/cockroachdb/errors"
	"github.com/nats-io/nats.go"
)

// link follows the state of a connection: an answer that a broken connection
// owes is not waited for until its timeout, and a server that is back is used
// at once.
type link struct {
	nc *nats.Conn

	mu    sync.Mutex
	alive context.Context // ends when the connection breaks
	end   context.CancelFunc
	back  chan struct{} // closed and replaced when there is a connection again
}

func newLink(nc *nats.Conn) *link {
	l := &link{nc: nc, back: make(chan struct{})}
	l.alive, l.end = context.WithCancel(context.Background())
	return l
}

// watch runs until ctx ends.
func (l *link) watch(ctx context.Context) error {
	changes := l.nc.StatusChanged(nats.CONNECTED, nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	defer l.nc.RemoveStatusListener(changes)
	for {
		select {
		case s := <-changes:
			l.mu.Lock()
			if s == nats.CONNECTED {
				close(l.back)
				l.back = make(chan struct{})
			} else {
				l.end()
				l.alive, l.end = context.WithCancel(context.Background())
			}
			l.mu.Unlock()
		case <-ctx.Done():
			l.mu.Lock()
			l.end()
			l.mu.Unlock()
			return ctx.Err()
		}
	}
}

// within is ctx for as long as the connection that there is now lives.
func (l *link) within(ctx context.Context) (context.Context, context.CancelFunc) {
	l.mu.Lock()
	alive := l.alive
	l.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(alive, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// explain adds what the connection knows: a request knows only that it got no
// answer.
func (l *link) explain(err error) error {
	why := l.nc.LastError()
	switch {
	case why == nil:
		return err
	case !l.nc.IsConnected():
		return errors.Wrapf(err, "not connected: %v", why)
	case errors.Is(why, nats.ErrPermissionViolation):
		return errors.Wrapf(err, "%v", why)
	}
	return err
}

// returned is closed when there is a connection again.
func (l *link) returned() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.back
}
