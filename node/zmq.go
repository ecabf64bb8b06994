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
	frameMax int64  // bytes of a frame that is taken; the largest is an AUX_DATA row
	curve    *curve // nil: plain sockets
	gate     *curveGate
}

var _ transport = (*zmqTransport)(nil)

func newZMQ(frameMax int, c *curve) (*zmqTransport, error) {
	ctx, err := zmq.NewContext()
	if err != nil {
		return nil, errors.Wrap(err, "make zmq context")
	}
	ctx.SetRetryAfterEINTR(true)
	if err := ctx.SetMaxSockets(maxSockets); err != nil {
		return nil, errors.CombineErrors(errors.Wrap(err, "set zmq socket limit"), ctx.Term())
	}
	t := &zmqTransport{ctx: ctx, frameMax: int64(frameMax), curve: c}
	if c != nil { // before any socket that asks it
		if t.gate, err = openCurveGate(ctx, c); err != nil {
			return nil, errors.CombineErrors(err, ctx.Term())
		}
	}
	return t, nil
}

// Close ends the context.
func (t *zmqTransport) Close() error {
	t.gate.close()
	return errors.Wrap(t.ctx.Term(), "end zmq context")
}

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
	soc   *zmq.Socket
	port  int
	watch *curveWatch // nil of a plain socket
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
	var watch *curveWatch
	if err == nil && t.curve != nil {
		if err = soc.ServerAuthCurve(curveDomain, t.curve.secret); err == nil {
			watch, err = t.watchRefusals(soc)
		}
	}
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
		return nil, errors.CombineErrors(errors.Wrapf(err, "bind PULL socket on %s", host), errors.CombineErrors(watch.close(), soc.Close()))
	}
	return &zmqReceiver{soc: soc, port: port, watch: watch}, nil
}

// Port is the bound port.
func (r *zmqReceiver) Port() int { return r.port }

// Recv takes one message.
func (r *zmqReceiver) Recv() (f backends.Frames, key string, err error) {
	if r.watch == nil {
		f, err = r.soc.RecvMessageBytes(0)
		return f, "", again(err)
	}
	f, about, err := r.soc.RecvMessageBytesWithMetadata(0, "User-Id")
	return f, about["User-Id"], again(err)
}

// Close closes the socket.
func (r *zmqReceiver) Close() error { return errors.CombineErrors(r.watch.close(), r.soc.Close()) }

type zmqPusher struct {
	soc     *zmq.Socket
	mon     *zmq.Socket // nil of a plain socket that reconnects
	dropped bool

	curve   *curve // nil of a plain socket
	address string
	key     string // who has to be there
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
	p := &zmqPusher{soc: soc, curve: t.curve, address: address}
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
	if err == nil && t.curve != nil {
		err = t.curve.client(p)
	}
	over := zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
	if side != toDecode {
		over = 0
	}
	if t.curve != nil {
		over |= refusals
	}
	if err == nil && over != 0 {
		err = t.monitor(p, over)
	}
	if err == nil {
		err = soc.Connect("tcp://" + address)
	}
	if err != nil {
		return nil, errors.CombineErrors(errors.Wrapf(err, "dial %s", address), p.Close(0))
	}
	return p, nil
}

// monitor watches for what ends a connection, or refuses it.
func (t *zmqTransport) monitor(p *zmqPusher, what zmq.Event) error {
	mon, err := t.monitorOf(p.soc, what)
	p.mon = mon
	return err
}

// monitorOf makes the socket at which a socket's events are read; it is given
// also with an error, to be closed.
func (t *zmqTransport) monitorOf(soc *zmq.Socket, what zmq.Event) (*zmq.Socket, error) {
	at := "inproc://monitor-" + strconv.FormatUint(t.monitors.Add(1), 10)
	if err := soc.Monitor(at, what); err != nil {
		return nil, errors.Wrap(err, "monitor")
	}
	mon, err := t.ctx.NewSocket(zmq.PAIR)
	if err != nil {
		return nil, errors.Wrap(err, "make monitor socket")
	}
	if err := mon.SetLinger(0); err != nil {
		return mon, errors.Wrap(err, "set LINGER of monitor")
	}
	return mon, errors.Wrap(mon.Connect(at), "connect monitor")
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
		what, _, value, err := p.mon.RecvEvent(zmq.DONTWAIT)
		if err != nil {
			break
		}
		if what&refusals != 0 {
			p.curve.refused(p.address, refusal(what, value))
			continue
		}
		p.dropped = true
	}
	// Another process is at the address, and has another key.
	if p.curve != nil && p.curve.keyAt(p.address) != p.key {
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
