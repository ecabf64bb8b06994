package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/rdma"
)

// endpoint is the writer's side towards one peer: one or more connections.
// If one of them ends, all do.
type endpoint struct {
	d      *domain
	peer   rdma.PeerID
	ledger *rdma.Ledger
	conns  []*outbound

	mu  sync.Mutex // queues and windows of all connections
	err error      // why it ended; nil while it runs

	stop chan struct{} // closed with err set
	done chan struct{}
	wg   sync.WaitGroup // senders and readers of replies
}

var _ rdma.Endpoint = (*endpoint)(nil)

// Connect dials p and waits for its answer to the hello.
func (d *domain) Connect(ctx context.Context, p rdma.PeerInfo) (rdma.Endpoint, error) {
	if p.Provider != "" && p.Provider != d.transport.Name {
		return nil, fmt.Errorf("connect to %s by %s: provider %s: %w", p.Peer, d.transport.Name, p.Provider, rdma.ErrProvider)
	}
	e := &endpoint{
		d: d, peer: p.Peer, ledger: rdma.NewLedger(d.cfg.OnCompletion),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	for range d.cfg.Conns {
		l, err := d.dial(ctx, p.Endpoint)
		if err != nil {
			e.discard()
			return nil, fmt.Errorf("connect to %s at %s: %w", p.Peer, p.Endpoint, err)
		}
		e.conns = append(e.conns, newOutbound(e, l))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		e.discard()
		return nil, fmt.Errorf("connect to %s: %w", p.Peer, rdma.ErrClosed)
	}
	d.endpoints[e] = struct{}{}
	for _, o := range e.conns {
		e.wg.Go(o.send)
		e.wg.Go(o.receive)
	}
	go e.supervise()
	return e, nil
}

// link is a connection that has been greeted.
type link struct {
	conn net.Conn
	ring *ring // nil: frames go over the socket
}

// discard lets go of connections that nothing was sent on.
func (e *endpoint) discard() {
	for _, o := range e.conns {
		hangUp(o.conn)
		o.ring.close()
	}
}

func (d *domain) dial(ctx context.Context, addr string) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	if d.transport.Near && d.cfg.TLS == nil {
		if l, err := d.dialAsking(ctx, addr); l != nil || err != nil {
			return l, err
		}
	}
	c, err := d.transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	err = d.tune(c)
	if err == nil && d.cfg.TLS != nil {
		c = tls.Client(c, clientTLS(d.cfg.TLS, addr))
	}
	var l *link
	if err == nil {
		l, err = d.join(ctx, c)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return l, nil
}

// clientTLS names the server that is dialled, if the configuration does not.
func clientTLS(cfg *tls.Config, addr string) *tls.Config {
	host, _, err := net.SplitHostPort(addr)
	if cfg.ServerName != "" || err != nil {
		return cfg
	}
	cfg = cfg.Clone()
	cfg.ServerName = host
	return cfg
}

// join says who we are, and agrees with the target on a ring where one is of use.
func (d *domain) join(ctx context.Context, c net.Conn) (*link, error) {
	r, err := d.greet(ctx, c, 0)
	if err != nil {
		return nil, err
	}
	l := &link{conn: c}
	if r.frames&featureRing != 0 && d.transport.rings(c) {
		l.ring, err = d.offerRing(ctx, c.(*net.UnixConn))
	}
	return l, err
}

// greet says who we are. With flagAsk the answer has the token of the target's
// near listener, and the target waits for another hello.
func (d *domain) greet(ctx context.Context, c net.Conn, flags uint16) (reply, error) {
	h := header{op: opHello, flags: flags, length: uint32(len(d.cfg.Self))} //nolint:gosec // checked by Open
	hello := make([]byte, headerLen, headerLen+len(d.cfg.Self))
	h.encode(hello)
	return exchange(ctx, c, func() error {
		_, err := c.Write(append(hello, d.cfg.Self...))
		return err
	})
}

// offerRing passes the memory of a ring. nil and no error: it can not be made
// here, or the target does not take it.
func (d *domain) offerRing(ctx context.Context, c *net.UnixConn) (*ring, error) {
	r, fd, err := newRing()
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // no memory or no descriptor for one: the socket does as well
	}
	h := header{op: opRing, meta: ringVersion}
	answer, err := exchange(ctx, c, func() error { return sendFile(c, &h, fd) })
	_ = unix.Close(fd) // mapped, and passed or not
	if err != nil || answer.frames&featureRing == 0 {
		r.close()
		return nil, err
	}
	return r, nil
}

// exchange sends something of the handshake and waits for the answer.
func exchange(ctx context.Context, c net.Conn, send func() error) (r reply, err error) {
	if err := c.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return r, err
	}
	undo := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer undo()
	if err := send(); err != nil {
		return r, err
	}
	var buf [replyLen]byte
	if _, err := io.ReadFull(c, buf[:]); err != nil {
		return r, fmt.Errorf("%w: %w", rdma.ErrHandshake, errors.Join(err, ctx.Err()))
	}
	if err := r.decode(buf[:]); err != nil || r.op != opHelloOK {
		return r, fmt.Errorf("%w: op %d: %w", rdma.ErrHandshake, r.op, err)
	}
	if !undo() {
		return r, ctx.Err()
	}
	return r, c.SetDeadline(time.Time{})
}

func (e *endpoint) Peer() rdma.PeerID { return e.peer }

// PostBatch queues the batch on the tag's connection.
func (e *endpoint) PostBatch(b rdma.Batch) (rdma.Transfer, error) {
	t := &transfer{
		token: b.Token, tag: b.Tag, meta: b.Meta, user: b.Flags, partial: b.Partial,
		pieces: make([]piece, len(b.Writes)),
	}
	if len(b.Writes) == 0 {
		return rdma.Transfer{}, fmt.Errorf("post to %s: %w: no writes", e.peer, rdma.ErrBatch)
	}
	for i := range b.Writes {
		if err := t.pieces[i].set(&b.Writes[i], b.Key); err != nil {
			return rdma.Transfer{}, fmt.Errorf("post to %s: write %d: %w", e.peer, i, err)
		}
	}
	o := e.conns[tagHash(b.Tag)%uint64(len(e.conns))]
	var partial error

	e.mu.Lock()
	if e.err != nil {
		defer e.mu.Unlock()
		return rdma.Transfer{}, e.err
	}
	if room := e.d.cfg.Queue - o.queued; room < len(t.pieces) {
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
		t.bytes += int64(len(t.pieces[i].src))
	}
	t.id = rdma.TransferID(e.d.transferID.Add(1))
	o.queue = append(o.queue, t)
	o.queued += len(t.pieces)
	posted := rdma.Transfer{ID: t.id, Writes: len(t.pieces), Bytes: t.bytes}
	e.mu.Unlock()

	o.kick()
	return posted, partial
}

func (e *endpoint) Inflight(t rdma.Tag) rdma.Count { return e.ledger.Inflight(t) }

// Seal and the Begin of a post are one step each in the ledger: a post that is
// under way is either in the count or refused when Seal returns.
func (e *endpoint) Seal(t rdma.Tag) { e.ledger.Seal(t) }

func (e *endpoint) Drain(ctx context.Context, t rdma.Tag) (rdma.DrainReport, error) {
	return e.ledger.Drain(ctx, t)
}

func (e *endpoint) Forget(t rdma.Tag) error { return e.ledger.Forget(t) }

// Abort takes queued transfers back. Those that have left can not be taken
// back from a socket: they are uncertain until the target answers.
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

// supervise waits for the end, and tells what became of the transfers once
// nothing reads their sources any more.
func (e *endpoint) supervise() {
	<-e.stop
	for _, o := range e.conns {
		hangUp(o.conn) // ends sender and reader, whatever it says
	}
	e.wg.Wait()
	e.mu.Lock()
	for _, o := range e.conns {
		o.ring.close() // nobody reads or writes it any more
		o.bury(e.err)
	}
	e.mu.Unlock()
	e.ledger.Then(func() {
		e.d.dropEndpoint(e)
		close(e.done)
	})
	e.ledger.Flush()
}

// tagHash spreads tags over connections (splitmix64's finalizer): a tag keeps
// to one connection, so its transfers land in order.
func tagHash(t rdma.Tag) uint64 {
	x := uint64(t)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
