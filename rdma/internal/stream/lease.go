package stream

import (
	"context"
	"crypto/rand"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/internal/span"
)

// revokedBit of lease.state; the bits below count readers inside.
const revokedBit = 1 << 62

// spins before Revoke sleeps: longer than most copies of maxCopy bytes take,
// so that the common case costs no wake-up.
const spins = 500

// lease is a key on ranges of one region.
type lease struct {
	key    key
	tag    rdma.Tag
	peer   rdma.PeerID
	id     uint32       // of the region
	region *region      // nil of a tombstone
	ranges []rdma.Range // sorted, merged, none touching the next; of a tombstone none

	state   atomic.Int64
	left    chan struct{} // cap 1: the last reader has left a revoked lease
	owed    atomic.Int64  // transfers that are placed and not told of yet
	told    chan struct{} // cap 1: owed has come down
	counted sync.Once     // the region's count of open leases
	sums    span.Sums     // of what landed, if the domain keeps them
}

var _ rdma.Lease = (*lease)(nil)

// enter lets a reader copy into the lease's pages until leave. False: the
// lease is revoked, nothing may be copied.
func (l *lease) enter() bool {
	if l.state.Add(1)&revokedBit == 0 {
		return true
	}
	l.leave()
	return false
}

func (l *lease) leave() {
	if l.state.Add(-1) == revokedBit {
		select {
		case l.left <- struct{}{}:
		default:
		}
	}
}

func (l *lease) Desc() rdma.LeaseDesc {
	return rdma.LeaseDesc{Provider: l.region.domain.info.Provider, Endpoint: l.region.domain.info.Endpoint, Key: slices.Clone(l.key[:])}
}

func (l *lease) Tag() rdma.Tag { return l.tag }

// Revoke is exact: a reader that is inside a copy is waited for, and none
// enters after the flag is up.
func (l *lease) Revoke(ctx context.Context) (rdma.Fence, error) {
	start := time.Now()
	inside := l.state.Or(revokedBit)&^revokedBit != 0
	for i := 0; inside && i < spins; i++ {
		runtime.Gosched()
		inside = l.state.Load() != revokedBit
	}
	for inside {
		select {
		case <-l.left:
		case <-ctx.Done():
			return rdma.Fence{}, fmt.Errorf("revoke lease of tag %d: a copy is under way: %w", l.tag, ctx.Err())
		}
		inside = l.state.Load() != revokedBit
	}
	took := time.Since(start)
	if err := l.allTold(ctx); err != nil {
		return rdma.Fence{}, err
	}
	select {
	case l.left <- struct{}{}: // for another Revoke that waits too
	default:
	}
	l.counted.Do(func() {
		l.region.leases.Add(-1)
		l.region.domain.leases.retire(l)
	})
	return rdma.Fence{Kind: rdma.FenceReaderStopped, Scope: rdma.ScopeLease, Exact: true, Took: took}, nil
}

// owe notes a transfer whose last frame has just been placed through the lease.
// The caller is inside.
func (l *lease) owe() { l.owed.Add(1) }

// tell is called when the notif of such a transfer has been delivered.
func (l *lease) tell() {
	if l.owed.Add(-1) == 0 {
		select {
		case l.told <- struct{}{}:
		default:
		}
	}
}

// allTold waits until what was placed before the revocation is known to the
// owner: after Revoke no WriteLanded of this lease comes any more.
func (l *lease) allTold(ctx context.Context) error {
	for l.owed.Load() > 0 {
		select {
		case <-l.told:
		case <-ctx.Done():
			return fmt.Errorf("revoke lease of tag %d: its owner has not taken the news of a write: %w", l.tag, ctx.Err())
		}
	}
	select {
	case l.told <- struct{}{}: // for another Revoke that waits too
	default:
	}
	return nil
}

// Verify reads the pages again and compares.
func (l *lease) Verify(ctx context.Context) ([]rdma.Range, error) {
	l.region.mu.RLock()
	defer l.region.mu.RUnlock()
	if l.region.gone {
		return nil, fmt.Errorf("verify lease of tag %d: %w", l.tag, rdma.ErrClosed)
	}
	bad, err := l.sums.Verify(ctx, l.region.mem)
	if err != nil {
		return bad, fmt.Errorf("verify lease of tag %d: %w", l.tag, err)
	}
	return bad, nil
}

// place finds the bytes of the region that a frame may be copied to.
func (l *lease) place(off uint64, n uint32) ([]byte, bool) {
	if !span.Inside(l.ranges, off, uint64(n)) {
		return nil, false
	}
	end := off + uint64(n)
	return l.region.mem[off:end:end], true
}

// tombstones is how many revoked leases are remembered, so that a late write
// is told with the tag it belongs to: at 2,000 rooms a second, half a minute.
const tombstones = 1 << 16

// leaseTable finds leases by key.
type leaseTable struct {
	mu      sync.RWMutex
	byKey   map[key]*lease
	retired []key // ring
	next    int
}

func (t *leaseTable) find(k *key) *lease {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byKey[*k]
}

func (t *leaseTable) add(l *lease) error {
	if _, err := rand.Read(l.key[:]); err != nil {
		return fmt.Errorf("make a lease key: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byKey[l.key] = l
	return nil
}

// retire puts a tombstone in a revoked lease's place, for a while.
func (t *leaseTable) retire(l *lease) {
	grave := &lease{key: l.key, tag: l.tag, peer: l.peer, id: l.id}
	grave.state.Store(revokedBit)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byKey[l.key] = grave
	if len(t.retired) < tombstones {
		t.retired = append(t.retired, l.key)
		return
	}
	delete(t.byKey, t.retired[t.next])
	t.retired[t.next] = l.key
	t.next = (t.next + 1) % tombstones
}

// all lists the leases that are not revoked.
func (t *leaseTable) all() []*lease {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var out []*lease
	for _, l := range t.byKey {
		if l.state.Load()&revokedBit == 0 {
			out = append(out, l)
		}
	}
	return out
}
