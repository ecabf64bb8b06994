package rdma

import (
	"fmt"
	"time"
)

// FenceKind is the evidence that writes have stopped, in the words of
// events.md (release rule, basis 4).
type FenceKind uint8

// The kinds of evidence, from none to the strongest.
const (
	FenceNone          FenceKind = iota // nothing may be concluded
	FenceReaderStopped                  // our own reader copies nothing more for the lease
	FenceHard                           // key removed, window invalidated, QP in error, confirmed by the device
)

// String is the kind's word in events and on the command line.
func (k FenceKind) String() string {
	switch k {
	case FenceHard:
		return "hard"
	case FenceReaderStopped:
		return "reader_stopped"
	default:
		return "none"
	}
}

// ParseFenceKind is the inverse of FenceKind.String.
func ParseFenceKind(s string) (FenceKind, error) {
	for _, k := range []FenceKind{FenceNone, FenceReaderStopped, FenceHard} {
		if k.String() == s {
			return k, nil
		}
	}
	return FenceNone, fmt.Errorf("fence kind %q: want none, hard or reader_stopped", s)
}

// Fence is the evidence that goes into the log before pages are released.
type Fence struct {
	Kind  FenceKind
	Scope Scope
	Exact bool
	Torn  []PeerID      // peers whose connection was broken on purpose
	Took  time.Duration // from the call of Revoke until nothing could land any more
}
