package callserver

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/errors"
)

const (
	headMax   = 4 << 10  // bytes; a plain call's head has some 300, a larger one is net/http's
	keepMax   = 64 << 10 // bytes of an answer's memory that a connection keeps for the next
	stackText = 64 << 10 // bytes of a stack in the log, as in net/http
)

// What a connection does: whoever wants it to end closes it only while it waits.
const (
	waits   int32 = iota // for a request, or for the rest of its head
	answers              // a handler runs, or its answer is written
	shut                 // closed by Shutdown
)

// conn is a connection that the loop serves.
type conn struct {
	d      *divider
	nc     net.Conn
	sc     syscall.Conn
	r      *bufio.Reader
	out    []byte
	ctx    context.Context
	end    context.CancelFunc
	remote string
	state  atomic.Int32
	timed  bool // a read deadline is set
}

func newConn(d *divider, nc net.Conn, sc syscall.Conn) *conn {
	c := &conn{d: d, nc: nc, sc: sc, r: bufio.NewReaderSize(nc, headMax)}
	if a := nc.RemoteAddr(); a != nil {
		c.remote = a.String()
	}
	// What net/http gives a handler, in its order.
	ctx := context.WithValue(context.Background(), http.ServerContextKey, d.s.http)
	if f := d.s.http.ConnContext; f != nil {
		ctx = f(ctx, nc)
	}
	ctx = context.WithValue(ctx, http.LocalAddrContextKey, nc.LocalAddr())
	c.ctx, c.end = context.WithCancel(ctx)
	return c
}

// shut ends a connection from another goroutine: it is closed before a handler
// hears of it, which could only say that it was interrupted.
func (c *conn) shut() {
	_ = c.nc.Close() // the loop sees it
	c.end()
}

// serve is the life of a connection.
func (c *conn) serve() {
	handed := false
	defer func() {
		if v := recover(); v != nil && v != http.ErrAbortHandler { //nolint:errorlint // a panic's value, as net/http compares it
			c.logf("http: panic serving %s: %v\n%s", c.remote, v, stack())
		}
		c.end()
		if !handed {
			_ = c.nc.Close() // nobody is left to tell
		}
		c.d.s.forget(c)
	}()
	for first := true; ; first = false {
		if !first && !c.idle() {
			return
		}
		switch c.head() {
		case more:
			return
		case other:
			handed = c.hand()
			return
		case plain:
		}
		if !c.state.CompareAndSwap(waits, answers) {
			return
		}
		keep := c.answer()
		c.state.Store(waits)
		if !keep || c.d.s.closing.Load() {
			return
		}
	}
}

// idle waits for the next request as net/http does; false: there is none.
func (c *conn) idle() bool {
	if c.r.Buffered() < 4 {
		d := c.d.s.http.IdleTimeout
		if d == 0 {
			d = c.d.s.http.ReadTimeout
		}
		c.limit(d)
	}
	begin, err := c.r.Peek(4)
	if err != nil {
		return false
	}
	n := 0
	for n < len(begin) && (begin[n] == '\r' || begin[n] == '\n') { // after a POST: net/http, RFC 9112 2.2
		n++
	}
	_, err = c.r.Discard(n)
	c.limit(0)
	return err == nil
}

// head waits for the head of a request, the first one from the connection's
// beginning on, ReadHeaderTimeout at most; more: the connection is at its end, or
// was too slow.
func (c *conn) head() verdict {
	h := head{calls: c.d.s.calls}
	for n := c.r.Buffered(); ; n = c.r.Buffered() {
		buf, _ := c.r.Peek(n) // what is there
		if v := h.read(buf); v != more {
			c.limit(0)
			return v
		}
		if n == c.r.Size() {
			c.limit(0)
			return other
		}
		if !c.timed {
			c.limit(c.d.s.http.ReadHeaderTimeout)
		}
		if _, err := c.r.Peek(n + 1); err != nil {
			if n == 0 || isTimeout(err) || errors.Is(err, net.ErrClosed) {
				return more
			}
			c.limit(0)
			return other // a head that breaks off has an answer
		}
	}
}

// limit sets how long a read may take from now on, or takes that back (0).
func (c *conn) limit(d time.Duration) {
	switch {
	case d > 0:
		_ = c.nc.SetReadDeadline(time.Now().Add(d)) // of a connection that has ended: the read says so
	case c.timed:
		_ = c.nc.SetReadDeadline(time.Time{})
	}
	c.timed = d > 0
}

// hand gives the connection to net/http; false: there is nothing to hand on.
func (c *conn) hand() bool {
	buf, err := c.r.Peek(c.r.Buffered())
	if err != nil || !c.state.CompareAndSwap(waits, answers) { // closed meanwhile
		return false
	}
	c.d.pass(&replayed{Conn: c.nc, before: append([]byte(nil), buf...)})
	return true
}

// answer serves one call; keep: another may follow.
func (c *conn) answer() (keep bool) {
	req, err := http.ReadRequest(c.r)
	if err != nil { // no head that is plain gives one
		c.logf("http: %s: %v", c.remote, err)
		return false
	}
	x := newCall(c, req.ContentLength > 0)
	defer x.over() // also of a handler that panics
	req = req.WithContext(x)
	req.RemoteAddr = c.remote
	body := req.Body
	req.Body = &bodyEnd{ReadCloser: body, x: x}
	w := answer{out: c.out[:0], header: http.Header{}}
	c.d.s.http.Handler.ServeHTTP(&w, req)
	x.over()
	keep = body.Close() == nil // reads what the handler has left
	if !w.finish(keep && !c.d.s.closing.Load()) {
		keep = false
	}
	_, err = c.nc.Write(w.out)
	if c.out = w.out; cap(c.out) > keepMax {
		c.out = nil
	}
	return keep && err == nil
}

func (c *conn) logf(format string, args ...any) {
	if l := c.d.s.http.ErrorLog; l != nil {
		l.Printf(format, args...)
	}
}

func stack() []byte {
	b := make([]byte, stackText)
	return b[:runtime.Stack(b, false)]
}
