package stream

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/pdlog/pdlog/rdma"
)

const patience = 20 * time.Second // a bound, never a wait

// rig is a target with a lease, spoken to by hand.
type rig struct {
	domain rdma.Domain
	region rdma.Region
	key    key
	notifs chan rdma.Notif
}

func newRig(t *testing.T) *rig {
	t.Helper()
	m, err := rdma.AllocMemfd("wiretest", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{notifs: make(chan rdma.Notif, 100)}
	r.domain, err = Open(t.Context(), plain, rdma.Config{Listen: "127.0.0.1:0", OnNotif: func(n rdma.Notif) { r.notifs <- n }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.domain.Close(); err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	if r.region, err = r.domain.RegisterMemory(t.Context(), m.Memory()); err != nil {
		t.Fatal(err)
	}
	l, err := r.region.Grant(t.Context(), rdma.Grant{Peer: "p", Tag: 1, Ranges: []rdma.Range{{Len: 4096}}})
	if err != nil {
		t.Fatal(err)
	}
	copy(r.key[:], l.Desc().Key)
	return r
}

func (r *rig) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", r.domain.Info().Endpoint, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // the test may have closed it
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

func send(t testing.TB, c net.Conn, b []byte) {
	t.Helper()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

func frame(h header, payload string) []byte {
	b := make([]byte, headerLen, headerLen+len(payload))
	h.encode(b)
	return append(b, payload...)
}

func (r *rig) write(seq uint64, off uint64, payload string, flags uint16) []byte {
	return frame(header{op: opWrite, flags: flags, length: uint32(len(payload)), key: r.key, offset: off, seq: seq}, payload)
}

func hello() []byte { return frame(header{op: opHello, length: 1}, "p") }

func readReply(t testing.TB, c net.Conn) reply {
	t.Helper()
	var b [replyLen]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		t.Fatalf("read a reply: %v", err)
	}
	var r reply
	if err := r.decode(b[:]); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) next(t *testing.T, kind rdma.NotifKind) rdma.Notif {
	t.Helper()
	select {
	case n := <-r.notifs:
		if n.Kind != kind {
			t.Fatalf("told %+v, want %s", n, kind)
		}
		return n
	case <-time.After(patience):
		t.Fatalf("waited %s for %s", patience, kind)
		return rdma.Notif{}
	}
}

// TestBrokenStreamEndsOnlyItsConnection sends what no writer sends, and then
// uses another connection.
func TestBrokenStreamEndsOnlyItsConnection(t *testing.T) {
	r := newRig(t)
	garbage := make([]byte, 1000)
	for i := range garbage {
		garbage[i] = byte(i * 31)
	}
	bad := func(spoil func(*header)) []byte {
		h := header{op: opWrite, flags: flagLast, length: 4, key: r.key, seq: 1}
		spoil(&h)
		return frame(h, "xxxx")
	}
	for name, b := range map[string][]byte{
		"garbage":             garbage,
		"huge length":         bad(func(h *header) { h.length = 1 << 31 }),
		"sequence jumps":      bad(func(h *header) { h.seq = 2 }),
		"unknown op":          bad(func(h *header) { h.op = 77 }),
		"second hello":        hello(),
		"transfer unfinished": append(r.write(1, 0, "ab", 0), r.write(2, 2, "cd", flagLast)...),
		"sequence again":      append(r.write(1, 0, "ab", flagLast), r.write(1, 2, "cd", flagLast)...),
	} {
		c := r.dial(t)
		send(t, c, hello())
		if got := readReply(t, c); got.op != opHelloOK {
			t.Fatalf("%s: reply %+v", name, got)
		}
		r.next(t, rdma.PeerConnected)
		send(t, c, b)
		if _, err := io.Copy(io.Discard, c); err != nil && !isReset(err) {
			t.Errorf("%s: the connection did not end: %v", name, err)
		}
		for n := (rdma.Notif{}); n.Kind != rdma.PeerGone; {
			select {
			case n = <-r.notifs:
			case <-time.After(patience):
				t.Fatalf("%s: not told of the end", name)
			}
		}
	}
	for name, b := range map[string][]byte{"garbage": garbage, "write before hello": r.write(1, 0, "ab", flagLast)} {
		c := r.dial(t)
		send(t, c, b)
		if _, err := io.Copy(io.Discard, c); err != nil && !isReset(err) {
			t.Errorf("%s first: the connection did not end: %v", name, err)
		}
	}
	c := r.dial(t)
	send(t, c, hello())
	readReply(t, c)
	r.next(t, rdma.PeerConnected) // and nothing was told of those without a hello
	send(t, c, r.write(1, 8, "good", flagLast))
	if got := readReply(t, c); got.op != opAck || got.seq != 1 {
		t.Errorf("reply %+v", got)
	}
	if got := string(r.region.Bytes()[8:12]); got != "good" {
		t.Errorf("landed %q", got)
	}
}

func isReset(err error) bool {
	nerr, ok := err.(net.Error)
	return ok && !nerr.Timeout()
}

// TestFramesMayComeInAnyPieces sends the same stream cut at every byte.
func TestFramesMayComeInAnyPieces(t *testing.T) {
	r := newRig(t)
	c := r.dial(t)
	send(t, c, hello())
	readReply(t, c)
	r.next(t, rdma.PeerConnected)
	whole := func(seq uint64) []byte { // two frames of one transfer, one refused transfer, one of a byte
		b := r.write(seq+1, 0, "hello ", 0)
		b = append(b, r.write(seq+1, 6, "world", flagLast)...)
		b = append(b, r.write(seq+2, 4094, "out", flagLast)...)
		b = append(b, r.write(seq+3, 11, "!", flagLast|flagPartial)...)
		return b
	}
	seq := uint64(0)
	for cut := 1; cut < len(whole(0)); cut++ {
		clear(r.region.Bytes())
		b := whole(seq)
		seq += 3
		send(t, c, b[:cut])
		send(t, c, b[cut:])
		for acked := uint64(0); acked < seq; {
			got := readReply(t, c)
			if got.op == opNak && (got.seq != seq-1 || got.reason != rdma.RefusedRange || got.frames != 1) || got.seq <= acked {
				t.Fatalf("cut at %d: reply %+v", cut, got)
			}
			acked = got.seq
		}
		if n := r.next(t, rdma.WriteLanded); len(n.Ranges) != 1 || n.Ranges[0].Len != 11 || n.Bytes != 11 {
			t.Fatalf("cut at %d: %+v", cut, n)
		}
		if n := r.next(t, rdma.LateWriteRefused); n.Bytes != 3 || n.Tag != 1 {
			t.Fatalf("cut at %d: %+v", cut, n)
		}
		if n := r.next(t, rdma.WriteLanded); n.Bytes != 1 || !n.Partial {
			t.Fatalf("cut at %d: %+v", cut, n)
		}
		if got := string(r.region.Bytes()[:13]); got != "hello world!\x00" {
			t.Fatalf("cut at %d: landed %q", cut, got)
		}
	}
}

// TestOffsetsNearTheTopAreRefused: the overflow that PostBatch would refuse.
func TestOffsetsNearTheTopAreRefused(t *testing.T) {
	r := newRig(t)
	c := r.dial(t)
	send(t, c, hello())
	readReply(t, c)
	for i, off := range []uint64{^uint64(0), ^uint64(0) - 3, ^uint64(0) - 4095, 1 << 63} {
		send(t, c, r.write(uint64(i+1), off, "wxyz", flagLast))
		if got := readReply(t, c); got.op != opNak || got.reason != rdma.RefusedRange || got.placed != 0 {
			t.Errorf("offset %#x: reply %+v", off, got)
		}
	}
}

// TestTargetThatLiesEndsTheEndpoint: answers that no target gives.
func TestTargetThatLiesEndsTheEndpoint(t *testing.T) {
	for name, answer := range map[string][]byte{
		"transfer never sent": reply{op: opAck, seq: 9}.append(nil),
		"nothing":             reply{op: opAck}.append(nil),
		"hello again":         reply{op: opHelloOK, seq: 1}.append(nil),
		"garbage":             make([]byte, replyLen),
	} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			c, err := ln.Accept()
			if err != nil {
				return
			}
			defer func() { _ = c.Close() }()
			b := make([]byte, headerLen+1)
			_, _ = io.ReadFull(c, b) // what goes wrong here shows in the writer
			_, _ = c.Write(reply{op: opHelloOK}.append(nil))
			_, _ = io.ReadFull(c, make([]byte, headerLen+4))
			_, _ = c.Write(answer)
			_, _ = io.Copy(io.Discard, c)
		}()
		ends := make(chan rdma.Completion, 1)
		d, err := Open(t.Context(), plain, rdma.Config{Self: "p", OnCompletion: func(c rdma.Completion) { ends <- c }})
		if err != nil {
			t.Fatal(err)
		}
		ep, err := d.Connect(t.Context(), rdma.PeerInfo{Endpoint: ln.Addr().String(), Peer: "d"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ep.PostBatch(rdma.Batch{Key: make([]byte, keyLen), Writes: []rdma.Write{{Src: []byte("wxyz")}}}); err != nil {
			t.Fatal(err)
		}
		select {
		case c := <-ends:
			if c.Status != rdma.Uncertain || c.Proven {
				t.Errorf("%s: %+v", name, c)
			}
		case <-time.After(patience):
			t.Fatalf("%s: the endpoint lives on", name)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		_ = ln.Close()
		<-served
	}
}

// TestPagesThatAreNotMappedAreRefused: the kernel answers EFAULT, nobody dies.
func TestPagesThatAreNotMappedAreRefused(t *testing.T) {
	r := newRig(t)
	m, err := rdma.AllocMemfd("gone", 4096)
	if err != nil {
		t.Fatal(err)
	}
	region, err := r.domain.RegisterMemory(t.Context(), m.Memory())
	if err != nil {
		t.Fatal(err)
	}
	l, err := region.Grant(t.Context(), rdma.Grant{Peer: "p", Tag: 4, Ranges: []rdma.Range{{Len: 4096}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil { // the caller breaks its promise
		t.Fatal(err)
	}
	c := r.dial(t)
	send(t, c, hello())
	readReply(t, c)
	r.next(t, rdma.PeerConnected)
	h := header{op: opWrite, flags: flagLast, length: 4, seq: 1}
	copy(h.key[:], l.Desc().Key)
	send(t, c, frame(h, "lost"))
	if got := readReply(t, c); got.op != opNak || got.reason != rdma.RefusedMemory || got.placed != 0 {
		t.Errorf("reply %+v", got)
	}
	if n := r.next(t, rdma.LateWriteRefused); n.Tag != 4 || n.Bytes != 4 {
		t.Errorf("notif %+v", n)
	}
	send(t, c, r.write(2, 0, "kept", flagLast))
	if got := readReply(t, c); got.op != opAck {
		t.Errorf("reply %+v", got)
	}
}
