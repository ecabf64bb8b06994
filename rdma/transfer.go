package rdma

import (
	"context"
	"fmt"
	"math"
)

// Write is one run of bytes to write. The source is Src, or Len bytes of
// Region from Off on. It must stay mapped and unchanged until the transfer's
// end is told: Completed, Failed, Drained, or Uncertain because the connection
// was lost.
type Write struct {
	Src       []byte
	Region    Region
	Off       uint64
	Len       uint64
	RemoteOff uint64 // bytes from the start of the target's region
	Key       []byte // if not empty, instead of the batch's
}

// Bytes is the source of w. Errors: ErrBatch if it is empty or outside its
// region.
func (w Write) Bytes() ([]byte, error) {
	src := w.Src
	if w.Region != nil {
		b := w.Region.Bytes()
		if w.Off > uint64(len(b)) || w.Len > uint64(len(b))-w.Off {
			return nil, fmt.Errorf("%w: source %d+%d outside its region of %d bytes", ErrBatch, w.Off, w.Len, len(b))
		}
		src = b[w.Off : w.Off+w.Len : w.Off+w.Len]
	}
	if len(src) == 0 {
		return nil, fmt.Errorf("%w: empty write", ErrBatch)
	}
	if w.RemoteOff > math.MaxUint64-uint64(len(src)) {
		return nil, fmt.Errorf("%w: remote offset %d overflows", ErrBatch, w.RemoteOff)
	}
	return src, nil
}

// Batch is what is posted together: one transfer, one completion, one notif
// at the target.
type Batch struct {
	Tag     Tag
	Token   uint64 // the caller's own name for the transfer; comes back in completions, stays here
	Key     []byte // LeaseDesc.Key of the writes that name none
	Meta    uint64 // carried to the target's notif
	Flags   uint32 // carried to the target's notif
	Partial bool   // carried to the target's notif: not all of what Meta stands for
	Writes  []Write
}

// TransferID names a transfer, unique in its domain.
type TransferID uint64

// Transfer is a posted batch.
type Transfer struct {
	ID     TransferID
	Writes int   // posted
	Bytes  int64 // of those
}

// Status is how far a transfer's end is known.
type Status uint8

// The statuses of completions.
const (
	Completed Status = iota + 1 // every byte is in the target's memory
	Failed                      // with Proven: nothing more of it will land
	Uncertain                   // it may still land, wholly or in part
	Drained                     // the end of a transfer that was Uncertain before: nothing more will land
)

// String is the status's word in logs.
func (s Status) String() string {
	switch s {
	case Completed:
		return "completed"
	case Failed:
		return "failed"
	case Uncertain:
		return "uncertain"
	case Drained:
		return "drained"
	default:
		return "unknown"
	}
}

// Completion tells the end of a transfer, or that it is not known. Each
// transfer has exactly one of Completed, Failed and Uncertain; after Uncertain
// at most one Drained.
type Completion struct {
	ID     TransferID
	Token  uint64 // Batch.Token
	Peer   PeerID // the target
	Tag    Tag
	Meta   uint64
	Status Status
	Err    error // nil of Completed, and of Drained if every byte landed
	Bytes  int64 // in the target's memory as far as known
	Proven bool  // nothing more of the transfer will land
}

// Count is what an endpoint knows of the transfers of a tag.
type Count struct {
	Queued    int // accepted, nothing has left yet
	Posted    int // handed to the transport, end not told yet
	Completed int
	Failed    int
	Uncertain int // told as Uncertain and not Drained since
	Drained   int // told as Uncertain, then as Drained
}

// Open is how many transfers have not been told of in any way.
func (c Count) Open() int { return c.Queued + c.Posted }

// DrainReport is how the transfers of a tag ended.
type DrainReport struct {
	Posted    int // all that were accepted
	Completed int
	Failed    int
	Uncertain int
	Drained   int
	Clean     bool // none is open and none is uncertain: nothing more will land
}

// Endpoint writes to one peer.
type Endpoint interface {
	Peer() PeerID
	// PostBatch hands a batch over and does not wait. Errors: ErrQueueFull,
	// ErrSealed, ErrBatch, ErrClosed, ErrConnLost: nothing was posted; a
	// *PartialError: the Transfer stands for the first Posted writes.
	PostBatch(b Batch) (Transfer, error)
	// Inflight counts the transfers of a tag. A transfer leaves Queued or
	// Posted after its completion was told.
	Inflight(t Tag) Count
	// Seal closes a tag: no post for it succeeds after Seal has returned.
	Seal(t Tag)
	// Drain waits until no transfer of a sealed tag is open, and reports.
	// With the context's error the report is how it stands. Errors:
	// ErrNotSealed.
	Drain(ctx context.Context, t Tag) (DrainReport, error)
	// Cancel takes back what of the tag is queued and has not begun to leave:
	// each is reported Failed and proven. What has begun to leave goes on.
	Cancel(t Tag)
	// Abort brings the tag's open transfers to an end by force: what has not
	// left is Failed and proven, what has is Uncertain. It does not Seal.
	Abort(t Tag) error
	// Forget drops the counts and the seal of a tag. Errors: ErrBusy while
	// one of its transfers is open.
	Forget(t Tag) error
	// Done is closed when the endpoint has ended, for whatever reason, and
	// each of its transfers has been told of.
	Done() <-chan struct{}
	// Err is why the endpoint ended: ErrClosed, ErrConnLost; nil before.
	Err() error
	// Close ends the endpoint without waiting for its writes; see Done.
	Close() error
}
