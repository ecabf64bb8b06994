package rdma

import (
	"context"
	"crypto/tls"
)

// PeerID names a node as the control plane knows it.
type PeerID string

// Tag is what the caller counts, seals, drains and aborts by. It means nothing
// to a provider and need not be the same on both sides of a write.
type Tag uint64

// Scope is the smallest thing that a provider can take access away from.
type Scope uint8

// The scopes, from nothing to the finest.
const (
	ScopeNone  Scope = iota // access can not be taken back
	ScopePeer               // only by cutting the whole peer off
	ScopeLease              // one lease, others of the same peer go on
)

// String is the scope's word in logs and reports.
func (s Scope) String() string {
	switch s {
	case ScopePeer:
		return "peer"
	case ScopeLease:
		return "lease"
	default:
		return "none"
	}
}

// Caps says what a domain can do.
type Caps struct {
	Revoke       Scope     // the smallest thing that can be revoked
	Fence        FenceKind // the evidence that a successful Revoke gives
	Exact        bool      // Revoke also covers a write that is part way in
	SurvivesLate bool      // a refused late write leaves the connection usable
	MaxBatch     int       // most writes in one batch; 0: no bound of its own
	DeviceMemory bool      // can register a dma-buf
}

// Provider opens domains of one transport.
type Provider interface {
	// Name is the transport's name as it stands in PeerInfo and LeaseDesc.
	Name() string
	// Open starts a domain. The context bounds the opening, not the domain.
	Open(ctx context.Context, cfg Config) (Domain, error)
}

// Default values of Config.
const (
	DefaultConns = 1
	DefaultQueue = 16384 // writes; 48 bytes each until they are sent
)

// Config is how a domain is opened. The zero value is a domain that listens
// nowhere (it can write and can not be written to) and tells nobody anything.
type Config struct {
	Self      PeerID // who this domain says it is
	Listen    string // address to listen on, "host:port" for tcp and verbs, "unix:/path" or "unix:@name" for shm; empty: do not
	Advertise string // address told to peers; empty: the one listened on
	Device    string // RDMA device, verbs only; empty: the first
	Conns     int    // connections per endpoint; 0: DefaultConns
	Queue     int    // most writes of one connection not yet handed to the transport; 0: DefaultQueue

	// Checksums: each piece is sent with the CRC32C of its source and, where
	// this domain is the target, checked as it lands and kept for
	// Lease.Verify. Both sides must have it on. It costs a pass over the bytes
	// on each side (measured by BenchmarkWriteChecksums of tcp and shm).
	Checksums bool

	// TLS encrypts and authenticates connections (tcp only; nil: plain text).
	// The listener needs a certificate in it, the side that connects what
	// certificate to trust; ServerName, if empty, is the endpoint's host. The
	// name in a certificate is not compared with Self.
	TLS *tls.Config

	// OnNotif hears what happens to this domain's memory. Calls for one
	// connection are made one at a time, in order, and before the writer
	// learns of that write; calls for different connections may overlap.
	OnNotif func(Notif)

	// OnCompletion hears the end of posted transfers. Calls for one endpoint
	// are made one at a time, in order; calls for different endpoints may
	// overlap. It may run before the PostBatch that it answers has returned.
	OnCompletion func(Completion)
}

// WithDefaults fills in what is zero.
func (c Config) WithDefaults() Config {
	if c.Conns <= 0 {
		c.Conns = DefaultConns
	}
	if c.Queue <= 0 {
		c.Queue = DefaultQueue
	}
	if c.OnNotif == nil {
		c.OnNotif = func(Notif) {}
	}
	if c.OnCompletion == nil {
		c.OnCompletion = func(Completion) {}
	}
	return c
}

// PeerInfo is how to reach a domain; it travels in the control plane.
type PeerInfo struct {
	Provider string
	Endpoint string // empty: the domain listens nowhere
	Peer     PeerID
}

// Domain is one NIC or one listening socket.
type Domain interface {
	Caps() Caps
	// Info is what a peer needs to Connect here.
	Info() PeerInfo
	// RegisterMemory makes memory known to the transport. It grants nobody
	// anything. Errors: ErrMemory for memory that must not be registered.
	RegisterMemory(ctx context.Context, m Memory) (Region, error)
	// Connect opens an endpoint to write to p. After a connection was lost a
	// new endpoint is made by calling it again.
	Connect(ctx context.Context, p PeerInfo) (Endpoint, error)
	// Close ends all endpoints and connections, revokes all leases and waits
	// until no callback runs any more.
	Close() error
}
