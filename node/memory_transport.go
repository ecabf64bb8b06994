package node

import (
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/backends"
)

// memoryTransport joins the nodes of one process without sockets, for
// measurements of everything else.
type memoryTransport struct {
	mu    sync.Mutex
	ports map[int]chan backends.Frames
}

var _ transport = (*memoryTransport)(nil)

func newMemoryTransport() *memoryTransport {
	return &memoryTransport{ports: map[int]chan backends.Frames{}}
}

// Listen takes the next port of ours.
func (t *memoryTransport) Listen(string) (receiver, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	port := len(t.ports) + 1
	t.ports[port] = make(chan backends.Frames, recvHWM)
	return &memoryReceiver{port: port, in: t.ports[port], poll: time.NewTimer(pollEvery)}, nil
}

// Dial finds the port of an address; the host is not looked at.
func (t *memoryTransport) Dial(address string, _ dialSide) (pusher, error) {
	_, p, err := net.SplitHostPort(address)
	if err != nil {
		return nil, errors.Wrapf(err, "dial %q", address)
	}
	port, err := strconv.Atoi(p)
	if err != nil {
		return nil, errors.Wrapf(err, "dial %q", address)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	out, ok := t.ports[port]
	if !ok {
		return nil, errors.Newf("dial %q: nobody listens", address)
	}
	return memoryPusher{out: out}, nil
}

// Close has nothing to end.
func (t *memoryTransport) Close() error { return nil }

type memoryReceiver struct {
	port int
	in   chan backends.Frames
	poll *time.Timer
}

// Port is the receiver's number.
func (r *memoryReceiver) Port() int { return r.port }

// Recv takes one message.
func (r *memoryReceiver) Recv() (backends.Frames, string, error) {
	select {
	case f := <-r.in:
		return f, "", nil
	default:
	}
	r.poll.Reset(pollEvery)
	select {
	case f := <-r.in:
		return f, "", nil
	case <-r.poll.C:
		return nil, "", errAgain
	}
}

// Close drops what nobody took.
func (r *memoryReceiver) Close() error {
	r.poll.Stop()
	return nil
}

type memoryPusher struct{ out chan backends.Frames }

// Send hands a message over.
func (p memoryPusher) Send(f backends.Frames) error {
	select {
	case p.out <- f:
		return nil
	default:
	}
	select {
	case p.out <- f:
		return nil
	case <-time.After(pollEvery):
		return errAgain
	}
}

// Dropped is never true.
func (p memoryPusher) Dropped() bool { return false }

// Close has nothing to end.
func (p memoryPusher) Close(time.Duration) error { return nil }
