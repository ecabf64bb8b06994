// Package tcp is the default rdma provider between hosts: pure Go over TCP,
// with exact revocation of a single lease while other leases of the same
// connection go on (rdma.md 7.2).
//
// The writer sends frames: a header of 64 bytes (key, offset, length, sequence)
// and the payload, many in one writev. The target reads the payload straight
// into the registered pages. Every such system call copies at most 256 KiB and
// is bracketed by the lease: the reader enters it, copies, leaves it. Revoke
// raises a flag that lets no one enter any more and waits until the last one
// has left; from then on the reader puts the rest of the frame, and all later
// ones, into a scrap buffer and answers with a refusal. So the evidence of a
// revocation is reader_stopped, and the connection survives it.
//
// Each transfer is answered once, after its last frame: success cumulatively,
// a refusal on its own. The target's OnNotif has returned before the answer
// leaves.
//
// The key is a bearer secret of 128 random bits, bound to the name that the
// connection gave itself. The bytes are neither encrypted nor authenticated:
// the network between the nodes must be trusted.
//
// Lock order: domain.mu and endpoint.mu are never held together; endpoint.mu
// is above the lock of rdma.Ledger; leaseTable.mu is a leaf. No lock is held
// across a system call or a callback.
package tcp
