package stream

import (
	"errors"
	"hash/crc32"
	"testing"

	"github.com/pdlog/pdlog/rdma"
)

// TestWrongChecksumIsNoSuccess: the writer is refused, the owner is told, and
// Verify names the place.
func TestWrongChecksumIsNoSuccess(t *testing.T) {
	m, err := rdma.AllocMemfd("sums", 4096)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{notifs: make(chan rdma.Notif, 100)}
	r.domain, err = Open(t.Context(), plain, rdma.Config{Listen: "127.0.0.1:0", Checksums: true, OnNotif: func(n rdma.Notif) { r.notifs <- n }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.domain.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	})
	if r.region, err = r.domain.RegisterMemory(t.Context(), m.Memory()); err != nil {
		t.Fatal(err)
	}
	l, err := r.region.Grant(t.Context(), rdma.Grant{Peer: "p", Tag: 3, Ranges: []rdma.Range{{Len: 4096}}})
	if err != nil {
		t.Fatal(err)
	}
	c := r.dial(t)
	send(t, c, hello())
	readReply(t, c)
	r.next(t, rdma.PeerConnected)
	put := func(seq, off uint64, payload string, sum uint32) reply {
		h := header{op: opWrite, flags: flagLast | flagSum, length: uint32(len(payload)), offset: off, seq: seq, sum: sum}
		copy(h.key[:], l.Desc().Key)
		send(t, c, frame(h, payload))
		return readReply(t, c)
	}
	of := func(s string) uint32 { return crc32.Checksum([]byte(s), castagnoli) }
	if got := put(1, 0, "good", of("good")); got.op != opAck {
		t.Errorf("reply %+v", got)
	}
	r.next(t, rdma.WriteLanded)
	if got := put(2, 100, "bend", of("bent")); got.op != opNak || got.reason != rdma.RefusedChecksum || got.placed != 0 {
		t.Errorf("reply %+v", got)
	}
	if n := r.next(t, rdma.ChecksumFailed); n.Tag != 3 || len(n.Ranges) != 1 || n.Ranges[0].Off != 100 || n.Bytes != 4 || !errors.Is(n.Err, rdma.ErrRefused) {
		t.Errorf("notif %+v", n)
	}
	if bad, err := l.Verify(t.Context()); err != nil || len(bad) != 1 || bad[0] != (rdma.Range{Off: 100, Len: 4}) {
		t.Errorf("verify: %v, %v", bad, err)
	}
	if got := put(3, 100, "bent", of("bent")); got.op != opAck {
		t.Errorf("reply %+v", got)
	}
	if bad, err := l.Verify(t.Context()); err != nil || len(bad) > 0 {
		t.Errorf("verify after it was sent again: %v, %v", bad, err)
	}
}
