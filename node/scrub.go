package node

import (
	"context"
	"time"
)

const (
	// scrubRate is slow enough not to be felt: a segment of 64 MiB in 16 s.
	scrubRate = 4 << 20
	// scrubFirst keeps a pass away from a start, which reads the log anyway.
	scrubFirst = 10 * time.Minute
	// scrubPause is between passes.
	scrubPause = 12 * time.Hour
)

// keepScrubbing reads the sealed segments again and again while the node runs,
// so that a disk that rots is known before the log is needed (store.Log.Scrub).
func (n *Node) keepScrubbing(ctx context.Context) {
	for wait := scrubFirst; n.pause(wait); wait = scrubPause {
		if !n.scrub(ctx, scrubRate) {
			return
		}
	}
}

// scrub is one pass; false when the node ends.
func (n *Node) scrub(ctx context.Context, rate int64) bool {
	done, err := n.store.Scrub(ctx, rate, func(err error) {
		n.log.Error("a sealed log segment does not verify; the node runs on, for its state does not rest on it. "+
			"Keep a copy of the log and of the mirror now: the next start that reads the segment sets the log aside and quarantines its pages", "err", err)
	})
	n.metrics.scrubbed.Add(float64(done.Bytes))
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		n.log.Error("sealed log segments cannot be read again", "dir", n.cfg.LogDir(), "err", err)
		n.damaged.Store(int64(done.Damaged) + 1)
		return true
	}
	n.damaged.Store(int64(done.Damaged))
	n.log.Debug("sealed log segments were read again", "whole", done.Segments, "damaged", done.Damaged, "bytes", done.Bytes)
	return true
}
