package rdma

import (
	"errors"
	"fmt"
)

// Sentinels, for errors.Is.
var (
	ErrClosed     = errors.New("rdma: closed")                                   // the domain, region or endpoint was closed here
	ErrConnLost   = errors.New("rdma: connection lost")                          // the endpoint's connection ended from outside
	ErrBusy       = errors.New("rdma: busy")                                     // leases or writes are still open
	ErrSealed     = errors.New("rdma: tag is sealed")                            // PostBatch after Seal
	ErrNotSealed  = errors.New("rdma: tag is not sealed")                        // Drain before Seal
	ErrQueueFull  = errors.New("rdma: send queue is full")                       // PostBatch; try again after a completion
	ErrAborted    = errors.New("rdma: aborted")                                  // completions caused by Abort
	ErrMemory     = errors.New("rdma: memory can not be registered")             // unsealed, unaligned, Go heap, wrong kind
	ErrRange      = errors.New("rdma: range outside the region")                 // Grant
	ErrBatch      = errors.New("rdma: bad batch")                                // PostBatch: empty, too long, bad key
	ErrProvider   = errors.New("rdma: peer or key belongs to another provider")  // Connect
	ErrNoChecksum = errors.New("rdma: landed without a checksum")                // Lease.Verify
	ErrRefused    = errors.New("rdma: the target refused the write")             // a RefusedError is one
	ErrHandshake  = errors.New("rdma: the peer did not answer as a domain does") // Connect
)

// PartialError says that only the first Posted writes of a batch were
// accepted. Those are one transfer, with a completion of its own; the rest was
// never posted.
type PartialError struct {
	Posted int
	Err    error // why not the others
}

// Error implements error.
func (e *PartialError) Error() string {
	return fmt.Sprintf("rdma: only %d writes posted: %v", e.Posted, e.Err)
}

// Unwrap gives the reason.
func (e *PartialError) Unwrap() error { return e.Err }

// Refusal is why a target threw a write away.
type Refusal uint16

// The reasons. Their numbers are on the wire of tcp.
const (
	RefusedUnknownKey Refusal = iota + 1 // no lease has this key, or not any more
	RefusedRevoked                       // the lease was revoked, before or while the write came in
	RefusedRange                         // outside the lease's ranges
	RefusedPeer                          // the key was granted to another peer
	RefusedMemory                        // the pages are not mapped
	RefusedSource                        // the writer's own memory is gone (shm)
	RefusedChecksum                      // the bytes that landed are not those that were sent
)

// String is the reason's word in logs and events.
func (r Refusal) String() string {
	switch r {
	case RefusedUnknownKey:
		return "unknown_key"
	case RefusedRevoked:
		return "revoked"
	case RefusedRange:
		return "out_of_range"
	case RefusedPeer:
		return "wrong_peer"
	case RefusedMemory:
		return "not_mapped"
	case RefusedSource:
		return "source_gone"
	case RefusedChecksum:
		return "checksum"
	default:
		return "unknown"
	}
}

// RefusedError is the error of writes that a target threw away.
type RefusedError struct {
	Reason Refusal
	Writes int // pieces thrown away, in the provider's own unit (tcp: frames)
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("rdma: the target refused %d pieces of the write: %s", e.Writes, e.Reason)
}

// Is makes every RefusedError an ErrRefused.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }
