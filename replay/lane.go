package replay

import (
	"bytes"
	"context"
	"iter"
	"slices"

	"github.com/cockroachdb/errors"
	"google.golang.org/protobuf/proto"

	"github.com/pdlog/pdlog/events"
)

// lane is one node's log, drawn from every source that has it: the union by
// sequence, each event once.
type lane struct {
	node   string
	copies []*copyHead

	head *events.Event
	err  error // a read error of the head's place; the lane goes on without that copy
	done bool

	last     *events.Event // what came before the head
	lastFrom *copyHead

	index   int
	at      uint64  // where the head stands in merged time
	waiting []*lane // lanes whose heads wait for an event of this one
	emitted uint64  // last seq handed out
	eff     uint64  // where that stands in merged time
	shift   uint64  // how far this node's clock is known to be behind
	recent  effRing
}

// copyHead is one source of a lane.
type copyHead struct {
	log   *Log
	next  func() (batch, error, bool)
	stop  func()
	batch batch
	head  *events.Event
	first uint64 // first and last seq read, 0 = none
	last  uint64
	n     uint64 // events read
	newer uint64 // of them of a newer schema
}

// batch is a run of events of one log. A pull costs a switch of coroutines,
// which is as much as decoding an event: so they come by the hundred.
type batch []*events.Event

const batchEvents = 64

// batches regroups a log. A batch is good until the next one is asked for; an
// error comes alone and last.
func batches(seq iter.Seq2[*events.Event, error]) iter.Seq2[batch, error] {
	return func(yield func(batch, error) bool) {
		b := make(batch, 0, batchEvents)
		for e, err := range seq {
			if err != nil {
				if len(b) == 0 || yield(b, nil) {
					yield(nil, err)
				}
				return
			}
			if b = append(b, e); len(b) == cap(b) {
				if !yield(b, nil) {
					return
				}
				b = b[:0]
			}
		}
		if len(b) > 0 {
			yield(b, nil)
		}
	}
}

// watcher is told what the union of copies shows. All fields may be nil.
type watcher struct {
	failed   func(l *Log, last uint64, err error)  // a copy ended with an error
	conflict func(a, b *Log, ea, eb *events.Event) // a's stands
	lanes    []*lane                               // of the merge, set when it begins
	want     func(node string) Want                // which events of a node's logs are read; nil: all
	broken   func(e *events.Event, want uint32)    // prev_hash is not the chain of what came before
}

func (w *watcher) wantOf(l *Log) Want {
	if w.want == nil {
		return nil
	}
	return w.want(l.Node)
}

// lanes groups logs into lanes: logs of one node are copies of each other
// unless their log ids say otherwise (a wiped node has two logs).
func lanes(logs []*Log) []*lane {
	var out []*lane
next:
	for _, l := range logs {
		for _, ln := range out {
			if ln.node == l.Node && ln.fits(l) {
				ln.copies = append(ln.copies, &copyHead{log: l})
				continue next
			}
		}
		out = append(out, &lane{node: l.Node, copies: []*copyHead{{log: l}}})
	}
	slices.SortStableFunc(out, func(a, b *lane) int { return bytes.Compare([]byte(a.node), []byte(b.node)) })
	return out
}

func (ln *lane) fits(l *Log) bool {
	for _, c := range ln.copies {
		if c.log.ID != "" && l.ID != "" && c.log.ID != l.ID {
			return false
		}
	}
	return true
}

func (ln *lane) open(ctx context.Context, w *watcher) {
	for _, c := range ln.copies {
		c.next, c.stop = iter.Pull2(batches(c.log.Select(ctx, w.wantOf(c.log))))
	}
}

func (ln *lane) close() {
	for _, c := range ln.copies {
		if c.stop != nil {
			c.stop()
		}
	}
}

// advance moves to the next event of the union. A copy that fails is left out
// from there on, and ln.err says so once, before the event that follows.
func (ln *lane) advance(w *watcher) {
	ln.head, ln.err = nil, nil
	if ln.done {
		return
	}
	for _, c := range ln.copies {
		c.fill(ln, w)
	}
	best := ln.best()
	if best == nil {
		ln.done = ln.err == nil
		return
	}
	ln.head = best.head
	if w.broken != nil {
		ln.checkChain(best, w)
	}
	ln.last, ln.lastFrom = best.head, best
	for _, c := range ln.copies {
		if c != best && c.head != nil && c.head.Seq == best.head.Seq {
			if w.conflict != nil && !sameEvent(best.head, c.head) {
				w.conflict(best.log, c.log, best.head, c.head)
			}
			c.head = nil
		}
	}
	best.head = nil
}

// best is the copy whose event comes next. Of several that have it, a copy whose
// bytes carry checksums goes before one that anybody could have edited.
func (ln *lane) best() *copyHead {
	var best *copyHead
	for _, c := range ln.copies {
		switch {
		case c.head == nil:
		case best == nil, c.head.Seq < best.head.Seq, c.head.Seq == best.head.Seq && c.log.framed() && !best.log.framed():
			best = c
		}
	}
	return best
}

// checkChain checks what no reader has: that an event of an export, or the first
// one from another copy, continues the chain (events.md I9).
func (ln *lane) checkChain(from *copyHead, w *watcher) {
	e := from.head
	switch {
	case from.log.framed() && (from == ln.lastFrom || ln.last == nil):
	case ln.last == nil && e.Seq == 1 && e.PrevHash != 0:
		w.broken(e, 0)
	case ln.last != nil && e.Seq == ln.last.Seq+1:
		if want, ok := events.ChainAfter(ln.last); ok && want != e.PrevHash {
			w.broken(e, want)
		}
	}
}

func (c *copyHead) fill(ln *lane, w *watcher) {
	if c.head != nil || c.next == nil && len(c.batch) == 0 {
		return
	}
	var err error
	if len(c.batch) == 0 {
		var ok bool
		if c.batch, err, ok = c.next(); !ok {
			c.stop()
			c.next = nil
			return
		}
	}
	switch {
	case err != nil:
		if w.failed != nil {
			w.failed(c.log, c.last, err)
		}
		ln.err = errors.Wrapf(err, "%s", c.log.Source)
		c.stop()
		c.next = nil
	default:
		e := c.batch[0]
		c.batch = c.batch[1:]
		c.head, c.last = e, e.Seq
		c.count(e)
	}
}

func (c *copyHead) count(e *events.Event) {
	if c.n == 0 {
		c.first = e.Seq
	}
	c.n++
	if e.Payload == nil {
		c.newer++
	}
}

// sameEvent compares by what people can read too: an export does not carry
// fields that its writer did not know.
func sameEvent(a, b *events.Event) bool {
	return proto.Equal(a, b) || bytes.Equal(events.AppendJSON(nil, a), events.AppendJSON(nil, b))
}

// effRing remembers where the newest events of a lane stand in merged time.
type effRing struct {
	seq, eff [4096]uint64 // causes are near: a message in flight
}

func (r *effRing) put(seq, eff uint64) {
	i := seq % uint64(len(r.seq))
	r.seq[i], r.eff[i] = seq, eff
}

func (r *effRing) get(seq uint64) (uint64, bool) {
	i := seq % uint64(len(r.seq))
	return r.eff[i], r.seq[i] == seq && seq != 0
}
