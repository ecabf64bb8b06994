package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/rdma"
)

// Name is the provider's name in PeerInfo and LeaseDesc.
const Name = "tcp"

const (
	handshakeTime = 10 * time.Second       // from accept to a complete hello
	userTimeout   = 30 * time.Second       // unacknowledged bytes end a connection
	acceptRetry   = 100 * time.Millisecond // after a failed accept: no descriptors left
)

// Provider makes tcp domains. The zero value is ready.
type Provider struct{}

var _ rdma.Provider = Provider{}

// Name is "tcp".
func (Provider) Name() string { return Name }

// Open listens on cfg.Listen if there is one.
func (Provider) Open(ctx context.Context, cfg rdma.Config) (rdma.Domain, error) {
	if len(cfg.Self) > maxPeerLen {
		return nil, fmt.Errorf("open tcp domain: own name of %d bytes, at most %d", len(cfg.Self), maxPeerLen)
	}
	d := &domain{
		cfg:       cfg.WithDefaults(),
		leases:    leaseTable{byKey: make(map[key]*lease)},
		inbounds:  make(map[*inbound]struct{}),
		endpoints: make(map[*endpoint]struct{}),
		perPeer:   make(map[rdma.PeerID]int),
		regions:   make(map[*region]struct{}),
		stop:      make(chan struct{}),
	}
	d.info = rdma.PeerInfo{Provider: Name, Peer: cfg.Self, Endpoint: cfg.Advertise}
	if cfg.Listen == "" {
		return d, nil
	}
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	ln, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("open tcp domain: %w", err)
	}
	d.ln = ln
	if d.info.Endpoint == "" {
		d.info.Endpoint = ln.Addr().String()
	}
	d.wg.Go(d.accept)
	return d, nil
}

// keepAlive finds a silent dead host in about half a minute.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// domain is a listener, the memory that can be written through it, and the
// endpoints that write elsewhere.
type domain struct {
	cfg    rdma.Config
	info   rdma.PeerInfo
	ln     net.Listener
	leases leaseTable

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

// Caps of tcp: a lease can be revoked exactly and the connection survives.
func (d *domain) Caps() rdma.Caps {
	return rdma.Caps{
		Revoke: rdma.ScopeLease, Fence: rdma.FenceReaderStopped,
		Exact: true, SurvivesLate: true, MaxBatch: d.cfg.Queue,
	}
}

func (d *domain) Info() rdma.PeerInfo { return d.info }

func (d *domain) accept() {
	for {
		c, err := d.ln.Accept()
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
		in, err := newInbound(d, c.(*net.TCPConn))
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
		_ = in.conn.Close() // the reader ends by it, whatever it says
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

// tune sets what both directions want. Nagle is off in Go already.
func tune(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	})
	return errors.Join(err, serr)
}
