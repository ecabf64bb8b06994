package rdmatest

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/rdma"
)

const page = 64 << 10

func testCaps(t *testing.T, p rdma.Provider) {
	d := open(t, p, rdma.Config{Self: targetName, Listen: listenAt(p)})
	c, info := d.Caps(), d.Info()
	if c.Revoke == rdma.ScopeNone || c.Fence == rdma.FenceNone || !c.Exact {
		t.Errorf("caps %+v: this suite is for providers that revoke exactly", c)
	}
	if info.Provider != p.Name() || info.Peer != targetName || info.Endpoint == "" {
		t.Errorf("info %+v", info)
	}
	if other, err := d.Connect(t.Context(), rdma.PeerInfo{Provider: "carrier-pigeon", Endpoint: info.Endpoint}); !errors.Is(err, rdma.ErrProvider) {
		t.Errorf("connect to another provider: %v, %v", other, err)
	}
}

// testReadBack writes pages of several sizes to shuffled places.
func testReadBack(t *testing.T, p rdma.Provider) {
	const size = 8 << 20
	w := newPair(t, p, size, rdma.Config{})
	l := grant(t, w.dst, 7, all(w.dst))
	place := func(off int) uint64 { return uint64(size/2+off) % size } // swap the halves
	meta := uint64(0)
	var want int
	for _, n := range []int{1, 4096, page, 1 << 20, 3<<20 - 5} {
		b := rdma.Batch{Tag: 5, Key: l.Desc().Key, Meta: meta, Flags: 0xa0 + uint32(meta), Token: 1000 + meta}
		for off := 0; off < size/2; off += size / 2 / 4 {
			n := min(n, size/2/4)
			b.Writes = append(b.Writes, rdma.Write{Src: w.src[off : off+n], RemoteOff: place(off)})
		}
		clear(w.dst.Bytes())
		x := post(t, w.ep, b)
		c := w.writer.of(t, x)
		if c.Status != rdma.Completed || c.Err != nil || !c.Proven || c.Bytes != x.Bytes {
			t.Fatalf("completion %+v of %+v", c, x)
		}
		if c.Token != b.Token || c.Meta != meta || c.Tag != 5 || c.Peer != targetName {
			t.Errorf("completion names %+v", c)
		}
		landed := w.target.notifs.find(t, "landed", func(v rdma.Notif) bool { return v.Kind == rdma.WriteLanded && v.Meta == meta })
		if landed.Tag != 7 || landed.WriterTag != 5 || landed.Flags != b.Flags || landed.Peer != writerName || landed.Bytes != x.Bytes || landed.Partial {
			t.Errorf("notif %+v", landed)
		}
		want = 0
		for _, wr := range b.Writes {
			got := w.dst.Bytes()[wr.RemoteOff : wr.RemoteOff+uint64(len(wr.Src))]
			if sum(got) != sum(wr.Src) {
				t.Fatalf("%d bytes at %d: checksum differs", len(wr.Src), wr.RemoteOff)
			}
			want += len(wr.Src)
			if !slices.ContainsFunc(landed.Ranges, func(s rdma.Span) bool {
				return s.Region == w.dst.ID() && s.Off <= wr.RemoteOff && wr.RemoteOff+uint64(len(wr.Src)) <= s.End()
			}) {
				t.Errorf("ranges %v lack %d+%d", landed.Ranges, wr.RemoteOff, len(wr.Src))
			}
		}
		if int64(want) != x.Bytes || x.Writes != len(b.Writes) {
			t.Errorf("transfer %+v, posted %d bytes", x, want)
		}
		meta++
	}
}

func testMemory(t *testing.T, p rdma.Provider) {
	m := memory(t, 4*page)
	w := newPair(t, p, page, rdma.Config{})
	byFD := register(t, w.target, rdma.Memory{FD: m.FD(), Offset: page, Len: 2 * page})
	bySlice := register(t, w.target, rdma.Memory{FD: -1, Mapped: m.Bytes(), Len: page})
	if byFD.ID() == bySlice.ID() {
		t.Errorf("two regions have id %d", byFD.ID())
	}
	for _, r := range []rdma.Region{byFD, bySlice} {
		l := grant(t, r, 1, rdma.Range{Off: 100, Len: 200})
		x := post(t, w.ep, rdma.Batch{Tag: 1, Key: l.Desc().Key, Writes: []rdma.Write{{Src: w.src[:200], RemoteOff: 100}}})
		if c := w.writer.of(t, x); c.Status != rdma.Completed {
			t.Errorf("completion %+v", c)
		}
		revoke(t, w.target, l)
	}
	if got := m.Bytes()[page+100 : page+300]; sum(got) != sum(w.src[:200]) {
		t.Error("the write through the descriptor's region is not in the memfd")
	}
	if got := m.Bytes()[100:300]; sum(got) != sum(w.src[:200]) {
		t.Error("the write through the mapping's region is not in the memfd")
	}
	for _, r := range []rdma.Region{byFD, bySlice} {
		if err := r.Deregister(t.Context()); err != nil {
			t.Errorf("deregister: %v", err)
		}
	}
}

func testBadMemory(t *testing.T, p rdma.Provider) {
	d := open(t, p, rdma.Config{Self: targetName, Listen: listenAt(p)})
	fd, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }() // a memfd, nothing to lose
	if err := unix.Ftruncate(fd, page); err != nil {
		t.Fatal(err)
	}
	good := memory(t, page)
	for name, m := range map[string]rdma.Memory{
		"heap":       {FD: -1, Mapped: make([]byte, 1<<20)},
		"unsealed":   {FD: fd, Len: page},
		"no file":    {FD: -1, Len: page},
		"past end":   {FD: good.FD(), Len: 2 * page},
		"negative":   {FD: good.FD(), Len: page, Offset: -4096},
		"empty":      {FD: good.FD()},
		"too long":   {FD: -1, Mapped: good.Bytes(), Len: 2 * page},
		"wrong kind": {FD: good.FD(), Len: page, Kind: rdma.VRAM + 100},
	} {
		if r, err := d.RegisterMemory(t.Context(), m); !errors.Is(err, rdma.ErrMemory) {
			t.Errorf("%s: registered as %v, error %v", name, r, err)
		}
	}
}

// testOrder keeps the target's callback for a moment, in which a completion
// that does not wait for it would come.
func testOrder(t *testing.T, p rdma.Provider) {
	const moment = time.Millisecond // a round trip here takes a tenth of it
	var told atomic.Uint64          // writes whose callback has returned
	early := make(chan struct{}, 1)
	first := make(chan rdma.NotifKind, 1)
	note := func(v rdma.Notif) {
		select {
		case first <- v.Kind:
		default:
		}
		if v.Kind != rdma.WriteLanded {
			return
		}
		select {
		case <-early:
			t.Errorf("write %d completed before its callback had returned", v.Meta)
		case <-time.After(moment):
		}
		told.Store(v.Meta + 1)
	}
	dst, src := memory(t, 1<<20), memory(t, 1<<20)
	target := open(t, p, rdma.Config{Self: targetName, Listen: listenAt(p), OnNotif: note})
	writer := open(t, p, rdma.Config{Self: writerName, OnCompletion: func(c rdma.Completion) {
		if told.Load() <= c.Meta {
			select {
			case early <- struct{}{}:
			default: // one is enough
			}
		}
	}})
	r := register(t, target, dst.Memory())
	ep := connect(t, writer, target.Info())
	l := grant(t, r, 1, all(r))
	const n = 200
	for i := range n {
		post(t, ep, rdma.Batch{Tag: 1, Key: l.Desc().Key, Meta: uint64(i), Writes: []rdma.Write{{Src: src.Bytes()[:4096]}}})
	}
	done := writer.completions.count(t, "completions", n, func(rdma.Completion) bool { return true })
	for i, c := range done {
		if c.Meta != uint64(i) {
			t.Fatalf("completion %d is of write %d", i, c.Meta)
		}
	}
	landed := target.notifs.count(t, "landed", n, func(v rdma.Notif) bool { return v.Kind == rdma.WriteLanded })
	for i, v := range landed {
		if v.Meta != uint64(i) {
			t.Fatalf("notif %d is of write %d", i, v.Meta)
		}
	}
	if k := <-first; k != rdma.PeerConnected {
		t.Errorf("first notif is %s", k)
	}
}

func testSeveralKeys(t *testing.T, p rdma.Provider) {
	aux := memory(t, page)
	w := newPair(t, p, page, rdma.Config{})
	r2 := register(t, w.target, aux.Memory())
	a, b := grant(t, w.dst, 3, all(w.dst)), grant(t, r2, 3, all(r2))
	x := post(t, w.ep, rdma.Batch{Tag: 3, Key: a.Desc().Key, Meta: 9, Partial: true, Writes: []rdma.Write{
		{Src: w.src[:4096], RemoteOff: 4096},
		{Src: w.src[4096:8192], RemoteOff: 0, Key: b.Desc().Key},
		{Src: w.src[:10], RemoteOff: 10, Key: b.Desc().Key},
	}})
	if c := w.writer.of(t, x); c.Status != rdma.Completed {
		t.Fatalf("completion %+v", c)
	}
	v := w.target.notifs.find(t, "landed", func(v rdma.Notif) bool { return v.Meta == 9 })
	if len(v.Ranges) != 3 || v.Ranges[0].Region != w.dst.ID() || v.Ranges[1].Region != r2.ID() || v.Bytes != 8202 || !v.Partial {
		t.Errorf("notif %+v", v)
	}
	if sum(w.dst.Bytes()[4096:8192]) != sum(w.src[:4096]) || sum(r2.Bytes()[20:4096]) != sum(w.src[4096+20:8192]) || sum(r2.Bytes()[10:20]) != sum(w.src[:10]) {
		t.Error("bytes differ")
	}
}

func testBadBatch(t *testing.T, p rdma.Provider) {
	w := newPair(t, p, page, rdma.Config{})
	k := grant(t, w.dst, 1, all(w.dst)).Desc().Key
	for name, b := range map[string]rdma.Batch{
		"no writes": {Tag: 1, Key: k},
		"no key":    {Tag: 1, Writes: []rdma.Write{{Src: w.src[:8]}}},
		"short key": {Tag: 1, Key: k[:3], Writes: []rdma.Write{{Src: w.src[:8]}}},
		"empty":     {Tag: 1, Key: k, Writes: []rdma.Write{{Src: w.src[:8]}, {Src: nil}}},
		"overflow":  {Tag: 1, Key: k, Writes: []rdma.Write{{Src: w.src[:8], RemoteOff: ^uint64(0) - 3}}},
		"source":    {Tag: 1, Key: k, Writes: []rdma.Write{{Region: w.dst, Off: page - 4, Len: 8}}},
	} {
		if _, err := w.ep.PostBatch(b); !errors.Is(err, rdma.ErrBatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if c := w.ep.Inflight(1); c != (rdma.Count{}) {
		t.Errorf("counted %+v", c)
	}
}

func testSeveralConns(t *testing.T, p rdma.Provider) {
	w := newPair(t, p, 1<<20, rdma.Config{Conns: 3})
	l := grant(t, w.dst, 1, all(w.dst))
	const n = 64
	for i := range n {
		w.write(t, l, rdma.Tag(i), i*16384, 16384)
	}
	for _, c := range w.writer.completions.count(t, "completions", n, func(rdma.Completion) bool { return true }) {
		if c.Status != rdma.Completed {
			t.Errorf("completion %+v", c)
		}
	}
	if sum(w.dst.Bytes()) != sum(w.src) {
		t.Error("bytes differ")
	}
	if err := w.ep.Close(); err != nil {
		t.Error(err)
	}
	w.target.notifs.find(t, "the last connection to go", func(v rdma.Notif) bool { return v.Kind == rdma.PeerGone && v.Left == 0 })
}
