package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/internal/stream"
)

// Name is the provider's name in PeerInfo and LeaseDesc.
const Name = "tcp"

// userTimeout: so long unacknowledged bytes end a connection.
const userTimeout = 30 * time.Second

// keepAlive finds a silent dead host in about half a minute.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// Provider makes tcp domains. The zero value is ready.
type Provider struct {
	// Near: between two domains that both have it and are on one host, in one
	// network namespace, a unix socket takes the place of the TCP connection,
	// and the target copies out of the writer's memory as with shm. A lease is
	// the same either way. Not with TLS.
	Near bool
}

var _ rdma.Provider = Provider{}

// Name is "tcp".
func (Provider) Name() string { return Name }

// Open listens on cfg.Listen, "host:port", if there is one. With cfg.TLS every
// connection is TLS, in both directions.
func (p Provider) Open(ctx context.Context, cfg rdma.Config) (rdma.Domain, error) {
	if c := cfg.TLS; c != nil && cfg.Listen != "" && len(c.Certificates) == 0 && c.GetCertificate == nil && c.GetConfigForClient == nil {
		return nil, errors.New("open tcp domain: TLS without a certificate to listen with")
	}
	return stream.Open(ctx, stream.Transport{Name: Name, Listen: listen, Dial: dial, Tune: tune, Near: p.Near}, cfg)
}

func listen(ctx context.Context, addr string) (net.Listener, string, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, "", err
	}
	return ln, ln.Addr().String(), nil
}

func dial(ctx context.Context, endpoint string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: keepAlive}
	return d.DialContext(ctx, "tcp", endpoint)
}

// tune sets what both directions want. Nagle is off in Go already.
func tune(c net.Conn) error {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return fmt.Errorf("a %T is no TCP connection", c)
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	})
	return errors.Join(err, serr)
}
