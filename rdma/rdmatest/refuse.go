package rdmatest

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/pdlog/pdlog/rdma"
)

// refused demands that x was refused as a whole for the reason, that the
// target told of it, and that the region is still all zero.
func (w *pair) refused(t *testing.T, x rdma.Transfer, why rdma.Refusal) rdma.Notif {
	t.Helper()
	c := w.writer.of(t, x)
	var re *rdma.RefusedError
	if c.Status != rdma.Failed || !c.Proven || c.Bytes != 0 || !errors.Is(c.Err, rdma.ErrRefused) || !errors.As(c.Err, &re) {
		t.Fatalf("completion %+v, want a proven refusal", c)
	}
	if re.Reason != why {
		t.Errorf("refused as %s, want %s", re.Reason, why)
	}
	v := w.target.notifs.find(t, "refusal", func(v rdma.Notif) bool {
		return v.Kind == rdma.LateWriteRefused && v.Meta == c.Meta && v.WriterTag == c.Tag
	})
	if v.Bytes != x.Bytes || v.Placed != 0 || v.Peer != writerName || !errors.Is(v.Err, rdma.ErrRefused) {
		t.Errorf("notif %+v of %+v", v, x)
	}
	if !zero(w.dst.Bytes()) {
		t.Fatal("bytes landed")
	}
	return v
}

// works demands that the endpoint is still good for a write under l.
func (w *pair) works(t *testing.T, l rdma.Lease, off, n int) {
	t.Helper()
	x := w.write(t, l, 4711, off, n)
	if c := w.writer.of(t, x); c.Status != rdma.Completed {
		t.Fatalf("a good write afterwards: %+v", c)
	}
	if sum(w.dst.Bytes()[off:off+n]) != sum(w.src[off:off+n]) {
		t.Fatal("a good write afterwards: bytes differ")
	}
}

var zeros = make([]byte, 16<<20)

func zero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }

func testOutOfRange(t *testing.T, p rdma.Provider) {
	w := newPair(t, p, 4*page, rdma.Config{})
	l := grant(t, w.dst, 8, rdma.Range{Off: 3 * page, Len: page}, rdma.Range{Off: page, Len: 1000}, rdma.Range{Off: page + 1000, Len: page - 1000})
	for i, at := range []struct {
		off uint64
		n   int
	}{
		{0, 8},                     // before the first
		{page - 1, 2},              // over its start
		{2*page - 1, 2},            // over its end
		{page, page + 1},           // one too long
		{2 * page, page},           // the hole
		{4 * page, 1},              // past the region
		{4*page - 1, 2},            // over the region's end
		{math.MaxUint64 - 8, 8},    // the last that does not overflow
		{uint64(1) << 63, 2},       // negative as an int
		{page + uint64(1)<<32, 10}, // in range if cut to 32 bits
	} {
		x := post(t, w.ep, rdma.Batch{Tag: 2, Meta: uint64(i), Key: l.Desc().Key, Writes: []rdma.Write{{Src: w.src[:at.n], RemoteOff: at.off}}})
		v := w.refused(t, x, rdma.RefusedRange)
		if v.Tag != 8 || len(v.Ranges) != 1 || v.Ranges[0].Off != at.off || v.Ranges[0].Len != uint64(at.n) {
			t.Errorf("notif %+v of %d+%d", v, at.off, at.n)
		}
	}
	w.works(t, l, page, page) // over ranges that touch
	w.works(t, l, 3*page, page)
	// One write of three outside: the other two land, the transfer has failed.
	clear(w.dst.Bytes())
	x := post(t, w.ep, rdma.Batch{Tag: 2, Meta: 99, Key: l.Desc().Key, Writes: []rdma.Write{
		{Src: w.src[:100], RemoteOff: page}, {Src: w.src[:50], RemoteOff: 0}, {Src: w.src[:30], RemoteOff: 3 * page},
	}})
	c := w.writer.of(t, x)
	v := w.target.notifs.find(t, "refusal", func(v rdma.Notif) bool { return v.Meta == 99 })
	if c.Status != rdma.Failed || !c.Proven || c.Bytes != 130 || v.Kind != rdma.LateWriteRefused || v.Bytes != 50 || v.Placed != 130 {
		t.Errorf("completion %+v, notif %+v", c, v)
	}
}

func testBadGrant(t *testing.T, p rdma.Provider) {
	d := open(t, p, rdma.Config{Self: targetName, Listen: listenAt(p)})
	r := register(t, d, memory(t, page).Memory())
	for name, ranges := range map[string][]rdma.Range{
		"none":     nil,
		"empty":    {{Off: 8}},
		"past end": {{Off: page - 1, Len: 2}},
		"far":      {{Off: math.MaxUint64 - 10, Len: 5}},
		"overflow": {{Off: 8, Len: math.MaxUint64}},
		"second":   {{Off: 0, Len: 8}, {Off: page, Len: 1}},
	} {
		if _, err := r.Grant(t.Context(), rdma.Grant{Peer: writerName, Ranges: ranges}); !errors.Is(err, rdma.ErrRange) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.Deregister(t.Context()); err != nil {
		t.Errorf("deregister after refused grants: %v", err)
	}
}

func testWrongKey(t *testing.T, p rdma.Provider) {
	w := newPair(t, p, page, rdma.Config{})
	l := grant(t, w.dst, 1, all(w.dst))
	k := l.Desc().Key
	for i := range k {
		bad := bytes.Clone(k)
		bad[i] ^= 1
		x := post(t, w.ep, rdma.Batch{Tag: 1, Meta: uint64(i), Key: bad, Writes: []rdma.Write{{Src: w.src[:4096]}}})
		if v := w.refused(t, x, rdma.RefusedUnknownKey); v.Tag != 0 {
			t.Errorf("notif names tag %d", v.Tag)
		}
	}
	w.works(t, l, 0, page)
}

func testWrongPeer(t *testing.T, p rdma.Provider) {
	w := newPair(t, p, page, rdma.Config{})
	other, err := w.dst.Grant(t.Context(), rdma.Grant{Peer: "p1/0", Tag: 2, Ranges: []rdma.Range{all(w.dst)}})
	if err != nil {
		t.Fatal(err)
	}
	w.refused(t, w.write(t, other, 1, 0, page), rdma.RefusedPeer)
	anyone, err := w.dst.Grant(t.Context(), rdma.Grant{Ranges: []rdma.Range{all(w.dst)}})
	if err != nil {
		t.Fatal(err)
	}
	w.works(t, anyone, 0, page)
}

func testRevokedKey(t *testing.T, p rdma.Provider) {
	w := newPair(t, p, 4*page, rdma.Config{})
	l, other := grant(t, w.dst, 6, all(w.dst)), grant(t, w.dst, 7, all(w.dst))
	if bytes.Equal(l.Desc().Key, other.Desc().Key) {
		t.Fatal("two leases have one key")
	}
	w.works(t, l, 0, page)
	revoke(t, w.target, l)
	clear(w.dst.Bytes())
	if v := w.refused(t, w.write(t, l, 1, page, page), rdma.RefusedRevoked); v.Tag != 6 {
		t.Errorf("the late write is told with tag %d, the lease had 6", v.Tag)
	}
	w.works(t, other, page, page) // same pages, same connection
}

func testRevokeIdle(t *testing.T, p rdma.Provider) {
	w := newPair(t, p, page, rdma.Config{})
	l := grant(t, w.dst, 6, all(w.dst))
	f := revoke(t, w.target, l)
	if c := w.target.Caps(); f.Exact != c.Exact || f.Scope != c.Revoke {
		t.Errorf("fence %+v, caps %+v", f, c)
	}
	if again := revoke(t, w.target, l); again.Kind != f.Kind {
		t.Errorf("the second fence is %+v", again)
	}
	if l.Tag() != 6 || l.Desc().Provider != p.Name() || l.Desc().Endpoint != w.target.Info().Endpoint {
		t.Errorf("desc %+v", l.Desc())
	}
}

func testDeregister(t *testing.T, p rdma.Provider) {
	w := newPair(t, p, page, rdma.Config{})
	l := grant(t, w.dst, 6, all(w.dst))
	if err := w.dst.Deregister(t.Context()); !errors.Is(err, rdma.ErrBusy) {
		t.Fatalf("deregister with an open lease: %v", err)
	}
	w.works(t, l, 0, page)
	revoke(t, w.target, l)
	revoke(t, w.target, l) // counted once
	if err := w.dst.Deregister(t.Context()); err != nil {
		t.Fatalf("deregister: %v", err)
	}
	if _, err := w.dst.Grant(t.Context(), rdma.Grant{Ranges: []rdma.Range{{Len: 1}}}); err == nil {
		t.Error("grant on a region that is gone")
	}
}
