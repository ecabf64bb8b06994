package node

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

const (
	queueLen = 8192 // commands; at the loop's own speed some 50 ms of work
	batchMax = 256  // commands decided before their events are appended together
)

// ErrStopped: the node's loop takes no more commands.
var ErrStopped = errors.New("node has stopped")

// task is one thing for the loop: a command, or a look at the machine.
type task struct {
	cmd projector.Command
	// build makes the commands from what the machine holds now (result gets the
	// last one's outcome; none: there is nothing to decide), or refuses.
	build func(*projector.Machine) ([]projector.Command, *projector.Refusal)
	// look reads the machine. It must neither wait nor keep references.
	look func(m *projector.Machine, seq uint64)
	// result gets the outcome of a command, without its events and effects: at
	// once, or (durable) when the events are on disk. It must not block.
	result  func(projector.Result)
	durable bool

	counted bool // of loop.waiting
}

// appender is the part of the log that the loop needs.
type appender interface {
	Append(evs []*events.Event, class events.Class) error
	Full() bool
}

// loop is the one goroutine that changes protocol state (architecture.md).
// Nothing in it waits, locks for long or does I/O.
type loop struct {
	m     *projector.Machine
	log   appender
	clock clock
	out   *outbox
	seq   uint64 // last sequence appended
	full  bool   // what the machine was told of the log
	fail  func(error)
	stats *metrics // nil: nothing is counted
	trace *tracer  // nil: nothing is traced

	queue chan task
	stop  chan struct{}
	done  chan struct{}

	// The loop holds mu while it works; between two batches a reader may hold it,
	// if nothing that was submitted waits.
	mu      sync.Mutex
	waiting atomic.Int64 // tasks of submit whose batch is not over
}

// submit hands a task over; it waits while the queue is full. ErrStopped: the
// loop has ended and the task will not be done.
func (l *loop) submit(t task) error {
	select {
	case <-l.done:
		return ErrStopped
	default:
	}
	t.counted = true
	l.waiting.Add(1)
	select {
	case l.queue <- t:
		return nil
	case <-l.done:
		l.waiting.Add(-1)
		return ErrStopped
	}
}

// tell submits a command whose outcome nobody waits for. After the loop's end
// it has no meaning any more and is dropped.
func (l *loop) tell(cmd projector.Command) { _ = l.submit(task{cmd: cmd}) }

// ask submits a task and waits for its result.
func (l *loop) ask(ctx context.Context, t task) (projector.Result, error) {
	got := make(chan projector.Result, 1)
	t.result = func(r projector.Result) { got <- r }
	if err := l.submit(t); err != nil {
		return projector.Result{}, err
	}
	select {
	case r := <-got:
		if r.Refused != nil {
			return r, r.Refused
		}
		return r, nil
	case <-l.done:
		return projector.Result{}, ErrStopped
	case <-ctx.Done():
		return projector.Result{}, ctx.Err()
	}
}

// see runs look behind everything that was submitted before, and waits for it:
// what look writes to is the caller's again when see has returned. It runs in
// the loop, or here while the loop has nothing to do: an engine that polls does
// not wait for two goroutines to be woken.
func (l *loop) see(look func(m *projector.Machine, seq uint64)) error {
	if l.seeNow(look) {
		return nil
	}
	ran := make(chan struct{})
	err := l.submit(task{look: func(m *projector.Machine, seq uint64) {
		defer close(ran)
		look(m, seq)
	}})
	if err != nil {
		return err
	}
	select {
	case <-ran:
		return nil
	case <-l.done: // look has run or never will
	}
	select {
	case <-ran:
		return nil
	default:
		return ErrStopped
	}
}

// seeNow runs look if the loop is idle.
func (l *loop) seeNow(look func(m *projector.Machine, seq uint64)) bool {
	if l.waiting.Load() != 0 || !l.mu.TryLock() {
		return false
	}
	defer l.mu.Unlock()
	select {
	case <-l.done:
		return false
	default:
	}
	if l.waiting.Load() != 0 {
		return false
	}
	look(l.m, l.seq)
	return true
}

func (l *loop) run() {
	defer close(l.done)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.m.ReuseResults()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var b batch
	for {
		if at, ok := l.m.NextDeadline(); ok {
			timer.Reset(l.clock.until(at))
		} else {
			timer.Reset(time.Hour)
		}
		l.mu.Unlock()
		select {
		case <-l.stop:
			l.mu.Lock()
			return
		case t := <-l.queue:
			l.mu.Lock()
			if !l.step(&b, t) {
				return
			}
		more:
			for range batchMax - 1 {
				select {
				case t := <-l.queue:
					if !l.step(&b, t) {
						return
					}
				default:
					break more
				}
			}
		case <-timer.C:
			l.mu.Lock()
			l.decide(&b, projector.Tick{}, nil, false)
		}
		if full := l.log.Full(); full != l.full {
			l.full = full
			l.decide(&b, projector.LogState{Full: full}, nil, false)
		}
		if !l.flush(&b) {
			return
		}
	}
}

// batch is what was decided and not appended yet.
type batch struct {
	evs   []*events.Event
	class events.Class
	steps []step
	tasks int64 // counted in loop.waiting
}

type step struct {
	effects []projector.Effect
	result  func(projector.Result)
	res     projector.Result
	durable bool
}

// step does a task. A look comes after the effects of what was decided before
// it were handed on: it finds in the outbox what the state has and nobody was
// told. False as of flush.
func (l *loop) step(b *batch, t task) bool {
	if t.look != nil && len(b.steps)+len(b.evs) > 0 && !l.flush(b) {
		return false
	}
	if t.counted {
		b.tasks++
	}
	switch {
	case t.look != nil:
		t.look(l.m, l.seq)
	case t.build != nil:
		cmds, no := t.build(l.m)
		if no != nil || len(cmds) == 0 {
			b.steps = append(b.steps, step{result: t.result, res: projector.Result{Refused: no}})
			return true
		}
		last := len(cmds) - 1
		for _, c := range cmds[:last] {
			l.decide(b, c, nil, false)
		}
		l.decide(b, cmds[last], t.result, t.durable)
	default:
		l.decide(b, t.cmd, t.result, t.durable)
	}
	return true
}

func (l *loop) decide(b *batch, cmd projector.Command, result func(projector.Result), durable bool) {
	began := time.Now()
	r := l.m.Step(l.clock.at(began), cmd)
	l.stats.took(time.Since(began))
	for _, e := range r.Events {
		b.evs = append(b.evs, e)
		l.seq = e.Seq
		if events.ClassOf(e) == events.Sync {
			b.class = events.Sync
		}
	}
	if len(r.Effects) == 0 && result == nil {
		return
	}
	b.steps = append(b.steps, step{effects: r.Effects, result: result, res: r, durable: durable})
}

// flush appends the batch and hands its effects on. False: the log refused,
// the loop ends.
func (l *loop) flush(b *batch) bool {
	if err := l.log.Append(b.evs, b.class); err != nil {
		l.fail(errors.Wrap(err, "append to the log"))
		return false
	}
	l.stats.observe(b.evs)
	l.trace.observe(b.evs)
	if b.class == events.Sync {
		l.stats.appended(l.seq)
	}
	for i := range b.steps {
		s := &b.steps[i]
		last := uint64(0)
		if n := len(s.res.Events); n > 0 {
			last = s.res.Events[n-1].Seq
		}
		s.res.Events, s.res.Effects = nil, nil // the machine's, not the receiver's
		number := l.out.push(s.effects)
		switch {
		case s.result == nil:
		case s.durable && s.res.Refused == nil:
			after := l.seq
			if last > 0 {
				after = last
			}
			result, res := s.result, s.res
			l.out.call(after, number, func() { result(res) })
		default:
			s.result(s.res)
		}
	}
	clear(b.evs)
	clear(b.steps)
	b.evs, b.steps, b.class = b.evs[:0], b.steps[:0], events.Group
	l.waiting.Add(-b.tasks)
	b.tasks = 0
	if l.trace != nil { // it has them in its queue
		l.m.Keep()
	} else {
		l.m.Recycle()
	}
	return true
}
