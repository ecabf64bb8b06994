// Package verbs is the device layer for RDMA cards, cgo on libibverbs alone
// (rdma.md 7.4): protection domain, registered regions, RC queue pairs, type-2
// memory windows, posting and polling. It is built with the tag verbs; without
// it the package is empty and nothing needs a C compiler.
//
// A window is what a lease is made of: the target binds it to a run of a region
// on the queue pair of the one peer that may write, and gives away the window's
// key, never the region's. [QP.Invalidate] takes it back; when it has returned
// the device lets nothing land under that key any more, also of a write that
// was part way in. A peer whose late write is refused loses the queue pair, and
// with it an invalidation that has not completed: then [Window.Close] and
// [Region.Close] are the fence. [QP.Fail] and [QP.AccessOff] cut a peer off, but
// are no exact fence on every device: Soft-RoCE of Linux 6.1 may finish the one
// packet that it is copying (up to 4096 bytes) after they have returned.
//
// Neither UCX nor libfabric is used: both keep registrations in a cache, and
// with it a key alive after its deregistration (rdma.md 3.1 and 3.2).
//
// Work requests are built in C and name no Go pointer; a batch is one call.
// Memory must be a mapping, never the Go heap, and stay mapped until its region
// is closed.
package verbs
