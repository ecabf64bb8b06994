package node

import (
	"context"
	"sync"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/rdma"
)

// writer posts the writes to one destination, in order, on its own goroutine:
// it alone waits for a connection or for room in the provider's queue.
type writer struct {
	plane *postPlane
	dest  rdma.PeerInfo
	wake  chan struct{} // something to do: a job, or room in the queue

	sealing sync.Mutex // held over a post; before mu

	mu      sync.Mutex
	posting bool   // PostBatch has not returned
	current uint64 // the token it is about
	early   []rdma.Completion
	jobs    []job
	ep      rdma.Endpoint
	open    map[rdma.Tag]int // posted and not ended, by tag
	rest    map[uint64]job   // what of a partly accepted batch is still to be posted
	forget  []rdma.Tag       // nothing of them is open; the provider may forget them
	failed  time.Time        // of the last connect
	why     error
}

func (w *writer) push(j job) {
	w.mu.Lock()
	w.jobs = append(w.jobs, j)
	w.mu.Unlock()
	w.poke()
}

func (w *writer) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *writer) run() {
	defer w.abandon()
	idle := time.NewTimer(sendIdle)
	defer idle.Stop()
	for {
		select {
		case <-w.plane.stop:
			return
		case <-idle.C:
			if w.plane.retire(w) {
				return
			}
		case <-w.wake:
		}
		idle.Reset(sendIdle)
		for w.one() {
			select {
			case <-w.plane.stop:
				return
			default:
			}
		}
	}
}

// idle: nothing is queued or on its way.
func (w *writer) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.jobs) == 0 && len(w.open) == 0
}

// one posts the job in front. False: there is none, or the provider's queue is
// full and the next completion wakes us.
func (w *writer) one() bool {
	w.tidy()
	w.mu.Lock()
	if len(w.jobs) == 0 {
		w.mu.Unlock()
		return false
	}
	j := w.jobs[0]
	w.jobs[0] = job{}
	w.jobs = w.jobs[1:]
	w.mu.Unlock()
	ep, err := w.connect()
	if err == nil {
		err = w.post(ep, j)
	}
	if err == nil {
		return true
	}
	w.plane.tokens.drop(j.token)
	if errors.Is(err, rdma.ErrQueueFull) && !errors.Is(err, errNoWake) {
		w.mu.Lock()
		w.jobs = append([]job{j}, w.jobs...)
		w.mu.Unlock()
		return false
	}
	w.plane.fails(j.token, err)
	return true
}

var errNoWake = errors.New("nothing of ours is on its way")

// post hands a job to the provider, unless its room is sealed. sealing makes
// seal wait for a post that is under way. The provider may tell the end before
// PostBatch returns, from inside it even: such completions are put off until it
// is known what was posted.
func (w *writer) post(ep rdma.Endpoint, j job) error {
	w.sealing.Lock()
	defer w.sealing.Unlock()
	if w.plane.sealed.has(j.tag) {
		return errSealed
	}
	w.plane.tokens.hold(&j, w)
	w.mu.Lock()
	w.open[j.tag]++
	w.posting, w.current = true, j.token
	w.mu.Unlock()
	t, err := ep.PostBatch(rdma.Batch{Tag: j.tag, Token: j.token, Meta: j.meta, Writes: j.writes})
	w.mu.Lock()
	var part *rdma.PartialError
	switch {
	case errors.As(err, &part):
		r := j
		r.writes = j.writes[t.Writes:]
		w.rest[j.token] = r
		err = nil
	case err != nil:
		w.release(j.tag)
		if errors.Is(err, rdma.ErrQueueFull) && len(w.open) == 0 {
			err = errors.Mark(err, errNoWake) // no completion would wake us
		}
	}
	for len(w.early) > 0 {
		c := w.early[0]
		w.early = w.early[1:]
		w.mu.Unlock()
		w.plane.settle(c, w)
		w.mu.Lock()
	}
	w.posting = false
	w.mu.Unlock()
	return err
}

// putOff keeps a completion of the job that is being posted.
func (w *writer) putOff(c rdma.Completion) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.posting || w.current != c.Token {
		return false
	}
	w.early = append(w.early, c)
	return true
}

// release takes one off a tag's count; the lock is held.
func (w *writer) release(tag rdma.Tag) {
	if w.open[tag]--; w.open[tag] <= 0 {
		delete(w.open, tag)
		w.forget = append(w.forget, tag)
	}
}

// connect gives the connection, made anew when it has ended.
func (w *writer) connect() (rdma.Endpoint, error) {
	w.mu.Lock()
	ep, why := w.ep, w.why
	rest := time.Since(w.failed) < connectRest
	w.mu.Unlock()
	if ep != nil && ep.Err() == nil {
		return ep, nil
	}
	if rest {
		return nil, why
	}
	ctx, cancel := context.WithTimeout(context.Background(), connectTime)
	defer cancel()
	go func() {
		select {
		case <-w.plane.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	ep, err := w.plane.domain.Connect(ctx, w.dest)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.failed, w.why = time.Now(), errors.Wrapf(err, "no connection to %s", w.dest.Endpoint)
		return nil, w.why
	}
	w.ep, w.forget = ep, nil
	return ep, nil
}

// ended books a completion. again: a part of the write was never posted and
// goes out now, the token is not over. cut: that part will never be posted.
func (w *writer) ended(c rdma.Completion, over bool) (again, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.poke()
	if over {
		w.release(c.Tag)
	}
	r, ok := w.rest[c.Token]
	if !ok {
		return false, false
	}
	if over {
		delete(w.rest, c.Token)
	}
	if c.Status != rdma.Completed {
		return false, true
	}
	w.jobs = append([]job{r}, w.jobs...)
	return true, false
}

// seal waits for a post that is under way and closes the tag at the provider.
func (w *writer) seal(tag rdma.Tag) {
	w.sealing.Lock()
	defer w.sealing.Unlock()
	w.mu.Lock()
	ep := w.ep
	open := w.open[tag] > 0
	w.mu.Unlock()
	if ep != nil && open {
		ep.Seal(tag)
		ep.Cancel(tag) // what has not left need not: the pages come free sooner
	}
	w.poke() // queued jobs of it fail
}

// tidy lets the provider forget tags that have nothing open.
func (w *writer) tidy() {
	w.mu.Lock()
	ep, tags := w.ep, w.forget
	w.forget = nil
	w.mu.Unlock()
	for _, t := range tags {
		if ep == nil {
			return
		}
		if err := ep.Forget(t); errors.Is(err, rdma.ErrBusy) { // its callback has not returned yet
			w.mu.Lock()
			w.forget = append(w.forget, t)
			w.mu.Unlock()
		}
	}
}

// abandon fails what was never posted.
func (w *writer) abandon() {
	w.mu.Lock()
	jobs := w.jobs
	w.jobs = nil
	w.mu.Unlock()
	for _, j := range jobs {
		w.plane.fails(j.token, ErrStopped)
	}
}
