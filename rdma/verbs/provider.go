//go:build verbs

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/rdma"
)

// Provider makes verbs domains. The zero value is ready.
type Provider struct{}

var _ rdma.Provider = Provider{}

// Name is "verbs".
func (Provider) Name() string { return Name }

// Open opens the device cfg.Device and listens for control connections on
// cfg.Listen, "host:port", if there is one. Errors: ErrNoDevice.
func (Provider) Open(ctx context.Context, cfg rdma.Config) (rdma.Domain, error) {
	if cfg.TLS != nil {
		return nil, errors.New("open verbs domain: no TLS: a card does not encrypt what it writes")
	}
	d := &domain{
		cfg: cfg.WithDefaults(), leases: map[key]*lease{}, regions: map[*region]struct{}{},
		inbounds: map[*inbound]struct{}{}, endpoints: map[*endpoint]struct{}{}, perPeer: map[rdma.PeerID]int{},
		info: rdma.PeerInfo{Provider: Name, Peer: cfg.Self, Endpoint: cfg.Advertise},
	}
	if err := d.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open verbs domain: %w", err), d.Close())
	}
	return d, nil
}

func (d *domain) open(ctx context.Context) (err error) {
	if d.dev, err = OpenDevice(d.cfg.Device); err != nil {
		return err
	}
	w, err := d.dev.NewWindow()
	if d.windows = err == nil; d.windows {
		err = w.Close()
	} else {
		err = nil // then each opening of a lease is a registration of its own
	}
	if err != nil {
		return err
	}
	page, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("map the flush word: %w", err)
	}
	d.flushPage = page
	if d.flush, err = d.dev.registerRead(page); err != nil {
		return err
	}
	if d.cfg.Listen == "" {
		return nil
	}
	if d.ln, err = new(net.ListenConfig).Listen(ctx, "tcp", d.cfg.Listen); err != nil {
		return err
	}
	if d.info.Endpoint == "" {
		d.info.Endpoint = d.ln.Addr().String()
	}
	d.wg.Go(d.accept)
	return nil
}

// domain is a device, the memory that can be written through it, and the
// endpoints that write elsewhere.
type domain struct {
	cfg       rdma.Config
	info      rdma.PeerInfo
	dev       *Device
	windows   bool // the device has type-2 memory windows
	flushPage []byte
	flush     *Region // a word that writers read to know that their writes are in memory
	ln        net.Listener

	transferID atomic.Uint64
	connID     atomic.Uint64
	regionID   atomic.Uint32

	mu        sync.Mutex
	closed    bool
	leases    map[key]*lease
	retired   []key // ring of revoked leases that are remembered
	next      int
	regions   map[*region]struct{}
	inbounds  map[*inbound]struct{}
	endpoints map[*endpoint]struct{}
	perPeer   map[rdma.PeerID]int

	wg     sync.WaitGroup // accept loop and inbound connections
	graves sync.WaitGroup // queue pairs that are being destroyed
}

var _ rdma.Domain = (*domain)(nil)

// Caps: a lease can be revoked exactly. A late write breaks its queue pair, but
// the provider makes a new one and posts again what others had under way.
func (d *domain) Caps() rdma.Caps {
	return rdma.Caps{
		Revoke: rdma.ScopeLease, Fence: rdma.FenceHard,
		Exact: true, SurvivesLate: true, MaxBatch: d.cfg.Queue, DeviceMemory: true,
	}
}

func (d *domain) Info() rdma.PeerInfo { return d.info }

func (d *domain) accept() {
	for {
		c, err := d.ln.Accept()
		if err != nil {
			return // closed
		}
		in := &inbound{d: d, id: d.connID.Add(1), ctl: newControl(c), revoked: make(chan key, revokedKept)}
		d.mu.Lock()
		if d.closed {
			d.mu.Unlock()
			in.ctl.close()
			return
		}
		d.inbounds[in] = struct{}{}
		d.wg.Go(in.run)
		d.mu.Unlock()
	}
}

// joined counts a connection whose hello was read.
func (d *domain) joined(p rdma.PeerID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.perPeer[p]++
}

// parted is its inverse; it gives how many the peer has left.
func (d *domain) parted(p rdma.PeerID) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.perPeer[p]--
	left := d.perPeer[p]
	if left == 0 {
		delete(d.perPeer, p)
	}
	return left
}

// bury destroys a queue pair that is not used any more. Soft-RoCE can take most
// of a minute over one that a refused write has broken, so nobody waits.
func (d *domain) bury(q *QP) {
	if q != nil {
		d.graves.Go(func() { _ = q.Close() }) // nothing can be done about it
	}
}

// Close ends everything. The device itself is closed when the last queue pair is
// destroyed, which nobody waits for.
func (d *domain) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	var ends []*endpoint
	for e := range d.endpoints {
		ends = append(ends, e)
	}
	for in := range d.inbounds {
		in.ctl.close()
	}
	d.mu.Unlock()
	var errs []error
	if d.ln != nil {
		errs = append(errs, d.ln.Close())
	}
	for _, e := range ends {
		_ = e.Close() // always nil
		<-e.done
	}
	d.wg.Wait()
	d.mu.Lock()
	var leases []*lease
	for _, l := range d.leases {
		leases = append(leases, l)
	}
	regions := d.regions
	d.regions = nil
	d.mu.Unlock()
	for _, l := range leases {
		_, err := l.Revoke(context.Background()) // no connection is left that could use it
		errs = append(errs, err)
	}
	for r := range regions {
		errs = append(errs, r.release())
	}
	if d.flush != nil {
		errs = append(errs, d.flush.Close())
	}
	if d.flushPage != nil {
		errs = append(errs, unix.Munmap(d.flushPage))
	}
	if d.dev != nil {
		go func() {
			d.graves.Wait()
			_ = d.dev.Close() // nothing is left on it
		}()
	}
	return errors.Join(errs...)
}
