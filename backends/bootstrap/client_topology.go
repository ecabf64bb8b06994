package bootstrap

import (
	"context"
	"fmt"
	"net/http"

	"github.com/cockroachdb/errors"
)

// Topology is what a decode needs to know of a prefill (http.md 4).
type Topology struct {
	AttnTPSize, AttnCPSize, DPSize, PPSize int

	PageSize                 int // tokens
	KVCacheDType             string
	FollowBootstrapRoom      bool
	EnableDSACacheLayerSplit bool
	PrefillHTTPPort          uint16           // 0 = none
	DecodeAllocationPolicy   AllocationPolicy // AllocateEarly if it was left out
}

// Local is what the decode's own pages are like.
type Local struct {
	PageSize     int
	KVCacheDType string
}

// The reasons for which a prefill is refused. They stand inside a
// *RefusedError.
var (
	// ErrPageSize: its pages are of another size than ours.
	ErrPageSize = errors.New("page size differs")
	// ErrKVCacheDType: its pages hold another type than ours.
	ErrKVCacheDType = errors.New("kv cache dtype differs")
	// ErrTopologyKey: its answer lacks a key or holds a bad value.
	ErrTopologyKey = errors.New("topology answer is bad")
)

// RefusedError says why a prefill cannot be used as it is now. It is asked
// again all the same: the prefill may be replaced.
type RefusedError struct {
	Addr   string
	Reason error  // ErrPageSize, ErrKVCacheDType or ErrTopologyKey
	Detail string // "theirs 32, ours 64"
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("prefill %s refused: %v: %s", e.Addr, e.Reason, e.Detail)
}

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Reason }

// Topology asks once for the topology, within 5 s. Its errors are
// *RefusedError, ErrNotReady, ErrTimeout, ErrAnswer, the context's or the
// network's. It caches nothing.
func (c *Client) Topology(ctx context.Context, addr string, ours Local) (Topology, error) {
	status, body, err := c.do(ctx, ask, http.MethodGet, addr, "/route?"+wholeTopology.rawQuery(), nil)
	if err != nil {
		return Topology{}, err
	}
	if err := routeStatus(status); err != nil {
		return Topology{}, errors.Wrapf(err, "topology of %s", addr)
	}
	t, err := parseTopology(body)
	switch {
	case err != nil:
		err = &RefusedError{addr, ErrTopologyKey, err.Error()}
	case t.PageSize != ours.PageSize:
		err = &RefusedError{addr, ErrPageSize, fmt.Sprintf("theirs %d, ours %d", t.PageSize, ours.PageSize)}
	case t.KVCacheDType != ours.KVCacheDType:
		err = &RefusedError{addr, ErrKVCacheDType, fmt.Sprintf("theirs %.64q, ours %q", t.KVCacheDType, ours.KVCacheDType)}
	default:
		return t, nil
	}
	return Topology{}, err
}

// parseTopology reads a topology answer. Unknown keys and the six that are
// always null are not looked at.
func parseTopology(body []byte) (Topology, error) {
	o, err := parseObject(body)
	if err != nil {
		return Topology{}, err
	}
	f := fields{o: o}
	size := func(key string) int { return int(f.integer(key, 1, maxI31)) }
	t := Topology{
		AttnTPSize: size("attn_tp_size"), AttnCPSize: size("attn_cp_size"), DPSize: size("dp_size"), PPSize: size("pp_size"),
		PageSize:                 size("page_size"),
		KVCacheDType:             f.text("kv_cache_dtype"),
		FollowBootstrapRoom:      f.boolean("follow_bootstrap_room"),
		EnableDSACacheLayerSplit: f.boolean("enable_dsa_cache_layer_split"),
		DecodeAllocationPolicy:   AllocateEarly,
	}
	const port, policy = "prefill_http_port", "decode_allocation_policy"
	if raw := f.required(port); string(raw) != "null" {
		t.PrefillHTTPPort = f.portOf(port, raw)
	}
	if raw, ok := o[policy]; ok {
		t.DecodeAllocationPolicy = AllocationPolicy(f.textOf(policy, raw))
		if t.DecodeAllocationPolicy != AllocateEarly && t.DecodeAllocationPolicy != AllocatePrefillComplete {
			f.fail(policy, "is neither early nor prefill_complete")
		}
	}
	return t, f.err
}
