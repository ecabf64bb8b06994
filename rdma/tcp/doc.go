// Package tcp is the default rdma provider between hosts: pure Go over TCP,
// with exact revocation of a single lease while other leases of the same
// connection go on (rdma.md 7.2). rdma/internal/stream is its engine and says
// how it works; this package has the sockets.
//
// The evidence of a revocation is reader_stopped: this process's own reader
// puts bytes into pages, checks the lease at every system call of at most
// 256 KiB, and the connection survives a late write.
//
// The key is a bearer secret of 128 random bits, bound to the name that the
// connection gave itself. Without Config.TLS the bytes are neither encrypted
// nor authenticated: the network between the nodes must be trusted.
package tcp
