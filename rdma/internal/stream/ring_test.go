package stream

import (
	"bytes"
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/rdma"
)

// ringRig is a target with a lease, and a writer's memory, spoken to by hand.
type ringRig struct {
	at     string
	region rdma.Region
	src    *rdma.Memfd
	key    key
	notifs chan rdma.Notif
}

const ringMem = 1 << 20

func newRingRig(tb testing.TB, t Transport) *ringRig {
	tb.Helper()
	r := &ringRig{at: filepath.Join(tb.TempDir(), "s"), notifs: make(chan rdma.Notif, 10000)}
	dst, err := rdma.AllocMemfd("target", ringMem)
	if err != nil {
		tb.Fatal(err)
	}
	if r.src, err = rdma.AllocMemfd("source", ringMem); err != nil {
		tb.Fatal(err)
	}
	for i := range r.src.Bytes() {
		r.src.Bytes()[i] = 0x11
	}
	d, err := Open(tb.Context(), t, rdma.Config{Self: "d", Listen: r.at, OnNotif: func(n rdma.Notif) {
		if n.Kind != rdma.PeerConnected {
			r.notifs <- n
		}
	}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(d.Close(), dst.Close(), r.src.Close()); err != nil {
			tb.Error(err)
		}
	})
	if r.region, err = d.RegisterMemory(tb.Context(), dst.Memory()); err != nil {
		tb.Fatal(err)
	}
	l, err := r.region.Grant(tb.Context(), rdma.Grant{Peer: "p", Tag: 1, Ranges: []rdma.Range{{Len: ringMem / 2}}})
	if err != nil {
		tb.Fatal(err)
	}
	copy(r.key[:], l.Desc().Key)
	return r
}

// join dials, and has a ring with the target that knows the source as pool 1.
func (r *ringRig) join(tb testing.TB) (*net.UnixConn, *ring) {
	tb.Helper()
	c := dialPooled(tb, r.at)
	ring, fd, err := newRing()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(ring.close)
	defer func() { _ = unix.Close(fd) }()
	if err := sendFile(c, &header{op: opRing, meta: ringVersion}, fd); err != nil {
		tb.Fatal(err)
	}
	if got := readReply(tb, c); got.op != opHelloOK || got.frames != featureRing {
		tb.Fatalf("answer to the offer: %+v", got)
	}
	ring.putFrame(&header{op: opTurn})
	ring.publish()
	if err := sendFile(c, &header{op: opPool, pool: 1}, r.src.FD()); err != nil {
		tb.Fatal(err)
	}
	return c, ring
}

func (r *ringRig) copyOf(seq, off uint64, n uint32) *header {
	return &header{op: opCopy, flags: flagLast, length: n, key: r.key, seq: seq, offset: off, pool: 1, source: off}
}

func bell(tb testing.TB, c net.Conn) {
	tb.Helper()
	send(tb, c, frame(header{op: opBell}, ""))
}

// next waits for answers as a writer does, and reads one.
func (r *ring) next(tb testing.TB, c net.Conn) reply {
	tb.Helper()
	for {
		n, err := r.answered()
		if err != nil {
			tb.Fatal(err)
		}
		if n > 0 {
			break
		}
		r.word(wordWriterIn).Store(1)
		if n, _ := r.answered(); n > 0 {
			continue // its bell may still come
		}
		if got := readReply(tb, c); got.op != opRang {
			tb.Fatalf("on the socket beside the ring: %+v", got)
		}
	}
	var b [replyLen]byte
	var a reply
	r.readAnswer(&b)
	if err := a.decode(b[:]); err != nil {
		tb.Fatal(err)
	}
	return a
}

// TestRingCarriesFramesAndAnswers: also past its end, with frames on the socket
// between those in the ring, and with refusals where they belong.
func TestRingCarriesFramesAndAnswers(t *testing.T) {
	r := newRingRig(t, pooled)
	c, ring := r.join(t)
	seq := uint64(0)
	for round := range 3 * ringSlots / 4 {
		clear(r.region.Bytes()[:64])
		ring.putFrame(r.copyOf(seq+1, 0, 8))
		ring.putFrame(&header{op: opTurn})
		ring.putFrame(r.copyOf(seq+3, ringMem/2-4, 8)) // half of it is not granted
		ring.putFrame(r.copyOf(seq+4, 32, 8))
		ring.publish()
		h := header{op: opWrite, flags: flagLast, length: 8, key: r.key, offset: 16, seq: seq + 2}
		send(t, c, frame(h, "by hand."))
		seq += 4
		for acked := uint64(0); acked < seq; {
			a := ring.next(t, c)
			switch {
			case a.op == opNak && a.seq == seq-1 && a.reason == rdma.RefusedRange && a.frames == 1 && a.placed == 0:
			case a.op == opAck && a.seq > acked && a.seq != seq-1:
			default:
				t.Fatalf("round %d: %+v after %d", round, a, acked)
			}
			acked = a.seq
		}
		b := r.region.Bytes()
		if b[7] != 0x11 || b[8] != 0 || string(b[16:24]) != "by hand." || b[39] != 0x11 {
			t.Fatalf("round %d: landed %x", round, b[:40])
		}
		for i, want := range []rdma.NotifKind{rdma.WriteLanded, rdma.WriteLanded, rdma.LateWriteRefused, rdma.WriteLanded} {
			if n := <-r.notifs; n.Kind != want || n.Bytes != 8 {
				t.Fatalf("round %d, transfer %d: %+v", round, i, n)
			}
		}
	}
}

// TestHostileRingEndsOnlyItsConnection does what no writer does.
func TestHostileRingEndsOnlyItsConnection(t *testing.T) {
	r := newRingRig(t, pooled)
	for name, attack := range map[string]func(c *net.UnixConn, ring *ring){
		"more frames than slots": func(_ *net.UnixConn, ring *ring) { ring.word(wordFrames).Store(ring.put + ringSlots + 1) },
		"frames taken back":      func(_ *net.UnixConn, ring *ring) { ring.word(wordFrames).Store(ring.put - 1) },
		"slots never filled":     func(_ *net.UnixConn, ring *ring) { ring.word(wordFrames).Store(ring.put + 5) },
		"all ones": func(_ *net.UnixConn, ring *ring) {
			for i := range ring.mem {
				ring.mem[i] = 0xff
			}
			ring.word(wordFrames).Store(ring.put + 1)
		},
		"a transfer again": func(_ *net.UnixConn, ring *ring) {
			ring.putFrame(r.copyOf(1, 0, 8))
			ring.putFrame(r.copyOf(1, 0, 8))
			ring.publish()
		},
		"payload in the ring": func(_ *net.UnixConn, ring *ring) {
			ring.putFrame(&header{op: opWrite, flags: flagLast, length: 8, key: r.key, seq: 1})
			ring.publish()
		},
		"hello in the ring": func(_ *net.UnixConn, ring *ring) { ring.putFrame(&header{op: opHello}); ring.publish() },
		"copy of no pool": func(_ *net.UnixConn, ring *ring) {
			h := r.copyOf(1, 0, 8)
			h.pool = 7
			ring.putFrame(h)
			ring.publish()
		},
		"copy behind the end": func(_ *net.UnixConn, ring *ring) {
			h := r.copyOf(1, 0, 8)
			h.source = ringMem - 4
			ring.putFrame(h)
			ring.publish()
		},
		"a frame out of turn": func(c *net.UnixConn, _ *ring) {
			send(t, c, frame(header{op: opWrite, flags: flagLast, length: 4, key: r.key, seq: 1}, "wxyz"))
		},
		"another ring": func(c *net.UnixConn, ring *ring) {
			ring.putFrame(&header{op: opTurn})
			ring.publish()
			if err := sendFile(c, &header{op: opRing, meta: ringVersion}, r.src.FD()); err != nil {
				t.Fatal(err)
			}
		},
		"answers that were never put": func(_ *net.UnixConn, ring *ring) {
			ring.word(wordRead).Store(9)
			ring.putFrame(r.copyOf(1, ringMem-8, 8)) // refused, and no word of it
			ring.publish()
		},
		"answers that are never read": func(c *net.UnixConn, ring *ring) {
			for seq := uint64(1); seq <= ringSlots+1; seq++ {
				for n := uint32(0); n == 0; n, _ = ring.free() {
					_, _ = c.Write(frame(header{op: opBell}, "")) // it hangs up at some time
				}
				ring.putFrame(r.copyOf(seq, ringMem-8, 8)) // a refusal is an answer of its own
				ring.publish()
			}
		},
	} {
		c, ring := r.join(t)
		attack(c, ring)
		_, _ = c.Write(frame(header{op: opBell}, "")) // it may have hung up
		if _, err := io.Copy(io.Discard, c); err != nil && !isReset(err) {
			t.Errorf("%s: the connection did not end: %v", name, err)
		}
		for n := range r.notifs {
			if n.Kind == rdma.PeerGone {
				break
			}
		}
	}
	c, ring := r.join(t)
	ring.putFrame(r.copyOf(1, 0, 8))
	ring.publish()
	bell(t, c)
	if a := ring.next(t, c); a.op != opAck || r.region.Bytes()[7] != 0x11 || r.region.Bytes()[8] != 0 {
		t.Errorf("a good one: %+v, landed %x", a, r.region.Bytes()[:16])
	}
}

// TestRingThatCanNotBeTrustedIsDeclined: the connection goes on without it.
func TestRingThatCanNotBeTrustedIsDeclined(t *testing.T) {
	r := newRingRig(t, pooled)
	for name, size := range map[string]int64{"not sealed": ringLen, "too small": ringLen - 4096, "another version": ringLen} {
		fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		err = unix.Ftruncate(fd, size)
		if name != "not sealed" && err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
		}
		offer := header{op: opRing, meta: ringVersion}
		if name == "another version" {
			offer.meta++
		}
		c := dialPooled(t, r.at)
		err = errors.Join(err, sendFile(c, &offer, fd), unix.Close(fd))
		if err != nil {
			t.Fatal(err)
		}
		if got := readReply(t, c); got.op != opHelloOK || got.frames != 0 {
			t.Errorf("%s: %+v", name, got)
		}
		h := header{op: opWrite, flags: flagLast, length: 4, key: r.key, seq: 1}
		send(t, c, frame(h, "kept"))
		if got := readReply(t, c); got.op != opAck || string(r.region.Bytes()[:4]) != "kept" {
			t.Errorf("%s, afterwards: %+v", name, got)
		}
		clear(r.region.Bytes()[:4])
	}
}

// TestHoleInARingIsZero: the one thing left that a peer can do to its file.
func TestHoleInARingIsZero(t *testing.T) {
	r := newRingRig(t, pooled)
	c := dialPooled(t, r.at)
	ring, fd, err := newRing()
	if err != nil {
		t.Fatal(err)
	}
	defer ring.close()
	defer func() { _ = unix.Close(fd) }()
	if err := sendFile(c, &header{op: opRing, meta: ringVersion}, fd); err != nil {
		t.Fatal(err)
	}
	readReply(t, c)
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, ringLen); err != nil {
		t.Fatal(err)
	}
	ring.put = 3
	ring.publish()
	bell(t, c)
	if _, err := io.Copy(io.Discard, c); err != nil && !isReset(err) {
		t.Errorf("frames of zeros: the connection did not end: %v", err)
	}
	if n := <-r.notifs; n.Kind != rdma.PeerGone || !errors.Is(n.Err, errFrame) {
		t.Errorf("told %+v", n)
	}
}

// TestCloseEndsARingThatIsNeverEmpty: a writer that keeps the target busy with
// refused pieces of one transfer can not keep its domain from closing.
func TestCloseEndsARingThatIsNeverEmpty(t *testing.T) {
	r := newRingRig(t, pooled)
	d := r.region.(*region).domain
	c, ring := r.join(t)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		h := r.copyOf(1, ringMem-8, 8)
		h.flags = 0 // it never ends
		for {
			select {
			case <-stop:
				return
			default:
			}
			for n, _ := ring.free(); n > 0; n-- {
				ring.putFrame(h)
			}
			ring.publish()
			if ring.claim(wordTargetIn) {
				_, _ = c.Write(frame(header{op: opBell}, "")) // it may have hung up
			}
		}
	}()
	for ring.word(wordTaken).Load() < 10*ringSlots {
		select {
		case n := <-r.notifs:
			t.Fatalf("told %+v", n)
		default:
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	close(stop)
	<-ended
}

// TestBuildsWithoutARing: whichever side knows of none, pages are copied out of
// pools by frames on the socket.
func TestBuildsWithoutARing(t *testing.T) {
	old, oldNear := pooled, nearby()
	old.noRing, oldNear.noRing = true, true
	for name, c := range map[string]struct {
		to, from Transport
		ring     bool
	}{
		"both know":                 {nearby(), nearby(), true},
		"the target does not":       {oldNear, nearby(), false},
		"the writer does not":       {nearby(), oldNear, false},
		"unix, both know":           {pooled, pooled, true},
		"unix, the target does not": {old, pooled, false},
		"unix, the writer does not": {pooled, old, false},
	} {
		t.Run(name, func(t *testing.T) {
			var r nearRig
			o := r.write(t, c.to, c.from, nil)
			if !o.pools || len(o.passed) != 1 || (o.ring != nil) != c.ring {
				t.Errorf("pools %t, %d passed, ring %t, want a ring: %t", o.pools, len(o.passed), o.ring != nil, c.ring)
			}
		})
	}
}

// TestHostileTargetOfARingEndsTheEndpoint: whatever it writes there, each of
// the writer's transfers has an end, and none that was not answered a success.
func TestHostileTargetOfARingEndsTheEndpoint(t *testing.T) {
	good := reply{op: opAck, seq: 1}
	for name, spoil := range map[string]func(*ring){
		"more answers than slots": func(r *ring) { r.word(wordAnswers).Store(ringSlots + 1) },
		"slots never filled":      func(r *ring) { r.word(wordAnswers).Store(1) },
		"answer to nothing": func(r *ring) {
			_ = r.putAnswers(reply{op: opAck, seq: 2}.append(nil))
		},
		"an answer twice": func(r *ring) {
			_ = r.putAnswers(reply{op: opNak, seq: 1, reason: rdma.RefusedRange}.append(good.append(nil)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			at := filepath.Join(t.TempDir(), "s")
			ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- serveRing(ln, spoil) }()
			ends := make(chan rdma.Completion, 4)
			d, err := Open(t.Context(), pooled, rdma.Config{Self: "p", OnCompletion: func(c rdma.Completion) { ends <- c }})
			if err != nil {
				t.Fatal(err)
			}
			ep, err := d.Connect(t.Context(), rdma.PeerInfo{Endpoint: at, Peer: "d"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := ep.PostBatch(rdma.Batch{Key: make([]byte, keyLen), Writes: []rdma.Write{{Src: []byte("wxyz")}}}); err != nil {
				t.Fatal(err)
			}
			want := rdma.Uncertain
			if name == "an answer twice" {
				want = rdma.Completed // by the first of them
			}
			if c := <-ends; c.Status != want {
				t.Errorf("%+v, want %s", c, want)
			}
			<-ep.Done()
			if !errors.Is(ep.Err(), errFrame) {
				t.Errorf("ended by %v", ep.Err())
			}
			if err := errors.Join(d.Close(), <-served, ln.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestBatchThatIsLongerThanTheRing: the sender waits for slots, and the target
// tells it of them; with pieces that cross the socket in between.
func TestBatchThatIsLongerThanTheRing(t *testing.T) {
	r := newRingRig(t, pooled)
	ends := make(chan rdma.Completion, 1)
	d, err := Open(t.Context(), pooled, rdma.Config{Self: "p", OnCompletion: func(c rdma.Completion) { ends <- c }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	if _, err := d.RegisterMemory(t.Context(), r.src.Memory()); err != nil {
		t.Fatal(err)
	}
	ep, err := d.Connect(t.Context(), rdma.PeerInfo{Endpoint: r.at, Peer: "d"})
	if err != nil {
		t.Fatal(err)
	}
	const n, each = 6 * ringSlots, 64
	b := rdma.Batch{Tag: 1, Key: r.key[:]}
	for i := range n {
		w := rdma.Write{Src: r.src.Bytes()[i*each : (i+1)*each], RemoteOff: uint64(i * each)} //nolint:gosec // not negative
		if i%5 == 3 {
			w.Src = bytes.Repeat([]byte{0x22}, each)
		}
		b.Writes = append(b.Writes, w)
	}
	for range 10 {
		clear(r.region.Bytes())
		if _, err := ep.PostBatch(b); err != nil {
			t.Fatal(err)
		}
		if c := <-ends; c.Status != rdma.Completed || c.Bytes != n*each {
			t.Fatalf("completion %+v", c)
		}
		for i := range n {
			want := byte(0x11)
			if i%5 == 3 {
				want = 0x22
			}
			if got := r.region.Bytes()[i*each : (i+1)*each]; got[0] != want || got[each-1] != want {
				t.Fatalf("piece %d: %x", i, got)
			}
		}
	}
}

// TestCloseOfASenderThatWaitsForSlots: of a target that takes nothing.
func TestCloseOfASenderThatWaitsForSlots(t *testing.T) {
	at := filepath.Join(t.TempDir(), "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	full, served := make(chan struct{}), make(chan error, 1)
	go func() {
		served <- serveRing(ln, func(r *ring) {
			for r.word(wordRoom).Load() == 0 {
				runtime.Gosched()
			}
			close(full)
		})
	}()
	ends := make(chan rdma.Completion, 1)
	d, err := Open(t.Context(), pooled, rdma.Config{Self: "p", OnCompletion: func(c rdma.Completion) { ends <- c }})
	if err != nil {
		t.Fatal(err)
	}
	ep, err := d.Connect(t.Context(), rdma.PeerInfo{Endpoint: at, Peer: "d"})
	if err != nil {
		t.Fatal(err)
	}
	b := rdma.Batch{Key: make([]byte, keyLen)}
	for range ringSlots + 1 {
		b.Writes = append(b.Writes, rdma.Write{Src: []byte("wxyz")})
	}
	if _, err := ep.PostBatch(b); err != nil {
		t.Fatal(err)
	}
	<-full
	if err := ep.Close(); err != nil {
		t.Error(err)
	}
	<-ep.Done()
	if c := <-ends; c.Status != rdma.Uncertain {
		t.Errorf("%+v", c)
	}
	if err := errors.Join(d.Close(), <-served, ln.Close()); err != nil {
		t.Error(err)
	}
}

// serveRing is a target that takes a ring and one frame, does something to the
// ring, and rings.
func serveRing(ln *net.UnixListener, spoil func(*ring)) error {
	c, err := ln.AcceptUnix()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // whatever it says
	if _, err := io.ReadFull(c, make([]byte, headerLen+1)); err != nil {
		return err
	}
	if _, err := c.Write(reply{op: opHelloOK, frames: featureRing}.append(nil)); err != nil {
		return err
	}
	b, oob := make([]byte, headerLen), make([]byte, 64)
	_, oobn, _, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(msgs) != 1 {
		return errors.Join(errors.New("no ring came"), err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return err
	}
	r, err := mapRing(fds[0])
	_ = unix.Close(fds[0])
	if err != nil {
		return err
	}
	defer r.close()
	if _, err := c.Write(reply{op: opHelloOK, frames: featureRing}.append(nil)); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, headerLen+4)); err != nil { // the payload, announced in the ring
		return err
	}
	spoil(r)
	_, _ = c.Write(reply{op: opRang}.append(nil)) // to a writer that may have hung up
	_, _ = io.Copy(io.Discard, c)                 // until it does
	return nil
}

// FuzzRing: a target whose ring holds anything neither dies nor hangs, writes
// nothing outside the lease, and goes on with its other peers.
func FuzzRing(f *testing.F) {
	f.Add(uint32(1), uint32(0), uint32(0), []byte{}, false)
	f.Add(uint32(ringSlots), uint32(7), uint32(1<<31), []byte{1, 2, 3}, true)
	r := newRingRig(f, pooled)
	good := frame(*r.copyOf(1, 0, 8), "")
	f.Add(uint32(1), uint32(0), uint32(0), good, true)
	f.Add(uint32(2), uint32(0), uint32(1), append(good, frame(*r.copyOf(2, 8, 8), "")...), true)
	f.Add(uint32(2), uint32(0), uint32(1), append(frame(header{op: opTurn}, ""), good...), false)
	f.Fuzz(func(t *testing.T, frames, read, words uint32, slots []byte, seal bool) {
		clear(r.region.Bytes())
		c, ring := r.join(t)
		for i := 0; len(slots) > 0 && i < ringSlots; i++ {
			b := ring.frame(ring.put + uint32(i)) //nolint:gosec // less than ringSlots
			n := copy(b, slots)
			slots = slots[n:]
			if seal { // past the checksum
				var h header
				h.length, h.seq, h.pool = uint32(b[4]), uint64(i+1), 1
				if i%2 == 0 {
					h = *r.copyOf(uint64(i+1), uint64(b[0])<<12, uint32(b[1])<<8|1)
				}
				h.op, h.flags = b[2]%10, uint16(b[3]%8)
				h.encode(b)
			}
		}
		ring.word(wordRead).Store(read)
		ring.word(wordWakeAt).Store(words)
		ring.word(wordRoom).Store(words & 1)
		ring.word(wordWriterIn).Store(words >> 1 & 1)
		ring.word(wordFrames).Store(ring.put + frames)
		_, _ = c.Write(frame(header{op: opBell}, "")) // it may have hung up
		if err := c.CloseWrite(); err != nil && !isReset(err) && !errors.Is(err, unix.ENOTCONN) {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, c); err != nil && !isReset(err) {
			t.Fatalf("the connection did not end: %v", err)
		}
		for n := range r.notifs {
			if n.Kind == rdma.PeerGone {
				break
			}
		}
		for i, b := range r.region.Bytes()[ringMem/2:] {
			if b != 0 {
				t.Fatalf("a byte landed %d behind the lease", i)
			}
		}
	})
}
