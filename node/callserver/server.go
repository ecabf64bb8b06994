package callserver

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/errors"
)

// Server serves plain calls by itself and all else by net/http. New makes one.
type Server struct {
	http  *http.Server
	calls func(path []byte) bool

	closing atomic.Bool // Shutdown or Close has begun
	loops   sync.WaitGroup

	mu    sync.Mutex
	conns map[*conn]struct{}
}

// New makes a server of what an http.Server says: Handler, ConnContext,
// ReadHeaderTimeout, IdleTimeout and ErrorLog hold for plain calls too (its
// other hooks and timeouts do not, and have to be unset). calls says whether a
// POST of a path is a call with one message each way; it is asked by many
// goroutines at once and keeps nothing of path.
func New(h *http.Server, calls func(path []byte) bool) *Server {
	s := &Server{http: h, calls: calls, conns: map[*conn]struct{}{}}
	h.RegisterOnShutdown(func() { // once the listener is closed: who is hung up on and dials again finds nobody
		s.each(func(c *conn) {
			if c.state.CompareAndSwap(waits, shut) {
				c.shut()
			}
		})
	})
	if inner := h.ConnContext; inner != nil {
		h.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
			if r, ok := c.(*replayed); ok { // whoever asks for the connection knows its own
				c = r.Conn
			}
			return inner(ctx, c)
		}
	}
	return s
}

// Serve accepts connections until Shutdown or Close, and then gives
// http.ErrServerClosed. It closes ln. Connections have to be syscall.Conn;
// one that is not is net/http's from its beginning.
func (s *Server) Serve(ln net.Listener) error {
	d := &divider{s: s, ln: ln, rest: make(chan net.Conn), failed: make(chan error), done: make(chan struct{})}
	var accepts sync.WaitGroup
	accepts.Go(d.run)
	err := s.http.Serve(d)
	accepts.Wait()
	return err
}

// Shutdown closes the listener and then every connection that waits for a
// request, and waits for the answers that are under way as long as ctx allows.
func (s *Server) Shutdown(ctx context.Context) error {
	s.closing.Store(true)
	err := s.http.Shutdown(ctx)
	over := make(chan struct{})
	go func() {
		s.loops.Wait()
		close(over)
	}()
	select {
	case <-over:
		return err
	case <-ctx.Done():
		return errors.CombineErrors(err, ctx.Err())
	}
}

// Close closes the listener and every connection at once. Handlers that run
// find their context ended; Close does not wait for them.
func (s *Server) Close() error {
	s.closing.Store(true)
	s.each((*conn).shut)
	return s.http.Close()
}

func (s *Server) each(f func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		f(c)
	}
}

// add takes up a connection; false: the server has ended.
func (s *Server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		return false
	}
	s.conns[c] = struct{}{}
	s.loops.Add(1) // under mu, and so not beside a Wait that saw none
	return true
}

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.loops.Done()
}

// divider is the listener that net/http sees: it gets the connections that the
// loops hand on.
type divider struct {
	s      *Server
	ln     net.Listener
	rest   chan net.Conn
	failed chan error
	once   sync.Once
	done   chan struct{}
}

var _ net.Listener = (*divider)(nil)

// run accepts. An error goes to net/http, which waits a little before it asks
// for the next connection if the error is one that passes.
func (d *divider) run() {
	for {
		nc, err := d.ln.Accept()
		if err != nil {
			select {
			case d.failed <- err:
				continue
			case <-d.done:
				return
			}
		}
		sc, ok := nc.(syscall.Conn)
		if !ok {
			d.pass(nc)
			continue
		}
		c := newConn(d, nc, sc)
		if !d.s.add(c) {
			_ = nc.Close()
			continue
		}
		go c.serve()
	}
}

// pass gives a connection to net/http.
func (d *divider) pass(c net.Conn) {
	select {
	case d.rest <- c:
	case <-d.done:
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (d *divider) Accept() (net.Conn, error) {
	select {
	case c := <-d.rest:
		return c, nil
	case err := <-d.failed:
		return nil, err
	case <-d.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (d *divider) Close() error {
	var err error
	d.once.Do(func() {
		close(d.done)
		err = d.ln.Close()
	})
	return err
}

// Addr implements net.Listener.
func (d *divider) Addr() net.Addr { return d.ln.Addr() }

// replayed is a connection of which some bytes were read before.
type replayed struct {
	net.Conn
	before []byte
}

// Read implements net.Conn.
func (r *replayed) Read(p []byte) (int, error) {
	if len(r.before) == 0 {
		return r.Conn.Read(p)
	}
	n := copy(p, r.before)
	if r.before = r.before[n:]; len(r.before) == 0 {
		r.before = nil
	}
	return n, nil
}
