//go:build verbs

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/pdlog/pdlog/rdma"
)

// endpoint is the writer's side towards one peer: one or more connections, each
// a queue pair with its control connection. If one of them ends, all do.
type endpoint struct {
	d      *domain
	peer   rdma.PeerID
	ledger *rdma.Ledger
	conns  []*outbound

	mu  sync.Mutex // queues and windows of all connections
	err error      // why it ended; nil while it runs

	stop chan struct{} // closed with err set
	done chan struct{}
	wg   sync.WaitGroup
}

var _ rdma.Endpoint = (*endpoint)(nil)

// Connect dials the control connections and joins the queue pairs.
func (d *domain) Connect(ctx context.Context, p rdma.PeerInfo) (rdma.Endpoint, error) {
	if p.Provider != "" && p.Provider != Name {
		return nil, fmt.Errorf("connect to %s by %s: provider %s: %w", p.Peer, Name, p.Provider, rdma.ErrProvider)
	}
	e := &endpoint{
		d: d, peer: p.Peer, ledger: rdma.NewLedger(d.cfg.OnCompletion),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	for range d.cfg.Conns {
		o, err := e.dial(ctx, p.Endpoint)
		if err != nil {
			e.hangUp()
			return nil, fmt.Errorf("connect to %s at %s: %w", p.Peer, p.Endpoint, err)
		}
		e.conns = append(e.conns, o)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		e.hangUp()
		return nil, fmt.Errorf("connect to %s: %w", p.Peer, rdma.ErrClosed)
	}
	d.endpoints[e] = struct{}{}
	for _, o := range e.conns {
		e.wg.Go(o.run)
		e.wg.Go(o.listen)
	}
	go e.supervise()
	return e, nil
}

// hangUp undoes dial; nothing was posted.
func (e *endpoint) hangUp() {
	for _, o := range e.conns {
		o.ctl.close()
		e.d.bury(o.qp)
	}
}

func (e *endpoint) dial(ctx context.Context, addr string) (*outbound, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	o := newOutbound(e, newControl(c))
	undo := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	err = o.greet()
	if !undo() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		o.ctl.close()
		e.d.bury(o.qp)
		return nil, fmt.Errorf("%w: %w", rdma.ErrHandshake, errors.Join(err, ctx.Err()))
	}
	return o, nil
}

func (e *endpoint) Peer() rdma.PeerID { return e.peer }

// PostBatch queues the batch on the tag's connection.
func (e *endpoint) PostBatch(b rdma.Batch) (rdma.Transfer, error) {
	t, err := e.prepare(&b)
	if err != nil {
		return rdma.Transfer{}, fmt.Errorf("post to %s: %w", e.peer, err)
	}
	o := e.conns[uint64(b.Tag)%uint64(len(e.conns))]
	var partial error
	e.mu.Lock()
	if e.err != nil {
		defer e.mu.Unlock()
		return rdma.Transfer{}, e.err
	}
	if room := e.d.cfg.Queue - o.writes; room < len(t.pieces) {
		if room <= 0 {
			e.mu.Unlock()
			return rdma.Transfer{}, rdma.ErrQueueFull
		}
		partial = &rdma.PartialError{Posted: room, Err: rdma.ErrQueueFull}
		t.pieces, t.partial = t.pieces[:room], true
	}
	if err := e.ledger.Begin(b.Tag); err != nil {
		e.mu.Unlock()
		return rdma.Transfer{}, err
	}
	for i := range t.pieces {
		t.bytes += int64(t.pieces[i].len)
	}
	t.id = rdma.TransferID(e.d.transferID.Add(1))
	o.queue = append(o.queue, t)
	o.writes += len(t.pieces)
	posted := rdma.Transfer{ID: t.id, Writes: len(t.pieces), Bytes: t.bytes}
	e.mu.Unlock()
	o.kick()
	return posted, partial
}

// prepare finds the registration of every source.
func (e *endpoint) prepare(b *rdma.Batch) (*transfer, error) {
	if len(b.Writes) == 0 {
		return nil, fmt.Errorf("%w: no writes", rdma.ErrBatch)
	}
	t := &transfer{token: b.Token, tag: b.Tag, meta: b.Meta, user: b.Flags, partial: b.Partial, pieces: make([]source, len(b.Writes))}
	for i := range b.Writes {
		if err := t.pieces[i].set(e.d, &b.Writes[i], b.Key); err != nil {
			return nil, fmt.Errorf("write %d: %w", i, err)
		}
	}
	return t, nil
}

func (e *endpoint) Inflight(t rdma.Tag) rdma.Count { return e.ledger.Inflight(t) }

func (e *endpoint) Seal(t rdma.Tag) { e.ledger.Seal(t) }

func (e *endpoint) Drain(ctx context.Context, t rdma.Tag) (rdma.DrainReport, error) {
	return e.ledger.Drain(ctx, t)
}

func (e *endpoint) Forget(t rdma.Tag) error { return e.ledger.Forget(t) }

// Abort takes queued transfers back. Those that the device has are uncertain
// until their end is told.
func (e *endpoint) Abort(t rdma.Tag) error {
	e.mu.Lock()
	for _, o := range e.conns {
		o.abort(t)
	}
	e.mu.Unlock()
	e.ledger.Flush()
	return nil
}

// Cancel takes queued transfers back; those that have begun to leave go on.
func (e *endpoint) Cancel(t rdma.Tag) {
	e.mu.Lock()
	for _, o := range e.conns {
		o.cancel(t)
	}
	e.mu.Unlock()
	e.ledger.Flush()
}

func (e *endpoint) Done() <-chan struct{} { return e.done }

func (e *endpoint) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

func (e *endpoint) Close() error {
	e.end(rdma.ErrClosed)
	return nil
}

// end stops the endpoint; the first reason stands.
func (e *endpoint) end(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = why
		close(e.stop)
	}
}

// supervise waits for the end, and tells what became of the transfers once no
// device reads their sources any more.
func (e *endpoint) supervise() {
	<-e.stop
	for _, o := range e.conns {
		o.ctl.close()
	}
	e.wg.Wait()
	e.mu.Lock()
	for _, o := range e.conns {
		o.bury(e.err)
	}
	e.mu.Unlock()
	e.ledger.Then(func() {
		e.d.mu.Lock()
		delete(e.d.endpoints, e)
		e.d.mu.Unlock()
		close(e.done)
	})
	e.ledger.Flush()
}
