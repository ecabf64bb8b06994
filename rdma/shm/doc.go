// Package shm is the rdma provider inside one host: pure Go, the target copies
// out of the writer's memory (rdma.md 7.3). rdma/internal/stream is its engine.
//
// A writer registers its source memory. The file behind it (a memfd, or a file
// on a tmpfs) is passed to the target once, over the unix socket; from then on
// a write is a descriptor of 80 bytes, and the target copies and answers. Both
// lie in a ring that the two sides share; a side that sleeps is woken by a
// message on the socket. With a build that knows of no ring they are messages
// themselves. Every copy of at most 256 KiB is bracketed by the lease, so Revoke
// is exact: its evidence is reader_stopped, and the connection goes on. A source
// that is not registered, or on another kind of file, crosses the socket as
// bytes.
//
// Whatever a peer does to its file, the target does not fault: it maps only
// files with F_SEAL_SHRINK that are not of huge pages, and reads others by
// pread, at about half the speed; a copy that faults all the same is a refusal.
// Memory that the peer has cut off is refused as source_gone.
//
// Endpoints are "unix:/path" or "unix:@name" for an abstract name; listening at
// "unix:@" makes a name up. The key is a bearer secret of 128 random bits; who
// may connect at all is a matter of the path's permissions, and of the network
// namespace for an abstract name.
package shm
