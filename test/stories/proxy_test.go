package stories

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/store/mirror/mirrortest"
)

// proxyEnv makes this binary the proxy: the port that it listens on, and a seed.
const proxyEnv = "PDLOG_STORY_PROXY"

const (
	proxyPort  = 9000
	meanDelay  = 4 * time.Millisecond
	clogOne    = 2000 // of so many pieces, one stops its direction for a while
	longestJam = 1500 * time.Millisecond
)

// proxyMain passes redirected connections on to where they were going. Each piece
// takes its time; each direction of each connection stops at times, on its own: what
// was stopped first need not come free first.
func proxyMain() {
	seed, err := strconv.ParseUint(os.Getenv(proxyEnv), 10, 64)
	if err != nil {
		return
	}
	go mirrortest.EndWithParent()
	ln, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", proxyPort))
	if err != nil {
		fmt.Fprintln(os.Stderr, "proxy:", err)
		os.Exit(1)
	}
	for i := uint64(0); ; i++ {
		c, err := ln.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, "proxy:", err)
			os.Exit(1)
		}
		go pass(c.(*net.TCPConn), rand.NewPCG(seed, i)) //nolint:forcetypeassert // of a TCP listener
	}
}

func pass(near *net.TCPConn, src rand.Source) {
	defer func() { _ = near.Close() }()
	to, err := originalTarget(near)
	if err != nil {
		return // not redirected: somebody asks whether it listens
	}
	far, err := net.DialTimeout("tcp4", to, 5*time.Second)
	if err != nil {
		return // the near end sees its connection close
	}
	defer func() { _ = far.Close() }()
	var mu sync.Mutex
	rng := rand.New(src) //nolint:gosec // dice
	var wg sync.WaitGroup
	for _, dir := range [][2]net.Conn{{near, far}, {far, near}} {
		wg.Go(func() {
			delayed(dir[1], dir[0], func() time.Duration {
				mu.Lock()
				defer mu.Unlock()
				if rng.IntN(clogOne) == 0 {
					return time.Duration(rng.Int64N(int64(longestJam)))
				}
				return time.Duration(rng.ExpFloat64() * float64(meanDelay))
			})
			_, _ = near.Close(), far.Close()
		})
	}
	wg.Wait()
}

// piece is bytes and when they may go on.
type piece struct {
	b  []byte
	at time.Time
}

func delayed(to io.Writer, from io.Reader, delay func() time.Duration) {
	line := make(chan piece, 256)
	go func() {
		defer close(line)
		for {
			buf := make([]byte, 64<<10)
			n, err := from.Read(buf)
			if n > 0 {
				line <- piece{buf[:n], time.Now().Add(delay())}
			}
			if err != nil {
				return
			}
		}
	}()
	broken := false
	for p := range line {
		if broken {
			continue
		}
		<-time.After(time.Until(p.at))
		_, err := to.Write(p.b)
		broken = err != nil
	}
}

// originalTarget is where a redirected connection was going (SO_ORIGINAL_DST).
func originalTarget(c *net.TCPConn) (string, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return "", err
	}
	var addr *unix.IPv6Mreq // the kernel's sockaddr_in, in something of 20 bytes
	var serr error
	if err := raw.Control(func(fd uintptr) {
		addr, serr = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, 80) //nolint:gosec // a descriptor
	}); err != nil {
		return "", err
	}
	if serr != nil {
		return "", serr
	}
	b := addr.Multiaddr
	return net.JoinHostPort(net.IPv4(b[4], b[5], b[6], b[7]).String(), strconv.Itoa(int(binary.BigEndian.Uint16(b[2:4])))), nil
}

// startProxy runs the proxy on the router, for connections between two hosts.
func (w *network) startProxy(ctx context.Context, a, b string, seed uint64) {
	w.t.Helper()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, w.enter("r")[0], append(w.enter("r")[1:], self)...) //nolint:gosec // this binary
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", proxyEnv, seed))
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	awaitListener(w.t, w.router("x", proxyPort))
	w.redirect(a, b, proxyPort)
}

func awaitListener(t *testing.T, addr string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatalf("nobody listens on %s: %v", addr, err)
		}
	}
}
