//go:build verbs

package verbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/internal/span"
)

const (
	// openTime bounds the binding of a lease's windows; a device that is well
	// takes microseconds.
	openTime = 5 * time.Second
	// invalidateTime is how long a fence waits for the invalidations before it
	// deregisters the memory below the windows, which it does in any case.
	invalidateTime = 250 * time.Millisecond
	// tombstones is how many revoked leases are remembered by name.
	tombstones = 1 << 16
)

// lease is a key on ranges of one region.
type lease struct {
	key    key
	tag    rdma.Tag
	peer   rdma.PeerID
	region *region
	ranges []rdma.Range // as span.Merge gives them
	sums   span.Sums

	revoked atomic.Bool
	owed    atomic.Int64  // transfers whose news is being told
	told    chan struct{} // cap 1: owed has come down
	counted sync.Once     // the region's count of open leases

	busy     chan struct{} // cap 1, a lock that can be waited for with a context: openings
	openings []*opening
}

var _ rdma.Lease = (*lease)(nil)

// opening is what a connection's device may write for a lease: windows on that
// connection's queue pair over a registration that is nobody else's, so that
// closing it touches no other lease.
type opening struct {
	lease   *lease
	in      *inbound
	qp      *QP       // of in, when it was opened
	memory  []*Region // one below all windows, or one per range without windows
	windows []*Window
	open    []window
}

func (l *lease) lock(ctx context.Context) error {
	select {
	case l.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *lease) unlock() { <-l.busy }

func (l *lease) Desc() rdma.LeaseDesc {
	return rdma.LeaseDesc{Provider: Name, Endpoint: l.region.d.info.Endpoint, Key: slices.Clone(l.key[:])}
}

func (l *lease) Tag() rdma.Tag { return l.tag }

// openOn lets the peer of a queue pair write. A lease is opened once on a queue
// pair. No opening: why it was refused.
func (l *lease) openOn(in *inbound) (*opening, rdma.Refusal, error) {
	if l.peer != "" && l.peer != in.peer {
		return nil, rdma.RefusedPeer, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), openTime)
	defer cancel()
	if err := l.lock(ctx); err != nil {
		return nil, 0, err
	}
	defer l.unlock()
	if l.revoked.Load() {
		return nil, rdma.RefusedRevoked, nil
	}
	for _, o := range l.openings {
		if o.qp == in.qp {
			return o, 0, nil
		}
	}
	o := &opening{lease: l, in: in, qp: in.qp}
	err := o.bind(ctx)
	if err != nil {
		// What was bound must be gone before anything is said; if it is not,
		// the opening stays in the list and Revoke tries again.
		if cerr := o.close(ctx); cerr != nil {
			l.openings = append(l.openings, o)
			err = errors.Join(err, cerr)
		}
		return nil, 0, fmt.Errorf("open a lease of tag %d: %w", l.tag, err)
	}
	l.openings = append(l.openings, o)
	return o, 0, nil
}

func (o *opening) bind(ctx context.Context) error {
	l := o.lease
	l.region.mu.RLock()
	defer l.region.mu.RUnlock()
	if l.region.gone {
		return rdma.ErrClosed
	}
	if !l.region.d.windows {
		for _, r := range l.ranges {
			m, err := l.region.register(r, true)
			if err != nil {
				return err
			}
			o.memory = append(o.memory, m)
			o.open = append(o.open, window{Off: r.Off, Len: r.Len, Addr: m.Addr(0), Key: m.Key()})
		}
		return nil
	}
	all := rdma.Range{Off: l.ranges[0].Off}
	all.Len = l.ranges[len(l.ranges)-1].End() - all.Off
	m, err := l.region.register(all, false)
	if err != nil {
		return err
	}
	o.memory = append(o.memory, m)
	for _, r := range l.ranges {
		w, err := l.region.d.dev.NewWindow()
		if err != nil {
			return err
		}
		o.windows = append(o.windows, w)
		k, err := o.qp.Bind(ctx, w, m, r.Off-all.Off, r.Len)
		if err != nil {
			return err
		}
		o.open = append(o.open, window{Off: r.Off, Len: r.Len, Addr: m.Addr(r.Off - all.Off), Key: k})
	}
	return nil
}

// close takes the right back: LOCAL_INV of every window, so that the device
// refuses what comes from here on, then the windows and the registration below
// them are destroyed, which needs no queue pair. The evidence is the last: a
// device lets go of memory only when it copies nothing into it any more, while
// Soft-RoCE completes a LOCAL_INV beside a packet that is being copied. What is
// destroyed already is not touched again.
func (o *opening) close(ctx context.Context) error {
	if len(o.windows) > 0 && len(o.open) == len(o.windows) {
		short, cancel := context.WithTimeout(ctx, invalidateTime)
		keys := make([]uint32, len(o.open))
		for i, w := range o.open {
			keys[i] = w.Key
		}
		_ = o.qp.InvalidateAll(short, keys) // of a broken queue pair it can not complete
		cancel()
	}
	for len(o.windows) > 0 {
		if err := o.windows[0].Close(); err != nil {
			return err
		}
		o.windows = o.windows[1:]
	}
	o.open = nil
	for len(o.memory) > 0 {
		if err := o.memory[0].Close(); err != nil {
			return err
		}
		o.memory = o.memory[1:]
	}
	return nil
}

// closeOn ends the opening on a queue pair that is gone.
func (l *lease) closeOn(ctx context.Context, q *QP) error {
	if err := l.lock(ctx); err != nil {
		return err
	}
	defer l.unlock()
	for i, o := range l.openings {
		if o.qp == q {
			if err := o.close(ctx); err != nil {
				return err
			}
			l.openings = slices.Delete(l.openings, i, i+1)
			return nil
		}
	}
	return nil
}

// Revoke closes every opening, and waits until what landed before is told.
func (l *lease) Revoke(ctx context.Context) (rdma.Fence, error) {
	start := time.Now()
	l.revoked.Store(true) // no opening from here on
	if err := l.lock(ctx); err != nil {
		return rdma.Fence{}, fmt.Errorf("revoke lease of tag %d: %w", l.tag, err)
	}
	var err error
	for len(l.openings) > 0 && err == nil {
		if err = l.openings[0].close(ctx); err == nil {
			l.openings[0].in.closed(l.key)
			l.openings = l.openings[1:]
		}
	}
	took := time.Since(start)
	l.unlock()
	if err != nil {
		return rdma.Fence{}, fmt.Errorf("revoke lease of tag %d: %w", l.tag, err)
	}
	for l.owed.Load() > 0 {
		select {
		case <-l.told:
		case <-ctx.Done():
			return rdma.Fence{}, fmt.Errorf("revoke lease of tag %d: its owner has not taken the news of a write: %w", l.tag, ctx.Err())
		}
	}
	l.wake() // another Revoke that waits too
	l.counted.Do(func() {
		l.region.leases.Add(-1)
		l.region.d.retire(l)
	})
	return rdma.Fence{Kind: rdma.FenceHard, Scope: rdma.ScopeLease, Exact: true, Took: took}, nil
}

// owe notes that news of a write under the lease is about to be told. False:
// the lease is revoked, and what landed before that is its new owner's no more.
func (l *lease) owe() bool {
	l.owed.Add(1)
	if !l.revoked.Load() {
		return true
	}
	l.tell()
	return false
}

func (l *lease) tell() {
	if l.owed.Add(-1) == 0 {
		l.wake()
	}
}

func (l *lease) wake() {
	select {
	case l.told <- struct{}{}:
	default:
	}
}

// Verify reads the pages again and compares.
func (l *lease) Verify(ctx context.Context) ([]rdma.Range, error) {
	l.region.mu.RLock()
	defer l.region.mu.RUnlock()
	if l.region.gone || l.region.mem == nil {
		return nil, fmt.Errorf("verify lease of tag %d: %w", l.tag, rdma.ErrClosed)
	}
	bad, err := l.sums.Verify(ctx, l.region.mem)
	if err != nil {
		return bad, fmt.Errorf("verify lease of tag %d: %w", l.tag, err)
	}
	return bad, nil
}

// find gives the lease of a key, revoked or not; nil if it is not known, or not
// any more.
func (d *domain) find(k key) *lease {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leases[k]
}

// retire keeps a revoked lease's name for a while.
func (d *domain) retire(l *lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.retired) < tombstones {
		d.retired = append(d.retired, l.key)
		return
	}
	delete(d.leases, d.retired[d.next])
	d.retired[d.next] = l.key
	d.next = (d.next + 1) % tombstones
}
