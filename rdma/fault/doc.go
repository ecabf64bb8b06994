// Package fault wraps any rdma provider and breaks the writer's side of it, or
// the target's revocations, as a spec of the command line says (cli.md, --fault;
// rdma.md 7.7).
//
// The target's side is the inner provider's own: a write that lands late goes
// through the inner provider when its time has come, so a lease that was
// revoked meanwhile refuses it, the target tells of it, and the transfer ends
// as Drained with nothing landed.
//
// What happens to a batch is drawn from the seed, the batch's Tag and its Meta,
// not from the order of posting: a seed gives the same faults in every run in
// which the caller chooses the same tags.
//
// Lock order: endpoint.mu, then the lock of rdma.Ledger. Neither is held while
// the inner provider is called, nor across a callback.
package fault
