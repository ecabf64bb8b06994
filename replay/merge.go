package replay

import (
	"context"
	"iter"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
)

// Merge streams the events of all logs, each event once, in an order in which
// no event comes before its cause and the events of one node keep theirs. Where
// neither decides, the hybrid clock does, moved forward for a node that is
// known, from a message it took, to be behind (cases.md C-84). Copies of one
// log (a log and its mirror) count once.
//
// A log that fails gives its error (a nil event) and is left out from there on;
// the rest goes on. Copies that differ give an ErrConflict; the first source's
// event stands. Memory is bounded whatever the logs' length.
func Merge(ctx context.Context, logs []*Log) iter.Seq2[*events.Event, error] {
	return func(yield func(*events.Event, error) bool) {
		var conflict error
		w := &watcher{conflict: func(a, b *Log, ea, _ *events.Event) {
			if conflict == nil {
				conflict = errors.Wrapf(ErrConflict, "%s and %s: event %d of %s", a.Source, b.Source, ea.Seq, ea.Node)
			}
		}}
		for e, err := range merge(ctx, logs, w) {
			if err == nil && conflict != nil {
				if !yield(nil, conflict) {
					return
				}
				conflict = nil
			}
			if !yield(e, err) {
				return
			}
		}
		if conflict != nil {
			yield(nil, conflict)
		}
	}
}

// merger is the k-way merge over lanes.
type merger struct {
	lanes  []*lane
	byNode map[string][]*lane
	w      *watcher
}

func merge(ctx context.Context, logs []*Log, w *watcher) iter.Seq2[*events.Event, error] {
	return func(yield func(*events.Event, error) bool) {
		m := &merger{lanes: lanes(logs), byNode: map[string][]*lane{}, w: w}
		for _, ln := range m.lanes {
			m.byNode[ln.node] = append(m.byNode[ln.node], ln)
			ln.open(ctx)
			defer ln.close()
		}
		for {
			if ctx.Err() != nil {
				yield(nil, mark(ctx.Err(), ErrUnavailable))
				return
			}
			for _, ln := range m.lanes {
				for ln.head == nil && !ln.done {
					ln.advance(w)
					if ln.err != nil && !yield(nil, ln.err) {
						return
					}
				}
			}
			ln := m.pick()
			if ln == nil {
				return
			}
			e := ln.head
			ln.take()
			if !yield(e, nil) {
				return
			}
		}
	}
}

// pick is the lane whose head comes next: the earliest of those whose cause is
// out. If every head waits (a log that lies, or one that is damaged), the
// earliest of all goes, so that the merge always ends.
func (m *merger) pick() *lane {
	var best, any *lane
	for _, ln := range m.lanes {
		if ln.head == nil {
			continue
		}
		at := m.effOf(ln)
		if any == nil || at < m.effOf(any) {
			any = ln
		}
		if (best == nil || at < m.effOf(best)) && !m.waits(ln.head) {
			best = ln
		}
	}
	if best == nil {
		return any
	}
	return best
}

// waits says whether the event's cause is in a lane and not out yet.
func (m *merger) waits(e *events.Event) bool {
	c := e.Cause
	if c.GetNode() == "" || c.GetNode() == e.Node {
		return false
	}
	for _, ln := range m.byNode[c.GetNode()] {
		if ln.head != nil && ln.emitted < c.GetSeq() && ln.head.Seq <= c.GetSeq() {
			return true
		}
	}
	return false
}

// effOf is where the lane's head stands in merged time.
func (m *merger) effOf(ln *lane) uint64 {
	e := ln.head
	at := e.Hlc + ln.shift
	if c := e.Cause; c.GetNode() != "" && c.GetNode() != e.Node {
		for _, other := range m.byNode[c.GetNode()] {
			if sent, ok := other.recent.get(c.GetSeq()); ok && sent >= at {
				ln.shift += sent - at + 1
				at = sent + 1
			}
		}
	}
	return max(at, ln.eff+1)
}

// take hands the head out.
func (ln *lane) take() {
	e := ln.head
	ln.eff = max(e.Hlc+ln.shift, ln.eff+1)
	ln.emitted = e.Seq
	ln.recent.put(e.Seq, ln.eff)
	ln.head = nil
}
