package engineclient

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"
	"golang.org/x/sys/unix"
)

// keepBuffer bounds what a kept connection keeps for its next request.
const keepBuffer = 64 << 10

// transport is HTTP/1.1 for requests of known length, on the caller's
// goroutine.
type transport struct {
	path string
	pass int           // a descriptor that goes with the first bytes of a connection; -1 = none
	free chan struct{} // a token for each connection that may still be made

	mu   sync.Mutex
	idle []*conn // the one used last is last
}

var _ connect.HTTPClient = (*transport)(nil)

func newTransport(path string, pass int) *transport {
	t := &transport{path: path, pass: pass, free: make(chan struct{}, maxConns)}
	for range maxConns {
		t.free <- struct{}{}
	}
	return t
}

// conn is one connection; it serves one call at a time.
type conn struct {
	*net.UnixConn
	raw  rawReader
	r    *bufio.Reader
	out  []byte
	pass int
}

type rawReader interface {
	Read(f func(fd uintptr) bool) error
}

// Do sends a request and reads the head of its answer. The connection is taken
// back when the body is at its end; a body that is closed before costs it.
func (t *transport) Do(req *http.Request) (*http.Response, error) {
	defer func() {
		if req.Body != nil {
			_ = req.Body.Close() // what Do promises; a payload in memory has nothing to say
		}
	}()
	ctx := req.Context()
	c, kept, err := t.take(ctx)
	if err != nil {
		return nil, err
	}
	b := t.begin(ctx, c)
	err = c.send(req)
	if kept && errors.Is(err, unix.EPIPE) {
		// The node closed a kept connection just now, and has nothing of the
		// request: a unix socket takes no byte then. A connection that breaks
		// later is the caller's to judge, for the call may have been made.
		out := c.out
		b.end(false)
		if c, err = t.fresh(ctx); err != nil {
			return nil, err
		}
		b = t.begin(ctx, c)
		err = c.write(out)
	}
	if err != nil {
		return nil, b.broken(errors.Wrapf(err, "write to %s", t.path))
	}
	res, err := http.ReadResponse(c.r, req)
	if err != nil {
		return nil, b.broken(errors.Wrapf(err, "read from %s", t.path))
	}
	b.src, b.last = res.Body, res.Close
	res.Body = b
	if res.ContentLength == 0 {
		b.end(!b.last)
	}
	return res, nil
}

// begin has a call's end watched while it uses a connection.
func (t *transport) begin(ctx context.Context, c *conn) *body {
	calm := func() bool { return true }
	if ctx.Done() != nil {
		calm = context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) }) // wakes who waits on it
	}
	return &body{t: t, c: c, ctx: ctx, calm: calm}
}

// token waits for the right to one connection.
func (t *transport) token(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-t.free:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take gives a connection that lives and was kept, or makes one.
func (t *transport) take(ctx context.Context) (c *conn, kept bool, err error) {
	if err := t.token(ctx); err != nil {
		return nil, false, err
	}
	for {
		t.mu.Lock()
		n := len(t.idle) - 1
		if n < 0 {
			t.mu.Unlock()
			break
		}
		c := t.idle[n]
		t.idle[n] = nil
		t.idle = t.idle[:n]
		t.mu.Unlock()
		if c.quiet() {
			return c, true, nil
		}
		_ = c.Close() // the node has closed it
	}
	c, err = t.dial(ctx)
	return c, false, err
}

// fresh makes a connection.
func (t *transport) fresh(ctx context.Context) (*conn, error) {
	if err := t.token(ctx); err != nil {
		return nil, err
	}
	return t.dial(ctx)
}

// dial makes a connection for who has a token, and gives that back without one.
func (t *transport) dial(ctx context.Context) (*conn, error) {
	nc, err := (&net.Dialer{}).DialContext(ctx, "unix", t.path)
	if err != nil {
		t.free <- struct{}{}
		return nil, err
	}
	c := &conn{UnixConn: nc.(*net.UnixConn), r: bufio.NewReader(nc), pass: t.pass} //nolint:errcheck // of the network unix
	if c.raw, err = c.SyscallConn(); err != nil {
		_ = c.Close()
		t.free <- struct{}{}
		return nil, errors.Wrap(err, "descriptor of the socket")
	}
	return c, nil
}

// give takes a connection back; with keep it serves the next call.
func (t *transport) give(c *conn, keep bool) {
	if keep && t.pass < 0 {
		if cap(c.out) > keepBuffer {
			c.out = nil
		}
		t.mu.Lock()
		t.idle = append(t.idle, c)
		t.mu.Unlock()
	} else {
		_ = c.Close()
	}
	t.free <- struct{}{}
}

func (t *transport) closeIdle() {
	t.mu.Lock()
	idle := t.idle
	t.idle = nil
	t.mu.Unlock()
	for _, c := range idle {
		_ = c.Close()
	}
}

// quiet: the other side has neither closed the connection nor said anything
// that nobody asked for.
func (c *conn) quiet() bool {
	if c.r.Buffered() > 0 {
		return false
	}
	var err error
	var b [1]byte
	ctl := c.raw.Read(func(fd uintptr) bool {
		_, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return true
	})
	return ctl == nil && errors.Is(err, unix.EAGAIN)
}

// send writes a request with one call; it stays in out until the next.
func (c *conn) send(req *http.Request) error {
	b := append(c.out[:0], req.Method...)
	b = append(b, ' ')
	b = append(b, req.URL.RequestURI()...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, req.URL.Host...)
	b = append(b, "\r\nContent-Length: "...)
	b = strconv.AppendInt(b, req.ContentLength, 10)
	b = append(b, "\r\n"...)
	w := appender(b)
	if err := req.Header.Write(&w); err != nil { // drops line ends in values
		return err
	}
	w = append(w, "\r\n"...)
	if n := int(req.ContentLength); n > 0 {
		head := len(w)
		w = append(w, make([]byte, n)...)
		if _, err := io.ReadFull(req.Body, w[head:]); err != nil {
			return errors.Wrap(err, "read the request")
		}
	}
	c.out = w
	return c.write(w)
}

// write sends a whole request, with the descriptor that goes with it.
func (c *conn) write(w []byte) error {
	if c.pass < 0 {
		_, err := c.Write(w)
		return err
	}
	n, _, err := c.WriteMsgUnix(w, unix.UnixRights(c.pass), nil)
	c.pass = -1
	if err == nil && n < len(w) {
		_, err = c.Write(w[n:])
	}
	return err
}

type appender []byte

// Write implements io.Writer.
func (a *appender) Write(p []byte) (int, error) {
	*a = append(*a, p...)
	return len(p), nil
}

// WriteString implements io.StringWriter.
func (a *appender) WriteString(s string) (int, error) {
	*a = append(*a, s...)
	return len(s), nil
}

// body is an answer's body; its end gives the connection back.
type body struct {
	t    *transport
	c    *conn
	ctx  context.Context
	calm func() bool // ends the watch over ctx; false: it has fired
	src  io.Reader
	last bool // the node closes after this answer
	over atomic.Bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.over.Load() {
		return 0, io.EOF
	}
	n, err := b.src.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.end(!b.last)
		return n, io.EOF
	case err != nil:
		return n, b.broken(err)
	}
	return n, nil
}

// Close implements io.Closer. It may come while another goroutine reads.
func (b *body) Close() error {
	b.end(false)
	return nil
}

// end gives the connection back, once.
func (b *body) end(keep bool) {
	if b.over.CompareAndSwap(false, true) {
		b.t.give(b.c, b.calm() && keep)
	}
}

// broken ends the call with the reason that the caller knows.
func (b *body) broken(err error) error {
	b.end(false)
	if why := b.ctx.Err(); why != nil {
		return why
	}
	return err
}
