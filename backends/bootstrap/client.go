package bootstrap

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"github.com/cockroachdb/errors"
)

// The sentinels of the Client's errors. ErrNotReady, ErrTimeout and what the
// network says pass by themselves: ask again, and cache nothing (http.md 4).
var (
	// ErrNotReady: 503, not all ranks of the prefill have registered.
	ErrNotReady = errors.New("prefill is not fully registered yet")
	// ErrNoRank: 404, the topology has no such rank.
	ErrNoRank = errors.New("rank is not registered")
	// ErrTimeout: no connection or no answer in time.
	ErrTimeout = errors.New("timed out")
	// ErrAnswer: an answer that this protocol does not know.
	ErrAnswer = errors.New("unexpected answer")
)

// limits bound one question.
type limits struct {
	connect time.Duration // to a connection, new or kept
	read    time.Duration // from there to the end of the answer
	total   time.Duration // both; 0 = their sum
	bytes   int64         // of the answer's body
}

var (
	// probe is for discovery, outstanding and health (wire.md 9.2, http.md 5).
	probe = limits{connect: 2 * time.Second, read: 3 * time.Second, bytes: 256 << 10}

	// ask is for all of SGLang's own questions (http.md 4).
	ask = limits{connect: 5 * time.Second, read: 5 * time.Second, total: 5 * time.Second, bytes: 1 << 20}
)

// dialEnd ends a dial that net/http lets run on after its question is over. It
// is longer than any question waits, so that it never decides one.
const dialEnd = 6 * time.Second

// ClientConfig configures a Client; the zero value is good.
type ClientConfig struct {
	Log *slog.Logger // default slog.DiscardHandler

	// Dial opens a connection to host:port; default a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Jitter returns a random number in [0, 1); default math/rand/v2.
	Jitter func() float64
}

// Client asks bootstrap servers. An addr is always host:port (an IPv6 host in
// brackets). NewClient is the only way to one; Close it at the end.
type Client struct {
	cfg  ClientConfig
	http *http.Client
}

// NewClient returns a client that keeps connections between questions.
func NewClient(cfg ClientConfig) *Client {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{}).DialContext
	}
	if cfg.Jitter == nil {
		cfg.Jitter = rand.Float64
	}
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialEnd)
		defer cancel()
		return cfg.Dial(ctx, network, addr)
	}
	return &Client{cfg: cfg, http: &http.Client{
		// No redirect is followed: its status is what counts.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		// Proxy stays nil: the peers are of this cluster, whatever the environment says.
		Transport: &http.Transport{
			DialContext:            dial,
			DisableCompression:     true, // so that limits.bytes is what comes over the wire
			MaxIdleConnsPerHost:    4,
			IdleConnTimeout:        30 * time.Second, // less than the 75 s of a server
			MaxResponseHeaderBytes: 64 << 10,
		},
	}}
}

// Close closes the connections that are kept.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// do asks one question and returns the status and the whole body. Its errors
// are ErrTimeout, ErrAnswer (a body over the limit), the context's or the
// network's.
func (c *Client) do(ctx context.Context, l limits, method, addr, target string, body []byte) (int, []byte, error) {
	u, err := questionURL(addr, target)
	if err != nil {
		return 0, nil, errors.Wrapf(err, "%s %s", method, target)
	}
	status, answer, err := c.exchange(ctx, l, method, u, body)
	if err != nil {
		return 0, nil, errors.Wrapf(err, "%s http://%s%s", method, addr, u.Path)
	}
	return status, answer, nil
}

// questionURL refuses an address that is more or less than host:port.
func questionURL(addr, target string) (*url.URL, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || port == "" {
		return nil, errors.Newf("address %q is not host:port", addr)
	}
	u, err := url.Parse("http://" + addr + target)
	if err != nil || u.Host != addr {
		return nil, errors.Newf("address %q is not host:port", addr)
	}
	return u, nil
}

func (c *Client) exchange(parent context.Context, l limits, method string, u *url.URL, body []byte) (int, []byte, error) {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	timeout := func() { cancel(ErrTimeout) }
	if l.total > 0 {
		total := time.AfterFunc(l.total, timeout)
		defer total.Stop()
	}
	phase := time.AfterFunc(l.connect, timeout)
	defer phase.Stop()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { phase.Reset(l.read) },
	})
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	// All questions may be asked twice, the registrations too: net/http may
	// repeat one that met a kept connection the server had just closed. An
	// empty value says so without being sent.
	req.Header["Idempotency-Key"] = []string{}

	status, answer, err := c.roundTrip(req, l.bytes)
	if err != nil && ctx.Err() != nil {
		// What broke is not the news, why it was cut off is.
		return 0, nil, context.Cause(ctx)
	}
	return status, answer, err
}

func (c *Client) roundTrip(req *http.Request, limit int64) (int, []byte, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if e := resp.Body.Close(); err == nil {
		err = e
	}
	if err == nil && int64(len(answer)) > limit {
		err = errors.Wrapf(ErrAnswer, "more than %d bytes", limit)
	}
	return resp.StatusCode, answer, err
}

// Health reports that the process behind addr lives: status 200 to GET
// /health within 2 s to connect and 3 s to read. See Heartbeat for what to
// make of it.
func (c *Client) Health(ctx context.Context, addr string) bool {
	status, _, err := c.do(ctx, probe, http.MethodGet, addr, "/health", nil)
	if err != nil || status != http.StatusOK {
		c.cfg.Log.Debug("health check failed", "addr", addr, "status", status, "err", err)
		return false
	}
	return true
}

// Rank asks for the address of one rank, within 5 s. ErrNotReady and
// ErrNoRank say what they say.
func (c *Client) Rank(ctx context.Context, addr string, dp, cp, tp, pp int) (Rank, error) {
	p := place{dp, cp, tp, pp}
	status, body, err := c.do(ctx, ask, http.MethodGet, addr, "/route?"+p.rawQuery(), nil)
	if err != nil {
		return Rank{}, err
	}
	if err := routeStatus(status); err != nil {
		return Rank{}, errors.Wrapf(err, "rank dp=%d cp=%d tp=%d pp=%d of %s", dp, cp, tp, pp, addr)
	}
	r, err := parseRankAnswer(body)
	if err != nil {
		return Rank{}, errors.Wrapf(badAnswer(err), "rank dp=%d cp=%d tp=%d pp=%d of %s", dp, cp, tp, pp, addr)
	}
	return Rank{DP: dp, TP: tp, CP: cp, PP: pp, IP: r.IP, Port: r.Port}, nil
}

func parseRankAnswer(body []byte) (rankAnswer, error) {
	o, err := parseObject(body)
	if err != nil {
		return rankAnswer{}, err
	}
	f := fields{o: o}
	r := rankAnswer{f.address("rank_ip"), f.port("rank_port")}
	return r, f.err
}

// routeStatus is the error of a status of GET /route, nil for 200.
func routeStatus(status int) error {
	switch status {
	case http.StatusOK:
		return nil
	case http.StatusServiceUnavailable:
		return ErrNotReady
	case http.StatusNotFound:
		return ErrNoRank
	}
	return errStatus(status)
}

// badAnswer says that an answer could be read and is not the protocol's.
func badAnswer(why error) error { return fmt.Errorf("%w: %w", ErrAnswer, why) }

func errStatus(status int) error { return errors.Wrap(ErrAnswer, "status "+strconv.Itoa(status)) }

// AddrPort parses the rank's address: ranks are the same peer if these are
// equal, their text may differ. The zero value if IP is no address.
func (r Rank) AddrPort() netip.AddrPort {
	a, ok := parseIP(r.IP)
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Unmap(), r.Port)
}
