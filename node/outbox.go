package node

import (
	"sync"
	"sync/atomic"

	"github.com/pdlog/pdlog/projector"
)

// entry is something to do once the log is durable up to after: an effect of
// the core, or a call of the shell that must keep its place among them.
type entry struct {
	after uint64
	act   projector.Action
	fn    func()
}

// outbox holds effects until their events are durable and does them in the
// order they were decided in, on its own goroutine. It is unbounded: the loop
// never waits for it; what it holds is bounded by what is not durable yet.
//
// One kind may overtake: a write to post, when its own gate is open. It waits
// for no commit of another room (architecture.md, the table of effects), and
// nothing that is still queued can be about a room that may post: what ends a
// room comes after its posts.
type outbox struct {
	perform func(projector.Action, uint64)
	drop    func(roomSeq uint64) // a publish that has not left must not leave; at once, may be nil

	durable atomic.Uint64
	wake    chan struct{}
	stop    chan struct{}
	done    chan struct{}
	once    sync.Once

	mu    sync.Mutex
	queue []entry // from head on
	head  int
	posts []entry
	dead  bool
	busy  bool
}

func newOutbox(durable uint64, perform func(projector.Action, uint64)) *outbox {
	o := &outbox{
		perform: perform,
		wake:    make(chan struct{}, 1),
		stop:    make(chan struct{}),
		done:    make(chan struct{}),
	}
	o.durable.Store(durable)
	return o
}

// push takes the effects of one Step, in order. An effect is not done before
// the ones in front of it, so its gate is at least theirs.
func (o *outbox) push(effects []projector.Effect) {
	if len(effects) == 0 {
		return
	}
	durable := o.durable.Load()
	o.mu.Lock()
	if o.dead {
		o.mu.Unlock()
		return
	}
	var gate uint64
	for _, e := range effects {
		if d, ok := e.Do.(projector.DropPublish); ok { // about what waits in here: it cannot wait behind it
			if o.drop != nil {
				o.drop(d.RoomSeq)
			}
			continue
		}
		gate = max(gate, e.After)
		if _, ok := e.Do.(projector.PostWrite); ok && gate <= durable {
			o.posts = append(o.posts, entry{after: gate, act: e.Do})
			continue
		}
		o.queue = append(o.queue, entry{after: gate, act: e.Do})
	}
	o.mu.Unlock()
	o.poke()
}

// call does fn in its place in the order, when after is durable. After kill it
// is never called.
func (o *outbox) call(after uint64, fn func()) {
	o.mu.Lock()
	if !o.dead {
		o.queue = append(o.queue, entry{after: after, fn: fn})
	}
	o.mu.Unlock()
	o.poke()
}

// advance is told of each durable sequence by the log's committer.
func (o *outbox) advance(seq uint64) {
	o.durable.Store(seq)
	o.poke()
}

func (o *outbox) poke() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// kill drops what waits: the log has failed, nothing may be done any more. An
// entry that is being done ends.
func (o *outbox) kill() {
	o.mu.Lock()
	o.dead = true
	o.queue, o.head, o.posts = nil, 0, nil
	o.mu.Unlock()
}

// pending counts what has not been done.
func (o *outbox) pending() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := len(o.queue) - o.head + len(o.posts)
	if o.busy {
		n++
	}
	return n
}

// close ends the goroutine and waits for it; what waits is dropped.
func (o *outbox) close() {
	o.once.Do(func() { close(o.stop) })
	<-o.done
}

func (o *outbox) run() {
	defer close(o.done)
	var ready []entry
	for {
		ready = o.take(ready[:0])
		for i := range ready {
			o.one(&ready[i])
			ready[i] = entry{}
		}
		if len(ready) > 0 {
			select {
			case <-o.stop:
				return
			default:
				continue
			}
		}
		select {
		case <-o.wake:
		case <-o.stop:
			return
		}
	}
}

// one does an entry, unless the log has failed since it was taken.
func (o *outbox) one(e *entry) {
	o.mu.Lock()
	dead := o.dead
	o.mu.Unlock()
	switch {
	case dead:
	case e.fn != nil:
		e.fn()
	default:
		o.perform(e.act, e.after)
	}
}

// burst bounds what is done before the queue is looked at again, so that a
// write to post does not wait behind a long run of other effects.
const burst = 64

func (o *outbox) take(into []entry) []entry {
	durable := o.durable.Load()
	o.mu.Lock()
	defer o.mu.Unlock()
	into = append(into, o.posts...)
	clear(o.posts)
	o.posts = o.posts[:0]
	waiting := o.queue[o.head:]
	n := 0
	for n < len(waiting) && n < burst && waiting[n].after <= durable {
		n++
	}
	into = append(into, waiting[:n]...)
	clear(waiting[:n])
	o.head += n
	o.tidy()
	o.busy = len(into) > 0 && !o.dead
	return into
}

// tidy reuses the front of the queue, so that its memory is allocated once, and
// lets a queue go that has been much longer than it is.
func (o *outbox) tidy() {
	rest := o.queue[o.head:]
	switch {
	case len(rest) == 0 && cap(o.queue) > maxIdle:
		o.queue, o.head = nil, 0
	case o.head > len(rest):
		n := copy(o.queue, rest)
		clear(o.queue[n:])
		o.queue, o.head = o.queue[:n], 0
	}
}

// maxIdle is how many entries an empty queue keeps room for.
const maxIdle = 1 << 14
