package rdma

import (
	"context"
	"sync"
)

// Ledger keeps an endpoint's counts by tag and tells its completions one at a
// time, in the order in which they were reported. Providers build on it.
//
// Report may be called with the provider's own lock held (which is above the
// ledger's in the lock order); Flush and Drain must not. A count changes after
// the completion's callback has returned, so a Drain that returns has nothing
// more to tell. NewLedger is the only way in.
type Ledger struct {
	deliver func(Completion)

	mu         sync.Mutex
	tags       map[Tag]*account
	pending    []report
	spare      []report
	delivering bool
}

type account struct {
	Count
	sealed bool
	idle   chan struct{} // made by Drain, closed when nothing is open
}

type report struct {
	c      Completion
	queued bool
	then   func()
}

// NewLedger makes a ledger that tells completions to deliver.
func NewLedger(deliver func(Completion)) *Ledger {
	return &Ledger{deliver: deliver, tags: make(map[Tag]*account)}
}

func (l *Ledger) account(t Tag) *account {
	a := l.tags[t]
	if a == nil {
		a = &account{}
		l.tags[t] = a
	}
	return a
}

// Begin counts a new transfer as queued. Errors: ErrSealed.
func (l *Ledger) Begin(t Tag) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(t)
	if a.sealed {
		return ErrSealed
	}
	a.Queued++
	return nil
}

// Sent moves a transfer from queued to posted.
func (l *Ledger) Sent(t Tag) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(t)
	a.Queued--
	a.Posted++
}

// Cancel takes a posted transfer out of the count again: it was refused after
// all, and nothing is told of it.
func (l *Ledger) Cancel(t Tag) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(t)
	a.Posted--
	a.wake()
	if !a.sealed && a.Count == (Count{}) {
		delete(l.tags, t)
	}
}

// Report notes a completion; the next Flush tells it. queued says whether the
// transfer was still queued, else it was posted; of Drained it means nothing.
func (l *Ledger) Report(c Completion, queued bool) {
	l.mu.Lock()
	l.pending = append(l.pending, report{c: c, queued: queued})
	l.mu.Unlock()
}

// Then runs fn after everything reported so far was told.
func (l *Ledger) Then(fn func()) {
	l.mu.Lock()
	l.pending = append(l.pending, report{then: fn})
	l.mu.Unlock()
}

// Flush tells what was reported. If another goroutine is telling already, that
// one does it, and Flush returns at once; so it may be called from a callback.
func (l *Ledger) Flush() {
	l.mu.Lock()
	if l.delivering {
		l.mu.Unlock()
		return
	}
	l.delivering = true
	for len(l.pending) > 0 {
		batch := l.pending
		l.pending, l.spare = l.spare[:0], nil
		l.mu.Unlock()
		for i := range batch {
			if batch[i].then != nil {
				batch[i].then()
				continue
			}
			l.deliver(batch[i].c)
			l.settle(&batch[i])
		}
		clear(batch)
		l.mu.Lock()
		l.spare = batch
	}
	l.delivering = false
	l.mu.Unlock()
}

func (l *Ledger) settle(r *report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.tags[r.c.Tag]
	if a == nil {
		return // forgotten since: only a Drained can come so late
	}
	switch {
	case r.c.Status == Drained:
		if a.Uncertain > 0 {
			a.Uncertain--
			a.Drained++
		}
		return
	case r.queued:
		a.Queued--
	default:
		a.Posted--
	}
	switch r.c.Status {
	case Completed:
		a.Completed++
	case Failed:
		a.Failed++
	case Uncertain, Drained:
		a.Uncertain++
	}
	a.wake()
}

// wake lets Drain go on when nothing is open.
func (a *account) wake() {
	if a.Open() == 0 && a.idle != nil {
		close(a.idle)
		a.idle = nil
	}
}

// Inflight is Endpoint.Inflight.
func (l *Ledger) Inflight(t Tag) Count {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.tags[t]; a != nil {
		return a.Count
	}
	return Count{}
}

// Seal is Endpoint.Seal.
func (l *Ledger) Seal(t Tag) {
	l.mu.Lock()
	l.account(t).sealed = true
	l.mu.Unlock()
}

// Forget is Endpoint.Forget.
func (l *Ledger) Forget(t Tag) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.tags[t]; a != nil && a.Open() > 0 {
		return ErrBusy
	}
	delete(l.tags, t)
	return nil
}

// Drain is Endpoint.Drain.
func (l *Ledger) Drain(ctx context.Context, t Tag) (DrainReport, error) {
	l.mu.Lock()
	a := l.tags[t]
	if a == nil || !a.sealed {
		l.mu.Unlock()
		return DrainReport{}, ErrNotSealed
	}
	if a.Open() == 0 {
		defer l.mu.Unlock()
		return a.report(), nil
	}
	if a.idle == nil {
		a.idle = make(chan struct{})
	}
	idle := a.idle
	l.mu.Unlock()
	var err error
	select {
	case <-idle:
	case <-ctx.Done():
		err = ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return a.report(), err
}

func (a *account) report() DrainReport {
	return DrainReport{
		Posted:    a.Open() + a.Completed + a.Failed + a.Uncertain + a.Drained,
		Completed: a.Completed,
		Failed:    a.Failed,
		Uncertain: a.Uncertain,
		Drained:   a.Drained,
		Clean:     a.Open() == 0 && a.Uncertain == 0,
	}
}
