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

	emitted uint64 // last seq handed out
	eff     uint64 // where it stands in merged time
	shift   uint64 // how far this node's clock is known to be behind
	recent  effRing
}

// copyHead is one source of a lane.
type copyHead struct {
	log  *Log
	next func() (*events.Event, error, bool)
	stop func()
	head *events.Event
	last uint64 // last seq read
}

// watcher is told what the union of copies shows. All fields may be nil.
type watcher struct {
	read     func(l *Log, e *events.Event)        // every event of every copy
	failed   func(l *Log, last uint64, err error) // a copy ended with an error
	conflict func(a, b *Log, ea, eb *events.Event)
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

func (ln *lane) open(ctx context.Context) {
	for _, c := range ln.copies {
		c.next, c.stop = iter.Pull2(c.log.Events(ctx))
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
	var best *copyHead
	for _, c := range ln.copies {
		if c.head != nil && (best == nil || c.head.Seq < best.head.Seq) {
			best = c
		}
	}
	if best == nil {
		ln.done = ln.err == nil
		return
	}
	ln.head = best.head
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

func (c *copyHead) fill(ln *lane, w *watcher) {
	if c.head != nil || c.next == nil {
		return
	}
	e, err, ok := c.next()
	switch {
	case !ok:
		c.stop()
		c.next = nil
	case err != nil:
		if w.failed != nil {
			w.failed(c.log, c.last, err)
		}
		ln.err = errors.Wrapf(err, "%s", c.log.Source)
		c.stop()
		c.next = nil
	default:
		c.head, c.last = e, e.Seq
		if w.read != nil {
			w.read(c.log, e)
		}
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
