//go:build verbs

package verbs

/*
#include <errno.h>
#include "shim.h"
*/
import "C"

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Addr is what a peer needs to connect a queue pair; it travels as AddrLen
// bytes.
type Addr struct {
	GID [16]byte
	QPN uint32
	PSN uint32
	LID uint16
}

// AddrLen is the length of an encoded Addr, bytes.
const AddrLen = 26

// Append encodes a at the end of b.
func (a Addr) Append(b []byte) []byte {
	b = append(b, a.GID[:]...)
	b = binary.BigEndian.AppendUint32(b, a.QPN)
	b = binary.BigEndian.AppendUint32(b, a.PSN)
	return binary.BigEndian.AppendUint16(b, a.LID)
}

// ParseAddr is its inverse.
func ParseAddr(b []byte) (a Addr, err error) {
	if len(b) != AddrLen {
		return a, fmt.Errorf("verbs: address of %d bytes, want %d", len(b), AddrLen)
	}
	copy(a.GID[:], b)
	a.QPN, a.PSN, a.LID = binary.BigEndian.Uint32(b[16:]), binary.BigEndian.Uint32(b[20:]), binary.BigEndian.Uint16(b[24:])
	return a, nil
}

func (a Addr) c() C.struct_pd_addr {
	out := C.struct_pd_addr{qpn: C.uint32_t(a.QPN), psn: C.uint32_t(a.PSN), lid: C.uint16_t(a.LID)}
	for i, v := range a.GID {
		out.gid[i] = C.uint8_t(v)
	}
	return out
}

// Status is how a request ended, in the numbers of ibv_wc_status.
type Status uint32

// Statuses that mean something to a control plane.
const (
	OK            Status = C.IBV_WC_SUCCESS
	Flushed       Status = C.IBV_WC_WR_FLUSH_ERR    // the queue pair broke before it, or while it was under way
	RefusedAccess Status = C.IBV_WC_REM_ACCESS_ERR  // the target's device refused it: key or range
	RefusedReq    Status = C.IBV_WC_REM_INV_REQ_ERR // the target's device refused it: access flags
	NoAnswer      Status = C.IBV_WC_RETRY_EXC_ERR   // nobody answers: whether it landed is not known
)

// String is the library's word.
func (s Status) String() string { return C.GoString(C.ibv_wc_status_str(C.enum_ibv_wc_status(s))) }

// Done is a completion. OK means that the target's device has taken the write.
type Done struct {
	ID     uint64
	Status Status
}

// Write is a request to write a run of a region into a peer's memory.
type Write struct {
	ID     uint64 // comes back in Done; below 1<<63
	Region *Region
	Off    uint64 // bytes into Region
	Len    uint32 // bytes
	Remote uint64 // address at the peer (Region.Addr there)
	Key    uint32 // the window's
	Read   bool   // the other way: read from the peer into Region
}

// ownBit marks the requests that a queue pair posts for itself.
const ownBit = 1 << 63

// QP is a reliable connection to one peer with a completion queue of its own.
// Post, Bind, Invalidate and Fail may be called from several goroutines; a
// reader must be inside Wait for Bind and Invalidate to return.
type QP struct {
	dev    *Device
	qp     *C.struct_ibv_qp
	cq     *C.struct_ibv_cq
	ch     *C.struct_ibv_comp_channel
	events *os.File // the channel's descriptor, for the poller
	raw    syscall.RawConn
	local  Addr
	next   atomic.Uint64

	mu  sync.Mutex
	own map[uint64]chan Status
}

// NewQP makes a queue pair with room for depth requests; a device may give more.
func (d *Device) NewQP(depth int) (*QP, error) {
	q := &QP{dev: d, own: make(map[uint64]chan Status)}
	var err error
	if q.ch, err = C.ibv_create_comp_channel(d.ctx); q.ch == nil {
		return nil, fmt.Errorf("verbs: make a completion channel: %w", err)
	}
	if q.cq, err = C.ibv_create_cq(d.ctx, C.int(2*depth+16), nil, q.ch, 0); q.cq == nil {
		return nil, errors.Join(fmt.Errorf("verbs: make a completion queue: %w", err), q.Close())
	}
	if q.qp, err = C.pd_new_qp(d.pd, q.cq, C.uint32_t(depth)); q.qp == nil {
		return nil, errors.Join(fmt.Errorf("verbs: make a queue pair: %w", err), q.Close())
	}
	fd, err := syscall.Dup(int(q.ch.fd))
	if err != nil {
		return nil, errors.Join(err, q.Close())
	}
	syscall.CloseOnExec(fd)
	if err := syscall.SetNonblock(fd, true); err != nil { // of the file, so of the channel too
		return nil, errors.Join(err, syscall.Close(fd), q.Close())
	}
	q.events = os.NewFile(uintptr(fd), "completions")
	if q.raw, err = q.events.SyscallConn(); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	q.local = Addr{QPN: uint32(q.qp.qp_num), PSN: rand.Uint32() & 0xffffff, LID: uint16(d.addr.lid)}
	for i := range q.local.GID {
		q.local.GID[i] = byte(d.addr.gid[i])
	}
	return q, nil
}

// Addr is what the peer needs.
func (q *QP) Addr() Addr { return q.local }

// Connect joins the queue pair with the peer's. An unanswered packet is sent
// again after 4.096 µs * 2^timeout, at most retry times (0 to 7).
func (q *QP) Connect(peer Addr, timeout, retry int) error {
	l, p := q.local.c(), peer.c()
	return failed("connect a queue pair", C.pd_connect(q.qp, &l, &p, q.dev.gidIndex, q.dev.mtu, C.int(timeout), C.int(retry)))
}

// Post posts writes, in order, with one call. It gives how many were taken:
// with an error (ENOMEM when the queue is full) those will complete, the others
// were never posted.
func (q *QP) Post(list []Write) (posted int, err error) {
	if len(list) == 0 {
		return 0, nil
	}
	reqs := make([]C.struct_pd_send, len(list))
	for i, w := range list {
		if w.ID&ownBit != 0 || w.Off > w.Region.size || uint64(w.Len) > w.Region.size-w.Off {
			return 0, fmt.Errorf("verbs: write %d: %d bytes at %d of %d", w.ID, w.Len, w.Off, w.Region.size)
		}
		reqs[i] = C.struct_pd_send{
			id: C.uint64_t(w.ID), local: C.uint64_t(w.Region.Addr(w.Off)), remote: C.uint64_t(w.Remote),
			lkey: w.Region.mr.lkey, rkey: C.uint32_t(w.Key), length: C.uint32_t(w.Len), op: C.PD_WRITE,
		}
		if w.Read {
			reqs[i].op = C.PD_READ
		}
	}
	var n C.int
	rc := C.pd_post(q.qp, &reqs[0], C.int(len(reqs)), &n)
	return int(n), failed("post", rc)
}

// Bind opens [off, off+n) of a region to the peer of this queue pair and gives
// the key for it.
func (q *QP) Bind(ctx context.Context, w *Window, r *Region, off, n uint64) (key uint32, err error) {
	if off > r.size || n > r.size-off || n == 0 {
		return 0, fmt.Errorf("verbs: bind %d bytes at %d of %d", n, off, r.size)
	}
	var k C.uint32_t
	err = q.await(ctx, "bind a window", func(id uint64) C.int {
		return C.pd_bind(q.qp, w.mw, r.mr, C.uint64_t(r.Addr(off)), C.uint64_t(n), C.uint64_t(id), &k)
	})
	return uint32(k), err
}

// Invalidate takes a window's key back. Without an error the device takes
// nothing more in under the key; the packet that it is copying then may still
// land where it does not wait for it (Soft-RoCE). With an error nothing may be
// concluded, for instance when the queue pair broke first. Closing the window
// and the region below it is the fence that every device gives.
func (q *QP) Invalidate(ctx context.Context, key uint32) error {
	return q.await(ctx, "invalidate a key", func(id uint64) C.int {
		return C.pd_invalidate(q.qp, C.uint32_t(key), C.uint64_t(id))
	})
}

// ownDepth is how many requests of its own a queue pair has under way at once.
const ownDepth = 8

// InvalidateAll is Invalidate of several keys, some of them under way together.
func (q *QP) InvalidateAll(ctx context.Context, keys []uint32) error {
	for len(keys) > 0 {
		n := min(len(keys), ownDepth)
		ends := make([]own, 0, n)
		for _, k := range keys[:n] {
			o, err := q.start("invalidate a key", func(id uint64) C.int {
				return C.pd_invalidate(q.qp, C.uint32_t(k), C.uint64_t(id))
			})
			if err != nil {
				return err // those that were posted are told to nobody
			}
			ends = append(ends, o)
		}
		for _, o := range ends {
			if err := o.wait(ctx); err != nil {
				return err
			}
		}
		keys = keys[n:]
	}
	return nil
}

// own is a request of the queue pair's own that was posted.
type own struct {
	q    *QP
	id   uint64
	what string
	end  chan Status
}

func (q *QP) start(what string, post func(id uint64) C.int) (own, error) {
	o := own{q: q, id: q.next.Add(1) | ownBit, what: what, end: make(chan Status, 1)}
	q.mu.Lock()
	q.own[o.id] = o.end
	q.mu.Unlock()
	rc := post(o.id)
	if rc != 0 {
		o.forget()
	}
	return o, failed(what, rc)
}

func (o own) forget() {
	o.q.mu.Lock()
	delete(o.q.own, o.id)
	o.q.mu.Unlock()
}

func (o own) wait(ctx context.Context) error {
	defer o.forget()
	select {
	case s := <-o.end:
		if s != OK {
			return fmt.Errorf("verbs: %s: %s", o.what, s)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("verbs: %s: %w", o.what, ctx.Err())
	}
}

// await posts a request of the queue pair's own and waits for its completion.
func (q *QP) await(ctx context.Context, what string, post func(id uint64) C.int) error {
	o, err := q.start(what, post)
	if err != nil {
		return err
	}
	return o.wait(ctx)
}

// Fail moves the queue pair into error: it takes no further packet in, and what
// it had posted completes as Flushed, if it had not landed or if that is not
// known. The packet that is being copied when it returns may still land where
// the device does not wait for it (Soft-RoCE).
func (q *QP) Fail() error { return failed("break a queue pair", C.pd_fail(q.qp)) }

// AccessOff takes the peer's right to write by this queue pair, under any key.
// The queue pair breaks at the peer's next write.
func (q *QP) AccessOff() error { return failed("take access from a queue pair", C.pd_access_off(q.qp)) }

// Wait gives completions of Post into out, at least one, and hands those of
// Bind and Invalidate to their callers. One goroutine at a time may be inside.
func (q *QP) Wait(ctx context.Context, out []Done) (int, error) {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = q.events.SetReadDeadline(time.Unix(1, 0))
		close(ended)
	})
	defer func() {
		if !stop() {
			<-ended // else it would end the Wait that comes next
			_ = q.events.SetReadDeadline(time.Time{})
		}
	}()
	for armed := false; ; {
		n, err := q.poll(out)
		if n > 0 || err != nil {
			return n, err
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if !armed {
			if err := failed("ask for an event", C.pd_notify(q.cq)); err != nil {
				return 0, err
			}
			armed = true
			continue // one may have come before it was armed
		}
		armed = false
		var event C.int
		if err := q.raw.Read(func(uintptr) bool {
			event = C.pd_event(q.ch)
			return event != C.EAGAIN
		}); err != nil {
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
			return 0, fmt.Errorf("verbs: wait for completions: %w", err)
		}
		if err := failed("take an event", event); err != nil {
			return 0, err
		}
	}
}

func (q *QP) poll(out []Done) (int, error) {
	var raw [64]C.struct_pd_done
	n := C.pd_poll(q.cq, &raw[0], C.int(min(len(raw), len(out))))
	if n < 0 {
		return 0, errors.New("verbs: poll a completion queue")
	}
	got := 0
	for _, r := range raw[:n] {
		if uint64(r.id)&ownBit == 0 {
			out[got] = Done{ID: uint64(r.id), Status: Status(r.status)}
			got++
			continue
		}
		q.mu.Lock()
		end := q.own[uint64(r.id)]
		q.mu.Unlock()
		if end != nil {
			end <- Status(r.status)
		}
	}
	return got, nil
}

// Close destroys the queue pair. Nobody may be inside Wait. A device may take
// long over one whose peer is gone.
func (q *QP) Close() error {
	var err error
	if q.events != nil {
		err = q.events.Close()
	}
	if q.qp != nil {
		err = errors.Join(err, failed("destroy a queue pair", C.ibv_destroy_qp(q.qp)))
	}
	if q.cq != nil {
		err = errors.Join(err, failed("destroy a completion queue", C.ibv_destroy_cq(q.cq)))
	}
	if q.ch != nil {
		err = errors.Join(err, failed("destroy a completion channel", C.ibv_destroy_comp_channel(q.ch)))
	}
	return err
}
