package scenario

import (
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
		if d > maxVirtual {
			return fmt.Errorf("time %s is beyond the %s that a run lasts", fields[0], maxVirtual)
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
			if s.verb == "policy" && d < time.Millisecond {
				return fmt.Errorf("%s=%s is less than 1ms", k, v)
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
	if _, ok := s.keys["release"]; s.verb == "policy" && !ok {
		return errors.New("policy needs release=")
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
	if err := p.checkRoles(s); err != nil {
		return err
	}
	return p.checkRoom(s)
}

func (p *parser) checkRoom(s *stmt) error {
	switch s.verb {
	case "open", "await":
		n, _ := strconv.ParseUint(s.keys["room"], 10, 64)
		p.rooms[n] = true
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

// checkRoles: each side of an action is a node or a rank of the role that can
// do it.
func (p *parser) checkRoles(s *stmt) error {
	prefill := func(node string) error { return p.checkRole(s.verb, node, true) }
	decode := func(node string) error { return p.checkRole(s.verb, node, false) }
	switch s.verb {
	case "await", "clear":
		return prefill(s.keys["at"])
	case "force":
		return decode(s.keys["at"])
	case "reregister":
		return decode(s.words[0])
	case "corrupt":
		if err := decode(s.words[0]); err != nil {
			return err
		}
		return p.checkItem(s.words[0], "page", s.keys["page"])
	case "send":
		if err := prefill(nodeOf(s.keys["rank"])); err != nil {
			return err
		}
		for _, r := range splitNames(s.keys["to"]) {
			if err := decode(nodeOf(r)); err != nil {
				return err
			}
		}
	case "open":
		return p.checkOpen(s)
	}
	return nil
}

func (p *parser) checkRole(verb, node string, prefill bool) error {
	if p.sc.byName[node].prefill == prefill {
		return nil
	}
	if prefill {
		return fmt.Errorf("%s: %s is no prefill node", verb, node)
	}
	return fmt.Errorf("%s: %s is no decode node", verb, node)
}

// checkOpen: the ranks of an open belong to the nodes it names.
func (p *parser) checkOpen(s *stmt) error {
	_, fails := s.keys["fail_after"]
	if fails && slices.Contains(s.words, "reserve") {
		return errors.New("reserve and fail_after exclude each other")
	}
	for _, of := range []struct{ ranks, nodes string }{{"ranks", "prefill"}, {"dranks", "decode"}, {"dummies", "prefill"}} {
		for _, r := range splitNames(s.keys[of.ranks]) {
			if !slices.Contains(strings.Split(s.keys[of.nodes], ","), nodeOf(r)) {
				return fmt.Errorf("%s=%s: %s= does not name its node", of.ranks, r, of.nodes)
			}
		}
	}
	if named, ok := s.keys["ranks"]; ok {
		for _, r := range splitNames(s.keys["dummies"]) {
			if !slices.Contains(strings.Split(named, ","), r) {
				return fmt.Errorf("dummies=%s is not among ranks=", r)
			}
		}
	}
	return nil
}

func nodeOf(rank string) string {
	node, _, _ := strings.Cut(rank, "/")
	return node
}
