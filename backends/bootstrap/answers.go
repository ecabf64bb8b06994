package bootstrap

import (
	"cmp"
	"slices"
)

// Rank is one prefill rank and the address of its PULL socket.
type Rank struct {
	DP   int    `json:"dp"`
	TP   int    `json:"tp"`
	CP   int    `json:"cp"`
	PP   int    `json:"pp"`
	IP   string `json:"ip"` // as registered
	Port uint16 `json:"port"`
}

// topologyAnswer is SGLang's PrefillServerInfo. Its keys are a contract: an
// older decode refuses the prefill for one key too many (F33). The six nil
// fields are filled in by the decode that asks.
type topologyAnswer struct {
	AttnTPSize          int    `json:"attn_tp_size"`
	AttnCPSize          int    `json:"attn_cp_size"`
	DPSize              int    `json:"dp_size"`
	PPSize              int    `json:"pp_size"`
	PageSize            int    `json:"page_size"`
	KVCacheDType        string `json:"kv_cache_dtype"`
	FollowBootstrapRoom bool   `json:"follow_bootstrap_room"`
	DSACacheLayerSplit  bool   `json:"enable_dsa_cache_layer_split"`
	PrefillHTTPPort     *int   `json:"prefill_http_port"`

	TargetTPRank             *int `json:"target_tp_rank"`
	TargetTPRanks            *int `json:"target_tp_ranks"`
	TargetCPRanks            *int `json:"target_cp_ranks"`
	TargetPPRanks            *int `json:"target_pp_ranks"`
	RequiredDstInfoNum       *int `json:"required_dst_info_num"`
	RequiredPrefillResponses *int `json:"required_prefill_response_num"`

	DecodeAllocationPolicy string `json:"decode_allocation_policy,omitempty"` // TopologyKeysPolicy only
}

func (t *table) answer(keys TopologyKeys, policy AllocationPolicy) topologyAnswer {
	a := topologyAnswer{
		AttnTPSize:          t.shape.tpSize,
		AttnCPSize:          t.shape.cpSize,
		DPSize:              t.shape.dpSize,
		PPSize:              t.shape.ppSize,
		PageSize:            t.shape.pageSize,
		KVCacheDType:        t.shape.kvCacheDType,
		FollowBootstrapRoom: t.first.LoadBalanceMethod == FollowBootstrapRoom,
		DSACacheLayerSplit:  t.first.EnableDSACacheLayerSplit,
	}
	if port := int(t.first.PrefillHTTPPort); port != 0 {
		a.PrefillHTTPPort = &port
	}
	if keys == TopologyKeysPolicy {
		a.DecodeAllocationPolicy = string(policy)
	}
	return a
}

// rankAnswer has these two keys only.
type rankAnswer struct {
	IP   string `json:"rank_ip"`
	Port uint16 `json:"rank_port"`
}

// nodeAnswer is the answer to discovery (wire.md 9.2).
type nodeAnswer struct {
	Node        string   `json:"node"`
	Boot        string   `json:"boot"`
	Incarnation uint64   `json:"incarnation"`
	Version     string   `json:"version"`
	Ranks       []Rank   `json:"ranks"`
	LogSince    uint64   `json:"log_since"`
	LogID       string   `json:"log_id,omitempty"`
	Features    []string `json:"features"`
	Curve       string   `json:"curve,omitempty"`
}

// FeaturePDX1 is the word of a node that reads and writes the extension frame.
const FeaturePDX1 = "pdx1"

// sortedRanks returns a copy in the order dp, cp, tp, pp, never nil.
func sortedRanks(ranks []Rank) []Rank {
	out := append(make([]Rank, 0, len(ranks)), ranks...)
	slices.SortStableFunc(out, func(a, b Rank) int {
		return cmp.Or(cmp.Compare(a.DP, b.DP), cmp.Compare(a.CP, b.CP), cmp.Compare(a.TP, b.TP), cmp.Compare(a.PP, b.PP))
	})
	return out
}

// outstandingAnswer says what this prefill still has of another life of the
// node that asks; node, boot and incarnation are its own (wire.md 9.2).
type outstandingAnswer struct {
	Node        string `json:"node"`
	Boot        string `json:"boot"`
	Incarnation uint64 `json:"incarnation"`
	Known       bool   `json:"known"`
	Open        uint64 `json:"open"`
}
