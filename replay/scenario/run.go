package scenario

import (
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"

	_ "github.com/pdlog/pdlog/backends/all" // the dialects
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector/invariants"
)

// Report is the outcome of one file.
type Report struct {
	File       string
	OK         bool
	FailedLine int    // 0 if none
	Detail     string // what was expected, and what was found
	Events     int
	Violations []invariants.Violation
	// Truth is what the simulation itself saw land where it had no business. It
	// is drawn from its memory, not from any log.
	Truth []Corruption
	// Logs are the durable events of each pdlog node, in the order of the
	// file, merged in the order they happened.
	Logs []*events.Event
}

// Corruption is a write of a transfer into a page that its room did not own.
type Corruption struct {
	Node       string // decode node
	Page       uint32
	Victim     uint64 // room number of the owner; with VictimSeq 0 there was none
	VictimSeq  uint64
	Writer     string // prefill rank
	WriterRoom uint64
	Chunk      uint32
}

// RunFile runs a scenario file. A file that cannot be read or parsed is an
// error (a *SyntaxError names file and line); a failed expectation is a report.
func RunFile(path string) (Report, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Report{}, fmt.Errorf("read scenario: %w", err)
	}
	return Run(path, string(b))
}

// Run runs a scenario given as text.
func Run(file, text string) (Report, error) {
	sc, err := parse(file, text)
	if err != nil {
		return Report{}, err
	}
	w, err := newWorld(sc)
	if err != nil {
		return Report{}, err
	}
	rep := Report{File: file, OK: true}
	fail := func(s *stmt, err error) {
		if rep.OK {
			rep.OK, rep.FailedLine, rep.Detail = false, s.line, err.Error()
		}
	}
	w.repeat(sc.policy.heartbeat, w.heartbeats)
	for i := 0; i < len(sc.stmts) && rep.OK; {
		j := i
		for j < len(sc.stmts) && sc.stmts[j].at == sc.stmts[i].at {
			j++
		}
		if sc.stmts[i].at == atEnd {
			break
		}
		w.instant(sc.stmts[i:j], fail)
		i = j
	}
	if rep.OK {
		w.runOut()
		for _, s := range sc.stmts {
			if s.at == atEnd {
				if err := w.expect(s); err != nil {
					fail(s, err)
				}
			}
		}
	}
	rep.Logs = w.logs()
	rep.Events = len(rep.Logs)
	rep.Violations = w.violations(rep.Logs)
	rep.Truth = w.mem.truth()
	if rep.OK {
		w.judge(&rep, fail)
	}
	return rep, nil
}

// instant runs all statements of one time: what is due, then the actions in
// file order, then what they made due at once, then the expectations.
func (w *world) instant(group []*stmt, fail func(*stmt, error)) {
	w.runUntil(group[0].at)
	for _, s := range group {
		if s.verb != "expect" {
			if err := w.act(s); err != nil {
				fail(s, err)
				return
			}
		}
	}
	w.runUntil(group[0].at)
	for _, s := range group {
		if s.verb == "expect" {
			if err := w.expect(s); err != nil {
				fail(s, err)
			}
		}
	}
}

// logs merges the durable events of all nodes in the order they happened.
func (w *world) logs() []*events.Event {
	type placed struct {
		place uint64
		e     *events.Event
	}
	var all []placed
	for _, name := range w.names {
		if n, ok := w.nodes[name].(*pdNode); ok {
			for _, e := range n.disk {
				all = append(all, placed{n.places[e.Seq], e})
			}
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].place < all[j].place })
	out := make([]*events.Event, len(all))
	for i, p := range all {
		out[i] = p.e
	}
	return out
}

// violations are those that the checkers find in the logs, and those that only
// the simulation's own truth shows.
func (w *world) violations(logs []*events.Event) []invariants.Violation {
	c := invariants.New()
	for _, e := range logs {
		c.Feed(e)
	}
	vs := c.Finish()
	for _, x := range w.mem.corruptions {
		if x.writer == "" {
			continue
		}
		known := slices.ContainsFunc(vs, func(v invariants.Violation) bool { return v.Invariant == "I1" })
		if !known {
			vs = append(vs, invariants.Violation{Invariant: "I1", Node: x.node, Room: x.room, Detail: x.String()})
		}
	}
	return vs
}

// judge compares the violations with what the file expects: exactly those, or,
// if it says nothing, none.
func (w *world) judge(rep *Report, fail func(*stmt, error)) {
	var have []string
	for _, v := range rep.Violations {
		have = append(have, v.Invariant)
	}
	sort.Strings(have)
	have = slices.Compact(have)
	at := &stmt{line: 0}
	var want []string
	for _, s := range w.sc.stmts {
		if s.verb == "expect" && s.words[0] == "violations" {
			want = strings.Split(s.words[1], ",")
			at = s
		}
	}
	sort.Strings(want)
	if !slices.Equal(have, slices.Compact(want)) {
		detail := ""
		if len(rep.Violations) > 0 {
			detail = ", the first: " + rep.Violations[0].Detail
		}
		fail(at, fmt.Errorf("violations %v, want %v%s", have, want, detail))
	}
}
