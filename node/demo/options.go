package demo

import (
	"fmt"
	"strings"
	"time"

	"github.com/pdlog/pdlog/rdma/fault"
)

// Options are the flags of `pdnode demo` (cli.md).
type Options struct {
	Trace           string // file; empty: the generator
	Requests        int
	Speed           float64 // 1 = as recorded, 0 = as fast as it goes
	PrefillRanks    int
	DecodeRanks     int
	BytesPerToken   int // over all prefill ranks together
	PageTokens      int
	Pages           int // of the decode pool
	ChunkTokens     int // handed to the node at a time, as with chunked prefill
	AbortPercent    float64
	Backend         string // mooncake, nixl, mori
	Provider        string // auto, tcp, shm, verbs
	Checksums       bool   // pages are sent with checksums, and checked before a success
	ReleasePolicy   string // fence, hold, timeout
	AckTimeout      time.Duration
	TransferTimeout time.Duration
	Fault           string // cli.md: KIND[:DURATION][:PERCENT],...
	Seed            uint64
	DataDir         string // empty: a new temporary directory
	Keep            bool
}

// DefaultOptions has the defaults of cli.md.
func DefaultOptions() Options {
	return Options{
		Requests:        200,
		PrefillRanks:    2,
		DecodeRanks:     1,
		BytesPerToken:   1024,
		PageTokens:      64,
		Pages:           4096,
		ChunkTokens:     2048,
		AbortPercent:    20,
		Backend:         "mooncake",
		Provider:        "tcp",
		ReleasePolicy:   "fence",
		AckTimeout:      2 * time.Second,
		TransferTimeout: 10 * time.Second,
		Seed:            1,
	}
}

// OptionError is a flag value that cannot be used.
type OptionError struct {
	Flag string
	What string
}

// Error implements error.
func (e *OptionError) Error() string { return fmt.Sprintf("--%s: %s", e.Flag, e.What) }

// maxRanks: more stand-in ranks than this on one machine show nothing new.
const maxRanks = 64

// Validate checks what can be checked without touching anything. The error is
// an *OptionError.
func (o Options) Validate() error {
	bad := func(flag, format string, args ...any) error {
		return &OptionError{Flag: flag, What: fmt.Sprintf(format, args...)}
	}
	for _, c := range []struct {
		flag   string
		v      int
		lo, hi int
	}{
		{"requests", o.Requests, 1, 10_000_000},
		{"prefill-ranks", o.PrefillRanks, 1, maxRanks},
		{"decode-ranks", o.DecodeRanks, 1, maxRanks},
		{"bytes-per-token", o.BytesPerToken, 1, 1 << 24},
		{"page-tokens", o.PageTokens, 1, 1 << 16},
		{"pages", o.Pages, 1, 1 << 24},
		{"chunk-tokens", o.ChunkTokens, 1, maxInput},
	} {
		if c.v < c.lo || c.v > c.hi {
			return bad(c.flag, "%d is not between %d and %d", c.v, c.lo, c.hi)
		}
	}
	for _, c := range []struct {
		flag, v string
		words   []string
	}{
		{"backend", o.Backend, []string{"mooncake", "nixl", "mori"}},
		{"provider", o.Provider, []string{"auto", "tcp", "shm", "verbs"}},
		{"release-policy", o.ReleasePolicy, []string{"fence", "hold", "timeout"}},
	} {
		if !oneOf(c.v, c.words) {
			return bad(c.flag, "%q is none of %v", c.v, c.words)
		}
	}
	if !(o.Speed >= 0) || o.Speed > 1e6 {
		return bad("speed", "%g is not between 0 and 1e6", o.Speed)
	}
	if !(o.AbortPercent >= 0) || o.AbortPercent > 100 {
		return bad("abort-percent", "%g is not between 0 and 100", o.AbortPercent)
	}
	for flag, d := range map[string]time.Duration{"ack-timeout": o.AckTimeout, "transfer-timeout": o.TransferTimeout} {
		if d < time.Millisecond || d > 24*time.Hour {
			return bad(flag, "%s is not between 1ms and 24h", d)
		}
	}
	many := max(o.PrefillRanks, o.DecodeRanks)
	if few := min(o.PrefillRanks, o.DecodeRanks); many%few != 0 {
		return bad("decode-ranks", "%d and %d prefill ranks: one must be a multiple of the other", o.DecodeRanks, o.PrefillRanks)
	}
	if _, err := fault.ParseSpec(o.Fault); err != nil {
		return bad("fault", "%s", strings.TrimPrefix(err.Error(), "fault spec: "))
	}
	if page := o.PageTokens * o.BytesPerToken; page%(8*many) != 0 {
		return bad("bytes-per-token", "a page of %d tokens has %d bytes: not divisible into %d parts of whole 8-byte words", o.PageTokens, page, many)
	}
	return nil
}

func oneOf(s string, words []string) bool {
	for _, w := range words {
		if s == w {
			return true
		}
	}
	return false
}
