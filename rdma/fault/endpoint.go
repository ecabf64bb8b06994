package fault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/pdlog/pdlog/rdma"
)

// flight is a posted batch.
type flight struct {
	id    uint64
	e     *endpoint
	kind  Kind
	batch rdma.Batch  // as it is posted to the inner provider, but for Token
	token uint64      // the caller's
	timer *time.Timer // of a held one that is to land
	bytes int64       // of a held one: what is to land

	uncertain bool // under endpoint.mu: told as such, what follows is Drained
	over      bool // under endpoint.mu: told as completed, what follows is kept
}

func (f *flight) completion(s rdma.Status, landed int64, err error) rdma.Completion {
	return rdma.Completion{
		ID: rdma.TransferID(f.id), Token: f.token, Peer: f.e.inner.Peer(), Tag: f.batch.Tag, Meta: f.batch.Meta,
		Status: s, Err: err, Bytes: landed, Proven: s != rdma.Uncertain,
	}
}

// endpoint keeps its own counts: to the inner one a late write is a new post.
type endpoint struct {
	d      *domain
	inner  rdma.Endpoint
	ledger *rdma.Ledger
	done   chan struct{}

	mu    sync.Mutex
	ended bool                 // nothing is held back any more
	reset bool                 // its end is to look as if it came from outside
	held  map[*flight]struct{} // not (yet) posted to the inner provider
	wg    sync.WaitGroup       // timers that run
}

var _ rdma.Endpoint = (*endpoint)(nil)

func (e *endpoint) Peer() rdma.PeerID { return e.inner.Peer() }

// PostBatch draws what happens to the batch and sees to it.
func (e *endpoint) PostBatch(b rdma.Batch) (rdma.Transfer, error) {
	rule := e.d.p.spec.Draw(e.d.p.seed, b.Tag, b.Meta, e.Peer())
	f := &flight{id: e.d.last.Add(1), e: e, kind: rule.Kind, batch: b, token: b.Token}
	if err := e.Err(); err != nil {
		return rdma.Transfer{}, err
	}
	switch rule.Kind {
	case OK, Twice, Lost:
		return e.pass(f)
	case Short:
		return e.passHalf(f)
	case Reset:
		x, err := e.pass(f)
		e.breakOff()
		return x, err
	}
	x := rdma.Transfer{ID: rdma.TransferID(f.id), Writes: len(b.Writes)}
	if err := f.check(&x); err != nil {
		return rdma.Transfer{}, fmt.Errorf("post to %s: %w", e.Peer(), err)
	}
	if err := e.ledger.Begin(b.Tag); err != nil {
		return rdma.Transfer{}, err
	}
	if rule.Kind == Partial {
		f.halve()
	}
	if rule.Kind.held() {
		f.copySources()
	}
	e.mu.Lock()
	if e.ended {
		e.ledger.Report(f.completion(rdma.Failed, 0, rdma.ErrClosed), true)
		e.mu.Unlock()
		e.ledger.Flush()
		return x, nil
	}
	switch rule.Kind {
	case Error:
		e.ledger.Report(f.completion(rdma.Failed, 0, ErrInjected), true)
	case Hang:
		e.held[f] = struct{}{}
		e.ledger.Sent(b.Tag) // as far as anyone can tell
	case Late, Partial:
		e.ledger.Sent(b.Tag)
		f.uncertain = true
		e.ledger.Report(f.completion(rdma.Uncertain, 0, ErrInjected), false)
		e.hold(f, rule.After)
	case Early:
		e.ledger.Sent(b.Tag)
		f.over = true
		e.ledger.Report(f.completion(rdma.Completed, x.Bytes, nil), false)
		e.hold(f, rule.After)
	case Delay:
		e.hold(f, rule.After)
	}
	e.mu.Unlock()
	e.ledger.Flush()
	return x, nil
}

// pass posts a batch that nothing happens to.
func (e *endpoint) pass(f *flight) (rdma.Transfer, error) {
	if err := e.ledger.Begin(f.batch.Tag); err != nil {
		return rdma.Transfer{}, err
	}
	e.ledger.Sent(f.batch.Tag)
	if f.kind == Lost {
		e.mu.Lock()
		e.held[f] = struct{}{} // it hangs, as far as anyone can tell
		e.mu.Unlock()
	}
	x, err := e.d.launch(f)
	var part *rdma.PartialError
	if err != nil && !errors.As(err, &part) {
		e.mu.Lock()
		delete(e.held, f)
		e.mu.Unlock()
		e.ledger.Cancel(f.batch.Tag)
		return rdma.Transfer{}, err
	}
	x.ID = rdma.TransferID(f.id)
	return x, err
}

// passHalf posts the first half of the writes, as a full queue would. The other
// half comes again as a batch of the caller's.
func (e *endpoint) passHalf(f *flight) (rdma.Transfer, error) {
	n := len(f.batch.Writes) / 2
	if n == 0 {
		return e.pass(f)
	}
	f.batch.Writes, f.batch.Partial = f.batch.Writes[:n], true
	x, err := e.pass(f)
	if err != nil {
		return x, err
	}
	return x, &rdma.PartialError{Posted: n, Err: rdma.ErrQueueFull}
}

// breakOff ends the endpoint as a lost connection does.
func (e *endpoint) breakOff() {
	e.mu.Lock()
	e.reset = true
	e.mu.Unlock()
	_ = e.inner.Close() // what it had under way is told by its end
}

// why gives an end of the inner endpoint the reason that callers are to see.
// e.mu is held.
func (e *endpoint) why(err error) error {
	if e.reset && errors.Is(err, rdma.ErrClosed) {
		return fmt.Errorf("%w: %w", rdma.ErrConnLost, ErrInjected)
	}
	return err
}

// check refuses what every provider refuses, and adds up the bytes.
func (f *flight) check(x *rdma.Transfer) error {
	if len(f.batch.Writes) == 0 {
		return fmt.Errorf("%w: no writes", rdma.ErrBatch)
	}
	for i := range f.batch.Writes {
		w := &f.batch.Writes[i]
		src, err := w.Bytes()
		if err != nil {
			return fmt.Errorf("write %d: %w", i, err)
		}
		if len(w.Key) == 0 && len(f.batch.Key) == 0 {
			return fmt.Errorf("%w: write %d has no key", rdma.ErrBatch, i)
		}
		x.Bytes += int64(len(src))
	}
	return nil
}

// halve leaves the first half of the writes, of a single one its first half.
func (f *flight) halve() {
	f.batch.Partial = true
	if n := len(f.batch.Writes); n > 1 {
		f.batch.Writes = f.batch.Writes[:n/2]
		return
	}
	w := f.batch.Writes[0]
	if w.Region != nil {
		w.Len = (w.Len + 1) / 2
	} else {
		w.Src = w.Src[:(len(w.Src)+1)/2]
	}
	f.batch.Writes = []rdma.Write{w}
}

// copySources takes the bytes as they are now: once an uncertain end was told,
// the caller may have unmapped them by the time they land. Sources given by
// region stay, since the inner provider may need the registration.
func (f *flight) copySources() {
	ws := make([]rdma.Write, len(f.batch.Writes))
	for i, w := range f.batch.Writes {
		if w.Region == nil {
			w.Src = bytes.Clone(w.Src)
			f.bytes += int64(len(w.Src))
		} else {
			f.bytes += int64(w.Len) //nolint:gosec // checked against the region
		}
		w.Key = bytes.Clone(w.Key)
		ws[i] = w
	}
	f.batch.Writes, f.batch.Key = ws, bytes.Clone(f.batch.Key)
}

// hold lets f fly after d. e.mu is held.
func (e *endpoint) hold(f *flight, d time.Duration) {
	e.held[f] = struct{}{}
	e.wg.Add(1)
	f.timer = time.AfterFunc(d, func() {
		defer e.wg.Done()
		e.fly(f)
	})
}

// fly posts a held flight, unless it was taken back meanwhile.
func (e *endpoint) fly(f *flight) {
	e.mu.Lock()
	if _, ok := e.held[f]; !ok {
		e.mu.Unlock()
		return
	}
	delete(e.held, f)
	if !f.uncertain && !f.over {
		e.ledger.Sent(f.batch.Tag)
	}
	e.mu.Unlock()
	_, err := e.d.launch(f)
	var part *rdma.PartialError
	if err == nil || errors.As(err, &part) {
		return
	}
	e.landed(f, rdma.Completion{Status: rdma.Failed, Err: err}) // it never left
}

// landed tells what the inner provider said of f.
func (e *endpoint) landed(f *flight, c rdma.Completion) {
	s := c.Status
	if f.kind.held() && s == rdma.Completed && c.Bytes < f.bytes {
		s, c.Err = rdma.Failed, rdma.ErrQueueFull // the inner queue took only a part
	}
	e.mu.Lock()
	c.Err = e.why(c.Err)
	switch {
	case f.over, f.kind == Lost: // told already; or never
		e.mu.Unlock()
		return
	case !f.uncertain:
		f.uncertain = s == rdma.Uncertain
	case s == rdma.Uncertain: // told already
		e.mu.Unlock()
		return
	default:
		s = rdma.Drained
	}
	told := f.completion(s, c.Bytes, c.Err)
	e.ledger.Report(told, false)
	if f.kind == Twice && s != rdma.Uncertain {
		e.ledger.Then(func() { e.d.tell(told) }) // beside the counts
	}
	e.mu.Unlock()
	e.ledger.Flush()
}

func (e *endpoint) Inflight(t rdma.Tag) rdma.Count { return e.ledger.Inflight(t) }

func (e *endpoint) Seal(t rdma.Tag) { e.ledger.Seal(t) }

func (e *endpoint) Drain(ctx context.Context, t rdma.Tag) (rdma.DrainReport, error) {
	return e.ledger.Drain(ctx, t)
}

func (e *endpoint) Forget(t rdma.Tag) error {
	if err := e.ledger.Forget(t); err != nil {
		return err
	}
	err := e.inner.Forget(t)
	if errors.Is(err, rdma.ErrBusy) {
		return nil // a late write of it is landing just now; it is counted no more
	}
	return err
}

// Cancel takes back what was delayed, which has never left, and what the inner
// provider has queued.
func (e *endpoint) Cancel(t rdma.Tag) {
	e.mu.Lock()
	for f := range e.held {
		if f.batch.Tag == t && !f.uncertain && f.kind == Delay {
			e.takeBack(f)
			e.ledger.Report(f.completion(rdma.Failed, 0, rdma.ErrAborted), true)
		}
	}
	e.mu.Unlock()
	e.ledger.Flush()
	e.inner.Cancel(t)
}

// Abort ends what is open. What hangs is uncertain for ever; what was delayed
// has never left; what is late is on its way and lands in spite of it.
func (e *endpoint) Abort(t rdma.Tag) error {
	e.mu.Lock()
	for f := range e.held {
		if f.batch.Tag != t || f.uncertain || f.over {
			continue
		}
		e.takeBack(f)
		if f.kind == Hang || f.kind == Lost {
			f.uncertain = true
			e.ledger.Report(f.completion(rdma.Uncertain, 0, rdma.ErrAborted), false)
		} else {
			e.ledger.Report(f.completion(rdma.Failed, 0, rdma.ErrAborted), true)
		}
	}
	e.mu.Unlock()
	e.ledger.Flush()
	return e.inner.Abort(t)
}

// takeBack keeps f from flying. e.mu is held.
func (e *endpoint) takeBack(f *flight) {
	delete(e.held, f)
	if f.timer != nil && f.timer.Stop() {
		e.wg.Done()
	}
}

func (e *endpoint) Done() <-chan struct{} { return e.done }

func (e *endpoint) Err() error {
	err := e.inner.Err()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.why(err)
}

func (e *endpoint) Close() error { return e.inner.Close() }

// supervise waits for the inner endpoint's end, then ends what is held: it has
// never left, so it is proven.
func (e *endpoint) supervise() {
	<-e.inner.Done()
	why := e.Err()
	e.mu.Lock()
	e.ended = true
	for f := range e.held {
		e.takeBack(f)
		switch {
		case f.over:
		case f.uncertain:
			e.ledger.Report(f.completion(rdma.Drained, 0, why), false)
		case f.kind == Hang, f.kind == Lost:
			e.ledger.Report(f.completion(rdma.Uncertain, 0, why), false)
		default:
			e.ledger.Report(f.completion(rdma.Failed, 0, why), true)
		}
	}
	e.mu.Unlock()
	e.ledger.Flush()
	e.wg.Wait()
	e.ledger.Then(func() {
		e.d.mu.Lock()
		maps.DeleteFunc(e.d.flights, func(_ uint64, f *flight) bool { return f.e == e }) // uncertain for ever
		delete(e.d.endpoints, e)
		e.d.mu.Unlock()
		close(e.done)
	})
	e.ledger.Flush()
}
