// Package stream is the engine of the providers that move pages over a stream
// socket: tcp, and shm, whose unix sockets carry descriptors of memory instead
// of the bytes themselves (rdma.md 7.2 and 7.3).
//
// The writer sends frames: a header of 80 bytes (key, offset, length, sequence)
// and the payload, many in one writev. The target reads the payload straight
// into the registered pages. Every such system call copies at most 256 KiB and
// is bracketed by the lease: the reader enters it, copies, leaves it. Revoke
// raises a flag that lets no one enter any more and waits until the last one
// has left; from then on the reader puts the rest of the frame, and all later
// ones, into a scrap buffer and answers with a refusal. So the evidence of a
// revocation is reader_stopped, and the connection survives it.
//
// With TLS the payload is decrypted into a buffer outside the bracket and
// copied inside it. With pools (shm) a writer passes the file behind its
// registered memory once, over SCM_RIGHTS; from then on a frame names a place
// in it and the target copies, in the same bracket. Memory of the writer that
// is no file of this kind goes over the socket as payload.
//
// Beside pools go rings: memory of the writer's, passed once, in which its frames
// and the target's answers lie, so that neither takes a system call. Who finds
// nothing to do says so in a word of it and sleeps at the socket; who has
// something for a sleeper clears the word and rings, by a message without
// content. A sleeping writer is woken when half of what is on its way is
// answered, when something was refused, and when the target has nothing more to
// do. Frames with a payload or a descriptor go over the socket still; a frame in
// the ring says when it is their turn, so there is one order. The peer may write
// to the ring at any time: each of its words is read once and checked, each slot
// is copied before it is looked at, and what is wrong ends the connection. The
// target says in its answer to the hello that it takes a ring; without that word
// none is offered, and an offer can be declined.
//
// Each transfer is answered once, after its last frame: success cumulatively,
// a refusal on its own. The target's OnNotif has returned before the answer
// leaves.
//
// Lock order: domain.mu and endpoint.mu are never held together; endpoint.mu
// is above the lock of rdma.Ledger; region.mu is above that of a lease's sums;
// leaseTable.mu is a leaf. No lock is held across a system call or a callback.
package stream
