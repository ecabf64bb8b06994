// Package rdma is the interface between pdlog and whatever moves pages: memory
// is registered, a peer is granted a lease on ranges of it, writes are posted
// under the lease's key, and a lease can be revoked.
//
// What a provider promises (rdma.md 7.1 and 9):
//
//   - Registering grants nobody anything. A write lands only under the key of a
//     lease, inside the lease's ranges, from the lease's peer.
//   - After [Lease.Revoke] has returned a [Fence] whose Kind is not FenceNone,
//     not one more byte lands under that lease, also of a write that was part
//     way in.
//   - A completion with status [Completed] means that the bytes are in the
//     target's memory. [Failed] with Proven means that nothing more of the write
//     will land. [Uncertain] means that it may still land; it is followed by
//     [Drained] when the provider learns the true end, or by nothing.
//   - The target is told of a write ([Notif]) before the writer is.
//
// The package knows no rooms, generations or logs. Callers name their work by
// an opaque [Tag]: counts, [Endpoint.Seal], [Endpoint.Drain] and
// [Endpoint.Abort] go by it.
//
// Memory is never the Go heap: the collector does not know a device's
// references. [AllocMemfd] makes memory that can be registered, and
// [Memory.Map] checks what others have made.
//
// With [Config].Checksums a completion also means that the bytes were compared
// with the source as they landed, and [Lease.Verify] compares them again later.
//
// Providers live in sub-packages: tcp (pure Go, between hosts), shm (pure Go,
// inside one host, the target copies), fault (wraps any provider and breaks the
// writer's side); the first two are sockets on one engine, internal/stream.
// verbs is for cards and needs the tag verbs. rdmatest is the suite that every
// provider passes.
//
// Callbacks ([Config.OnNotif], [Config.OnCompletion]) run on the provider's
// goroutines, with none of its locks held. They must not block for long, and
// must not call Domain.Close. Everything else may be called from them and from
// any goroutine.
package rdma
