package bootstrap

import (
	"encoding/hex"
	"log/slog"
	"sync"
	"time"

	"github.com/cockroachdb/errors"
)

// TopologyKeys says which key set the topology answer has (http.md 4).
type TopologyKeys string

// The key sets.
const (
	TopologyKeysBase   TopologyKeys = "base"   // 15 keys, right for old peers; the default
	TopologyKeysPolicy TopologyKeys = "policy" // and decode_allocation_policy
)

// AllocationPolicy says when a decode allocates its pages.
type AllocationPolicy string

// The policies SGLang knows.
const (
	AllocateEarly           AllocationPolicy = "early" // the default
	AllocatePrefillComplete AllocationPolicy = "prefill_complete"
)

// Config configures a Server. Node, Boot and Incarnation are needed; the
// rest has defaults.
type Config struct {
	Node        string // 1-128 bytes of 0x21-0x7e without a slash
	Boot        uint64 // not 0
	Incarnation uint64 // 1 or more
	Version     string // for people only

	// LogSince is the hybrid logical clock of the oldest event that the log
	// still holds; nil means 0.
	LogSince func() uint64
	// LogID is the log's 128-bit identity, or empty: then the key is left out.
	LogID []byte

	// Curve is the node's public key (Z85), if its control sockets take CURVE
	// alone; else the key is left out.
	Curve string

	// Extension switches pdlog's own two questions on.
	Extension bool

	TopologyKeys           TopologyKeys     // default TopologyKeysBase
	DecodeAllocationPolicy AllocationPolicy // default AllocateEarly

	// OwnRanks are the ranks run by this node; nil means none.
	OwnRanks func() []Rank

	// Outstanding says whether the log holds another life of the node than
	// boot and how many tokens to those lives are open or uncertain. On an
	// error, or if it is nil, the question is answered with 503: only a true
	// 0 may free an amnesiac decode (wire.md 9.2).
	Outstanding func(a Asker) (known bool, open uint64, err error)

	Now func() time.Time // default time.Now
	Log *slog.Logger     // default slog.DiscardHandler
}

// Stats are a Server's counters and gauges.
type Stats struct {
	Registrations    uint64 // accepted, repeated ones included
	BadRegistrations uint64 // refused
	TopologyChanges  uint64 // registrations that dropped another topology
	Ranks            int    // distinct ranks of the current topology
	Expected         uint64 // ranks that make it complete; 0 before the first
	Ready            bool
	DPRanks          int // rooms in the dp-rank table, expired ones not yet swept included
}

// Server is the bootstrap server of one prefill node: an http.Handler, see
// http.go. New is the only way to one.
type Server struct {
	cfg Config

	mu      sync.Mutex // guards all below; a leaf: nothing is called under it
	table   table
	dpRanks *dpRanks
	stats   Stats // the counters alone
}

// New checks the configuration and fills in its defaults.
func New(cfg Config) (*Server, error) {
	switch {
	case !validNode(cfg.Node):
		return nil, errors.Newf("bootstrap: bad node name %q", cfg.Node)
	case cfg.Boot == 0:
		return nil, errors.New("bootstrap: boot is 0")
	case cfg.Incarnation == 0:
		return nil, errors.New("bootstrap: incarnation is 0")
	case len(cfg.LogID) != 0 && len(cfg.LogID) != 16:
		return nil, errors.Newf("bootstrap: log id has %d bytes, not 16", len(cfg.LogID))
	}
	if cfg.TopologyKeys == "" {
		cfg.TopologyKeys = TopologyKeysBase
	}
	if cfg.TopologyKeys != TopologyKeysBase && cfg.TopologyKeys != TopologyKeysPolicy {
		return nil, errors.Newf("bootstrap: topology_keys %q is neither base nor policy", cfg.TopologyKeys)
	}
	if cfg.DecodeAllocationPolicy == "" {
		cfg.DecodeAllocationPolicy = AllocateEarly
	}
	if cfg.DecodeAllocationPolicy != AllocateEarly && cfg.DecodeAllocationPolicy != AllocatePrefillComplete {
		return nil, errors.Newf("bootstrap: decode_allocation_policy %q is neither early nor prefill_complete", cfg.DecodeAllocationPolicy)
	}
	if cfg.LogSince == nil {
		cfg.LogSince = func() uint64 { return 0 }
	}
	if cfg.OwnRanks == nil {
		cfg.OwnRanks = func() []Rank { return nil }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: cfg, table: table{limit: maxRanks}, dpRanks: newDPRanks(maxDPRanks)}, nil
}

// Register enters a rank of this process, as PUT /route does for another's.
// It fails for a value out of range and then changes nothing.
func (s *Server) Register(r Registration) error {
	if r.LoadBalanceMethod == "" {
		r.LoadBalanceMethod = FollowBootstrapRoom
	}
	err := r.Validate()
	if err == nil {
		err = s.register(r)
	} else {
		s.countBad()
	}
	return errors.Wrap(err, "bootstrap: register rank")
}

// register enters a valid registration.
func (s *Server) register(r Registration) error {
	s.mu.Lock()
	before, ranks := s.table.shape, len(s.table.ranks)
	changed, err := s.table.put(r)
	if err != nil {
		s.stats.BadRegistrations++
	} else {
		s.stats.Registrations++
	}
	if changed {
		s.stats.TopologyChanges++
	}
	after, ready := s.table.shape, s.table.ready()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	_, p := shapeAndPlace(r)
	if changed {
		// Two ranks that disagree show up as this line again and again.
		s.cfg.Log.Warn("a registration with another topology dropped all ranks",
			"rank_ip", r.RankIP, "rank_port", r.RankPort, "dropped", ranks,
			"from", before.String(), "to", after.String())
	}
	s.cfg.Log.Debug("rank registered", "dp", p.dp, "cp", p.cp, "tp", p.tp, "pp", p.pp,
		"rank_ip", r.RankIP, "rank_port", r.RankPort, "ready", ready)
	return nil
}

func (s *Server) countBad() {
	s.mu.Lock()
	s.stats.BadRegistrations++
	s.mu.Unlock()
}

// Ready reports that the current topology is complete (http.md 3).
func (s *Server) Ready() bool { return s.Stats().Ready }

// Stats returns the counters and gauges as they are now.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Ranks = len(s.table.ranks)
	if s.table.ranks != nil {
		st.Expected = s.table.shape.expected()
	}
	st.Ready = s.table.ready()
	st.DPRanks = len(s.dpRanks.rooms)
	return st
}

func (s *Server) nodeAnswer() nodeAnswer {
	return nodeAnswer{
		Node:        s.cfg.Node,
		Boot:        formatBoot(s.cfg.Boot),
		Incarnation: s.cfg.Incarnation,
		Version:     s.cfg.Version,
		Ranks:       sortedRanks(s.cfg.OwnRanks()),
		LogSince:    s.cfg.LogSince(),
		LogID:       hex.EncodeToString(s.cfg.LogID),
		Features:    []string{FeaturePDX1},
		Curve:       s.cfg.Curve,
	}
}
