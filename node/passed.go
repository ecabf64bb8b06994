package node

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/cockroachdb/errors"
	"golang.org/x/sys/unix"
)

// passedMax is how many descriptors a connection may have waiting to be taken
// by a call; more are closed at once.
const passedMax = 16

// passingListener makes connections that receive descriptors (SCM_RIGHTS)
// beside their bytes, so that an engine can hand over a memfd that nobody else
// could open.
type passingListener struct{ *net.UnixListener }

// Accept implements net.Listener.
func (l passingListener) Accept() (net.Conn, error) {
	c, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return &passingConn{Conn: c, unix: c}, nil
}

// passingConn is a connection and the descriptors that have come over it.
type passingConn struct {
	net.Conn
	unix *net.UnixConn

	mu     sync.Mutex
	fds    []int
	closed bool
}

// SyscallConn implements syscall.Conn.
func (c *passingConn) SyscallConn() (syscall.RawConn, error) { return c.unix.SyscallConn() }

// Read implements net.Conn.
func (c *passingConn) Read(b []byte) (int, error) {
	var space [128]byte // a control message with as many descriptors as are taken at once
	n, oobn, _, _, err := c.unix.ReadMsgUnix(b, space[:])
	if oobn > 0 {
		c.keep(space[:oobn])
	}
	if err != nil && errors.Is(err, io.EOF) {
		return n, io.EOF
	}
	return n, err
}

// keep takes the descriptors of a control message. They are close-on-exec.
func (c *passingConn) keep(oob []byte) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if c.closed || len(c.fds) >= passedMax {
				_ = unix.Close(fd)
				continue
			}
			c.fds = append(c.fds, fd)
		}
	}
}

// take gives the oldest descriptor that no call has taken.
func (c *passingConn) take() (*os.File, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.fds) == 0 {
		return nil, false
	}
	fd := c.fds[0]
	c.fds = c.fds[1:]
	return os.NewFile(uintptr(fd), "passed"), true
}

// Close implements net.Conn.
func (c *passingConn) Close() error {
	c.mu.Lock()
	for _, fd := range c.fds {
		_ = unix.Close(fd)
	}
	c.fds, c.closed = nil, true
	c.mu.Unlock()
	return c.Conn.Close()
}

type passedKey struct{}

// withPassed lets a call find its connection.
func withPassed(ctx context.Context, c net.Conn) context.Context {
	if p, ok := c.(*passingConn); ok {
		return context.WithValue(ctx, passedKey{}, p)
	}
	return ctx
}

// passedFile is the descriptor that came with a call.
func passedFile(ctx context.Context) (*os.File, error) {
	c, ok := ctx.Value(passedKey{}).(*passingConn)
	if !ok {
		return nil, errors.New("a descriptor can be passed over the unix socket alone")
	}
	f, ok := c.take()
	if !ok {
		return nil, errors.New("no descriptor came with the call (SCM_RIGHTS, in the same write as its first byte)")
	}
	return f, nil
}
