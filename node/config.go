package node

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/backends/bootstrap"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/rdma/fault"
	"github.com/pdlog/pdlog/store"
	"github.com/pdlog/pdlog/store/mirror"
)

// Config is everything a node is told. The zero value does not run: start from
// DefaultConfig. Keys are those of the YAML file, of PDNODE_ variables
// (PDNODE_NATS_EMBEDDED for nats.embedded) and of flags (--nats.embedded,
// --page-size).
type Config struct {
	Node      string   `koanf:"node"`      // stable name; 1-128 bytes of 0x21-0x7e without "/"
	Role      string   `koanf:"role"`      // prefill or decode
	Ranks     int      `koanf:"ranks"`     // local ranks (tensor parallel); 0: prefill, a bootstrap server for others alone
	Dialect   string   `koanf:"dialect"`   // mooncake, nixl or mori
	DataDir   string   `koanf:"data_dir"`  // holds log/, nats/ and the socket
	Listen    string   `koanf:"listen"`    // host the control sockets and the data plane bind to
	Advertise string   `koanf:"advertise"` // host told to peers; empty = listen
	Bootstrap string   `koanf:"bootstrap"` // prefill: host:port of the bootstrap server; port 0 = any
	Peers     []string `koanf:"peers"`     // decode: bootstrap addresses of the prefill nodes
	Socket    string   `koanf:"socket"`    // engine API; empty = data_dir/pdnode.sock
	// Who may use the socket.
	SocketMode  string `koanf:"socket_mode"`  // mode of the socket, in octal
	SocketGroup string `koanf:"socket_group"` // group of the socket; empty = the process's own

	PageSize int    `koanf:"page_size"`      // tokens a page
	Pages    int    `koanf:"pages"`          // decode: pages of the pool, on each rank
	AuxRows  int    `koanf:"aux_rows"`       // decode: rows of the aux buffer; 0 = as many as pages, at least 64
	DType    string `koanf:"kv_cache_dtype"` // must be the same on both sides

	// Pdlog's own frames and questions (wire.md 9). Without them the
	// node is an SGLang rank to everybody: no proofs, no keys for our providers.
	Extension bool `koanf:"extension"`
	// What a prefill's bootstrap server says (http.md).
	TopologyKeys           string `koanf:"topology_keys"`            // prefill: the key set of the bootstrap server's topology answer
	DecodeAllocationPolicy string `koanf:"decode_allocation_policy"` // prefill: the policy in the topology answer, with topology_keys policy
	RegisterOwn            bool   `koanf:"register_own"`             // prefill: this node's own ranks are registered at its bootstrap server
	// Prefill: bootstrap servers of others at which a prefill registers its
	// ranks as well: those of the other hosts of its instance. It is not ready
	// before each of them has all of its ranks, and never gives up (F34).
	RegisterAt []string `koanf:"register_at"`
	// Prefill: told to decode; with follow_bootstrap_room a room's DP
	// rank is its number modulo dp_size, with any other word decode asks for it.
	LoadBalanceMethod string `koanf:"load_balance_method"`
	// Topology is the place of a prefill's local ranks in their instance.
	Topology TopologyConfig `koanf:"topology"`

	// Decode: what happens to the pages of an aborted room whose writers do not
	// answer: fence takes the keys away and quarantines where that proves nothing;
	// hold keeps the pages; timeout frees them unsafely, to compare.
	ReleasePolicy    string        `koanf:"release_policy"`
	AckTimeout       time.Duration `koanf:"ack_timeout"`       // decode: from an ABORT to the fence of the ranks that have not answered
	AbortRetry       time.Duration `koanf:"abort_retry"`       // decode: interval of repeated ABORTs
	BootstrapTimeout time.Duration `koanf:"bootstrap_timeout"` // from the opening of a room to its metadata
	WaitingTimeout   time.Duration `koanf:"waiting_timeout"`   // from the metadata to the first data
	TransferTimeout  time.Duration `koanf:"transfer_timeout"`  // decode: without data, ends the room; prefill: of one write, makes it uncertain
	Heartbeat        time.Duration `koanf:"heartbeat"`         // decode: interval of probes of each prefill node
	WeakPeers        string        `koanf:"weak_peers"`        // refuse or allow peers that cannot prove a drain
	EngineTimeout    time.Duration `koanf:"engine_timeout"`    // an engine that left and is not back after it has left its rooms; 0 = never
	StopGrace        time.Duration `koanf:"stop_grace"`        // how long open rooms may still end after SIGTERM
	// Decode: how the prefill peers that are not pdlog answer an ABORT:
	// v2 when their writes have drained, v1 with a receipt, which proves nothing
	// and makes them weak (wire.md 1.5, F44, F45).
	SGLangAckForm string `koanf:"sglang_ack_form"`

	RDMA  RDMAConfig  `koanf:"rdma"`
	Curve CurveConfig `koanf:"curve"`
	NATS  NATSConfig  `koanf:"nats"`
	Log   LogConfig   `koanf:"log"`

	Store StoreConfig `koanf:"store"`

	Metrics MetricsConfig `koanf:"metrics"`
	Engine  EngineConfig  `koanf:"engine"`
	HTTP    HTTPConfig    `koanf:"http"`
	Traces  TracesConfig  `koanf:"traces"`
	Limits  LimitsConfig  `koanf:"limits"`
}

// TLSConfig names PEM files. They are read again when they change, so that
// certificates can be renewed under a running node.
type TLSConfig struct {
	Cert     string `koanf:"cert"`      // PEM, the certificate that is shown; empty = no TLS
	Key      string `koanf:"key"`       // PEM, its key
	ClientCA string `koanf:"client_ca"` // who signs the clients' certificates; empty = they need none
}

// EngineConfig is the engine API on TCP, beside the socket: with mutual TLS
// alone, for who may call it may move and free pages.
type EngineConfig struct {
	Listen string    `koanf:"listen"` // host:port; empty = not on TCP
	TLS    TLSConfig `koanf:"tls"`
}

// HTTPConfig is the page for people, with the views, metrics and probes.
type HTTPConfig struct {
	Listen string    `koanf:"listen"` // host:port; port 0 = any; empty = none. Beyond this host it takes TLS
	TLS    TLSConfig `koanf:"tls"`
	// A file with the token that actions (drain, abort, fence, release) need;
	// empty = the page can only be looked at.
	TokenFile string `koanf:"token_file"`
}

// LimitsConfig bounds what others can make the node hold.
type LimitsConfig struct {
	Rooms        int `koanf:"rooms"`         // open at once
	Peers        int `koanf:"peers"`         // prefill: decode endpoints registered
	Chunks       int `koanf:"chunks"`        // prefill: waiting for a timeline
	Parked       int `koanf:"parked"`        // prefill: writes to one decode node whose end is not known; with more, its new rooms are refused
	MessageBytes int `koanf:"message_bytes"` // of one call of the engine API
	FrameBytes   int `koanf:"frame_bytes"`   // of one frame on the control sockets
}

// TopologyConfig places the local ranks of a prefill in an instance that spans
// hosts: they are the TP ranks tp_rank, tp_rank+1 … of one pipeline stage, one
// CP rank and one DP group (wire.md 4.3).
type TopologyConfig struct {
	TPSize int `koanf:"tp_size"` // attention TP ranks of the instance; 0 = the local ones
	TPRank int `koanf:"tp_rank"` // of local rank 0
	PPSize int `koanf:"pp_size"` // pipeline stages of the instance
	PPRank int `koanf:"pp_rank"` // stage of the local ranks
	CPSize int `koanf:"cp_size"` // context parallel ranks of the instance
	CPRank int `koanf:"cp_rank"` // CP rank of the local ranks
	DPSize int `koanf:"dp_size"` // data parallel groups of the instance
	DPRank int `koanf:"dp_rank"` // group of the local ranks
}

// RDMAConfig is the data plane.
type RDMAConfig struct {
	Provider  string `koanf:"provider"`   // auto (tcp, and past the network where both nodes are on one host and say auto), tcp, shm (both nodes on one host), or verbs (a build with the tag verbs)
	Device    string `koanf:"device"`     // of verbs; empty = the first
	Fault     string `koanf:"fault"`      // prefill: faults of writes, "late:500ms:30%,hang:5%"; decode: of fences, "slowfence:1s:5%,badfence:1%"
	FaultSeed int64  `koanf:"fault_seed"` // the same seed draws the same faults
	Conns     int    `koanf:"conns"`      // connections per peer; 0 = the provider's own number
	// Each write is sent with the CRC-32C of its source, checked as it
	// lands and again before a room succeeds. Both sides must have it.
	Checksums bool `koanf:"checksums"`
	// TLS: of the provider tcp, in both directions; client_ca signs every node's
	// certificate, which names the host that its peers dial.
	TLS TLSConfig `koanf:"tls"`
	// Prefill: the engine writes with its own library to decode
	// ranks that gave no key of our provider, i.e. SGLang's. Without it a chunk
	// for such a rank fails its room.
	EngineWrites bool `koanf:"engine_writes"`
	// Staging: prefill: chunks for pdlog decode ranks that have registered a
	// staging ring and run another TP size go through it. Not in the dialect mori.
	Staging bool `koanf:"staging"`
}

// NATSConfig is the mirror.
type NATSConfig struct {
	Embedded bool   `koanf:"embedded"` // run a JetStream server in this process
	URL      string `koanf:"url"`      // of a server, or of several of a cluster with commas; empty and not embedded = no mirror
	Host     string `koanf:"host"`     // embedded: listen host
	Port     int    `koanf:"port"`     // embedded: listen port; -1 = any
	Cluster  string `koanf:"cluster"`  // second word of the subjects
	Replicas int    `koanf:"replicas"` // of the streams

	// How to get into the servers of url; files, read again at every connect.
	Credentials string `koanf:"credentials"` // a user's JWT and seed
	NKey        string `koanf:"nkey"`        // a user's nkey seed
	CA          string `koanf:"ca"`          // PEM, authorities of the servers' certificates; empty = the system's
	Cert        string `koanf:"cert"`        // PEM, this node's certificate
	Key         string `koanf:"key"`         // PEM, its key

	LagAlarm time.Duration `koanf:"lag_alarm"` // age of the oldest event that is not mirrored at which the node says so
}

func (c *NATSConfig) access() mirror.Access {
	return mirror.Access{Credentials: c.Credentials, NKey: c.NKey, CA: c.CA, Cert: c.Cert, Key: c.Key}
}

// validate checks the keys of the mirror.
func (c *NATSConfig) validate() error {
	if !clusterWord.MatchString(c.Cluster) {
		return badKey("nats.cluster", "want letters, digits, - and _, have %q", c.Cluster)
	}
	if c.LagAlarm < time.Second {
		return badKey("nats.lag_alarm", "want at least 1s, have %s", c.LagAlarm)
	}
	if c.URL == "" {
		if c.access() != (mirror.Access{}) {
			return badKey("nats.url", "is not set, and credentials or certificates are: the embedded server asks for none")
		}
		return nil
	}
	if _, path, err := mirror.ParseURL(c.URL); err != nil || path != "" {
		return badKey("nats.url", "want nats://HOST:PORT[,HOST:PORT], have %q", mirror.Redact(c.URL))
	}
	if c.Credentials != "" && c.NKey != "" {
		return badKey("nats.nkey", "is set, and nats.credentials is: one of them, please")
	}
	if (c.Cert == "") != (c.Key == "") {
		return badKey("nats.key", "nats.cert and nats.key go together")
	}
	return nil
}

// LogConfig is the event log and the process's own log lines.
type LogConfig struct {
	Dir    string `koanf:"dir"`    // empty = data_dir/log
	Level  string `koanf:"level"`  // debug, info, warn or error
	Format string `koanf:"format"` // text or json

	SegmentBytes int64 `koanf:"segment_bytes"` // a segment is sealed at this size
	// Cap of the segments together: above it the oldest go, mirrored or not, once
	// two snapshots hold what they led to. 0 = no cap.
	MaxBytes int64 `koanf:"max_bytes"`
	// Lets segments go whose events are all older, mirrored, and of no
	// open room. 0 = they stay until max_bytes.
	MaxAge time.Duration `koanf:"max_age"`
}

// StoreConfig is how the event log reaches the disk.
type StoreConfig struct {
	Commit string `koanf:"commit"` // one-sync or two-sync (docs/log-format.md, a torn commit)
}

// DefaultConfig is the one place where defaults stand. Times are SGLang's.
func DefaultConfig() Config {
	return Config{
		Ranks:        1,
		Dialect:      "mooncake",
		Listen:       "127.0.0.1",
		PageSize:     64,
		Pages:        1024,
		DType:        "auto",
		Extension:    true,
		TopologyKeys: "base",
		RegisterOwn:  true,

		LoadBalanceMethod: bootstrap.FollowBootstrapRoom,
		Topology:          TopologyConfig{PPSize: 1, CPSize: 1, DPSize: 1},

		ReleasePolicy:    "fence",
		AckTimeout:       5 * time.Second,
		AbortRetry:       time.Second,
		BootstrapTimeout: 300 * time.Second,
		WaitingTimeout:   300 * time.Second,
		TransferTimeout:  30 * time.Second,
		Heartbeat:        5 * time.Second,
		WeakPeers:        "refuse",
		SGLangAckForm:    "v2",
		EngineTimeout:    60 * time.Second,
		StopGrace:        10 * time.Second,

		DecodeAllocationPolicy: "early",

		RDMA:       RDMAConfig{Provider: "auto", FaultSeed: 1},
		SocketMode: "0660",
		HTTP:       HTTPConfig{Listen: "127.0.0.1:0"},
		Limits:     LimitsConfig{Rooms: 1 << 17, Peers: 1 << 14, Chunks: 1 << 16, Parked: 1 << 12, MessageBytes: 4 << 20, FrameBytes: 64 << 20},

		NATS: NATSConfig{Embedded: true, Host: "127.0.0.1", Port: 4222, Cluster: "default", Replicas: 1, LagAlarm: 30 * time.Second},
		Log:  LogConfig{Level: "info", Format: "text", SegmentBytes: 64 << 20, MaxBytes: 16 << 30},

		Store: StoreConfig{Commit: string(store.OneSync)},
	}
}

// ErrConfig is what every error of a configuration is: bad usage, not a failure.
var ErrConfig = errors.New("configuration")

// ConfigError is a bad configuration, in one line that names the key.
type ConfigError struct {
	Key  string // empty: the file as a whole
	File string // empty: the value does not come from a file
	Line int    // of the key in the file, 0 = not known
	Env  string // the environment variable with its value, "PDNODE_PAGES=lots"; empty: it does not come from one
	Why  string
}

// Error implements error.
func (e *ConfigError) Error() string {
	text := e.Why
	if e.Key != "" {
		text = e.Key + ": " + text
	}
	switch {
	case e.File != "" && e.Line > 0:
		text = fmt.Sprintf("%s:%d: %s", e.File, e.Line, text)
	case e.File != "":
		text = e.File + ": " + text
	case e.Env != "":
		text = e.Env + ": " + text
	}
	return text
}

// Is makes a ConfigError an ErrConfig.
func (e *ConfigError) Is(target error) bool { return target == ErrConfig } //nolint:errorlint // identity is meant

func badKey(key, format string, args ...any) error {
	return &ConfigError{Key: key, Why: fmt.Sprintf(format, args...)}
}

// The words of the keys that take one of a few.
var words = map[string][]string{
	"role":           {"prefill", "decode"},
	"release_policy": {"fence", "hold", "timeout"},
	"weak_peers":     {"refuse", "allow"},
	"topology_keys":  {"base", "policy"},
	"rdma.provider":  {"auto", "tcp", "shm", "verbs"},
	"log.level":      {"debug", "info", "warn", "error"},
	"log.format":     {"text", "json"},
	"store.commit":   {string(store.OneSync), string(store.TwoSync)},

	"decode_allocation_policy": {"early", "prefill_complete"},
	"sglang_ack_form":          {"v1", "v2"},
}

var clusterWord = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// Validate checks the configuration. The error is one line that names the
// first bad key, a *ConfigError.
func (c *Config) Validate() error {
	if !validNode(c.Node) {
		return badKey("node", "want 1 to 128 printable bytes without %q, have %q", "/", c.Node)
	}
	for _, w := range []struct{ key, have string }{
		{"role", c.Role}, {"release_policy", c.ReleasePolicy},
		{"weak_peers", c.WeakPeers}, {"rdma.provider", c.RDMA.Provider}, {"topology_keys", c.TopologyKeys},
		{"decode_allocation_policy", c.DecodeAllocationPolicy}, {"sglang_ack_form", c.SGLangAckForm},
		{"log.level", c.Log.Level}, {"log.format", c.Log.Format}, {"store.commit", c.Store.Commit},
	} {
		if !slices.Contains(words[w.key], w.have) {
			return badKey(w.key, "want one of %s, have %q", strings.Join(words[w.key], ", "), w.have)
		}
	}
	if providers[c.RDMA.Provider] == nil {
		return badKey("rdma.provider", "this build has no verbs: build pdnode with -tags verbs, which needs libibverbs")
	}
	if names := backends.Names(); !slices.Contains(names, c.Dialect) {
		return badKey("dialect", "want one of %s, have %q", strings.Join(names, ", "), c.Dialect)
	}
	for _, n := range []struct {
		key          string
		have, lo, hi int
	}{
		{"ranks", c.Ranks, 0, 1024},
		{"page_size", c.PageSize, 1, 1 << 20},
		{"pages", c.Pages, 1, 1 << 28},
		{"aux_rows", c.AuxRows, 0, 1 << 28},
		{"rdma.conns", c.RDMA.Conns, 0, 64},
		{"nats.port", c.NATS.Port, -1, 65535},
		{"nats.replicas", c.NATS.Replicas, 1, 5},
		{"limits.rooms", c.Limits.Rooms, 1, 1 << 24},
		{"limits.peers", c.Limits.Peers, 1, 1 << 20},
		{"limits.parked", c.Limits.Parked, 1, 1 << 24},
		{"limits.chunks", c.Limits.Chunks, 1, 1 << 24},
		{"limits.message_bytes", c.Limits.MessageBytes, 1 << 10, 1 << 30},
		{"limits.frame_bytes", c.Limits.FrameBytes, 1 << 12, 1 << 30},
	} {
		if n.have < n.lo || n.have > n.hi {
			return badKey(n.key, "want %d to %d, have %d", n.lo, n.hi, n.have)
		}
	}
	for _, d := range []struct {
		key  string
		have time.Duration
	}{
		{"ack_timeout", c.AckTimeout}, {"abort_retry", c.AbortRetry}, {"bootstrap_timeout", c.BootstrapTimeout},
		{"waiting_timeout", c.WaitingTimeout}, {"transfer_timeout", c.TransferTimeout}, {"heartbeat", c.Heartbeat},
	} {
		if d.have < time.Millisecond {
			return badKey(d.key, "want at least 1ms, have %s", d.have)
		}
	}
	if c.EngineTimeout < 0 {
		return badKey("engine_timeout", "want 0 or more, have %s", c.EngineTimeout)
	}
	if err := c.validateLog(); err != nil {
		return err
	}
	if c.StopGrace < 0 {
		return badKey("stop_grace", "want 0 or more, have %s", c.StopGrace)
	}
	if err := c.RDMA.validateTLS(); err != nil {
		return err
	}
	if err := c.validateCurve(); err != nil {
		return err
	}
	if c.DataDir == "" {
		return badKey("data_dir", "is not set")
	}
	if c.Listen == "" {
		return badKey("listen", "is not set")
	}
	if ip := net.ParseIP(c.Listen); ip != nil && ip.IsUnspecified() && c.Advertise == "" {
		return badKey("advertise", "is not set, and listen is the wildcard %s", c.Listen)
	}
	if net.ParseIP(c.advertised()) == nil {
		return badKey("advertise", "want an address that peers can reach, have %q", c.advertised())
	}
	if err := c.NATS.validate(); err != nil {
		return err
	}
	if m := c.Metrics.Listen; m != "" {
		if _, _, err := net.SplitHostPort(m); err != nil {
			return badKey("metrics.listen", "want host:port, have %q", m)
		}
	}
	if err := c.Traces.validate(); err != nil {
		return err
	}
	if err := c.validateServers(); err != nil {
		return err
	}
	return c.validateRole()
}

func (c *Config) validateLog() error {
	if n := c.Log.SegmentBytes; n < 256<<10 || n > 1<<30 {
		return badKey("log.segment_bytes", "want %d to %d, have %d", 256<<10, 1<<30, n)
	}
	// Fewer than four segments cannot be kept to: the active one, the one that
	// is prepared, and two that the snapshots rest on.
	if n := c.Log.MaxBytes; n != 0 && n < 4*c.Log.SegmentBytes {
		return badKey("log.max_bytes", "want 0 (no cap) or at least four segments of log.segment_bytes (%d), have %d", 4*c.Log.SegmentBytes, n)
	}
	if c.Log.MaxAge < 0 {
		return badKey("log.max_age", "want 0 (no limit) or more, have %s", c.Log.MaxAge)
	}
	return nil
}

func (c *Config) validateRole() error {
	if c.Ranks == 0 && (c.Role != "prefill" || c.RegisterOwn) {
		return badKey("ranks", "0 is for a prefill that serves its bootstrap server to others alone: role prefill, register_own false")
	}
	if err := c.validateTopology(); err != nil {
		return err
	}
	if c.Role == "prefill" {
		if _, _, err := net.SplitHostPort(c.Bootstrap); err != nil {
			return badKey("bootstrap", "want host:port, have %q", c.Bootstrap)
		}
		for _, at := range c.RegisterAt {
			if _, _, err := net.SplitHostPort(at); err != nil {
				return badKey("register_at", "want host:port, have %q", at)
			}
		}
		if len(c.Peers) > 0 {
			return badKey("peers", "belongs to role decode")
		}
		if d, err := backends.Lookup(c.Dialect); err == nil && c.RDMA.Staging {
			if _, err = d.Encode(&backends.Watermark{SessionID: "x"}); errors.Is(err, backends.ErrKind) {
				return badKey("rdma.staging", "the dialect %s has no staging", c.Dialect)
			}
		}
		if c.RegisterOwn && c.DecodeAllocationPolicy != "early" {
			return badKey("decode_allocation_policy", "is %s, but this node's own ranks are early: set register_own to false", c.DecodeAllocationPolicy)
		}
		return nil
	}
	if c.Bootstrap != "" {
		return badKey("bootstrap", "belongs to role prefill")
	}
	if len(c.RegisterAt) > 0 {
		return badKey("register_at", "belongs to role prefill")
	}
	if spec, err := fault.ParseSpec(c.RDMA.Fault); err == nil && len(spec.Writer().Rules) > 0 {
		return badKey("rdma.fault", "%s belongs to role prefill: only fences fail at decode", spec.Writer())
	}
	if c.RDMA.Staging {
		return badKey("rdma.staging", "belongs to role prefill: decode registers the ring")
	}
	if c.RDMA.EngineWrites {
		return badKey("rdma.engine_writes", "belongs to role prefill")
	}
	for _, p := range c.Peers {
		if _, _, err := net.SplitHostPort(p); err != nil {
			return badKey("peers", "want host:port, have %q", p)
		}
	}
	return nil
}

// validateTopology: the local ranks have a place in the instance.
func (c *Config) validateTopology() error {
	t := c.topology()
	if c.Role == "decode" && c.Topology != DefaultConfig().Topology {
		return badKey("topology", "belongs to role prefill")
	}
	for _, d := range []struct {
		key              string
		size, rank, most int
	}{
		{"tp", t.TPSize, t.TPRank, max(c.Ranks, 1)},
		{"pp", t.PPSize, t.PPRank, 1},
		{"cp", t.CPSize, t.CPRank, 1},
		{"dp", t.DPSize, t.DPRank, 1},
	} {
		if d.size < 1 || d.size > 65536 {
			return badKey("topology."+d.key+"_size", "want 1 to 65536, have %d", d.size)
		}
		if d.rank < 0 || d.rank+d.most > d.size {
			return badKey("topology."+d.key+"_rank", "the %d local ranks from %d on are not among %d", d.most, d.rank, d.size)
		}
	}
	if c.LoadBalanceMethod == "" {
		return badKey("load_balance_method", "is empty")
	}
	return nil
}

// topology is the configured one, with tp_size filled in.
func (c *Config) topology() TopologyConfig {
	t := c.Topology
	if t.TPSize == 0 {
		t.TPSize = t.TPRank + max(c.Ranks, 1)
	}
	return t
}

func validNode(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e || s[i] == '/' {
			return false
		}
	}
	return true
}

func (c *Config) advertised() string {
	if c.Advertise != "" {
		return c.Advertise
	}
	return c.Listen
}

// LogDir is the folder of the event log.
func (c *Config) LogDir() string {
	if c.Log.Dir != "" {
		return c.Log.Dir
	}
	return filepath.Join(c.DataDir, "log")
}

// SocketPath is the engine API's unix socket.
func (c *Config) SocketPath() string {
	if c.Socket != "" {
		return c.Socket
	}
	return filepath.Join(c.DataDir, "pdnode.sock")
}

func (c *Config) role() events.Role {
	if c.Role == "prefill" {
		return events.Role_ROLE_PREFILL
	}
	return events.Role_ROLE_DECODE
}

func (c *Config) policy() events.Policy {
	switch c.ReleasePolicy {
	case "hold":
		return events.Policy_POLICY_HOLD
	case "timeout":
		return events.Policy_POLICY_TIMEOUT
	}
	return events.Policy_POLICY_FENCE
}

func (c *Config) sglangForm() events.AckForm {
	if c.SGLangAckForm == "v1" {
		return events.AckForm_ACK_FORM_V1
	}
	return events.AckForm_ACK_FORM_V2
}

func (c *Config) side() backends.Side {
	if c.Role == "prefill" {
		return backends.AtPrefill
	}
	return backends.AtDecode
}
