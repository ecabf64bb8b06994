//go:build verbs

package verbs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pdlog/pdlog/rdma"
)

const (
	writerDepth = 64 // requests under way on a writer's queue pair
	// What is taken from the queue and has not ended, at most: Abort and Cancel
	// find the rest still queued. The device needs less to be kept busy.
	maxWindow       = 32 << 20        // bytes
	maxWindowWrites = 4 * writerDepth // writes, which is the sooner reached with small pages

	burstBytes = 256 << 10 // given to the device at once: in between, news is told and revocations are heard
	maxRepairs = 4         // queue pairs in a row that ended nothing
	keysKept   = 4096      // answers about keys that are remembered
	haltTime   = 10 * time.Second
	flushScrap = 64 // where in the flush page the writer's reads go
)

// opened is what the writer knows of a key on its queue pair.
type opened struct {
	answered bool
	reason   rdma.Refusal // not 0: the key opens nothing
	windows  []window
}

// request is what a work request was for.
type request struct {
	t     *transfer
	piece int // -1: the read that follows the last write
}

// end is a completion of the queue pair of a generation.
type end struct {
	gen int
	Done
}

// outbound is one connection of an endpoint. Fields of the first group belong
// to endpoint.mu, those of the second to the goroutine in run.
type outbound struct {
	e    *endpoint
	ctl  *control
	wake chan struct{}
	msgs chan *message
	ends chan end

	queue  []*transfer // accepted, not taken
	window []*transfer // taken, not ended, by seq
	writes int         // of both
	taken  int         // writes of the window
	bytes  int64       // of the window

	qp       *QP
	gen      int
	stopWait context.CancelFunc
	waiter   sync.WaitGroup
	flush    window // at the target
	keys     map[key]*opened
	requests map[uint64]request
	lastID   uint64
	seq      uint64
	broken   bool // the queue pair takes nothing more; its requests are coming back
	joining  bool // a new one waits for the target's
	repairs  int  // in a row without an end
}

func newOutbound(e *endpoint, c *control) *outbound {
	return &outbound{
		e: e, ctl: c, wake: make(chan struct{}, 1), msgs: make(chan *message, 64), ends: make(chan end, writerDepth),
		keys: map[key]*opened{}, requests: map[uint64]request{},
	}
}

func (o *outbound) kick() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// greet is the handshake: a queue pair on each side.
func (o *outbound) greet() (err error) {
	d := o.e.d
	if o.qp, err = d.dev.NewQP(writerDepth); err != nil {
		return err
	}
	if err := o.ctl.send(&message{Op: opHello, Version: controlVersion, Peer: d.cfg.Self, QP: o.qp.Addr().Append(nil)}); err != nil {
		return err
	}
	m, err := o.ctl.receive()
	if err != nil {
		return err
	}
	return o.join(m)
}

func (o *outbound) join(m *message) error {
	if m.Op != opWelcome || m.Flush == nil {
		return fmt.Errorf("%w: %q for a welcome", errMessage, m.Op)
	}
	peer, err := ParseAddr(m.QP)
	if err != nil {
		return err
	}
	o.flush = *m.Flush
	return o.qp.Connect(peer, ackTimeout, retries)
}

// wait starts the goroutine that takes the queue pair's completions.
func (o *outbound) wait() {
	o.gen++
	ctx, stop := context.WithCancel(context.Background())
	o.stopWait = stop
	q, gen := o.qp, o.gen
	o.waiter.Go(func() {
		out := make([]Done, 32)
		for {
			n, err := q.Wait(ctx, out)
			for _, d := range out[:n] {
				select {
				case o.ends <- end{gen, d}:
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
}

// listen reads the control connection.
func (o *outbound) listen() {
	for {
		m, err := o.ctl.receive()
		if err != nil {
			o.e.end(fmt.Errorf("%w: answers of %s: %w", rdma.ErrConnLost, o.e.peer, err))
			return
		}
		select {
		case o.msgs <- m:
		case <-o.e.stop:
			return
		}
	}
}

// run is the connection's own goroutine: it posts, and it takes what comes back.
func (o *outbound) run() {
	o.wait()
	defer o.halt()
	for {
		var err error
		select {
		case <-o.e.stop:
			return
		case <-o.wake:
		case m := <-o.msgs:
			err = o.handle(m)
		case c := <-o.ends:
			err = o.ended(c)
		}
		if err == nil {
			o.take()
			err = o.pump()
		}
		if err == nil {
			err = o.tell()
		}
		o.e.ledger.Flush()
		if err != nil {
			o.e.end(fmt.Errorf("%w: %s: %w", rdma.ErrConnLost, o.e.peer, err))
			return
		}
	}
}

// take moves transfers from the queue into the window.
func (o *outbound) take() {
	o.e.mu.Lock()
	defer o.e.mu.Unlock()
	if len(o.window) == 0 && len(o.keys) > keysKept {
		clear(o.keys) // of rooms that are long over; one that is not is asked for again
	}
	for len(o.queue) > 0 {
		t := o.queue[0]
		if len(o.window) > 0 && (o.bytes+t.bytes > maxWindow || o.taken+len(t.pieces) > maxWindowWrites) {
			return
		}
		o.queue[0] = nil
		o.queue = o.queue[1:]
		o.seq++
		t.seq = o.seq
		o.bytes += t.bytes
		o.taken += len(t.pieces)
		o.window = append(o.window, t)
		o.e.ledger.Sent(t.tag)
	}
}

// pump gives the device what it has room for, in order, and asks for the keys
// that are needed next.
func (o *outbound) pump() error {
	if o.broken || o.joining {
		return nil
	}
	var list []Write
	room, bytes := writerDepth-len(o.requests), int64(0)
	for _, t := range o.window { // only this goroutine changes it
		if t.told || t.flushed || t.flushing {
			continue
		}
		if bytes > 0 && bytes+t.bytes > burstBytes {
			o.kick()
			break
		}
		known, err := o.known(t)
		if err != nil {
			return err
		}
		if !known || !o.place(t, &list, room) {
			break
		}
		bytes += t.bytes
	}
	if len(list) == 0 {
		return nil
	}
	n, err := o.qp.Post(list)
	for _, w := range list[:n] {
		o.requests[w.ID].t.left = true
	}
	for _, w := range list[n:] {
		o.undo(o.requests[w.ID])
		delete(o.requests, w.ID)
	}
	if err != nil && len(o.requests) == 0 { // not for want of room
		return o.crash()
	}
	return nil
}

// known asks for those keys of a transfer that were never asked for, and says
// whether all are answered.
func (o *outbound) known(t *transfer) (bool, error) {
	all := true
	for i := range t.pieces {
		k := t.pieces[i].key
		w := o.keys[k]
		if w == nil {
			w = &opened{}
			o.keys[k] = w
			if err := o.ctl.send(&message{Op: opOpen, Key: k[:]}); err != nil {
				return false, err
			}
		}
		all = all && w.answered
	}
	return all, nil
}

// place makes the requests of a transfer. False: there was no room for all.
func (o *outbound) place(t *transfer, list *[]Write, room int) bool {
	any := false
	for i := range t.pieces {
		s := &t.pieces[i]
		if s.fate == waiting {
			w := o.keys[s.key].window(s.off, s.len)
			if w == nil {
				s.fate = refused
				continue
			}
			if len(*list) >= room {
				return false
			}
			s.fate = posted
			o.add(list, request{t, i}, Write{
				Region: s.mr, Off: s.at, Len: uint32(s.len), Remote: w.Addr + s.off - w.Off, Key: w.Key,
			})
		}
		any = any || s.fate == posted || s.fate == placed
	}
	if !any || t.flushing {
		return true
	}
	if len(*list) >= room {
		return false
	}
	t.flushing = true
	o.add(list, request{t, -1}, Write{
		Region: o.e.d.flush, Off: flushScrap, Len: uint32(o.flush.Len), Remote: o.flush.Addr, Key: o.flush.Key, Read: true,
	})
	return true
}

func (o *outbound) add(list *[]Write, r request, w Write) {
	o.lastID++
	w.ID = o.lastID
	o.requests[w.ID] = r
	*list = append(*list, w)
}

// window that a run of bytes lies in; nil: the key opens none.
func (k *opened) window(off, n uint64) *window {
	for i := range k.windows {
		if w := &k.windows[i]; off >= w.Off && n <= w.Len && off-w.Off <= w.Len-n {
			return w
		}
	}
	return nil
}

func (o *outbound) undo(r request) {
	if r.piece < 0 {
		r.t.flushing = false
		return
	}
	r.t.pieces[r.piece].fate = waiting
}

// ended takes a completion.
func (o *outbound) ended(c end) error {
	r, ok := o.requests[c.ID]
	if c.gen != o.gen || !ok {
		return nil
	}
	delete(o.requests, c.ID)
	switch c.Status {
	case OK:
		o.repairs = 0
		if r.piece < 0 {
			r.t.flushing, r.t.flushed = false, true
		} else {
			r.t.pieces[r.piece].fate = placed
		}
		if !o.broken {
			return nil
		}
	case RefusedAccess, RefusedReq:
		o.undo(r)
		if r.piece >= 0 {
			o.repairs = 0
			o.condemn(r.t, r.piece)
		}
	default: // flushed, or nobody answered: it may have landed, and is written again
		o.undo(r)
	}
	return o.crash()
}

// condemn ends a transfer of which the device has refused a piece: the key is
// worth nothing any more.
func (o *outbound) condemn(t *transfer, piece int) {
	k := o.keys[t.pieces[piece].key]
	k.windows, k.reason = nil, rdma.RefusedRevoked
	t.pieces[piece].fate = refused
}

// crash is for a queue pair that is broken: what it had is awaited, then
// another takes its place. What others had under way is posted again, under the
// same keys to the same places.
func (o *outbound) crash() error {
	if !o.broken {
		o.broken = true
		_ = o.qp.Fail() // it may be in error already; this makes sure that all comes back
	}
	if len(o.requests) > 0 || o.joining {
		return nil
	}
	if o.repairs++; o.repairs > maxRepairs {
		return errors.New("the queue pair breaks again and again")
	}
	o.stopWait()
	o.waiter.Wait()
	o.e.d.bury(o.qp)
	var err error
	if o.qp, err = o.e.d.dev.NewQP(writerDepth); err != nil {
		return err
	}
	for k, w := range o.keys {
		if w.reason == 0 { // opened on the old one
			delete(o.keys, k)
		}
	}
	o.joining = true
	return o.ctl.send(&message{Op: opRepair, QP: o.qp.Addr().Append(nil)})
}

func (o *outbound) handle(m *message) error {
	switch m.Op {
	case opWelcome:
		if !o.joining {
			return fmt.Errorf("%w: a welcome that nobody asked for", errMessage)
		}
		if err := o.join(m); err != nil {
			return err
		}
		o.joining, o.broken = false, false
		o.wait()
	case opOpened, opClosed:
		k, ok := parseKey(m.Key)
		if !ok {
			return fmt.Errorf("%w: key of %d bytes", errMessage, len(m.Key))
		}
		switch {
		case m.Op == opClosed:
			o.keys[k] = &opened{answered: true, reason: rdma.RefusedRevoked}
		case m.Reason != 0:
			o.keys[k] = &opened{answered: true, reason: m.Reason}
		case !o.joining && !o.broken && len(m.Windows) == 0: // it could not be opened on this queue pair
			return o.crash()
		case !o.joining && !o.broken: // else these are windows of the queue pair that has gone
			if w := o.keys[k]; w != nil && w.reason == 0 {
				w.answered, w.windows = true, m.Windows
			}
		}
	case opNoted:
		return o.noted(m)
	default:
		return fmt.Errorf("%w: %q", errMessage, m.Op)
	}
	return nil
}

// finished says whether the device has nothing more to do for a transfer.
func (t *transfer) finished() bool {
	some := false
	for i := range t.pieces {
		switch t.pieces[i].fate {
		case waiting, posted:
			return false
		case placed:
			some = true
		case refused:
		}
	}
	return !some || t.flushed
}

// tell tells the target of transfers that are finished, in order.
func (o *outbound) tell() error {
	for _, t := range o.window {
		if t.told {
			continue
		}
		if !t.finished() {
			return nil
		}
		t.told = true
		if err := o.ctl.send(t.news(o.e.d.cfg.Checksums)); err != nil {
			return err
		}
	}
	return nil
}

// noted ends the first transfer of the window: the target knows of it.
func (o *outbound) noted(m *message) error {
	o.e.mu.Lock()
	defer o.e.mu.Unlock()
	if len(o.window) == 0 || o.window[0].seq != m.Seq || !o.window[0].told {
		return fmt.Errorf("%w: answer to transfer %d", errMessage, m.Seq)
	}
	t := o.window[0]
	o.window[0] = nil
	o.window = o.window[1:]
	o.bytes -= t.bytes
	o.taken -= len(t.pieces)
	o.writes -= len(t.pieces)
	_, landed := t.count(placed)
	s, err := rdma.Completed, error(nil)
	if n, _ := t.count(refused); n > 0 || m.Reason != 0 {
		s, err = rdma.Failed, &rdma.RefusedError{Reason: m.Reason, Writes: max(n, 1)}
	}
	if t.uncertain {
		s = rdma.Drained
	}
	t.release()
	o.e.ledger.Report(t.completion(o.e, s, landed, err), false)
	return nil
}

// halt makes the device let go of every source.
func (o *outbound) halt() {
	_ = o.qp.Fail() // it may be in error already
	patience := time.NewTimer(haltTime)
	defer patience.Stop()
	for len(o.requests) > 0 && !o.joining {
		select {
		case c := <-o.ends:
			if c.gen == o.gen {
				delete(o.requests, c.ID)
			}
		case <-patience.C: // a device that does not answer for its own queue
			clear(o.requests)
		}
	}
	o.stopWait()
	o.waiter.Wait()
	o.e.d.bury(o.qp)
}

// abort ends the transfers of a tag by force. endpoint.mu is held.
func (o *outbound) abort(tag rdma.Tag) {
	o.cancel(tag)
	for _, t := range o.window {
		if t.tag == tag && !t.uncertain {
			t.uncertain = true
			o.e.ledger.Report(t.completion(o.e, rdma.Uncertain, 0, rdma.ErrAborted), false)
		}
	}
}

// cancel takes back what was not taken. endpoint.mu is held.
func (o *outbound) cancel(tag rdma.Tag) {
	kept := o.queue[:0]
	for _, t := range o.queue {
		if t.tag != tag {
			kept = append(kept, t)
			continue
		}
		o.writes -= len(t.pieces)
		t.release()
		o.e.ledger.Report(t.completion(o.e, rdma.Failed, 0, rdma.ErrAborted), true)
	}
	clear(o.queue[len(kept):])
	o.queue = kept
}

// bury ends what is left of a dead connection. endpoint.mu is held, and the
// device has let go of every source.
func (o *outbound) bury(why error) {
	for _, t := range o.window {
		t.release()
		switch {
		case t.uncertain:
		case t.left:
			o.e.ledger.Report(t.completion(o.e, rdma.Uncertain, 0, why), false)
		default: // no device ever had it
			o.e.ledger.Report(t.completion(o.e, rdma.Failed, 0, why), false)
		}
	}
	for _, t := range o.queue {
		t.release()
		o.e.ledger.Report(t.completion(o.e, rdma.Failed, 0, why), true)
	}
	o.window, o.queue, o.writes, o.taken, o.bytes = nil, nil, 0, 0, 0
}
