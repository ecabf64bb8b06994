package stream

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
)

// nearBuffer of a near socket: so that frames with payload do not crawl.
const nearBuffer = 1 << 20

// nearToken names a domain's near listener, 128 random bits; zero is none.
type nearToken [16]byte

// name is abstract: it exists inside one network namespace of one kernel, so
// who reaches it shares memory with who made it.
func (t nearToken) name() string { return "@pdlog-near-" + hex.EncodeToString(t[:]) }

// words are how a token crosses in the answer to a hello that asks for it.
func (t nearToken) words() (hi, lo uint64) {
	return binary.BigEndian.Uint64(t[:8]), binary.BigEndian.Uint64(t[8:])
}

func tokenOf(r *reply) (t nearToken) {
	binary.BigEndian.PutUint64(t[:8], r.seq)
	binary.BigEndian.PutUint64(t[8:], r.placed)
	return t
}

// listenNear opens a second way in for writers on this host. Where it cannot be
// had there is none, and writers keep to the first.
func (d *domain) listenNear(ctx context.Context) {
	var t nearToken
	_, _ = rand.Read(t[:]) // never fails
	ln, err := new(net.ListenConfig).Listen(ctx, "unix", t.name())
	if err != nil {
		return
	}
	d.near, d.nearToken = ln, t
	d.wg.Go(func() { d.accept(ln) })
}

// dialNear goes the near way to the domain that has told its token. nil: that
// domain is not on this host, or in another network namespace.
func (d *domain) dialNear(ctx context.Context, t nearToken) *link {
	c, err := new(net.Dialer).DialContext(ctx, "unix", t.name())
	if err != nil {
		return nil
	}
	if tuneNear(c) != nil {
		hangUp(c)
		return nil
	}
	l, err := d.join(ctx, c)
	if err != nil {
		hangUp(c)
		return nil
	}
	return l
}

// dialAsking dials, asks for the target's near listener and goes over to it; or
// stays, if that is not within reach. Neither a connection nor an error: the
// target does not know the question.
func (d *domain) dialAsking(ctx context.Context, addr string) (*link, error) {
	c, err := d.transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if err := d.tune(c); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	r, err := d.greet(ctx, c, flagAsk)
	if err != nil {
		hangUp(c) // refused as malformed, by an older build
		return nil, ctx.Err()
	}
	if t := tokenOf(&r); t != (nearToken{}) {
		if n := d.dialNear(ctx, t); n != nil {
			hangUp(c) // it never became a peer's
			return n, nil
		}
	}
	l, err := d.join(ctx, c)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return l, nil
}

func tuneNear(c net.Conn) error { return c.(*net.UnixConn).SetWriteBuffer(nearBuffer) }

// pools says whether registered memory is passed over a connection.
func (t *Transport) pools(c net.Conn) bool {
	if t.Near {
		_, ok := c.(*net.UnixConn)
		return ok
	}
	return t.Pools
}

// rings says whether a ring may go with a connection: it takes a unix socket.
func (t *Transport) rings(c net.Conn) bool { return t.pools(c) && !t.noRing }

// tune sets the options of a connection, whichever way it came.
func (d *domain) tune(c net.Conn) error {
	if _, ok := c.(*net.UnixConn); ok && d.transport.Near {
		return tuneNear(c)
	}
	return d.transport.Tune(c)
}
