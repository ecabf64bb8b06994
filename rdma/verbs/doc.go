// Package verbs is the rdma provider for cards, cgo on libibverbs alone (rdma.md
// 7.4). It is built with the tag verbs; without it the package has its name only
// and nothing needs a C compiler.
//
// A connection is a reliable queue pair with a TCP connection beside it, which
// joins the queue pairs, opens keys and carries the news of what was written.
// The key of a lease opens nothing by itself. The writer asks for it to be
// opened; the target then registers the lease's memory, binds a type-2 window to
// each of its ranges on that queue pair, and answers with the windows' keys. A
// device without windows gets a registration for each range. So a grant costs
// the device nothing, a key works on a new queue pair as on the old one, and
// closing it touches no other lease.
//
// Revoke is LOCAL_INV of the windows, so that the device refuses what comes from
// then on, and then DEREG_MR: the windows are destroyed and the registration
// below them is, which is the evidence (hard). It needs no queue pair, so it works
// for a broken one and where the device has no windows, and a device lets go of
// memory only when it copies nothing into it any more. LOCAL_INV alone is a fence
// by the book; so are, for all of a peer, a queue pair in error and access flags
// of 0 ([QP.Fail], [QP.AccessOff]). They are no evidence here: Soft-RoCE of Linux
// 6.1 may finish the one packet that it is copying, up to 4096 bytes, after any of
// the three has completed.
//
// A late write that the device refuses breaks the queue pair on both sides. The
// writer then ends the transfer that was refused, joins a new queue pair, opens
// its keys again and posts again what other transfers had under way: the same
// bytes to the same places.
//
// A transfer ends with a read of a word of the target's, so that what was written
// before it is in memory and not only in the card; then the target is told, and
// its answer is the completion. What was written where is the writer's word:
// the device guards the pages, not the news. News of a write that had landed
// before its lease was revoked is dropped if it comes after.
//
// Neither UCX nor libfabric is used: both keep registrations in a cache, and
// with it a key alive after its deregistration (rdma.md 3.1 and 3.2).
//
// Work requests are built in C and name no Go pointer; a batch is one call.
// Memory is a mapping or a dma-buf (rdma.VRAM), never the Go heap; a source that
// is not registered is copied first.
//
// Locks: endpoint.mu is above the ledger's; a lease's is above region.mu, and
// held while the device binds or invalidates; domain.mu is a leaf.
package verbs
