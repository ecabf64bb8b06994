package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdlog/pdlog/rdma"
)

const (
	handshakeTime = 10 * time.Second       // from accept to a complete hello
	acceptRetry   = 100 * time.Millisecond // after a failed accept: no descriptors left
)

// Transport is what makes a provider of this package's engine: its sockets and
// how bytes cross them.
type Transport struct {
	Name string // the provider's
	// Listen opens a listener and gives the address that peers dial.
	Listen func(ctx context.Context, addr string) (ln net.Listener, endpoint string, err error)
	// Dial opens a connection to an endpoint.
	Dial func(ctx context.Context, endpoint string) (net.Conn, error)
	// Tune sets socket options on each connection, made or accepted.
	Tune func(c net.Conn) error
	// Pools: the sockets are unix sockets, and registered memory is passed
	// over them as descriptors of which the target copies.
	Pools bool
	// Near: a writer on the target's host, in its network namespace, goes over
	// to a unix socket that carries descriptors, as with Pools. The target
	// tells its abstract name to who asks. Not with TLS.
	Near bool

	noRing bool // as a build that knows of none; for tests
}

// Open starts a domain; it listens on cfg.Listen if there is one.
func Open(ctx context.Context, t Transport, cfg rdma.Config) (rdma.Domain, error) {
	if len(cfg.Self) > maxPeerLen {
		return nil, fmt.Errorf("open %s domain: own name of %d bytes, at most %d", t.Name, len(cfg.Self), maxPeerLen)
	}
	if cfg.TLS != nil && t.Pools {
		return nil, fmt.Errorf("open %s domain: no TLS inside one host", t.Name)
	}
	d := &domain{
		transport: t,
		cfg:       cfg.WithDefaults(),
		leases:    leaseTable{byKey: make(map[key]*lease)},
		inbounds:  make(map[*inbound]struct{}),
		endpoints: make(map[*endpoint]struct{}),
		perPeer:   make(map[rdma.PeerID]int),
		regions:   make(map[*region]struct{}),
		stop:      make(chan struct{}),
	}
	d.info = rdma.PeerInfo{Provider: t.Name, Peer: cfg.Self, Endpoint: cfg.Advertise}
	if cfg.Listen == "" {
		return d, nil
	}
	ln, endpoint, err := t.Listen(ctx, cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("open %s domain: %w", t.Name, err)
	}
	d.ln = ln
	if d.info.Endpoint == "" {
		d.info.Endpoint = endpoint
	}
	if t.Near && cfg.TLS == nil {
		d.listenNear(ctx)
	}
	d.wg.Go(func() { d.accept(ln) })
	return d, nil
}

// domain is a listener, the memory that can be written through it, and the
// endpoints that write elsewhere.
type domain struct {
	transport Transport
	cfg       rdma.Config
	info      rdma.PeerInfo
	ln        net.Listener
	near      net.Listener // nil: none
	nearToken nearToken
	leases    leaseTable
	shares    atomic.Pointer[[]*share] // of the regions that have one

	transferID atomic.Uint64
	connID     atomic.Uint64
	regionID   atomic.Uint32

	mu        sync.Mutex
	closed    bool
	inbounds  map[*inbound]struct{}
	endpoints map[*endpoint]struct{}
	perPeer   map[rdma.PeerID]int
	regions   map[*region]struct{}

	stop chan struct{}
	wg   sync.WaitGroup // accept loop and inbound connections
}

var _ rdma.Domain = (*domain)(nil)

// Caps: a lease can be revoked exactly and the connection survives.
func (d *domain) Caps() rdma.Caps {
	return rdma.Caps{
		Revoke: rdma.ScopeLease, Fence: rdma.FenceReaderStopped,
		Exact: true, SurvivesLate: true, MaxBatch: d.cfg.Queue,
	}
}

func (d *domain) Info() rdma.PeerInfo { return d.info }

func (d *domain) accept(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: those waiting are served when some are free again
			select {
			case <-d.stop:
				return
			case <-time.After(acceptRetry):
			}
			continue
		}
		in, err := newInbound(d, c)
		if err != nil {
			_ = c.Close() // it died between accept and now
			continue
		}
		d.mu.Lock()
		if d.closed {
			d.mu.Unlock()
			_ = c.Close()
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
	d.perPeer[p]++
	d.mu.Unlock()
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

// hangUp closes a connection at once: the goodbye of TLS would wait for a peer
// that does not read.
func hangUp(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	_ = c.Close() // whatever it says, it is not used any more
}

func (d *domain) dropInbound(in *inbound) {
	d.mu.Lock()
	delete(d.inbounds, in)
	d.mu.Unlock()
}

func (d *domain) dropEndpoint(e *endpoint) {
	d.mu.Lock()
	delete(d.endpoints, e)
	d.mu.Unlock()
}

// Close ends everything and waits for it.
func (d *domain) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	close(d.stop)
	var ends []*endpoint
	for e := range d.endpoints {
		ends = append(ends, e)
	}
	for in := range d.inbounds {
		hangUp(in.conn) // the reader ends by it, whatever it says
	}
	d.mu.Unlock()
	var errs []error
	if d.ln != nil {
		errs = append(errs, d.ln.Close())
	}
	if d.near != nil {
		errs = append(errs, d.near.Close())
	}
	for _, e := range ends {
		_ = e.Close() // always nil
		<-e.done
	}
	d.wg.Wait()
	for _, l := range d.leases.all() {
		_, err := l.Revoke(context.Background()) // no reader is left to wait for
		errs = append(errs, err)
	}
	d.mu.Lock()
	regions := d.regions
	d.regions = nil
	d.mu.Unlock()
	for r := range regions {
		errs = append(errs, r.release())
	}
	return errors.Join(errs...)
}
