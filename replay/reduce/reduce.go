package reduce

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/replay/scenario"
)

// ErrNoIncident: nothing happened to that page, as far as the logs tell.
var ErrNoIncident = errors.New("no incident")

// ErrNotShown: the incident was found, and the scenario made of it does not show
// it: it needs something that scenarios.md has no word for, or that these logs do
// not hold.
var ErrNotShown = errors.New("the scenario does not show the incident")

// Result is a reduced incident.
type Result struct {
	Incident *replay.Incident
	Text     string // the file
	Runs     int    // how many scenarios were run to get there
}

// Lines counts the statements: lines that are neither empty nor comments.
func (r *Result) Lines() int {
	n := 0
	for line := range strings.Lines(r.Text) {
		if s := strings.TrimSpace(line); s != "" && !strings.HasPrefix(s, "#") {
			n++
		}
	}
	return n
}

// Run finds the first incident of a page and reduces it. Errors are ErrNoIncident,
// ErrNotShown, or package replay's.
func Run(ctx context.Context, logs []*replay.Log, node string, page uint32) (*Result, error) {
	f := newFacts()
	for e, err := range replay.Merge(ctx, logs) {
		if err != nil {
			return nil, err
		}
		f.add(e)
	}
	for _, in := range replay.Blame(f.h) {
		if in.Node == node && in.Page == page {
			return reduceOne(ctx, f, in)
		}
	}
	return nil, errors.Wrapf(ErrNoIncident, "page %d of %s was not written after its release, and it failed no check", page, node)
}

func reduceOne(ctx context.Context, f *facts, in *replay.Incident) (*Result, error) {
	s, err := compose(f, in)
	if err != nil {
		return nil, replay.WithKind(err, ErrNotShown)
	}
	r := &reducer{ctx: ctx, in: in, page: strconv.FormatUint(uint64(in.Page), 10)}
	s, why := r.begin(s, in)
	if s == nil {
		return nil, errors.Wrap(ErrNotShown, why)
	}
	s = r.shrink(s)
	return &Result{Incident: in, Text: s.text(), Runs: r.runs}, ctx.Err()
}

type reducer struct {
	ctx  context.Context //nolint:containedctx // of one call
	in   *replay.Incident
	page string
	runs int
}

// shifts are how much later than recorded the victim's statements may come: a
// simulated release takes a commit, a recorded one may have been quicker.
var shifts = []int64{0, 2, 10, 50}

// begin finds a form that shows the incident, and adds what else it violates.
func (r *reducer) begin(s *script, in *replay.Incident) (*script, string) {
	why := ""
	for i := range 2 * len(shifts) {
		c, by := s.clone(), shifts[i%len(shifts)]
		if i >= len(shifts) && !c.prompt(in) {
			break
		}
		for i := range c.steps {
			if in.VictimRoom != nil && c.steps[i].get("room") == strconv.FormatUint(*in.VictimRoom, 10) {
				c.steps[i].at += by
			}
		}
		rep, err := r.run(c)
		if err != nil {
			return nil, err.Error()
		}
		if len(rep.Violations) > 0 {
			var ids []string
			for _, v := range rep.Violations {
				ids = append(ids, v.Invariant)
			}
			slices.Sort(ids)
			c.expect = append(c.expect, "violations "+strings.Join(slices.Compact(ids), ","))
			if rep, err = r.run(c); err != nil {
				return nil, err.Error()
			}
		}
		if rep.OK && r.blamed(rep) {
			return c, ""
		}
		if why == "" && rep.OK {
			why = "the logs of its run do not tell of it"
		} else if why == "" {
			why = fmt.Sprintf("line %d: %s", rep.FailedLine, rep.Detail)
		}
	}
	return nil, why
}

func (r *reducer) run(s *script) (scenario.Report, error) {
	r.runs++
	return scenario.Run("case", s.text())
}

func (r *reducer) shows(s *script) bool {
	if r.ctx.Err() != nil {
		return false
	}
	rep, err := r.run(s)
	return err == nil && rep.OK && r.blamed(rep)
}

// blamed: the logs of the run tell the incident too, not only the simulation's
// own truth.
func (r *reducer) blamed(rep scenario.Report) bool {
	h := replay.NewHistory()
	for _, e := range rep.Logs {
		h.Add(e)
	}
	return slices.ContainsFunc(replay.Blame(h), func(in *replay.Incident) bool {
		return in.Page == r.in.Page && same(in.VictimRoom, r.in.VictimRoom) && same(in.WriterRoom, r.in.WriterRoom) && (in.Writer == nil) == (r.in.Writer == nil)
	})
}

func same(a, b *uint64) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }

// shrink takes away what can be taken away, until nothing more can.
func (r *reducer) shrink(s *script) *script {
	for again := true; again; {
		again = false
		for _, pass := range []func(*script) []*script{withoutStep, withoutKey, r.fewerPages, simplerSetup, rounder} {
			for {
				next := r.first(pass(s))
				if next == nil {
					break
				}
				s, again = next, true
			}
		}
	}
	return s
}

func (r *reducer) first(cands []*script) *script {
	for _, c := range cands {
		if r.shows(c) {
			return c
		}
	}
	return nil
}

func withoutStep(s *script) []*script {
	var out []*script
	for i := range s.steps {
		c := s.clone()
		c.steps = slices.Delete(c.steps, i, i+1)
		out = append(out, c)
	}
	return out
}

// withoutKey drops words and keys that a statement can do without, and ranks of
// its lists.
func withoutKey(s *script) []*script {
	var out []*script
	for i, st := range s.steps {
		for j := range st.words {
			if st.verb != "corrupt" {
				c := s.clone()
				c.steps[i].words = slices.Delete(c.steps[i].words, j, j+1)
				out = append(out, c)
			}
		}
		for j, k := range st.keys {
			if slices.Contains([]string{"ranks", "dranks", "dummies", "to", "result"}, k.key) {
				c := s.clone()
				c.steps[i].keys = slices.Delete(c.steps[i].keys, j, j+1)
				out = append(out, c)
			}
		}
		ranks, to := strings.Split(st.get("ranks"), ","), strings.Split(st.get("dranks"), ",")
		if len(ranks) > 1 && len(ranks) == len(to) {
			for j := range ranks {
				c := s.clone()
				c.steps[i].set("ranks", strings.Join(slices.Delete(slices.Clone(ranks), j, j+1), ","))
				c.steps[i].set("dranks", strings.Join(slices.Delete(slices.Clone(to), j, j+1), ","))
				out = append(out, c)
			}
		}
		if nodes := strings.Split(st.get("prefill"), ","); len(nodes) > 1 {
			for j := range nodes {
				c := s.clone()
				c.steps[i].set("prefill", strings.Join(slices.Delete(slices.Clone(nodes), j, j+1), ","))
				out = append(out, c)
			}
		}
	}
	return out
}

// fewerPages leaves only the page in question: in all statements, or in one.
func (r *reducer) fewerPages(s *script) []*script {
	all := s.clone()
	var out []*script
	for i, st := range s.steps {
		if p := st.get("pages"); p != "" && p != r.page {
			all.steps[i].set("pages", r.page)
			c := s.clone()
			c.steps[i].set("pages", r.page)
			out = append(out, c)
		}
	}
	if len(out) == 0 {
		return nil
	}
	return append([]*script{all}, out...)
}

func simplerSetup(s *script) []*script {
	var out []*script
	for i, n := range s.nodes {
		c := s.clone()
		c.nodes = slices.Delete(c.nodes, i, i+1)
		out = append(out, c)
		for j := range n.keys {
			c := s.clone()
			c.nodes[i].keys = slices.Delete(c.nodes[i].keys, j, j+1)
			out = append(out, c)
		}
	}
	for i := range s.policy {
		c := s.clone()
		c.policy = slices.Delete(c.policy, i, i+1)
		out = append(out, c)
	}
	return out
}

// rounder makes all times round, if the order of things allows it.
func rounder(s *script) []*script {
	var out []*script
	for _, to := range []int64{1000, 100, 10} {
		c, changed := s.clone(), false
		for i := range c.steps {
			if at := (c.steps[i].at + to/2) / to * to; at != c.steps[i].at {
				c.steps[i].at, changed = at, true
			}
		}
		if changed {
			out = append(out, c)
		}
		for i, st := range s.steps {
			n, err := strconv.ParseInt(strings.TrimSuffix(st.get("takes"), "ms"), 10, 64)
			if near := (n + to - 1) / to * to; err == nil && near != n {
				c := s.clone()
				c.steps[i].set("takes", dur(near))
				out = append(out, c)
			}
		}
	}
	return out
}
