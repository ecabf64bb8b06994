//go:build verbs

package verbs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/internal/span"
)

// region is memory that is registered for sources. What peers may write to is
// registered again for each opening of a lease.
type region struct {
	id    uint32
	d     *domain
	mem   []byte // nil of a dma-buf
	unmap func() error
	fd    int // of a dma-buf, else -1
	off   uint64
	size  uint64
	mr    *Region

	mu     sync.RWMutex // release against openings and Verify
	gone   bool
	leases atomic.Int64
}

var _ rdma.Region = (*region)(nil)

// RegisterMemory registers host memory, or a dma-buf (rdma.VRAM).
func (d *domain) RegisterMemory(_ context.Context, m rdma.Memory) (rdma.Region, error) {
	r, err := d.adopt(m)
	if err != nil {
		return nil, fmt.Errorf("register memory: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errors.Join(fmt.Errorf("register memory: %w", rdma.ErrClosed), r.release())
	}
	d.regions[r] = struct{}{}
	return r, nil
}

func (d *domain) adopt(m rdma.Memory) (r *region, err error) {
	r = &region{id: d.regionID.Add(1), d: d, fd: -1, unmap: func() error { return nil }}
	if m.Kind == rdma.VRAM {
		if m.Len <= 0 || m.Offset < 0 {
			return nil, fmt.Errorf("%w: %d bytes at %d of a dma-buf", rdma.ErrMemory, m.Len, m.Offset)
		}
		if r.fd, err = unix.FcntlInt(uintptr(m.FD), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return nil, fmt.Errorf("%w: %w", rdma.ErrMemory, err)
		}
		r.off, r.size = uint64(m.Offset), uint64(m.Len)
	} else {
		if r.mem, r.unmap, err = m.Map(); err != nil {
			return nil, err
		}
		r.size = uint64(len(r.mem))
	}
	if r.mr, err = r.register(rdma.Range{Len: r.size}, false); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", rdma.ErrMemory, err), r.release())
	}
	return r, nil
}

// register registers a part of the region with the device. A dma-buf is
// registered from the page on in which the part begins.
func (r *region) register(part rdma.Range, remote bool) (*Region, error) {
	if r.fd < 0 {
		return r.d.dev.Register(r.mem[part.Off:part.End()], remote)
	}
	return r.d.dev.RegisterDMABuf(r.fd, r.off+part.Off, part.Len, remote)
}

func (r *region) ID() uint32 { return r.id }

// Bytes is nil of a dma-buf.
func (r *region) Bytes() []byte { return r.mem }

// Grant makes a lease. The device hears of it when its peer opens the key.
func (r *region) Grant(_ context.Context, g rdma.Grant) (rdma.Lease, error) {
	ranges, err := span.Merge(g.Ranges, r.size)
	if err != nil {
		return nil, fmt.Errorf("grant region %d to %s: %w", r.id, g.Peer, err)
	}
	l := &lease{tag: g.Tag, peer: g.Peer, region: r, ranges: ranges, busy: make(chan struct{}, 1), told: make(chan struct{}, 1)}
	if _, err := rand.Read(l.key[:]); err != nil {
		return nil, fmt.Errorf("make a lease key: %w", err)
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.gone {
		return nil, fmt.Errorf("grant region %d: %w", r.id, rdma.ErrClosed)
	}
	r.leases.Add(1)
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	r.d.leases[l.key] = l
	return l, nil
}

// Deregister undoes RegisterMemory.
func (r *region) Deregister(context.Context) error {
	r.mu.Lock()
	if n := r.leases.Load(); n > 0 {
		r.mu.Unlock()
		return fmt.Errorf("deregister region %d: %d leases: %w", r.id, n, rdma.ErrBusy)
	}
	r.gone = true
	r.mu.Unlock()
	r.d.mu.Lock()
	delete(r.d.regions, r)
	r.d.mu.Unlock()
	return r.release()
}

func (r *region) release() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = true
	var errs []error
	if r.mr != nil {
		errs = append(errs, r.mr.Close())
		r.mr = nil
	}
	if r.fd >= 0 {
		errs = append(errs, unix.Close(r.fd))
		r.fd = -1
	}
	errs = append(errs, r.unmap())
	r.unmap = func() error { return nil }
	return errors.Join(errs...)
}
