package node

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/errors"
	zmq "github.com/pebbe/zmq4"

	"github.com/pdlog/pdlog/backends"
)

const (
	maxSockets = 16384 // as SGLang sets it (wire.md 1.0)
	recvHWM    = 10000 // messages waiting on a receiver; then TCP holds senders back
	sendHWM    = 1000  // libzmq's default, as SGLang leaves it

	// Keepalive of the prefill's connections to decode (wire.md 1.0).
	keepIdle, keepInterval, keepCount = 30, 5, 3
)

// zmqTransport is libzmq.
type zmqTransport struct {
	ctx      *zmq.Context
	monitors atomic.Uint64
	frameMax int64 // bytes of a frame that is taken; the largest is an AUX_DATA row
}

var _ transport = (*zmqTransport)(nil)

func newZMQ(frameMax int) (*zmqTransport, error) {
	ctx, err := zmq.NewContext()
	if err != nil {
		return nil, errors.Wrap(err, "make zmq context")
	}
	ctx.SetRetryAfterEINTR(true)
	if err := ctx.SetMaxSockets(maxSockets); err != nil {
		return nil, errors.CombineErrors(errors.Wrap(err, "set zmq socket limit"), ctx.Term())
	}
	return &zmqTransport{ctx: ctx, frameMax: int64(frameMax)}, nil
}

// Close ends the context.
func (t *zmqTransport) Close() error { return errors.Wrap(t.ctx.Term(), "end zmq context") }

type option struct {
	name string
	err  error
}

func failed(opts []option) error {
	for _, o := range opts {
		if o.err != nil {
			return fmt.Errorf("set %s: %w", o.name, o.err)
		}
	}
	return nil
}

type zmqReceiver struct {
	soc  *zmq.Socket
	port int
}

// Listen binds a PULL socket.
func (t *zmqTransport) Listen(host string) (receiver, error) {
	soc, err := t.ctx.NewSocket(zmq.PULL)
	if err != nil {
		return nil, errors.Wrap(err, "make PULL socket")
	}
	err = failed([]option{
		{"LINGER", soc.SetLinger(0)},
		{"IPV6", soc.SetIpv6(strings.Contains(host, ":"))},
		{"RCVHWM", soc.SetRcvhwm(recvHWM)},
		{"MAXMSGSIZE", soc.SetMaxmsgsize(t.frameMax)},
		{"RCVTIMEO", soc.SetRcvtimeo(pollEvery)},
	})
	if err == nil {
		err = soc.Bind("tcp://" + net.JoinHostPort(host, "*"))
	}
	var at string
	if err == nil {
		at, err = soc.GetLastEndpoint()
	}
	var port int
	if err == nil {
		port, err = strconv.Atoi(at[strings.LastIndexByte(at, ':')+1:])
	}
	if err != nil {
		return nil, errors.CombineErrors(errors.Wrapf(err, "bind PULL socket on %s", host), soc.Close())
	}
	return &zmqReceiver{soc: soc, port: port}, nil
}

// Port is the bound port.
func (r *zmqReceiver) Port() int { return r.port }

// Recv takes one message.
func (r *zmqReceiver) Recv() (backends.Frames, error) {
	f, err := r.soc.RecvMessageBytes(0)
	return f, again(err)
}

// Close closes the socket.
func (r *zmqReceiver) Close() error { return r.soc.Close() }

type zmqPusher struct {
	soc     *zmq.Socket
	mon     *zmq.Socket // nil of a socket that reconnects
	dropped bool
}

// Dial makes a PUSH socket and connects it.
func (t *zmqTransport) Dial(address string, side dialSide) (pusher, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, errors.Wrapf(err, "dial %q", address)
	}
	soc, err := t.ctx.NewSocket(zmq.PUSH)
	if err != nil {
		return nil, errors.Wrap(err, "make PUSH socket")
	}
	p := &zmqPusher{soc: soc}
	opts := []option{
		{"LINGER", soc.SetLinger(0)},
		{"IPV6", soc.SetIpv6(strings.Contains(host, ":"))},
		{"SNDHWM", soc.SetSndhwm(sendHWM)},
		{"SNDTIMEO", soc.SetSndtimeo(pollEvery)}, // a slice of the whole time, see sender
	}
	if side == toDecode {
		opts = append(opts,
			option{"RECONNECT_IVL", soc.SetReconnectIvl(-1)},
			option{"TCP_KEEPALIVE", soc.SetTcpKeepalive(1)},
			option{"TCP_KEEPALIVE_IDLE", soc.SetTcpKeepaliveIdle(keepIdle)},
			option{"TCP_KEEPALIVE_INTVL", soc.SetTcpKeepaliveIntvl(keepInterval)},
			option{"TCP_KEEPALIVE_CNT", soc.SetTcpKeepaliveCnt(keepCount)},
		)
	}
	err = failed(opts)
	if err == nil && side == toDecode {
		err = t.monitor(p)
	}
	if err == nil {
		err = soc.Connect("tcp://" + address)
	}
	if err != nil {
		return nil, errors.CombineErrors(errors.Wrapf(err, "dial %s", address), p.Close(0))
	}
	return p, nil
}

// monitor watches for the end of the connection.
func (t *zmqTransport) monitor(p *zmqPusher) error {
	at := "inproc://monitor-" + strconv.FormatUint(t.monitors.Add(1), 10)
	const over = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
	if err := p.soc.Monitor(at, over); err != nil {
		return errors.Wrap(err, "monitor")
	}
	mon, err := t.ctx.NewSocket(zmq.PAIR)
	if err != nil {
		return errors.Wrap(err, "make monitor socket")
	}
	p.mon = mon
	if err := mon.SetLinger(0); err != nil {
		return errors.Wrap(err, "set LINGER of monitor")
	}
	return errors.Wrap(mon.Connect(at), "connect monitor")
}

// Send hands one message to libzmq.
func (p *zmqPusher) Send(f backends.Frames) error {
	parts := make([]any, len(f))
	for i := range f {
		parts[i] = f[i]
	}
	_, err := p.soc.SendMessage(parts...)
	return again(err)
}

// Dropped reads what the monitor has seen.
func (p *zmqPusher) Dropped() bool {
	if p.mon == nil {
		return false
	}
	for !p.dropped {
		if _, _, _, err := p.mon.RecvEvent(zmq.DONTWAIT); err != nil {
			break
		}
		p.dropped = true
	}
	return p.dropped
}

// Close closes the socket and its monitor.
func (p *zmqPusher) Close(linger time.Duration) error {
	err := p.soc.SetLinger(linger)
	if p.mon != nil {
		err = errors.CombineErrors(err, p.soc.Monitor("", 0))
		err = errors.CombineErrors(err, p.mon.Close())
	}
	return errors.CombineErrors(err, p.soc.Close())
}

func again(err error) error {
	if err != nil && zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) {
		return errAgain
	}
	return err
}
