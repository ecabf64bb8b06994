package bootstrap

import (
	"fmt"
)

// FollowBootstrapRoom is the balancing method by which a room's dp rank is
// room mod dp_size; the default of a registration.
const FollowBootstrapRoom = "follow_bootstrap_room"

// Registration is what one prefill rank says of itself (http.md 2). Sizes are
// 1 … 65536, ranks 0 … size-1.
type Registration struct {
	AttnTPSize   int `json:"attn_tp_size"`
	AttnTPRank   int `json:"attn_tp_rank"`
	AttnCPSize   int `json:"attn_cp_size"`
	AttnCPRank   int `json:"attn_cp_rank"`
	AttnDPSize   int `json:"attn_dp_size"`
	AttnDPRank   int `json:"attn_dp_rank"`
	PPSize       int `json:"pp_size"`
	PPRank       int `json:"pp_rank"`
	SystemDPSize int `json:"system_dp_size"`
	SystemDPRank int `json:"system_dp_rank"`

	// RankIP and RankPort are the address of the rank's PULL socket; the IP is
	// given back as it was received.
	RankIP   string `json:"rank_ip"`
	RankPort uint16 `json:"rank_port"`

	PageSize     int    `json:"page_size"` // tokens, 1 … 2^31-1
	KVCacheDType string `json:"kv_cache_dtype"`

	// LoadBalanceMethod empty means FollowBootstrapRoom.
	LoadBalanceMethod        string `json:"load_balance_method,omitempty"`
	EnableDSACacheLayerSplit bool   `json:"enable_dsa_cache_layer_split"`
	PrefillHTTPPort          uint16 `json:"prefill_http_port,omitempty"` // 0 = none
}

// Validate reports the first value out of its range, by the name of its key.
func (r Registration) Validate() error {
	for _, d := range [...]struct {
		name       string
		size, rank int
	}{
		{"attn_tp", r.AttnTPSize, r.AttnTPRank},
		{"attn_cp", r.AttnCPSize, r.AttnCPRank},
		{"attn_dp", r.AttnDPSize, r.AttnDPRank},
		{"pp", r.PPSize, r.PPRank},
		{"system_dp", r.SystemDPSize, r.SystemDPRank},
	} {
		if d.size < 1 || d.size > maxSize {
			return fmt.Errorf("%s_size is not in 1 … %d", d.name, maxSize)
		}
		if d.rank < 0 || d.rank >= d.size {
			return fmt.Errorf("%s_rank is not in 0 … %d", d.name, d.size-1)
		}
	}
	switch _, ok := parseIP(r.RankIP); {
	case !ok:
		return fmt.Errorf("rank_ip is not an IP address")
	case r.RankPort == 0:
		return fmt.Errorf("rank_port is not in 1 … %d", maxPort)
	case r.PageSize < 1 || r.PageSize > maxI31:
		return fmt.Errorf("page_size is not in 1 … %d", maxI31)
	case r.KVCacheDType == "":
		return fmt.Errorf("kv_cache_dtype is empty")
	}
	return nil
}

// parseRegistration reads the body of PUT /route. The balancing method is the
// default if it was left out, and empty only if it was sent so.
func parseRegistration(body []byte) (Registration, error) {
	o, err := parseObject(body)
	if err != nil {
		return Registration{}, err
	}
	f := fields{o: o}
	size := func(key string) int { return int(f.integer(key, 1, maxSize)) }
	rank := func(key string) int { return int(f.integer(key, 0, maxSize-1)) }
	r := Registration{
		AttnTPSize: size("attn_tp_size"), AttnTPRank: rank("attn_tp_rank"),
		AttnCPSize: size("attn_cp_size"), AttnCPRank: rank("attn_cp_rank"),
		AttnDPSize: size("attn_dp_size"), AttnDPRank: rank("attn_dp_rank"),
		PPSize: size("pp_size"), PPRank: rank("pp_rank"),
		SystemDPSize: size("system_dp_size"), SystemDPRank: rank("system_dp_rank"),
		RankIP:            f.address("rank_ip"),
		RankPort:          f.port("rank_port"),
		PageSize:          int(f.integer("page_size", 1, maxI31)),
		KVCacheDType:      f.text("kv_cache_dtype"),
		LoadBalanceMethod: FollowBootstrapRoom,
	}
	const method, split, port = "load_balance_method", "enable_dsa_cache_layer_split", "prefill_http_port"
	if raw := o.optional(method); raw != nil {
		r.LoadBalanceMethod = f.textOf(method, raw)
	}
	if raw := o.optional(split); raw != nil {
		r.EnableDSACacheLayerSplit = f.booleanOf(split, raw)
	}
	if raw := o.optional(port); raw != nil {
		r.PrefillHTTPPort = f.portOf(port, raw)
	}
	if f.err != nil {
		return Registration{}, f.err
	}
	return r, r.Validate()
}
