package stream

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/rdma"
)

// pooled is the simplest transport with pools.
var pooled = Transport{
	Name: "pooled",
	Listen: func(ctx context.Context, addr string) (net.Listener, string, error) {
		ln, err := new(net.ListenConfig).Listen(ctx, "unix", addr)
		return ln, addr, err
	},
	Dial: func(ctx context.Context, endpoint string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", endpoint)
	},
	Tune:  func(net.Conn) error { return nil },
	Pools: true,
}

func dialPooled(t testing.TB, at string) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // the test may have closed it
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	send(t, c, hello())
	readReply(t, c)
	return c
}

func sendFDs(t *testing.T, c *net.UnixConn, b []byte, fds ...int) {
	t.Helper()
	if _, _, err := c.WriteMsgUnix(b, unix.UnixRights(fds...), nil); err != nil {
		t.Fatal(err)
	}
}

// TestHostileWriterEndsOnlyItsConnection passes what no writer passes.
func TestHostileWriterEndsOnlyItsConnection(t *testing.T) {
	at := filepath.Join(t.TempDir(), "s")
	dst, err := rdma.AllocMemfd("target", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	src, err := rdma.AllocMemfd("source", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for i := range src.Bytes() {
		src.Bytes()[i] = 0x11
	}
	d, err := Open(t.Context(), pooled, rdma.Config{Self: "d", Listen: at})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), dst.Close(), src.Close()); err != nil {
			t.Error(err)
		}
	})
	region, err := d.RegisterMemory(t.Context(), dst.Memory())
	if err != nil {
		t.Fatal(err)
	}
	l, err := region.Grant(t.Context(), rdma.Grant{Peer: "p", Tag: 1, Ranges: []rdma.Range{{Len: 1 << 20}}})
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(r.Close(), w.Close()) }()
	null, err := os.Open("/dev/null") // on a tmpfs, by its magic
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	disk, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = disk.Close() }()
	pool := frame(header{op: opPool, pool: 1}, "")
	copyOf := func(seq uint64, pool uint32, source uint64, n uint32) []byte {
		h := header{op: opCopy, flags: flagLast, length: n, seq: seq, pool: pool, source: source}
		copy(h.key[:], l.Desc().Key)
		return frame(h, "")
	}
	for name, attack := range map[string]func(c *net.UnixConn){
		"pool without a file":  func(c *net.UnixConn) { send(t, c, pool) },
		"pipe":                 func(c *net.UnixConn) { sendFDs(t, c, pool, int(r.Fd())) },
		"device":               func(c *net.UnixConn) { sendFDs(t, c, pool, int(null.Fd())) },
		"file on a disk":       func(c *net.UnixConn) { sendFDs(t, c, pool, int(disk.Fd())) },
		"five files at once":   func(c *net.UnixConn) { sendFDs(t, c, pool, src.FD(), src.FD(), src.FD(), src.FD(), src.FD()) },
		"copy of no pool":      func(c *net.UnixConn) { send(t, c, copyOf(1, 9, 0, 10)) },
		"copy behind the end":  func(c *net.UnixConn) { sendFDs(t, c, append(pool, copyOf(1, 1, 1<<20-4, 5)...), src.FD()) },
		"copy from far behind": func(c *net.UnixConn) { sendFDs(t, c, append(pool, copyOf(1, 1, ^uint64(0)-2, 5)...), src.FD()) },
		"the same pool again":  func(c *net.UnixConn) { sendFDs(t, c, append(pool, pool...), src.FD(), src.FD()) },
		"files without a name": func(c *net.UnixConn) {
			sendFDs(t, c, pool[:1], src.FD(), src.FD(), src.FD())
			sendFDs(t, c, pool[1:2], src.FD(), src.FD())
		},
	} {
		c := dialPooled(t, at)
		attack(c)
		if _, err := io.Copy(io.Discard, c); err != nil && !isReset(err) {
			t.Errorf("%s: the connection did not end: %v", name, err)
		}
	}
	if region.Bytes()[0] != 0 {
		t.Error("bytes landed")
	}
	c := dialPooled(t, at)
	sendFDs(t, c, pool, src.FD())
	send(t, c, copyOf(1, 1, 1<<20-4, 4))
	if got := readReply(t, c); got.op != opAck || region.Bytes()[3] != 0x11 || region.Bytes()[4] != 0 {
		t.Errorf("a good one: %+v, landed %x", got, region.Bytes()[:8])
	}
}

// TestDescriptorsAreNoPartOfOtherTransports: tcp does not know pools.
func TestDescriptorsAreNoPartOfOtherTransports(t *testing.T) {
	r := newRig(t)
	for name, h := range map[string]header{
		"pool": {op: opPool, pool: 1},
		"copy": {op: opCopy, flags: flagLast, length: 4, seq: 1, pool: 1, key: r.key},
	} {
		c := r.dial(t)
		send(t, c, append(hello(), frame(h, "")...))
		if _, err := io.Copy(io.Discard, c); err != nil && !isReset(err) {
			t.Errorf("%s: the connection did not end: %v", name, err)
		}
	}
}
