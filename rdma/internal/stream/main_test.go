package stream

import (
	"context"
	"net"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plain is the simplest transport.
var plain = Transport{
	Name: "plain",
	Listen: func(ctx context.Context, addr string) (net.Listener, string, error) {
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
		if err != nil {
			return nil, "", err
		}
		return ln, ln.Addr().String(), nil
	},
	Dial: func(ctx context.Context, endpoint string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", endpoint)
	},
	Tune: func(net.Conn) error { return nil },
}
