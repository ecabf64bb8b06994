package bench

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/cockroachdb/errors"
)

func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := ln.Addr().(*net.TCPAddr).Port
	return port, ln.Close()
}

// listening waits until somebody listens at the port, without connecting to it:
// ucx_perftest takes the first connection for its client.
func listening(ctx context.Context, port int) error {
	want := fmt.Sprintf(":%04X ", port)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, f := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			b, err := os.ReadFile(f)
			if err != nil && !os.IsNotExist(err) {
				return err
			}
			for line := range strings.SplitSeq(string(b), "\n") {
				if fields := strings.Fields(line); len(fields) > 3 && fields[3] == "0A" && strings.Contains(fields[1]+" ", want) {
					return nil
				}
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Wrapf(ctx.Err(), "nobody listens at port %d", port)
		}
	}
}
