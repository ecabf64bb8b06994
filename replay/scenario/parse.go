package scenario

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SyntaxError is a file that cannot be read: exit 2.
type SyntaxError struct {
	File string
	Line int
	Msg  string
}

// Error implements error.
func (e *SyntaxError) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Msg) }

// atEnd is the time of statements that begin with "end".
const atEnd = time.Duration(math.MaxInt64)

// stmt is one statement: a verb, words without "=", and keys.
type stmt struct {
	line  int
	at    time.Duration
	verb  string
	words []string
	keys  map[string]string
	order []string // keys in the order they stand
}

// nodeDef is a node of the set-up.
type nodeDef struct {
	name     string
	prefill  bool
	ranks    int
	pages    int
	pageSize int
	version  string
	fence    string
	index    int // 1, 2, 3 in the order of the file
}

type policyDef struct {
	release                                                         string
	ackTimeout, abortRetry, bootstrap, waiting, transfer, heartbeat time.Duration
	allowWeak                                                       bool
}

// script is a parsed file.
type script struct {
	file    string
	nodes   []*nodeDef
	byName  map[string]*nodeDef
	dialect string
	policy  policyDef
	latency time.Duration
	fence   string
	stmts   []*stmt
}

var (
	nameRE = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	timeRE = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?(us|ms|s|m)$`)
	numRE  = regexp.MustCompile(`^[0-9]+$`)
	invRE  = regexp.MustCompile(`^I[0-9]+$`)
	typeRE = regexp.MustCompile(`^[A-Z][A-Za-z]*$`)
	keyRE  = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
)

type parser struct {
	sc    *script
	line  int
	rooms map[uint64]bool
	timed bool
}

// parse reads a scenario. Errors name file and line.
func parse(file, text string) (*script, error) {
	p := &parser{rooms: map[uint64]bool{}, sc: &script{
		file: file, byName: map[string]*nodeDef{}, dialect: "mooncake", latency: time.Millisecond, fence: "hard",
		policy: policyDef{
			release: "fence", ackTimeout: 5 * time.Second, abortRetry: time.Second, bootstrap: 300 * time.Second,
			waiting: 300 * time.Second, transfer: 30 * time.Second, heartbeat: 5 * time.Second,
		},
	}}
	last := time.Duration(0)
	for i, raw := range strings.Split(text, "\n") {
		p.line = i + 1
		if j := strings.IndexByte(raw, '#'); j >= 0 {
			raw = raw[:j]
		}
		fields := strings.Fields(raw)
		if len(fields) == 0 {
			continue
		}
		if err := p.statement(fields, &last); err != nil {
			return nil, &SyntaxError{File: file, Line: p.line, Msg: err.Error()}
		}
	}
	if len(p.sc.nodes) == 0 {
		return nil, &SyntaxError{File: file, Line: 1, Msg: "no nodes"}
	}
	return p.sc, nil
}

func (p *parser) statement(fields []string, last *time.Duration) error {
	hasTime := false
	if fields[0] == "end" {
		*last, hasTime = atEnd, true
		fields = fields[1:]
	} else if timeRE.MatchString(fields[0]) {
		d, err := parseDur(fields[0])
		if err != nil {
			return err
		}
		if *last == atEnd || d < *last {
			return fmt.Errorf("time %s goes back", fields[0])
		}
		*last, hasTime = d, true
		fields = fields[1:]
	}
	if len(fields) == 0 {
		return errors.New("a time without a statement")
	}
	s := &stmt{line: p.line, at: *last, verb: fields[0], keys: map[string]string{}}
	for _, f := range fields[1:] {
		k, v, ok := strings.Cut(f, "=")
		if !ok {
			s.words = append(s.words, f)
			continue
		}
		if _, dup := s.keys[k]; dup {
			return fmt.Errorf("%s stands twice", k)
		}
		s.keys[k] = v
		s.order = append(s.order, k)
	}
	switch s.verb {
	case "prefill", "decode", "backend", "policy", "net":
		if hasTime || p.timed {
			return fmt.Errorf("%s belongs before the first timed line", s.verb)
		}
		return p.setup(s)
	}
	if !p.timed && !hasTime {
		return fmt.Errorf("%q: the first action or expectation needs a time", s.verb)
	}
	p.timed = true
	if s.at == atEnd && s.verb != "expect" {
		return errors.New("only expectations follow end")
	}
	var err error
	if s.verb == "expect" {
		err = p.checkExpect(s)
	} else {
		err = p.checkAction(s)
	}
	if err != nil {
		return err
	}
	p.sc.stmts = append(p.sc.stmts, s)
	return nil
}

func (p *parser) setup(s *stmt) error {
	sc := p.sc
	switch s.verb {
	case "prefill", "decode":
		return p.nodeDef(s)
	case "backend":
		if len(s.words) != 1 || len(s.keys) > 0 || !slices.Contains([]string{"mooncake", "nixl", "mori"}, s.words[0]) {
			return errors.New("backend is mooncake, nixl or mori")
		}
		sc.dialect = s.words[0]
		return nil
	}
	if len(s.words) > 0 {
		return fmt.Errorf("unknown word %q", s.words[0])
	}
	durs := map[string]*time.Duration{}
	if s.verb == "net" {
		durs["latency"] = &sc.latency
	} else {
		pl := &sc.policy
		durs = map[string]*time.Duration{
			"ack_timeout": &pl.ackTimeout, "abort_retry": &pl.abortRetry, "bootstrap_timeout": &pl.bootstrap,
			"waiting_timeout": &pl.waiting, "transfer_timeout": &pl.transfer, "heartbeat": &pl.heartbeat,
		}
	}
	for _, k := range s.order {
		v := s.keys[k]
		switch {
		case durs[k] != nil:
			d, err := parseDur(v)
			if err != nil {
				return err
			}
			*durs[k] = d
		case s.verb == "net" && k == "fence":
			if err := oneOf(k, v, "hard", "reader_stopped", "none"); err != nil {
				return err
			}
			sc.fence = v
		case s.verb == "policy" && k == "release":
			if err := oneOf(k, v, "fence", "hold", "timeout"); err != nil {
				return err
			}
			sc.policy.release = v
		case s.verb == "policy" && k == "weak_peers":
			if err := oneOf(k, v, "refuse", "allow"); err != nil {
				return err
			}
			sc.policy.allowWeak = v == "allow"
		default:
			return fmt.Errorf("unknown key %q of %s", k, s.verb)
		}
	}
	return nil
}

func (p *parser) nodeDef(s *stmt) error {
	if len(s.words) != 1 || !nameRE.MatchString(s.words[0]) || slices.Contains([]string{"order", "corruption", "violations"}, s.words[0]) {
		return fmt.Errorf("%s needs one name", s.verb)
	}
	n := &nodeDef{name: s.words[0], prefill: s.verb == "prefill", ranks: 1, pages: 64, pageSize: 64, version: "current", index: len(p.sc.nodes) + 1}
	if p.sc.byName[n.name] != nil {
		return fmt.Errorf("node %s twice", n.name)
	}
	for _, k := range s.order {
		v := s.keys[k]
		var err error
		switch {
		case k == "ranks":
			n.ranks, err = parseInt(v, 1, 4096)
		case k == "pages":
			n.pages, err = parseInt(v, 1, 1<<24)
		case k == "page_size":
			n.pageSize, err = parseInt(v, 1, 1<<20)
		case k == "workers" && n.prefill:
			_, err = parseInt(v, 1, 4096)
		case k == "version":
			n.version, err = v, oneOf(k, v, "current", "v2", "v1")
		case k == "fence" && n.prefill:
			n.fence, err = v, oneOf(k, v, "hard", "reader_stopped", "none")
		default:
			err = fmt.Errorf("unknown key %q of %s", k, s.verb)
		}
		if err != nil {
			return err
		}
	}
	p.sc.nodes = append(p.sc.nodes, n)
	p.sc.byName[n.name] = n
	return nil
}

// shape says which words and keys a verb takes: names in words, required keys,
// optional keys, flags.
type shape struct {
	names    int
	required string
	optional string
	flags    string
}

var shapes = map[string]shape{
	"open":       {required: "room prefill decode pages", optional: "ranks dranks dummies aux fail_after refused timeout", flags: "reserve"},
	"await":      {required: "room at", optional: "timeout"},
	"send":       {required: "room rank chunk pages takes", optional: "to result", flags: "last"},
	"finish":     {required: "room"},
	"abort":      {required: "room by", optional: "reason"},
	"clear":      {required: "room at"},
	"force":      {required: "room at"},
	"crash":      {names: 1},
	"restart":    {names: 1, flags: "wiped"},
	"stop":       {names: 1, optional: "grace"},
	"cut":        {names: 2},
	"heal":       {names: 2},
	"reregister": {names: 1},
	"drop":       {required: "kind from to", optional: "count"},
	"delay":      {required: "kind from to by", optional: "count"},
	"dup":        {required: "kind from to", optional: "count after"},
	"disk":       {names: 1, flags: "full ok fsync_fail fsync_fail:kept slow:"},
	"raw":        {required: "from to", optional: "frames text"},
	"clock":      {names: 1, required: "skew"},
	"corrupt":    {names: 1, required: "page"},
}

func (p *parser) checkAction(s *stmt) error {
	sh, ok := shapes[s.verb]
	if !ok {
		return fmt.Errorf("unknown word %q", s.verb)
	}
	flags := strings.Fields(sh.flags)
	nodes := 0
	for i, w := range s.words {
		switch {
		case i < sh.names:
			if p.sc.byName[w] == nil {
				return fmt.Errorf("unknown node %q", w)
			}
			nodes++
		case slices.Contains(flags, w) && w != "slow:":
		case slices.Contains(flags, "slow:") && strings.HasPrefix(w, "slow:"):
			if _, err := parseDur(strings.TrimPrefix(w, "slow:")); err != nil {
				return err
			}
		default:
			return fmt.Errorf("unknown word %q", w)
		}
	}
	if nodes != sh.names {
		return fmt.Errorf("%s needs %d node names", s.verb, sh.names)
	}
	if s.verb == "disk" && len(s.words) != 2 {
		return errors.New("disk needs a node and a state")
	}
	req := strings.Fields(sh.required)
	for _, k := range req {
		if _, ok := s.keys[k]; !ok {
			return fmt.Errorf("%s needs %s=", s.verb, k)
		}
	}
	opt := strings.Fields(sh.optional)
	for _, k := range s.order {
		if !slices.Contains(req, k) && !slices.Contains(opt, k) {
			return fmt.Errorf("unknown key %q of %s", k, s.verb)
		}
		if err := p.checkValue(s, k, s.keys[k]); err != nil {
			return err
		}
	}
	return p.checkRoom(s)
}

func (p *parser) checkRoom(s *stmt) error {
	switch s.verb {
	case "open", "await":
		n, _ := strconv.ParseUint(s.keys["room"], 10, 64)
		p.rooms[n] = true
		_, reserve := s.keys["fail_after"]
		if reserve && slices.Contains(s.words, "reserve") {
			return errors.New("reserve and fail_after exclude each other")
		}
	case "raw":
		_, f := s.keys["frames"]
		_, t := s.keys["text"]
		if f == t {
			return errors.New("raw needs frames= or text=")
		}
	default:
		if v, ok := s.keys["room"]; ok {
			if n, _ := strconv.ParseUint(v, 10, 64); !p.rooms[n] {
				return fmt.Errorf("room %s is named before any open or await", v)
			}
		}
	}
	return nil
}

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
		_, err = p.parseRanks(v)
	case "to", "from":
		switch {
		case s.verb == "send", s.verb == "raw":
			_, err = p.parseRanks(v)
		case p.sc.byName[v] == nil:
			_, err = p.parseRanks(v)
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
		if v == "" {
			err = errors.New("text is empty")
		}
	}
	return err
}

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
