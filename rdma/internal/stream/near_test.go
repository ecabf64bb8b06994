package stream

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
	"testing"

	"github.com/pdlog/pdlog/rdma"
)

// nearby is plain with a near way.
func nearby() Transport {
	t := plain
	t.Near = true
	return t
}

// nearRig is a target and a writer of two transports, and a write between them.
type nearRig struct {
	target, writer *domain
	gone           atomic.Int32 // PeerGone
	peers          atomic.Int32 // PeerConnected
}

// write connects, writes a page, and gives the connection that it went by.
func (r *nearRig) write(t *testing.T, to, from Transport, by func(context.Context, string) (net.Conn, error)) *outbound {
	t.Helper()
	const size = 1 << 20
	if by != nil {
		from.Dial = by
	}
	ends := make(chan rdma.Completion, 1)
	open := func(tr Transport, c rdma.Config) *domain {
		d, err := Open(t.Context(), tr, c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		return d.(*domain)
	}
	mem := func() *rdma.Memfd {
		m, err := rdma.AllocMemfd("near", size)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() }) // after the domains
		return m
	}
	dst, src := mem(), mem()
	r.target = open(to, rdma.Config{Self: "d", Listen: "127.0.0.1:0", OnNotif: func(n rdma.Notif) {
		switch n.Kind {
		case rdma.PeerGone:
			r.gone.Add(1)
		case rdma.PeerConnected:
			r.peers.Add(1)
		case rdma.WriteLanded, rdma.LateWriteRefused, rdma.ChecksumFailed:
		}
	}})
	r.writer = open(from, rdma.Config{Self: "p", OnCompletion: func(c rdma.Completion) { ends <- c }})
	region, err := r.target.RegisterMemory(t.Context(), dst.Memory())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.writer.RegisterMemory(t.Context(), src.Memory()); err != nil {
		t.Fatal(err)
	}
	l, err := region.Grant(t.Context(), rdma.Grant{Peer: "p", Tag: 1, Ranges: []rdma.Range{{Len: size}}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := r.writer.Connect(t.Context(), r.target.Info())
	if err != nil {
		t.Fatal(err)
	}
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i>>8) | 1
	}
	if _, err := e.PostBatch(rdma.Batch{Tag: 1, Key: l.Desc().Key, Writes: []rdma.Write{{Src: src.Bytes()}}}); err != nil {
		t.Fatal(err)
	}
	if c := <-ends; c.Status != rdma.Completed || string(dst.Bytes()) != string(src.Bytes()) {
		t.Fatalf("completion %+v", c)
	}
	return e.(*endpoint).conns[0]
}

// TestNearWayIsTaken: the bytes go by a pool of the writer's; the question alone
// makes nobody a peer.
func TestNearWayIsTaken(t *testing.T) {
	var r nearRig
	o := r.write(t, nearby(), nearby(), nil)
	if !o.pools || len(o.passed) != 1 {
		t.Errorf("pools %t, %d passed: it went by TCP", o.pools, len(o.passed))
	}
	if r.peers.Load() != 1 || r.gone.Load() != 0 {
		t.Errorf("%d peers came and %d went, want one that stays", r.peers.Load(), r.gone.Load())
	}
}

// TestNearWayThatIsNotThere: the writer stays on TCP, whatever is missing.
func TestNearWayThatIsNotThere(t *testing.T) {
	t.Run("the target has none", func(t *testing.T) {
		var r nearRig
		if o := r.write(t, plain, nearby(), nil); o.pools || r.peers.Load() != 1 {
			t.Errorf("pools %t, %d peers", o.pools, r.peers.Load())
		}
	})
	t.Run("the writer does not ask", func(t *testing.T) {
		var r nearRig
		if o := r.write(t, nearby(), plain, nil); o.pools || r.peers.Load() != 1 {
			t.Errorf("pools %t, %d peers", o.pools, r.peers.Load())
		}
	})
	t.Run("the target hangs up on the question", func(t *testing.T) {
		var dials atomic.Int32
		var r nearRig
		o := r.write(t, plain, nearby(), func(ctx context.Context, at string) (net.Conn, error) {
			if dials.Add(1) > 1 {
				return plain.Dial(ctx, at)
			}
			c, other := net.Pipe() // as of a build that refuses the flag
			return c, other.Close()
		})
		if o.pools || dials.Load() != 2 {
			t.Errorf("pools %t after %d dials", o.pools, dials.Load())
		}
	})
	t.Run("its name is out of reach", func(t *testing.T) {
		d := &domain{transport: nearby()}
		if c := d.dialNear(t.Context(), nearToken{1, 2, 3}); c != nil {
			t.Error("somebody listens at a name that nobody has")
		}
	})
}

// TestNoNearWayWithTLS: what is encrypted on the wire does not go round it.
func TestNoNearWayWithTLS(t *testing.T) {
	d, err := Open(t.Context(), nearby(), rdma.Config{Self: "d", Listen: "127.0.0.1:0", TLS: &tls.Config{MinVersion: tls.VersionTLS13}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	if d.(*domain).near != nil {
		t.Error("a near listener beside TLS")
	}
}
