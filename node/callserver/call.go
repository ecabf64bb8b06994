package callserver

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/cockroachdb/errors"
	"golang.org/x/sys/unix"
)

// watchAfter is how long a call that somebody could wait for runs before the
// loop listens for the caller's leaving: what a call without a disk in it takes
// is far below, and what a caller that has left costs until then is little.
const watchAfter = time.Millisecond

// call is the context of one call. Its connection is watched from the first
// Done on, once the body has been read: before, its bytes would come in the way.
type call struct {
	context.Context
	cancel context.CancelFunc
	c      *conn

	mu    sync.Mutex
	body  bool // some of it may not have been read
	asked bool // Done was called
	ended bool // over was
	timer *time.Timer
	heard chan struct{} // closed when the watch is over; nil without one
}

func newCall(c *conn, body bool) *call {
	x := &call{c: c, body: body}
	x.Context, x.cancel = context.WithCancel(c.ctx)
	return x
}

// Done implements context.Context.
func (x *call) Done() <-chan struct{} {
	x.mu.Lock()
	x.asked = true
	x.arm()
	x.mu.Unlock()
	return x.Context.Done()
}

// read: the body is at its end.
func (x *call) read() {
	x.mu.Lock()
	x.body = false
	x.arm()
	x.mu.Unlock()
}

func (x *call) arm() {
	if x.asked && !x.body && !x.ended && x.timer == nil {
		x.timer = time.AfterFunc(watchAfter, x.watch)
	}
}

// watch runs until the caller leaves, sends its next request, or over is called.
func (x *call) watch() {
	x.mu.Lock()
	if x.ended {
		x.mu.Unlock()
		return
	}
	x.heard = make(chan struct{})
	x.mu.Unlock()
	defer close(x.heard)
	if gone(x.c) {
		x.cancel()
	}
}

// gone waits until there is something to read, and looks whether that is the
// end. It takes no byte.
func gone(c *conn) bool {
	raw, err := c.sc.SyscallConn()
	if err != nil {
		return true // the connection is closed
	}
	left := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		for {
			n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case errors.Is(err, unix.EAGAIN):
				return false
			}
			left = err != nil || n == 0
			return true
		}
	})
	return left || err != nil && !isTimeout(err)
}

// over ends the call's context and its watch.
func (x *call) over() {
	x.mu.Lock()
	if x.ended {
		x.mu.Unlock()
		return
	}
	x.ended = true
	if x.timer != nil {
		x.timer.Stop()
	}
	heard := x.heard
	x.mu.Unlock()
	if heard != nil {
		_ = x.c.nc.SetReadDeadline(time.Unix(1, 0)) // wakes the watch
		<-heard
		_ = x.c.nc.SetReadDeadline(time.Time{})
	}
	x.cancel()
}

// bodyEnd tells the call when its body has been read.
type bodyEnd struct {
	io.ReadCloser
	x *call
}

// Read implements io.Reader.
func (b *bodyEnd) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil { // a body that broke off has no more bytes either
		b.x.read()
	}
	return n, err
}

func isTimeout(err error) bool {
	var slow net.Error
	return errors.As(err, &slow) && slow.Timeout()
}
