package rdma

import "context"

// MemKind is where memory lives.
type MemKind uint8

// The kinds of memory.
const (
	DRAM MemKind = iota
	VRAM         // device memory, a dma-buf
)

// Memory is what RegisterMemory takes: either a file descriptor to map, or a
// mapping that this process has made. It is never Go heap memory.
type Memory struct {
	FD     int    // sealed memfd or dma-buf; with Mapped: the file behind it, or -1 (see File)
	Offset int64  // bytes into FD, a multiple of the page size; of no use with Mapped
	Len    int    // bytes; of a mapping it may be 0 for all of it
	Mapped []byte // shared mapping made by this process; must outlive the region
	Kind   MemKind
}

// Range is a run of bytes of a region.
type Range struct {
	Off uint64 // bytes from the region's start
	Len uint64 // bytes
}

// End is the first byte after r. It does not overflow for ranges that a
// provider has accepted.
func (r Range) End() uint64 { return r.Off + r.Len }

// Span is a range of a region of this domain.
type Span struct {
	Region uint32 // Region.ID
	Range
}

// Grant says who may write where.
type Grant struct {
	Peer   PeerID  // the only peer that the key works for; empty: any
	Tag    Tag     // comes back in notifs of writes under this lease
	Ranges []Range // at least one, none empty, any order, may touch or overlap
}

// Region is registered memory.
type Region interface {
	// ID is unique in the domain and comes back in spans.
	ID() uint32
	// Bytes is the mapping; it must not be used after Deregister.
	Bytes() []byte
	// Grant makes a lease with a fresh key. Errors: ErrRange, ErrClosed.
	Grant(ctx context.Context, g Grant) (Lease, error)
	// Deregister undoes RegisterMemory. Errors: ErrBusy while a lease of the
	// region has not been revoked.
	Deregister(ctx context.Context) error
}

// Lease is the right of one peer to write into some ranges.
type Lease interface {
	// Desc is what the writer needs.
	Desc() LeaseDesc
	Tag() Tag
	// Revoke takes the right back. When it returns without error no byte of
	// this lease lands any more, also of a write that was part way in, and
	// the fence says what that rests on. With an error the Kind is FenceNone
	// and nothing may be concluded, though no new write is let in; it can be
	// called again. Revoking twice gives the same evidence. It answers for
	// this domain alone: of leases that another process granted on the same
	// memory it says nothing.
	Revoke(ctx context.Context) (Fence, error)
	// Verify reads again what has landed under the lease, revoked or not, and
	// gives the ranges that are not as they were sent. The caller must not
	// have given the pages away. Errors: ErrNoChecksum if something, or all,
	// landed without a checksum (Config.Checksums); ErrClosed; the context's.
	Verify(ctx context.Context) ([]Range, error)
}

// LeaseDesc travels to the writer in the metadata's write_keys (wire.md 9.3):
// provider, endpoint and key there are these three.
type LeaseDesc struct {
	Provider string
	Endpoint string // address of the domain, for Connect
	Key      []byte // opaque, a bearer secret; goes into Batch.Key as it is
}
