package bootstrap

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"

	"github.com/cockroachdb/errors"
)

// NodeInfo is a pdlog node's answer to discovery (wire.md 9.2).
type NodeInfo struct {
	Node        string
	Boot        uint64 // not 0
	Incarnation uint64 // 1 or more
	Version     string // for people only
	Ranks       []Rank // run by this node
	LogSince    uint64 // hybrid logical clock
	LogID       []byte // 16 bytes, or nil for an older pdlog
	Features    []string
	Curve       string // its public key (Z85), if its control sockets take CURVE alone
}

// Speaks reports that the node knows a feature, e.g. FeaturePDX1.
func (n NodeInfo) Speaks(feature string) bool { return slices.Contains(n.Features, feature) }

// Runs reports that the PULL socket at a is a rank of this node. Addresses are
// compared, not their text.
func (n NodeInfo) Runs(a netip.AddrPort) bool {
	a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	return slices.ContainsFunc(n.Ranks, func(r Rank) bool { return r.AddrPort() == a })
}

// Found is what came of asking an address whether a pdlog node is there.
type Found int

const (
	// Silent: no answer at all. Nothing is known of who is there.
	Silent Found = iota
	// Other: an answer that no pdlog node gives.
	Other
	// PDLog: a pdlog node.
	PDLog
)

// Discover asks whether a pdlog node answers at addr. Everything that is not
// exactly the answer of wire.md 9.2, no answer included, is false without an
// error and one debug line. An error means that nothing was learnt: ctx ended,
// or addr is not host:port.
func (c *Client) Discover(ctx context.Context, addr string) (NodeInfo, bool, error) {
	info, found, err := c.WhoIs(ctx, addr)
	return info, found == PDLog, err
}

// WhoIs is Discover for who has to tell another server from a silent one: a
// server that is just starting, or a lost packet, says nothing of who is there.
func (c *Client) WhoIs(ctx context.Context, addr string) (NodeInfo, Found, error) {
	if _, err := questionURL(addr, ""); err != nil {
		return NodeInfo{}, Silent, errors.Wrap(err, "discover")
	}
	status, body, err := c.do(ctx, probe, http.MethodGet, addr, "/pdlog/v1/node", nil)
	if ctx.Err() != nil {
		return NodeInfo{}, Silent, errors.Wrapf(context.Cause(ctx), "discover %s", addr)
	}
	found := Silent
	if err == nil || errors.Is(err, ErrAnswer) {
		found = Other
	}
	if err == nil && status != http.StatusOK {
		err = errStatus(status)
	}
	var info NodeInfo
	if err == nil {
		info, err = parseNode(body)
	}
	if err != nil {
		c.cfg.Log.Debug("not a pdlog node", "addr", addr, "why", err)
		return NodeInfo{}, found, nil
	}
	return info, PDLog, nil
}

func parseNode(body []byte) (NodeInfo, error) {
	o, err := parseObject(body)
	if err != nil {
		return NodeInfo{}, err
	}
	f := fields{o: o}
	n := NodeInfo{
		Node:        f.node("node"),
		Boot:        f.boot("boot"),
		Incarnation: f.unsigned("incarnation", 1),
		Version:     f.text("version"),
		LogSince:    f.unsigned("log_since", 0),
	}
	for _, raw := range f.array("ranks") {
		n.Ranks = append(n.Ranks, f.rank(raw))
	}
	for _, raw := range f.array("features") {
		n.Features = append(n.Features, f.textOf("features", raw))
	}
	if raw, ok := o["log_id"]; ok {
		if n.LogID, ok = parseLogID(f.textOf("log_id", raw)); !ok {
			f.fail("log_id", "is not 32 lower-case hex digits")
		}
	}
	if raw, ok := o["curve"]; ok {
		n.Curve = f.textOf("curve", raw)
	}
	if f.err != nil {
		return NodeInfo{}, f.err
	}
	return n, nil
}

func (f *fields) node(key string) string {
	s := f.text(key)
	if !validNode(s) {
		f.fail(key, "is not a node name")
	}
	return s
}

func (f *fields) boot(key string) uint64 {
	v, ok := parseBoot(f.text(key))
	if !ok {
		f.fail(key, "is not 16 lower-case hex digits, not all zero")
	}
	return v
}

// array reads a required array. Its size is bounded by that of the answer.
func (f *fields) array(key string) []json.RawMessage {
	raw := f.required(key)
	var out []json.RawMessage
	if f.err == nil && (!bytes.HasPrefix(raw, []byte("[")) || json.Unmarshal(raw, &out) != nil) {
		f.fail(key, "is not an array")
	}
	return out
}

// rank reads one element of ranks; dp is optional.
func (f *fields) rank(raw json.RawMessage) Rank {
	o, err := parseObject(raw)
	if err != nil {
		f.fail("ranks", "holds something else than objects")
		return Rank{}
	}
	in := fields{o: o}
	r := Rank{
		TP: int(in.integer("tp", 0, maxI31)), CP: int(in.integer("cp", 0, maxI31)), PP: int(in.integer("pp", 0, maxI31)),
		IP: in.address("ip"), Port: in.port("port"),
	}
	if raw, ok := o["dp"]; ok {
		r.DP = int(in.integerOf("dp", raw, 0, maxI31))
	}
	if in.err != nil {
		f.fail("ranks:", in.err.Error())
	}
	return r
}

// Outstanding is a prefill's answer to a decode with an unknown past.
type Outstanding struct {
	Node        string // who answers
	Boot        uint64
	Incarnation uint64
	Known       bool   // its log holds another life of the node that asks
	Open        uint64 // open or uncertain tokens to those lives
}

// Outstanding asks the prefill at addr what it still has of earlier lives of
// the node that asks (wire.md 9.2). Any error, ErrAnswer for a
// node that does not know the question included, means that nothing was
// answered: only Open 0 without an error says that nothing is outstanding.
func (c *Client) Outstanding(ctx context.Context, addr string, a Asker) (Outstanding, error) {
	status, body, err := c.do(ctx, probe, http.MethodGet, addr, "/pdlog/v1/outstanding?"+a.rawQuery(), nil)
	if err != nil {
		return Outstanding{}, err
	}
	if status != http.StatusOK {
		return Outstanding{}, errors.Wrapf(errStatus(status), "outstanding of %s at %s", a.Node, addr)
	}
	out, err := parseOutstanding(body)
	if err != nil {
		return Outstanding{}, errors.Wrapf(badAnswer(err), "outstanding of %s at %s", a.Node, addr)
	}
	return out, nil
}

func parseOutstanding(body []byte) (Outstanding, error) {
	o, err := parseObject(body)
	if err != nil {
		return Outstanding{}, err
	}
	f := fields{o: o}
	out := Outstanding{
		Node:        f.node("node"),
		Boot:        f.boot("boot"),
		Incarnation: f.unsigned("incarnation", 1),
		Known:       f.boolean("known"),
		Open:        f.unsigned("open", 0),
	}
	if f.err != nil {
		return Outstanding{}, f.err // never half an answer: Open 0 frees pages
	}
	return out, nil
}
