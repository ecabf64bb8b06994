package store

import (
	"os"
	"slices"

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
// all below below (what mirror, readers and age still need) and in both of the
// snapshots that are kept; and, while the segments are together above maxBytes
// (0 = no cap), those in the snapshots alone (store.md 6.8, cases.md C-73, C-82).
// The active segment and events that the snapshots do not hold stay, whatever
// the cap.
func (l *Log) Retain(below uint64, maxBytes int64) (Retained, error) {
	held, err := l.held()
	if err != nil {
		return Retained{}, err
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

// Sealed is the last sequence before the active segment: everything up to it
// is in files that do not change any more. One below First if there is none.
func (l *Log) Sealed() uint64 {
	l.segMu.RLock()
	defer l.segMu.RUnlock()
	return l.segs[len(l.segs)-1].first - 1
}

// OlderThan is the first sequence of the segment that hlc falls in: everything
// below it has an hlc below that. It looks at the first frame of each segment.
func (l *Log) OlderThan(hlc uint64) (seq uint64, err error) {
	l.segMu.RLock()
	segs := slices.Clone(l.segs)
	l.segMu.RUnlock()
	seq = segs[0].first
	for _, s := range segs[1:] {
		frames, err := l.ReadFrames(s.first, 1)
		if err != nil || len(frames) == 0 || frames[0].Info.FirstHLC > hlc {
			return seq, err
		}
		seq = s.first
	}
	return seq, nil
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
