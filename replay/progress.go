package replay

import (
	"context"
	"iter"
	"sync/atomic"

	"github.com/pdlog/pdlog/events"
)

// progress is how far the reads of one log have come.
type progress struct {
	last  uint64 // the log's last sequence, 0 = not known beforehand
	reads atomic.Uint64
	at    atomic.Uint64
}

func (p *progress) reset() {
	p.reads.Store(0)
	p.at.Store(0)
}

// watch is the reader, noting where it is.
func (p *progress) watch(read reader, want Want) reader {
	p.reads.Add(1)
	p.at.Store(0)
	return func(ctx context.Context, _ Want, got *Spans) iter.Seq2[*events.Event, error] {
		if want != nil {
			return read(ctx, func(h events.Head) bool {
				p.at.Store(h.Seq)
				return want(h)
			}, got)
		}
		return func(yield func(*events.Event, error) bool) {
			for e, err := range read(ctx, nil, got) {
				if err == nil {
					p.at.Store(e.Seq)
				}
				if !yield(e, err) {
					return
				}
			}
		}
	}
}

// Progress says how much of a command's reading is done, if each log is read
// passes times: a share from 0 to 1. Not ok: the length of a log is not known
// beforehand (an export, a live node, the mirror).
func Progress(logs []*Log, passes int) (share float64, ok bool) {
	var done, all float64
	for _, l := range logs {
		p := &l.progress
		if p.last == 0 {
			return 0, false
		}
		n := float64(max(p.reads.Load(), 1) - 1)
		done += n*float64(p.last) + float64(min(p.at.Load(), p.last))
		all += float64(passes) * float64(p.last)
	}
	if all == 0 {
		return 0, false
	}
	return min(done/all, 1), true
}
