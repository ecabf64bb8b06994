package rdma

// NotifKind is what a Notif tells.
type NotifKind uint8

// The kinds of notifs.
const (
	// WriteLanded: all writes of a transfer are in memory. It is told before a
	// Revoke that came later than the last byte returns.
	WriteLanded NotifKind = iota + 1
	// LateWriteRefused: at least one write of a transfer was thrown away,
	// wholly or from some byte on. Ranges are those writes.
	LateWriteRefused
	// PeerConnected: a peer opened a connection.
	PeerConnected
	// PeerGone: the reader of a connection has ended, nothing more can land
	// from it. Fence is the evidence. Left counts the peer's other
	// connections that are still read.
	PeerGone
	// ChecksumFailed: bytes of a transfer landed that are not those that the
	// writer read. Ranges are the pieces; Lease.Verify names them as well.
	ChecksumFailed
)

// String is the kind's word in logs.
func (k NotifKind) String() string {
	switch k {
	case WriteLanded:
		return "write_landed"
	case LateWriteRefused:
		return "late_write_refused"
	case PeerConnected:
		return "peer_connected"
	case PeerGone:
		return "peer_gone"
	case ChecksumFailed:
		return "checksum_failed"
	default:
		return "unknown"
	}
}

// Notif is something that happened to the memory of this domain. It belongs to
// the callback that gets it.
type Notif struct {
	Kind NotifKind
	Peer PeerID // as the connection named itself; a key is bound to it
	Conn uint64 // connection, unique in the domain

	// Of WriteLanded, LateWriteRefused and ChecksumFailed, one per posted transfer:

	Tag       Tag    // of the lease; of a key that is not known, 0
	WriterTag Tag    // Batch.Tag
	Meta      uint64 // Batch.Meta
	Flags     uint32 // Batch.Flags
	Partial   bool   // Batch.Partial, or the writer could post only a part
	Ranges    []Span // merged where they touch; of a key that is not known, Region is 0
	Bytes     int64  // landed, or thrown away
	Placed    int64  // of LateWriteRefused: bytes of the transfer that had landed

	// Of PeerGone:

	Fence FenceKind
	Left  int

	// Err is why: of LateWriteRefused and ChecksumFailed a *RefusedError; of PeerGone how the
	// connection ended, io.EOF if the peer closed it.
	Err error
}
