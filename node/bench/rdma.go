package bench

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/rdmabench"
	"github.com/pdlog/pdlog/rdma/shm"
	"github.com/pdlog/pdlog/rdma/tcp"
)

// The bars of rdma.md 9.4.
const (
	tcpBar       = 0.9 // of a raw Go TCP copy
	ucxBar       = 2.0 // times UCX over TCP
	shmBar       = 0.75
	shmLargeBar  = 0.8 // of memcpy
	revocations  = 1000
	tcpRevokeBar = 10.0 // µs, p50
	shmRevokeBar = 100.0

	leastRevocations  = 20  // that have to be seen whatever the time
	enoughRevocations = 200 // for a median
)

const kib = 1 << 10

func rdmaCases() []Case {
	return []Case{
		{Name: "rdma/tcp-64KiB", Run: tcpThroughput(64*kib, 0)},
		{Name: "rdma/tcp-256KiB", Share: 2, Run: tcpThroughput(256*kib, tcpBar)},
		{Name: "rdma/tcp-1MiB", Share: 2, Run: tcpThroughput(1024*kib, tcpBar)},
		{Name: "rdma/tcp-ucx-256KiB", Run: tcpAgainstUCX(256 * kib)},
		{Name: "rdma/tcp-ucx-1MiB", Run: tcpAgainstUCX(1024 * kib)},
		{Name: "rdma/tcp-latency-4KiB", Run: tcpLatency(4 * kib)},
		{Name: "rdma/tcp-checksums-256KiB", Run: checksumCost(tcp.Provider{})},
		{Name: "rdma/shm-64KiB", Run: shmThroughput(64*kib, 0)},
		{Name: "rdma/shm-256KiB", Share: 2, Run: shmThroughput(256*kib, shmBar)},
		{Name: "rdma/shm-1MiB", Share: 2, Run: shmThroughput(1024*kib, shmLargeBar)},
		{Name: "rdma/shm-latency-4KiB", Run: shmLatency(4 * kib)},
		{Name: "rdma/shm-checksums-256KiB", Run: checksumCost(shm.Provider{})},
		{Name: "rdma/tcp-revoke-p50", Run: revokeLatency(tcp.Provider{}, tcpRevokeBar)},
		{Name: "rdma/shm-revoke-p50", Run: revokeLatency(shm.Provider{}, shmRevokeBar)},
		{Name: "rdma/tcp-late-bytes", Share: 3, Run: lateBytes(tcp.Provider{})},
		{Name: "rdma/shm-late-bytes", Share: 3, Run: lateBytes(shm.Provider{})},
	}
}

type measure = func(context.Context, Timing) (Result, error)

// pagesOf is how many pages of a size make one walk through the memory (rdma.md
// 4): one batch of a Rate, at whose end all is acknowledged before the next.
func pagesOf(size int) int { return rdmabench.MemBytes / size }

const megabyte = 1e6

// throughput is a stream of acknowledged pages.
func throughput(s *rdmabench.Stream, size int) Side {
	return Rate(float64(size)/megabyte, pagesOf(size), func(ctx context.Context, n int) error { return s.Write(ctx, n, size, 0) })
}

// stream opens a stream for the time of a case.
func stream(ctx context.Context, p rdma.Provider, cfg rdma.Config, use func(*rdmabench.Stream) (Result, error)) (Result, error) {
	s, err := rdmabench.Open(ctx, p, cfg)
	if err != nil {
		return Result{}, err
	}
	r, err := use(s)
	return r, errors.CombineErrors(err, s.Close())
}

func tcpThroughput(size int, bar float64) measure {
	return func(ctx context.Context, t Timing) (Result, error) {
		return stream(ctx, tcp.Provider{}, rdma.Config{}, func(s *rdmabench.Stream) (r Result, err error) {
			raw, err := rdmabench.OpenRawTCP()
			if err != nil {
				return r, err
			}
			defer func() { err = errors.CombineErrors(err, raw.Close()) }()
			limit := Rate(float64(size)/megabyte, pagesOf(size), func(_ context.Context, n int) error { return raw.Copy(n, size) })
			v, a, q, err := Compare(ctx, t, throughput(s, size), limit)
			return Result{Value: v, Unit: "MB/s", Against: fmt.Sprintf("raw TCP copy, %.0f MB/s", a), Ratio: q, Bar: bar}, err
		})
	}
}

func shmThroughput(size int, bar float64) measure {
	return func(ctx context.Context, t Timing) (Result, error) {
		return stream(ctx, shm.Provider{}, rdma.Config{}, func(s *rdmabench.Stream) (r Result, err error) {
			m, err := rdmabench.OpenMemcpy()
			if err != nil {
				return r, err
			}
			defer func() { err = errors.CombineErrors(err, m.Close()) }()
			limit := Rate(float64(size)/megabyte, pagesOf(size), func(_ context.Context, n int) error { m.Copy(n, size); return nil })
			v, a, q, err := Compare(ctx, t, throughput(s, size), limit)
			return Result{Value: v, Unit: "MB/s", Against: fmt.Sprintf("memcpy, %.0f MB/s", a), Ratio: q, Bar: bar}, err
		})
	}
}

// latency is the time of one write until the writer knows that it is in the
// target's memory, µs.
func latency(s *rdmabench.Stream, size int) Side {
	return inverse(Rate(1, 16, func(ctx context.Context, n int) error { return s.Write(ctx, n, size, 1) }))
}

// inverse turns a rate per second into µs each.
func inverse(s Side) Side {
	return func(ctx context.Context, d time.Duration) (float64, error) {
		v, err := s(ctx, d)
		return 1e6 / v, err
	}
}

func tcpLatency(size int) measure {
	return func(ctx context.Context, t Timing) (Result, error) {
		return stream(ctx, tcp.Provider{}, rdma.Config{}, func(s *rdmabench.Stream) (r Result, err error) {
			raw, err := rdmabench.OpenRawTCP()
			if err != nil {
				return r, err
			}
			defer func() { err = errors.CombineErrors(err, raw.Close()) }()
			limit := inverse(Rate(1, 16, func(_ context.Context, n int) error {
				for range n {
					if err := raw.Copy(1, size); err != nil {
						return err
					}
				}
				return nil
			}))
			v, a, q, err := Compare(ctx, t, latency(s, size), limit)
			return Result{Value: v, Unit: "µs", Against: fmt.Sprintf("raw TCP and an answer, %.0f µs", a), Ratio: q}, err
		})
	}
}

func shmLatency(size int) measure {
	return func(ctx context.Context, t Timing) (Result, error) {
		return stream(ctx, shm.Provider{}, rdma.Config{}, func(s *rdmabench.Stream) (Result, error) {
			return stream(ctx, tcp.Provider{}, rdma.Config{}, func(other *rdmabench.Stream) (Result, error) {
				v, a, q, err := Compare(ctx, t, latency(s, size), latency(other, size))
				return Result{Value: v, Unit: "µs", Against: fmt.Sprintf("tcp, %.0f µs", a), Ratio: q}, err
			})
		})
	}
}

// checksumCost is throughput with page checksums beside that without.
func checksumCost(p rdma.Provider) measure {
	const size = 256 * kib
	return func(ctx context.Context, t Timing) (Result, error) {
		return stream(ctx, p, rdma.Config{Checksums: true}, func(s *rdmabench.Stream) (Result, error) {
			return stream(ctx, p, rdma.Config{}, func(plain *rdmabench.Stream) (Result, error) {
				v, a, q, err := Compare(ctx, t, throughput(s, size), throughput(plain, size))
				return Result{Value: v, Unit: "MB/s", Against: fmt.Sprintf("without checksums, %.0f MB/s", a), Ratio: q}, err
			})
		})
	}
}

// revokeLatency is the median over rounds of the median time of a Revoke in the
// middle of a stream.
func revokeLatency(p rdma.Provider, bar float64) measure {
	return func(ctx context.Context, t Timing) (Result, error) {
		return stream(ctx, p, rdma.Config{}, func(s *rdmabench.Stream) (Result, error) {
			var took []float64
			until := time.Now().Add(t.Budget)
			for len(took) < t.Rounds || len(took) < enoughRevocations && time.Now().Before(until) {
				r, err := s.Revoke(ctx)
				if err != nil {
					return Result{}, err
				}
				if r.Cut {
					took = append(took, float64(r.Took.Nanoseconds())/1e3)
				}
			}
			v := Median(took)
			return Result{
				Value: v, Unit: "µs", Against: fmt.Sprintf("%.0f µs, mid-transfer, %d rounds", bar, len(took)),
				Ratio: v / bar, Bar: 1, AtMost: true,
			}, nil
		})
	}
}

// lateBytes counts what lands after a Revoke has returned, in 1,000 revocations
// that cut a stream; where those take longer than the budget, in fewer.
func lateBytes(p rdma.Provider) measure {
	return func(ctx context.Context, t Timing) (Result, error) {
		return stream(ctx, p, rdma.Config{}, func(s *rdmabench.Stream) (Result, error) {
			late, cut := 0, 0
			until := time.Now().Add(t.Budget)
			for cut < leastRevocations || cut < revocations && time.Now().Before(until) {
				r, err := s.Revoke(ctx)
				if err != nil {
					return Result{}, err
				}
				late += r.Late
				if r.Cut {
					cut++
				}
			}
			return Result{
				Value: float64(late), Unit: "bytes", Against: fmt.Sprintf("none, %d revocations mid-transfer", cut),
				Ratio: float64(late), AtMost: true,
			}, nil
		})
	}
}

func tcpAgainstUCX(size int) measure {
	return func(ctx context.Context, t Timing) (Result, error) {
		path, err := exec.LookPath("ucx_perftest")
		if err != nil {
			return Result{}, Unavailablef("ucx_perftest is not installed (Debian's package is ucx-utils)")
		}
		return stream(ctx, tcp.Provider{}, rdma.Config{}, func(s *rdmabench.Stream) (Result, error) {
			v, a, q, err := Compare(ctx, t, throughput(s, size), ucxPut(path, size))
			return Result{Value: v, Unit: "MB/s", Against: fmt.Sprintf("UCX put over TCP, %.0f MB/s", a), Ratio: q, Bar: ucxBar}, err
		})
	}
}

// ucxFinal is the last line of ucx_perftest: iterations, three latencies, then
// the bandwidth of the last moment and of all, MB (2^20) a second.
var ucxFinal = regexp.MustCompile(`(?m)^Final:\s+\d+\s+\S+\s+\S+\s+\S+\s+\S+\s+(\S+)`)

// ucxPut measures ucp_put_bw between two processes over loopback TCP. It writes
// the same buffer again and again, which is to UCX's advantage.
func ucxPut(path string, size int) Side {
	return func(ctx context.Context, d time.Duration) (float64, error) {
		port, err := freePort()
		if err != nil {
			return 0, err
		}
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		args := []string{"-t", "ucp_put_bw", "-s", strconv.Itoa(size), "-p", strconv.Itoa(port)}
		command := func(more ...string) *exec.Cmd {
			c := exec.CommandContext(ctx, path, append(more, args...)...)
			c.Env = append(c.Environ(), "UCX_TLS=tcp", "UCX_NET_DEVICES=lo", "UCX_WARN_UNUSED_ENV_VARS=n")
			return c
		}
		server := command()
		if err := server.Start(); err != nil {
			return 0, errors.Wrap(err, "start ucx_perftest")
		}
		defer func() {
			cancel()
			_ = server.Wait() // has ended with its client, or is killed
		}()
		if err := listening(ctx, port); err != nil {
			return 0, err
		}
		// Half a GB/s is what UCX does here; -n bounds the time.
		n := max(50, int(d.Seconds()*500e6)/size)
		out, err := command("127.0.0.1", "-n", strconv.Itoa(n), "-w", strconv.Itoa(n/10+1)).CombinedOutput()
		m := ucxFinal.FindSubmatch(out)
		if err != nil || m == nil {
			return 0, Unavailablef("ucx_perftest over TCP did not work here: %v: %.200q", err, out)
		}
		v, err := strconv.ParseFloat(string(m[1]), 64)
		return v * (1 << 20) / megabyte, errors.Wrap(err, "read ucx_perftest's answer")
	}
}
