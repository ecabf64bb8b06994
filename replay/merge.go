package replay

import (
	"container/heap"
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
// the rest goes on. Copies that differ give an ErrConflict that names the one
// that counts: one whose bytes carry checksums before an export, else the first.
// Memory is bounded whatever the logs' length.
func Merge(ctx context.Context, logs []*Log) iter.Seq2[*events.Event, error] {
	return mergeWanted(ctx, logs, nil)
}

func mergeWanted(ctx context.Context, logs []*Log, want func(node string) Want) iter.Seq2[*events.Event, error] {
	return func(yield func(*events.Event, error) bool) {
		var conflict error
		w := &watcher{want: want, conflict: func(a, b *Log, ea, _ *events.Event) {
			if conflict == nil {
				conflict = errors.Wrapf(ErrConflict, "event %d of %s is not the same in %s and in %s; %s counts", ea.Seq, ea.Node, a.Source, b.Source, a.Source)
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

// merger is the k-way merge over lanes: a heap of those that can go on, and by
// the lanes that they wait for, those whose head has a cause that is not out.
type merger struct {
	byNode map[string][]*lane
	ready  laneHeap
	stuck  map[*lane]bool
}

func merge(ctx context.Context, logs []*Log, w *watcher) iter.Seq2[*events.Event, error] {
	return func(yield func(*events.Event, error) bool) {
		m := &merger{byNode: map[string][]*lane{}, stuck: map[*lane]bool{}}
		all := lanes(logs)
		w.lanes = all
		for i, ln := range all {
			ln.index = i
			m.byNode[ln.node] = append(m.byNode[ln.node], ln)
			ln.open(ctx, w)
			defer ln.close()
		}
		next := func(ln *lane) bool { // false: nobody wants more
			for ln.head == nil && !ln.done {
				ln.advance(w)
				if ln.err != nil && !yield(nil, ln.err) {
					return false
				}
			}
			return true
		}
		for _, ln := range all {
			if !next(ln) {
				return
			}
		}
		for _, ln := range all {
			m.enter(ln)
		}
		for n := 0; ; n++ {
			if n%batchEvents == 0 && ctx.Err() != nil {
				yield(nil, mark(ctx.Err(), ErrUnavailable))
				return
			}
			ln := m.pick()
			if ln == nil {
				return
			}
			e := ln.head
			ln.take()
			if !yield(e, nil) || !next(ln) {
				return
			}
			m.enter(ln)
			m.wake(ln)
		}
	}
}

// pick is the lane whose head comes next: the earliest of those whose cause is
// out. If every head waits (a log that lies, or one that is damaged), the
// earliest of all goes, so that the merge always ends.
func (m *merger) pick() *lane {
	if len(m.ready) > 0 {
		return heap.Pop(&m.ready).(*lane) //nolint:forcetypeassert // ours
	}
	var first *lane
	for ln := range m.stuck {
		if first == nil || ln.before(first) {
			first = ln
		}
	}
	delete(m.stuck, first)
	return first
}

// enter puts a lane where its head belongs.
func (m *merger) enter(ln *lane) {
	if ln.head == nil {
		return
	}
	ln.at = m.effOf(ln)
	if other := m.waits(ln.head); other != nil {
		other.waiting = append(other.waiting, ln)
		m.stuck[ln] = true
		return
	}
	heap.Push(&m.ready, ln)
}

// wake looks again at the lanes that wait for this one, which has gone on.
func (m *merger) wake(ln *lane) {
	if len(ln.waiting) == 0 {
		return
	}
	waiting := ln.waiting
	ln.waiting = nil
	for _, other := range waiting {
		if m.stuck[other] {
			delete(m.stuck, other)
			m.enter(other)
		}
	}
}

// waits is the lane that the event's cause is in, if it is not out yet.
func (m *merger) waits(e *events.Event) *lane {
	c := e.Cause
	if c.GetNode() == "" || c.GetNode() == e.Node {
		return nil
	}
	for _, ln := range m.byNode[c.GetNode()] {
		if ln.head != nil && ln.emitted < c.GetSeq() && ln.head.Seq <= c.GetSeq() {
			return ln
		}
	}
	return nil
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

func (ln *lane) before(other *lane) bool {
	return ln.at < other.at || ln.at == other.at && ln.index < other.index
}

// laneHeap has the lane that comes next on top.
type laneHeap []*lane

func (h laneHeap) Len() int           { return len(h) }
func (h laneHeap) Less(i, j int) bool { return h[i].before(h[j]) }
func (h laneHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *laneHeap) Push(x any) { *h = append(*h, x.(*lane)) } //nolint:forcetypeassert // ours

// Pop implements heap.Interface.
func (h *laneHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
