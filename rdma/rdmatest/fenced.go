package rdmatest

import (
	"encoding/hex"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pdlog/pdlog/rdma"
)

// fenced is a target that a child process writes to.
type fenced struct {
	target *node
	region rdma.Region
	lease  rdma.Lease
}

func newFenced(t *testing.T, p rdma.Provider) *fenced {
	t.Helper()
	dst := memory(t, childSize)
	f := &fenced{target: open(t, p, rdma.Config{Self: targetName, Listen: listenAt(p)})}
	f.region = register(t, f.target, dst.Memory())
	f.lease = grant(t, f.region, 5, all(f.region))
	return f
}

// writer starts a process that streams to the endpoint under the lease's key.
func (f *fenced) writer(t *testing.T, endpoint string) *child {
	t.Helper()
	return startChild(t, roleWriter, envEndpoint+"="+endpoint, envKey+"="+hex.EncodeToString(f.lease.Desc().Key))
}

func (f *fenced) landed(t *testing.T, n int) {
	t.Helper()
	f.target.notifs.count(t, "landed", n, func(v rdma.Notif) bool { return v.Kind == rdma.WriteLanded && v.Tag == 5 })
}

// fence revokes the lease and clears the pages, as their next owner would.
func (f *fenced) fence(t *testing.T) {
	t.Helper()
	revoke(t, f.target, f.lease)
	clear(f.region.Bytes())
}

// untouched waits for n late writes and demands that none of them landed.
func (f *fenced) untouched(t *testing.T, n int) {
	t.Helper()
	for _, v := range f.target.notifs.count(t, "late writes", n, func(v rdma.Notif) bool { return v.Kind == rdma.LateWriteRefused }) {
		if v.Tag != 5 || v.Peer != writerName || v.Bytes == 0 {
			t.Errorf("late write told as %+v", v)
		}
	}
	if !zero(f.region.Bytes()) {
		t.Fatal("bytes landed after the fence")
	}
}

// testStoppedWriter stops the writer's process by SIGSTOP, fences it, and lets
// it go on: at once, or with PDLOG_NIGHT after 10 s (two nodes always do it so,
// test/stories).
func testStoppedWriter(t *testing.T, p rdma.Provider) {
	f := newFenced(t, p)
	c := f.writer(t, f.target.Info().Endpoint)
	f.landed(t, 20)
	pid := c.cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, syscall.WUNTRACED, nil); err != nil || !ws.Stopped() {
		t.Fatalf("the writer did not stop: %v, status %#x", err, ws)
	}
	f.fence(t)
	if os.Getenv("PDLOG_NIGHT") != "" {
		<-time.After(10 * time.Second) // the story itself
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	f.untouched(t, 50)
}

// testReplacedWriter kills the writer; another process takes its name and its
// key, and goes on until it is fenced.
func testReplacedWriter(t *testing.T, p rdma.Provider) {
	f := newFenced(t, p)
	first := f.writer(t, f.target.Info().Endpoint)
	f.landed(t, 20)
	first.kill(t)
	f.target.notifs.find(t, "peer gone", func(v rdma.Notif) bool { return v.Kind == rdma.PeerGone && v.Left == 0 })
	so, _ := f.target.notifs.list()
	f.writer(t, f.target.Info().Endpoint)
	f.target.notifs.count(t, "the new process", 2, func(v rdma.Notif) bool { return v.Kind == rdma.PeerConnected })
	landed := 0
	for _, v := range so {
		if v.Kind == rdma.WriteLanded {
			landed++
		}
	}
	f.landed(t, landed+20) // with the key it may, until it is fenced
	f.fence(t)
	f.untouched(t, 50)
}

// testPartitionedWriter holds the writer's bytes on their way, in the middle of
// a write, until it is fenced.
func testPartitionedWriter(t *testing.T, p rdma.Provider) {
	f := newFenced(t, p)
	if near, ok := p.(interface{ SameHost() bool }); p.Name() == "shm" || ok && near.SameHost() {
		t.Skipf("%s: no network to partition inside one host", p.Name())
	}
	link := newLink(t, f.target.Info().Endpoint)
	f.writer(t, link.addr)
	f.landed(t, 20)
	link.hold.Store(true)
	await(t, link.held, "bytes that are held")
	f.fence(t)
	close(link.resume)
	f.untouched(t, 50)
}

// link forwards TCP connections, and can hold what it has read.
type link struct {
	addr   string
	hold   atomic.Bool
	held   chan struct{} // closed when bytes are held
	once   sync.Once
	resume chan struct{} // closed to let them go
}

// linkChunk is odd, so that what is held ends inside a frame.
const linkChunk = 64<<10 - 7

func newLink(t *testing.T, to string) *link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{addr: ln.Addr().String(), held: make(chan struct{}), resume: make(chan struct{})}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			a, err := ln.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				_ = a.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, a, b)
			mu.Unlock()
			wg.Go(func() { l.forward(b, a) })
			wg.Go(func() { l.forward(a, b) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		select {
		case <-l.resume:
		default:
			close(l.resume)
		}
		wg.Wait()
	})
	return l
}

func (l *link) forward(to, from net.Conn) {
	buf := make([]byte, linkChunk)
	for {
		n, err := from.Read(buf)
		if n > 0 && l.hold.Load() {
			l.once.Do(func() { close(l.held) })
			<-l.resume
		}
		if _, werr := to.Write(buf[:n]); werr != nil || err != nil {
			_ = to.Close()
			_ = from.Close()
			return
		}
	}
}

// testRestart closes a target and opens it again at the same address: what the
// writer held of the first is worth nothing at the second.
func testRestart(t *testing.T, p rdma.Provider) {
	w := newPair(t, p, page, rdma.Config{})
	l := grant(t, w.dst, 6, all(w.dst))
	w.works(t, l, 0, page)
	at := w.target.Info().Endpoint
	if err := w.target.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, w.ep.Done(), "the endpoint's end")
	dst := memory(t, page)
	w.target = open(t, p, rdma.Config{Self: targetName, Listen: at})
	w.dst = register(t, w.target, dst.Memory())
	w.ep = connect(t, w.writer, w.target.Info())
	w.refused(t, w.write(t, l, 1, 0, page), rdma.RefusedUnknownKey)
	w.works(t, grant(t, w.dst, 7, all(w.dst)), 0, page)
}
