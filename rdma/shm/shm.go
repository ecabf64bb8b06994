package shm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/internal/stream"
)

// Name is the provider's name in PeerInfo and LeaseDesc.
const Name = "shm"

// ListenAny makes up an abstract name to listen at.
const ListenAny = "unix:@"

const scheme = "unix:"

// Provider makes shm domains. The zero value is ready.
type Provider struct{}

var _ rdma.Provider = Provider{}

// Name is "shm".
func (Provider) Name() string { return Name }

// Open listens on cfg.Listen, "unix:/path", "unix:@name" or ListenAny, if there
// is one. A socket file that a dead process has left is replaced.
func (Provider) Open(ctx context.Context, cfg rdma.Config) (rdma.Domain, error) {
	return stream.Open(ctx, stream.Transport{Name: Name, Listen: listen, Dial: dial, Tune: tune, Pools: true}, cfg)
}

func parse(endpoint string) (string, error) {
	name, ok := strings.CutPrefix(endpoint, scheme)
	if !ok || name == "" || name[0] != '/' && name[0] != '@' {
		return "", fmt.Errorf("shm address %q: want unix:/path or unix:@name", endpoint)
	}
	return name, nil
}

func listen(ctx context.Context, addr string) (net.Listener, string, error) {
	name, err := parse(addr)
	if err != nil {
		return nil, "", err
	}
	if name == "@" {
		name = "@pdlog-" + rand.Text()
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "unix", name)
	if errors.Is(err, unix.EADDRINUSE) && abandoned(ctx, name) {
		if err := os.Remove(name); err != nil {
			return nil, "", fmt.Errorf("replace an abandoned socket: %w", err)
		}
		ln, err = new(net.ListenConfig).Listen(ctx, "unix", name)
	}
	if err != nil {
		return nil, "", err
	}
	return ln, scheme + name, nil
}

// abandoned says whether name is a socket file that nobody listens at.
func abandoned(ctx context.Context, name string) bool {
	st, err := os.Lstat(name)
	if err != nil || st.Mode().Type() != os.ModeSocket {
		return false
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", name)
	if err == nil {
		_ = c.Close() // somebody is there
	}
	return errors.Is(err, unix.ECONNREFUSED)
}

func dial(ctx context.Context, endpoint string) (net.Conn, error) {
	name, err := parse(endpoint)
	if err != nil {
		return nil, err
	}
	return new(net.Dialer).DialContext(ctx, "unix", name)
}

// sndbuf of a socket: so that frames with payload do not crawl.
const sndbuf = 1 << 20

func tune(c net.Conn) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("a %T is no unix connection", c)
	}
	return u.SetWriteBuffer(sndbuf)
}
