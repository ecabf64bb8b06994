package bootstrap

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
)

// parameter returns the first value of name in a raw query string and whether
// there is one. A value with a broken escape comes back as it stands (and is
// no number then); url.ParseQuery would drop it and let a second one count.
func parameter(rawQuery, name string) (value string, ok bool) {
	for pair := range strings.SplitSeq(rawQuery, "&") {
		key, value, _ := strings.Cut(pair, "=")
		if k, err := url.QueryUnescape(key); err != nil || k != name {
			continue
		}
		if v, err := url.QueryUnescape(value); err == nil {
			return v, true
		}
		return value, true
	}
	return "", false
}

// routeQuery reads the four parameters of GET /route, each -1 … 2^31-1.
func routeQuery(rawQuery string) (place, error) {
	var p place
	for _, q := range [...]struct {
		name string
		to   *int
	}{
		{"prefill_dp_rank", &p.dp},
		{"prefill_cp_rank", &p.cp},
		{"target_tp_rank", &p.tp},
		{"target_pp_rank", &p.pp},
	} {
		text, _ := parameter(rawQuery, q.name)
		if text == "" {
			return place{}, fmt.Errorf("%s is missing", q.name)
		}
		v, ok := parseDec(text)
		if !ok || v < -1 || v > maxI31 {
			return place{}, fmt.Errorf("%s is not an integer in -1 … %d", q.name, maxI31)
		}
		*q.to = int(v)
	}
	return p, nil
}

// wholeTopology is the query that asks for no rank.
var wholeTopology = place{-1, -1, -1, -1}

func (p place) rawQuery() string {
	return fmt.Sprintf("prefill_dp_rank=%d&prefill_cp_rank=%d&target_tp_rank=%d&target_pp_rank=%d", p.dp, p.cp, p.tp, p.pp)
}

// Asker is a decode node that asks about its past: its present life.
type Asker struct {
	Node  string
	Boot  uint64
	LogID []byte // 16 bytes; nil: not said
}

// outstandingQuery reads the parameters of GET /pdlog/v1/outstanding.
func outstandingQuery(rawQuery string) (a Asker, err error) {
	a.Node, _ = parameter(rawQuery, "node")
	if !validNode(a.Node) {
		return Asker{}, fmt.Errorf("node is not a node name")
	}
	text, _ := parameter(rawQuery, "boot")
	var ok bool
	if a.Boot, ok = parseBoot(text); !ok {
		return Asker{}, fmt.Errorf("boot is not 16 lower-case hex digits, not all zero")
	}
	if text, ok = parameter(rawQuery, "log_id"); ok {
		if a.LogID, ok = parseLogID(text); !ok {
			return Asker{}, fmt.Errorf("log_id is not 32 lower-case hex digits")
		}
	}
	return a, nil
}

func (a Asker) rawQuery() string {
	q := "node=" + url.QueryEscape(a.Node) + "&boot=" + formatBoot(a.Boot)
	if a.LogID != nil {
		q += "&log_id=" + hex.EncodeToString(a.LogID)
	}
	return q
}
