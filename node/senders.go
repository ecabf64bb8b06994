package node

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/projector"
)

const (
	sendQueue  = 1 << 16          // messages waiting for one peer, beside libzmq's own
	sendIdle   = 10 * time.Minute // a sender without work goes away
	sendLinger = 500 * time.Millisecond
)

// How long one message may wait for room at the peer (wire.md 1.0), from when
// it was queued.
var sendTimeout = map[dialSide]time.Duration{toPrefill: time.Second, toDecode: 30 * time.Second}

var (
	errSendQueue   = errors.New("too many messages wait for this peer")
	errSendTimeout = errors.New("the peer takes no message")
)

// outgoing is a message on its way to one peer.
type outgoing struct {
	frames backends.Frames
	of     projector.Action // the effect, if it can be said without the extension too: where the connection is new
	stale  func() bool      // it must not leave any more; may be nil
	sent   func(error)      // the outcome; may be nil. It may wait for the loop
	queued time.Time
}

// senders holds one sender per remote endpoint: a goroutine with a socket and a
// bounded queue. What one peer does not take delays no other.
type senders struct {
	transport transport
	side      dialSide
	gone      func(address string)                   // the connection to a peer dropped
	plain     func(projector.Action) backends.Frames // an effect without the extension; nil: it has no such form
	log       *slog.Logger

	lost atomic.Uint64 // messages that did not leave

	mu     sync.Mutex
	byAddr map[string]*sender
	closed bool
	stop   chan struct{}
	wg     sync.WaitGroup
}

type sender struct {
	address string
	wake    chan struct{}
	queue   []outgoing // guarded by senders.mu
	spare   []outgoing // the sender's own: what take gave last
}

func newSenders(t transport, side dialSide, gone func(string), log *slog.Logger) *senders {
	return &senders{
		transport: t, side: side, gone: gone, log: log,
		byAddr: map[string]*sender{}, stop: make(chan struct{}),
	}
}

// send queues a message. It never waits; a full queue is an outcome.
func (s *senders) send(address string, m outgoing) {
	err := s.enqueue(address, m)
	if err == nil {
		return
	}
	s.lost.Add(1)
	s.log.Debug("message not sent", "to", address, "why", err)
	if m.sent != nil {
		m.sent(err)
	}
}

func (s *senders) enqueue(address string, m outgoing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrStopped
	}
	p := s.byAddr[address]
	if p == nil {
		p = &sender{address: address, wake: make(chan struct{}, 1)}
		s.byAddr[address] = p
		s.wg.Go(func() { s.run(p) })
	}
	if len(p.queue) >= sendQueue {
		return errSendQueue
	}
	m.queued = time.Now()
	p.queue = append(p.queue, m)
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return nil
}

// take gives all that waits for a peer, until it is asked again.
func (s *senders) take(p *sender) []outgoing {
	if cap(p.spare) > spareQueue {
		p.spare = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.queue, p.spare = p.spare[:0], p.queue
	return p.spare
}

// spareQueue is how many messages a queue that is empty keeps room for.
const spareQueue = 1 << 10

// retire takes an idle sender off the table; false: work has come meanwhile.
func (s *senders) retire(p *sender) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(p.queue) > 0 {
		return false
	}
	delete(s.byAddr, p.address)
	return true
}

// close ends all senders; what is queued still leaves if the peers take it at
// once.
func (s *senders) close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.stop)
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// link is a sender's socket; it is made at the first message and made anew
// after its connection has dropped.
type link struct {
	soc    pusher
	stuck  bool      // the last message was not taken in time
	looked time.Time // when it was last seen to be connected
}

// lookEvery is how long a connection counts as seen: to ask the socket for each
// message of a crowd costs as much as to send it.
const lookEvery = time.Millisecond

func (s *senders) run(p *sender) {
	var l link
	defer func() {
		if l.soc != nil {
			s.closeLink(&l, sendLinger)
		}
	}()
	look := time.NewTicker(500 * time.Millisecond) // of a drop that no send has met
	defer look.Stop()
	used := time.Now()
	for {
		select {
		case <-p.wake:
			for q := s.take(p); len(q) > 0; q = s.take(p) {
				for i := range q {
					s.deliver(p, &l, &q[i])
					q[i] = outgoing{}
				}
			}
			used = time.Now()
		case <-look.C:
			s.checkDrop(p, &l)
			if time.Since(used) > sendIdle && s.retire(p) {
				return
			}
		case <-s.stop:
			for _, m := range s.take(p) {
				s.deliver(p, &l, &m)
			}
			return
		}
	}
}

// checkDrop closes a socket whose connection has ended, and says so: the gate
// of wire.md 9.1 closes with it.
func (s *senders) checkDrop(p *sender, l *link) bool {
	if l.soc == nil {
		return false
	}
	if !l.soc.Dropped() {
		l.looked = time.Now()
		return false
	}
	s.closeLink(l, 0)
	if s.gone != nil {
		s.gone(p.address)
	}
	return true
}

func (s *senders) closeLink(l *link, linger time.Duration) {
	if err := l.soc.Close(linger); err != nil {
		s.log.Debug("close control socket", "err", err)
	}
	l.soc = nil
}

func (s *senders) deliver(p *sender, l *link, m *outgoing) {
	err := s.push(p, l, m)
	if err != nil {
		s.lost.Add(1)
		s.log.Debug("message not sent", "to", p.address, "why", err)
	}
	if m.sent != nil {
		m.sent(err)
	}
}

func (s *senders) push(p *sender, l *link, m *outgoing) error {
	f := m.frames
	if time.Since(l.looked) > lookEvery && s.checkDrop(p, l) && m.of != nil {
		if plain := s.plain(m.of); plain != nil {
			f = plain // decided before the drop was known; the next message is decided after it
		}
	}
	if l.soc == nil {
		soc, err := s.transport.Dial(p.address, s.side)
		if err != nil {
			return err
		}
		l.soc = soc
	}
	overdue := func() bool { return time.Since(m.queued) > sendTimeout[s.side] }
	if l.stuck && overdue() { // the one before it has tried until now
		return errSendTimeout
	}
	l.stuck = false
	for {
		if m.stale != nil && m.stale() {
			return errRoomEnded
		}
		err := l.soc.Send(f)
		if !errors.Is(err, errAgain) {
			return err
		}
		if overdue() {
			l.stuck = true
			return errSendTimeout
		}
		select {
		case <-s.stop:
			return ErrStopped
		default:
		}
		if s.checkDrop(p, l) {
			return errors.Wrap(errSendTimeout, "connection dropped")
		}
	}
}
