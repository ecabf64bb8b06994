package bootstrap

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipeNet dials in-memory connections, so that time is the test's.
type pipeNet struct {
	serve func(net.Conn) // nil: no connection ever comes
	conns sync.WaitGroup // and dials: net/http may let one run on
}

func (p *pipeNet) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	p.conns.Add(1)
	defer p.conns.Done()
	if p.serve == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	ours, theirs := net.Pipe()
	p.conns.Go(func() {
		defer func() { _ = theirs.Close() }()
		p.serve(theirs)
	})
	return ours, nil
}

// mute reads one request and never answers; slow answers half and stops.
func mute(c net.Conn) { answerAndWait(c, "") }

func slow(c net.Conn) {
	answerAndWait(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"node\"")
}

func answerAndWait(c net.Conn, answer string) {
	r := bufio.NewReader(c)
	if _, err := http.ReadRequest(r); err != nil {
		return
	}
	if _, err := c.Write([]byte(answer)); err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, r) // until the client goes
}

func TestQuestionsEndInTime(t *testing.T) {
	const addr = "10.0.0.2:8998"
	type question func(ctx context.Context, c *Client) error
	discover := func(ctx context.Context, c *Client) error {
		if _, ok, err := c.Discover(ctx, addr); ok || err != nil {
			t.Errorf("discover: %v %v", ok, err)
		}
		return ErrTimeout
	}
	health := func(ctx context.Context, c *Client) error {
		if c.Health(ctx, addr) {
			t.Error("healthy")
		}
		return ErrTimeout
	}
	topology := func(ctx context.Context, c *Client) error {
		_, err := c.Topology(ctx, addr, local)
		return err
	}
	rank := func(ctx context.Context, c *Client) error {
		_, err := c.Rank(ctx, addr, 0, 0, 0, 0)
		return err
	}
	outstanding := func(ctx context.Context, c *Client) error {
		_, err := c.Outstanding(ctx, addr, Asker{Node: "d0", Boot: 1})
		return err
	}
	dpRanks := func(ctx context.Context, c *Client) error {
		_, err := c.QueryDPRanks(ctx, addr, []uint64{1})
		return err
	}
	for _, tc := range []struct {
		name string
		ask  question
		net  func(net.Conn)
		want time.Duration
	}{
		{"discover, no connection", discover, nil, 2 * time.Second},
		{"discover, no answer", discover, mute, 3 * time.Second},
		{"discover, half an answer", discover, slow, 3 * time.Second},
		{"health, no connection", health, nil, 2 * time.Second},
		{"health, no answer", health, mute, 3 * time.Second},
		{"outstanding, no answer", outstanding, mute, 3 * time.Second},
		{"topology, no connection", topology, nil, 5 * time.Second},
		{"topology, no answer", topology, mute, 5 * time.Second},
		{"topology, half an answer", topology, slow, 5 * time.Second},
		{"rank, no answer", rank, mute, 5 * time.Second},
		{"dp ranks, no answer", dpRanks, mute, 5 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &pipeNet{serve: tc.net}
				c := NewClient(ClientConfig{Dial: p.dial})
				start := time.Now()
				err := tc.ask(t.Context(), c)
				if took := time.Since(start); took != tc.want || !errors.Is(err, ErrTimeout) {
					t.Errorf("%v after %v, want %v", err, took, tc.want)
				}
				c.Close()
				p.conns.Wait()
			})
		})
	}
}

// TestRegisterNeverGivesUp: fifty refusals, SGLang gives up after five (F34).
func TestRegisterNeverGivesUp(t *testing.T) {
	for _, jitter := range []float64{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			const refusals = 50
			refused := errors.New("connection refused")
			dials := 0
			var p pipeNet
			p.serve = func(c net.Conn) {
				answerAndWait(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nOK")
			}
			c := NewClient(ClientConfig{
				Jitter: func() float64 { return jitter },
				Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
					if dials++; dials <= refusals {
						return nil, refused
					}
					return p.dial(ctx, network, addr)
				},
			})
			var at []time.Duration
			start := time.Now()
			err := c.Register(t.Context(), "10.0.0.2:8998", aRank(0, 1), func(s RegisterState) {
				at = append(at, time.Since(start))
				wantReady, attempt := len(at) == refusals+2, len(at)-1
				if s.Ready != wantReady || s.Attempts != attempt || (attempt > 0 && !wantReady) != errors.Is(s.Err, refused) {
					t.Errorf("state %d: %+v", len(at)-1, s)
				}
			})
			if err != nil || len(at) != refusals+2 {
				t.Fatalf("%v, told %d times", err, len(at))
			}
			for i, want := range []time.Duration{0, 1, 2, 4, 8, 16, 30, 30} {
				want = time.Duration(float64(want*time.Second) * (0.75 + 0.25*jitter))
				if got := at[i+1] - at[i]; got != want {
					t.Errorf("pause %d: %v, want %v", i, got, want)
				}
			}
			c.Close()
			p.conns.Wait()
		})
	}
}

func TestRegisterEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClient(ClientConfig{
			Jitter: func() float64 { return 1 },
			Dial:   func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") },
		})
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
		defer cancel()
		start := time.Now()
		last := RegisterState{}
		err := c.Register(ctx, "10.0.0.2:8998", aRank(0, 1), func(s RegisterState) { last = s })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 100*time.Second || last.Ready || last.Attempts != 8 {
			t.Errorf("%v after %v, %+v", err, time.Since(start), last)
		}
	})
}
