package mirrortest

import (
	"context"
	"net"
	"sync"
	"testing"

	"golang.org/x/time/rate"
)

// Link is a TCP link to a server that can be slow or cut.
type Link struct {
	ln     net.Listener
	target string
	limit  *rate.Limiter // of what goes to the server, bytes; nil = none

	mu    sync.Mutex
	conns map[net.Conn]bool
	down  bool
	wg    sync.WaitGroup
}

// NewLink forwards to the target until the test ends. bytesPerSecond limits what
// goes there; 0 = as fast as it goes.
func NewLink(t testing.TB, target string, bytesPerSecond int) *Link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{ln: ln, target: target, conns: map[net.Conn]bool{}}
	if bytesPerSecond > 0 {
		l.limit = rate.NewLimiter(rate.Limit(bytesPerSecond), chunk)
	}
	l.wg.Go(l.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		l.Cut()
		l.wg.Wait()
	})
	return l
}

const chunk = 4 << 10

// URL is the link's near end.
func (l *Link) URL() string { return "nats://" + l.ln.Addr().String() }

// Cut breaks every connection; new ones are refused until Mend.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for c := range l.conns {
		_ = c.Close()
	}
}

// Mend lets connections through again.
func (l *Link) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
}

func (l *Link) accept() {
	for {
		near, err := l.ln.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", l.target)
		if err != nil || !l.add(near, far) {
			_ = near.Close()
			continue
		}
		l.wg.Go(func() { l.copy(far, near, l.limit) })
		l.wg.Go(func() { l.copy(near, far, nil) })
	}
}

func (l *Link) add(near, far net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		_ = far.Close()
		return false
	}
	l.conns[near], l.conns[far] = true, true
	return true
}

func (l *Link) copy(to, from net.Conn, limit *rate.Limiter) {
	defer func() {
		_, _ = to.Close(), from.Close()
		l.mu.Lock()
		delete(l.conns, to)
		delete(l.conns, from)
		l.mu.Unlock()
	}()
	buf := make([]byte, chunk)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if limit != nil && limit.WaitN(context.Background(), n) != nil {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
