package projector

import (
	"time"

	"github.com/pdlog/pdlog/events"
)

// Config is what a node knows of itself. Durations are rounded to
// milliseconds.
type Config struct {
	Node    string
	Role    events.Role
	Ranks   []LocalRank
	Version string
	Dialect string
	// Provider names the rdma provider, for the record only.
	Provider string
	// Place is where local rank 0 of a prefill stands, for the record only.
	Place *events.Place

	Pages    int // decode: pages of the pool, the same on each local rank
	AuxRows  int // decode: rows of the aux buffer; 0 = as many as pages, at least 64
	PageSize int // tokens a page

	Policy           events.Policy
	AckTimeout       time.Duration
	AbortRetry       time.Duration
	BootstrapTimeout time.Duration
	WaitingTimeout   time.Duration
	TransferTimeout  time.Duration

	// Staging: prefill: chunks go through the staging ring of decode ranks that
	// have registered one and run another TP size.
	Staging   bool
	AllowWeak bool // weak_peers=allow: peers that cannot prove a drain are served
	PageCheck bool // the shell can check pages before a success (CheckPages)

	MaxReceipts int // prefill: bounded receipts of ended rooms
	MaxRooms    int // rooms open at once; more are refused
	MaxPeers    int // prefill: decode endpoints that may be registered; more are rejected
	MaxParked   int // prefill: writes to one decode node whose end is not known; with more its new rooms are refused
}

// LocalRank is one rank run by this node.
type LocalRank struct {
	Address string // "ip:port" of its control socket
	WireID  uint32 // prefill_unique_rank (wire.md 4.3)
}

// DefaultConfig has the defaults of scenarios.md and SGLang's time limits.
func DefaultConfig() Config {
	return Config{
		Policy:           events.Policy_POLICY_FENCE,
		PageSize:         64,
		Pages:            64,
		AckTimeout:       5 * time.Second,
		AbortRetry:       time.Second,
		BootstrapTimeout: 300 * time.Second,
		WaitingTimeout:   300 * time.Second,
		TransferTimeout:  30 * time.Second,
		MaxReceipts:      1 << 16,
		MaxRooms:         1 << 20,
		MaxPeers:         1 << 14,
		MaxParked:        1 << 12,
	}
}

func (c *Config) fill() {
	d := DefaultConfig()
	if c.Policy == 0 {
		c.Policy = d.Policy
	}
	for _, f := range []struct{ have, def *time.Duration }{
		{&c.AckTimeout, &d.AckTimeout},
		{&c.AbortRetry, &d.AbortRetry},
		{&c.BootstrapTimeout, &d.BootstrapTimeout},
		{&c.WaitingTimeout, &d.WaitingTimeout},
		{&c.TransferTimeout, &d.TransferTimeout},
	} {
		if *f.have <= 0 {
			*f.have = *f.def
		}
	}
	if c.PageSize <= 0 {
		c.PageSize = d.PageSize
	}
	if c.AuxRows <= 0 {
		c.AuxRows = max(c.Pages, 64)
	}
	if c.MaxReceipts <= 0 {
		c.MaxReceipts = d.MaxReceipts
	}
	if c.MaxRooms <= 0 {
		c.MaxRooms = d.MaxRooms
	}
	if c.MaxPeers <= 0 {
		c.MaxPeers = d.MaxPeers
	}
	if c.MaxParked <= 0 {
		c.MaxParked = d.MaxParked
	}
}

func millis(d time.Duration) uint64 { return uint64(d / time.Millisecond) } //nolint:gosec // positive

func (c *Config) rank(i int) RankID { return MakeRank(c.Node, i) }

// localRank says whether r is one of ours, and which.
func (c *Config) localRank(r RankID) (int, bool) {
	i := r.Index()
	return i, r.Node() == c.Node && i >= 0 && i < len(c.Ranks)
}
