package node

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/cockroachdb/errors"
	zmq "github.com/pebbe/zmq4"
)

// refusals are the events of a handshake that one of the two sides did not like.
const refusals = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH

// protocolErrors are libzmq's numbers for what is wrong with a handshake, those
// that tell something.
var protocolErrors = map[int]string{
	0x11000001: "it was called with another key than it has, or does not hold its own", // cryptographic
	0x11000002: "the other side is plain, and this node speaks CURVE alone",            // mechanism mismatch
}

// endedInHandshake is all that libzmq knows when the other side was the first to
// close, which a plain one may be.
const endedInHandshake = "the connection ended in the handshake: the other side is plain, or does not take this node's key, or has another than is known of it"

// refusal puts a monitor's event in words.
func refusal(what zmq.Event, value int) string {
	switch {
	case what&zmq.EVENT_HANDSHAKE_FAILED_AUTH != 0:
		return "the other side does not know this node's key (curve.peers_file there)"
	case what&zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL != 0:
		if why, ok := protocolErrors[value]; ok {
			return why
		}
		return fmt.Sprintf("the handshake broke the protocol (%#x)", value)
	}
	return endedInHandshake
}

// client gives a socket this node's key, and the key of who has to be at its
// other end.
func (c *curve) client(p *zmqPusher) error {
	if p.key = c.keyAt(p.address); p.key == "" {
		return errors.Newf("no CURVE key is known of %s: it has not registered", p.address)
	}
	return failed([]option{
		{"CURVE_SERVERKEY", p.soc.SetCurveServerkey(p.key)},
		{"CURVE_PUBLICKEY", p.soc.SetCurvePublickey(c.public)},
		{"CURVE_SECRETKEY", p.soc.SetCurveSecretkey(c.secret)},
	})
}

// curveGate is ZeroMQ's authentication handler (RFC 27) of one context: it says
// whether the holder of a key may connect.
type curveGate struct {
	soc  *zmq.Socket
	stop chan struct{}
	done chan struct{}
}

func openCurveGate(ctx *zmq.Context, c *curve) (*curveGate, error) {
	soc, err := ctx.NewSocket(zmq.REP)
	if err != nil {
		return nil, errors.Wrap(err, "make the socket of the key handler")
	}
	err = failed([]option{{"LINGER", soc.SetLinger(0)}, {"RCVTIMEO", soc.SetRcvtimeo(pollEvery)}})
	if err == nil {
		err = soc.Bind("inproc://zeromq.zap.01")
	}
	if err != nil {
		return nil, errors.CombineErrors(errors.Wrap(err, "open the key handler"), soc.Close())
	}
	g := &curveGate{soc: soc, stop: make(chan struct{}), done: make(chan struct{})}
	go g.run(c)
	return g, nil
}

func (g *curveGate) run(c *curve) {
	defer close(g.done)
	for {
		select {
		case <-g.stop:
			return
		default:
		}
		f, err := g.soc.RecvMessageBytes(0)
		if err != nil {
			continue // nothing came, or nothing that can be answered
		}
		if _, err := g.soc.SendMessage(c.answer(f)...); err != nil {
			c.log.Error("the key handler cannot answer", "err", err)
		}
	}
}

// close is for the end: no socket that asks may be left.
func (g *curveGate) close() {
	if g == nil {
		return
	}
	close(g.stop)
	<-g.done
	_ = g.soc.Close() // of an inproc socket
}

// answer decides about one request: version, id, domain, address, identity,
// mechanism, credentials.
func (c *curve) answer(f [][]byte) []any {
	id, status, text, user := "", "400", "no", ""
	if len(f) > 1 {
		id = string(f[1])
	}
	switch {
	case len(f) != 7 || string(f[0]) != "1.0" || string(f[5]) != "CURVE" || len(f[6]) != 32:
		c.refused(at(f, 3), "it offers no CURVE key")
	default:
		key := zmq.Z85encode(string(f[6]))
		if c.node(key) == "" {
			c.refused(at(f, 3), "its key "+key+" is not in curve.peers_file")
			break
		}
		status, text, user = "200", "OK", key
	}
	return []any{"1.0", id, status, text, user, ""}
}

func at(f [][]byte, i int) string {
	if i < len(f) {
		return string(f[i])
	}
	return ""
}

// curveWatch reads what a bound socket refuses.
type curveWatch struct {
	soc  *zmq.Socket // watched
	mon  *zmq.Socket
	stop chan struct{}
	done chan struct{}
}

func (t *zmqTransport) watchRefusals(soc *zmq.Socket) (*curveWatch, error) {
	mon, err := t.monitorOf(soc, refusals|zmq.EVENT_ACCEPTED|zmq.EVENT_DISCONNECTED)
	if err == nil {
		err = mon.SetRcvtimeo(pollEvery)
	}
	if err != nil {
		if mon != nil {
			err = errors.CombineErrors(err, mon.Close())
		}
		return nil, err
	}
	w := &curveWatch{soc: soc, mon: mon, stop: make(chan struct{}), done: make(chan struct{})}
	go w.run(t.curve)
	return w, nil
}

func (w *curveWatch) run(c *curve) {
	defer close(w.done)
	who := map[int]string{} // descriptor -> who is at its other end
	why := ""               // of a handshake whose connection ends next
	for {
		select {
		case <-w.stop:
			return
		default:
		}
		what, _, value, err := w.mon.RecvEvent(0)
		switch {
		case err != nil: // nothing came
		case what == zmq.EVENT_ACCEPTED:
			who[value] = peerOf(value)
		case what&refusals != 0:
			why = refusal(what, value)
			if what == zmq.EVENT_HANDSHAKE_FAILED_AUTH {
				why = "" // the key handler has said more
			}
		case what == zmq.EVENT_DISCONNECTED:
			if why != "" {
				c.refused(cmp.Or(who[value], "an address that has gone"), why)
			}
			why = ""
			delete(who, value)
		}
	}
}

func (w *curveWatch) close() error {
	if w == nil {
		return nil
	}
	close(w.stop)
	<-w.done
	return errors.CombineErrors(w.soc.Monitor("", 0), w.mon.Close())
}

// peerOf is the address at the other end of a descriptor of libzmq's; empty if
// it has ended already.
func peerOf(fd int) string {
	sa, err := syscall.Getpeername(fd)
	if err != nil {
		return ""
	}
	switch sa := sa.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)).String() //nolint:gosec // a port
	case *syscall.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port)).String() //nolint:gosec // a port
	}
	return strconv.Itoa(fd)
}
