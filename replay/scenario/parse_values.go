package scenario

import (
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// checkValue checks one key of an action.
func (p *parser) checkValue(s *stmt, k, v string) error {
	var err error
	switch k {
	case "room":
		_, err = parseRoom(v)
	case "chunk", "aux", "fail_after":
		_, err = parseInt(v, 0, math.MaxInt32)
	case "page":
		_, err = parseInt(v, 0, math.MaxInt32)
	case "pages":
		_, err = parsePages(v)
	case "takes", "grace", "by", "after", "timeout":
		if k == "by" && s.verb == "abort" {
			return p.checkNode(v)
		}
		_, err = parseDur(v)
	case "skew":
		_, err = parseDur(strings.TrimPrefix(v, "-"))
	case "prefill", "decode":
		for _, n := range strings.Split(v, ",") {
			d := p.sc.byName[n]
			if d == nil || d.prefill != (k == "prefill") {
				return fmt.Errorf("unknown %s node %q", k, n)
			}
		}
	case "at":
		return p.checkNode(v)
	case "ranks", "dranks", "dummies":
		_, err = p.parseRanks(v)
	case "rank":
		err = p.parseRank(v)
	case "to", "from":
		switch {
		case s.verb == "send":
			_, err = p.parseRanks(v)
		case s.verb == "raw", p.sc.byName[v] == nil:
			err = p.parseRank(v)
		}
	case "kind":
		err = oneOf(k, v, "register", "metadata", "abort", "abort_ack", "status", "staging")
	case "count":
		if v != "all" {
			_, err = parseInt(v, 0, math.MaxInt32)
		}
	case "result":
		name, d, has := strings.Cut(v, ":")
		if err = oneOf(k, name, "ok", "error", "hang", "late", "partial"); err == nil && (has != (name == "late" || name == "partial")) {
			err = fmt.Errorf("result=%s", v)
		} else if err == nil && has {
			_, err = parseDur(d)
		}
	case "refused", "reason":
		if !keyRE.MatchString(v) {
			err = fmt.Errorf("%s=%q is no word", k, v)
		}
	case "frames":
		_, err = parseFrames(v)
	case "text":
		err = checkText(v)
	}
	return err
}

// checkText: the parts of a raw message are printable ASCII, and may be empty.
func checkText(v string) error {
	for i := range len(v) {
		if v[i] <= ' ' || v[i] > '~' {
			return fmt.Errorf("text=%q is not printable ASCII", v)
		}
	}
	return nil
}

// checkItem: the node has such a page or aux row.
func (p *parser) checkItem(node, what, v string) error {
	d := p.sc.byName[node]
	n := d.pages
	if what == "aux" {
		n = max(n, auxRowsLeast)
	}
	if i, err := strconv.Atoi(v); d.prefill || err != nil || i >= n {
		return fmt.Errorf("%s has no %s %s", node, what, v)
	}
	return nil
}

// auxRowsLeast: a small pool has more rows than pages (projector.Config).
const auxRowsLeast = 64

func (p *parser) checkNode(v string) error {
	if p.sc.byName[v] == nil {
		return fmt.Errorf("unknown node %q", v)
	}
	return nil
}

// parseRanks reads "p/0,p/1"; every rank must exist.
func (p *parser) parseRanks(v string) ([]string, error) {
	ranks := strings.Split(v, ",")
	for _, r := range ranks {
		node, idx, ok := strings.Cut(r, "/")
		d := p.sc.byName[node]
		i, err := strconv.Atoi(idx)
		if !ok || d == nil || err != nil || !numRE.MatchString(idx) || i >= d.ranks {
			return nil, fmt.Errorf("unknown rank %q", r)
		}
	}
	return ranks, nil
}

// parseRank reads one rank.
func (p *parser) parseRank(v string) error {
	if strings.Contains(v, ",") {
		return fmt.Errorf("%q is more than one rank", v)
	}
	_, err := p.parseRanks(v)
	return err
}

func oneOf(k, v string, words ...string) error {
	if !slices.Contains(words, v) {
		return fmt.Errorf("%s=%s is none of %s", k, v, strings.Join(words, ", "))
	}
	return nil
}

func parseRoom(v string) (uint64, error) {
	n, err := strconv.ParseUint(v, 10, 63)
	if err != nil || !numRE.MatchString(v) {
		return 0, fmt.Errorf("room=%s is no room number", v)
	}
	return n, nil
}

func parseInt(v string, lo, hi int) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || !numRE.MatchString(v) || n < lo || n > hi {
		return 0, fmt.Errorf("%q is no number from %d to %d", v, lo, hi)
	}
	return n, nil
}

func parseDur(v string) (time.Duration, error) {
	if !timeRE.MatchString(v) {
		return 0, fmt.Errorf("%q is no time (such as 5ms, 1.5s, 2m)", v)
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		return 0, fmt.Errorf("time %q: %w", v, err)
	}
	return d, nil
}

func parsePages(v string) ([]uint32, error) {
	if v == "none" {
		return []uint32{}, nil
	}
	var out []uint32
	for _, part := range strings.Split(v, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		a, err := parseInt(lo, 0, 1<<24)
		if err != nil {
			return nil, fmt.Errorf("pages=%s: %w", v, err)
		}
		b := a
		if isRange {
			if b, err = parseInt(hi, a, 1<<24); err != nil {
				return nil, fmt.Errorf("pages=%s: %w", v, err)
			}
		}
		for i := a; i <= b; i++ {
			out = append(out, uint32(i)) //nolint:gosec // bounded
		}
	}
	return out, nil
}

func parseFrames(v string) ([][]byte, error) {
	if v == "none" {
		return nil, nil
	}
	var out [][]byte
	for _, f := range strings.Split(v, ",") {
		if f == "-" {
			out = append(out, []byte{})
			continue
		}
		b, err := hex.DecodeString(f)
		if err != nil || f == "" {
			return nil, fmt.Errorf("frame %q is no hex", f)
		}
		out = append(out, b)
	}
	return out, nil
}
