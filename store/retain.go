package store

import (
	"os"

	"github.com/cockroachdb/errors"
)

// Retained says what Retain did.
type Retained struct {
	Removed  int    // segments
	FirstSeq uint64 // oldest event kept now
	Bytes    int64  // of the segments kept
	// HoleFrom to HoleTo left the log although the caller still needed them;
	// 0 and 0 for none. The mirror reports them (events.md I10).
	HoleFrom, HoleTo uint64
	// Over: the log is above maxBytes and nothing more may go: what is left is
	// not in a snapshot.
	Over bool
}

// Retain unlinks whole sealed segments, oldest first: those whose events are
// all below below (what mirror, readers and age still need) and in the newest
// snapshot; and, while the segments are together above maxBytes (0 = no cap),
// those in the snapshot alone (store.md 6.8, cases.md C-73, C-82). The active
// segment and events that no snapshot holds stay, whatever the cap.
func (l *Log) Retain(below uint64, maxBytes int64) (Retained, error) {
	snap, err := l.LatestSnapshot()
	if err != nil {
		return Retained{}, err
	}
	var held uint64 // sequences up to here are in the snapshot
	if snap != nil {
		held = snap.Seq
	}
	l.retainMu.Lock()
	defer l.retainMu.Unlock()
	var out Retained
	if out.Bytes, err = l.segmentBytes(); err != nil {
		return out, err
	}
	for {
		l.segMu.RLock()
		out.FirstSeq = l.segs[0].first
		isActive := len(l.segs) == 1
		var last uint64
		if !isActive {
			last = l.segs[1].first - 1
		}
		l.segMu.RUnlock()
		over := maxBytes > 0 && out.Bytes > maxBytes
		if isActive || last > held {
			out.Over = over
			return out, nil
		}
		if last >= below && !over {
			return out, nil
		}
		if last >= below {
			if out.HoleFrom == 0 {
				out.HoleFrom = max(out.FirstSeq, below)
			}
			out.HoleTo = last
		}
		size, err := l.dropOldest()
		if err != nil {
			return out, err
		}
		out.Removed++
		out.Bytes -= size
	}
}

// dropOldest unlinks the oldest segment. Each name goes durably before the
// next: a crash must not leave a hole in the middle.
func (l *Log) dropOldest() (size int64, err error) {
	l.segMu.Lock()
	s := l.segs[0]
	l.segs = l.segs[1:]
	l.segMu.Unlock()
	s.retire()
	err = s.shut()
	st, statErr := os.Stat(s.path)
	if statErr == nil {
		size = st.Size()
	}
	err = errors.CombineErrors(err, errors.Wrap(os.Remove(s.path), "drop segment"))
	return size, errors.CombineErrors(err, syncDir(l.dir))
}

func (l *Log) segmentBytes() (int64, error) {
	l.segMu.RLock()
	defer l.segMu.RUnlock()
	var sum int64
	for _, s := range l.segs {
		st, err := os.Stat(s.path)
		if err != nil {
			return 0, errors.Wrap(err, "size of log")
		}
		sum += st.Size()
	}
	return sum, nil
}
