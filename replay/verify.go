package replay

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector/invariants"
)

// LogReport is what verify says of one log.
type LogReport struct {
	Node     string `json:"node"`
	Source   string `json:"source"`
	Events   uint64 `json:"events"`
	FirstSeq uint64 `json:"first_seq"`
	LastSeq  uint64 `json:"last_seq"`
	ChainOK  bool   `json:"chain_ok"`
	// Lag is how many events at the end another copy of the log has more: a
	// mirror that is behind. It is no violation.
	Lag     uint64 `json:"lag"`
	Unknown uint64 `json:"unknown_events"` // of a newer schema; skipped
	Error   string `json:"error,omitempty"`
}

// Finding is a violation in cli.md's form. Null: it is about no room or page.
type Finding struct {
	Invariant string  `json:"invariant"`
	Node      string  `json:"node"`
	Room      *uint64 `json:"room"`
	RoomSeq   *uint64 `json:"room_seq"`
	Page      *uint32 `json:"page"`
	Seq       uint64  `json:"seq"`
	Detail    string  `json:"detail"`
}

// Verdict is the answer of verify.
type Verdict struct {
	// OK: no violation, and nothing missing inside the logs, or at the ends of those
	// that are closed (of others the rest is to come).
	OK         bool         `json:"ok"`
	Logs       []*LogReport `json:"logs"`
	Violations []Finding    `json:"violations"`
	// Verdict is Clean, Violated or Undetermined. It is Undetermined without the
	// log of a node that others name, too, though OK stays true then: what the
	// logs that were asked for say does hold.
	Verdict string     `json:"verdict"`
	Missing []Gap      `json:"missing"`
	Clocks  []ClockOff `json:"clocks"` // nodes whose clocks are notably off
}

// Findings turns a checker's violations into cli.md's form.
func Findings(vs []invariants.Violation) []Finding {
	out := make([]Finding, 0, len(vs))
	for _, v := range vs {
		f := Finding{Invariant: v.Invariant, Node: v.Node, Seq: v.Seq, Detail: v.Detail}
		if v.RoomSeq != 0 || v.Room != 0 {
			f.Room, f.RoomSeq = &v.Room, &v.RoomSeq
		}
		if v.Page != invariants.NoPage {
			page := uint32(v.Page) //nolint:gosec // a page number
			f.Page = &page
		}
		out = append(out, f)
	}
	return out
}

// Verify reads every log to its end, checks chains, sequences and clocks,
// re-checks the invariants of events.md over all of them together, and compares
// copies of one log (I10). A log that cannot be read at all is an
// ErrUnavailable; one that is damaged is part of the verdict.
func Verify(ctx context.Context, logs []*Log) (*Verdict, error) {
	v := &Verdict{Logs: []*LogReport{}, Violations: []Finding{}}
	reports := map[*Log]*LogReport{}
	for _, l := range logs {
		reports[l] = &LogReport{Node: l.Node, Source: l.Source, ChainOK: true}
		v.Logs = append(v.Logs, reports[l])
	}
	var unavailable error
	var copies []Finding // I10
	w := &watcher{
		failed: func(l *Log, last uint64, err error) {
			r := reports[l]
			r.Error = err.Error()
			if errors.IsAny(err, ErrUnavailable, ErrBadSource) {
				unavailable = errors.CombineErrors(unavailable, errors.Wrapf(err, "%s", l.Source))
				return
			}
			r.ChainOK = false
			v.Violations = append(v.Violations, Finding{Invariant: "I9", Node: l.Node, Seq: last + 1, Detail: err.Error()})
		},
		conflict: func(a, b *Log, ea, eb *events.Event) {
			copies = append(copies, Finding{Invariant: "I10", Node: ea.Node, Seq: ea.Seq, Detail: fmt.Sprintf(
				"%s has %s, %s has %s", a.Source, ea.TypeName(), b.Source, eb.TypeName())})
		},
	}
	w.broken = func(e *events.Event, want uint32) {
		f := Finding{Invariant: "I9", Node: e.Node, Seq: e.Seq, Detail: fmt.Sprintf("chain broken: have %08x, want %08x", e.PrevHash, want)}
		if e.RoomSeq != 0 {
			f.Room, f.RoomSeq = &e.Room, &e.RoomSeq
		}
		v.Violations = append(v.Violations, f)
	}
	var seen named
	var clocks Clocks
	c := invariants.New() // readers of frames check chains, the merge what is between
	for e, err := range merge(ctx, logs, w) {
		if err == nil {
			c.Feed(e)
			seen.add(e)
			clocks.observe(e)
		} else if ctx.Err() != nil {
			return nil, err
		}
	}
	if unavailable != nil {
		return nil, unavailable
	}
	for _, ln := range w.lanes {
		for _, c := range ln.copies {
			r := reports[c.log]
			r.Events, r.FirstSeq, r.LastSeq, r.Unknown = c.n, c.first, c.last, c.newer
		}
	}
	found := c.Finish()
	v.Violations = append(v.Violations, Findings(found)...)
	v.Violations = append(v.Violations, copies...)
	for _, l := range logs {
		for _, p := range l.problems {
			v.Violations = append(v.Violations, Finding{Invariant: "I10", Node: l.Node, Seq: p.seq, Detail: p.detail})
		}
	}
	v.tails(logs, reports)
	v.strangers(logs)
	for _, f := range v.Violations { // a chain that the events themselves break
		if f.Invariant != "I9" {
			continue
		}
		for _, r := range v.Logs {
			if r.Node == f.Node && r.FirstSeq <= f.Seq && f.Seq <= r.LastSeq {
				r.ChainOK = false
			}
		}
	}
	v.Missing, v.Clocks = seen.missing(logs), clocks.Off()
	v.conclude(func(g Gap) bool { return g.open() && !(g.Kind == "tail" && growing(logs, g.Node)) })
	return v, nil
}

// conclude is the verdict. What lies before a log's beginning is over: it is
// said, and judged by nobody. A hole is a breach of I9, but if it is the only one,
// what the verdict lacks is evidence.
func (v *Verdict) conclude(lost func(Gap) bool) {
	v.OK = len(v.Violations) == 0 && !slices.ContainsFunc(v.Missing, lost)
	switch {
	case slices.ContainsFunc(v.Violations, func(f Finding) bool { return !v.hole(f) }):
		v.Verdict = Violated
	case slices.ContainsFunc(v.Missing, func(g Gap) bool { return g.Kind != "start" }):
		v.Verdict = Undetermined
	default:
		v.Verdict = Clean
	}
}

// growing says that some source of the node's log is still written to.
func growing(logs []*Log, node string) bool {
	return slices.ContainsFunc(logs, func(l *Log) bool { return l.Node == node && (l.Kind == FromLive || l.Kind == FromMirror) })
}

// hole says that a finding is about missing events, and of nothing else.
func (v *Verdict) hole(f Finding) bool {
	return f.Invariant == "I9" && slices.ContainsFunc(v.Missing, func(g Gap) bool {
		return g.Kind == "inside" && g.Node == f.Node && g.Last+1 == f.Seq && f.Detail == fmt.Sprintf("seq %d follows %d", f.Seq, g.First-1)
	})
}

// tails compares the ends of copies: a mirror may be behind, a log may not.
func (v *Verdict) tails(logs []*Log, reports map[*Log]*LogReport) {
	for _, ln := range lanes(logs) {
		var end uint64
		for _, c := range ln.copies {
			end = max(end, reports[c.log].LastSeq)
		}
		for _, c := range ln.copies {
			r := reports[c.log]
			if r.LastSeq == end || r.Error != "" {
				continue
			}
			r.Lag = end - r.LastSeq
			if c.log.Kind == FromDir && ln.mirrored(end, reports) {
				v.Violations = append(v.Violations, Finding{Invariant: "I10", Node: ln.node, Seq: r.LastSeq + 1, Detail: fmt.Sprintf(
					"%s ends at %d, its mirror at %d: events were lost from the log", r.Source, r.LastSeq, end)})
			}
		}
	}
}

// strangers finds logs that are held against a mirror that has only other logs of
// their node.
func (v *Verdict) strangers(logs []*Log) {
	for _, l := range logs {
		if l.Kind == FromMirror || l.ID == "" {
			continue
		}
		other := ""
		for _, m := range logs {
			if m.Kind != FromMirror || m.Node != l.Node {
				continue
			}
			if m.ID == l.ID {
				other = ""
				break
			}
			other = m.ID
		}
		if other != "" {
			v.Violations = append(v.Violations, Finding{Invariant: "I10", Node: l.Node, Seq: l.First, Detail: fmt.Sprintf(
				"%s is log %s, which the mirror does not hold: it has log %s of this node", l.Source, l.ID, other)})
		}
	}
}

func (ln *lane) mirrored(end uint64, reports map[*Log]*LogReport) bool {
	for _, c := range ln.copies {
		if c.log.Kind == FromMirror && reports[c.log].LastSeq == end {
			return true
		}
	}
	return false
}

// Write prints the verdict for people.
func (v *Verdict) Write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "NODE\tEVENTS\tFIRST\tLAST\tCHAIN\tLAG\tSOURCE")
	for _, l := range v.Logs {
		chain := "ok"
		if !l.ChainOK {
			chain = "BROKEN"
		}
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%s\t%d\t%s\n", l.Node, l.Events, l.FirstSeq, l.LastSeq, chain, l.Lag, l.Source)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, l := range v.Logs {
		if l.Unknown > 0 {
			fmt.Fprintf(w, "%s: %d events of a newer schema were skipped; what they say is not in this verdict\n", l.Node, l.Unknown)
		}
	}
	for _, f := range v.Violations {
		if _, err := fmt.Fprintln(w, f.Text()); err != nil {
			return err
		}
	}
	for _, c := range v.Clocks {
		fmt.Fprintln(w, c.Text())
	}
	_, err := fmt.Fprintln(w, v.Sentence())
	return err
}

// Sentence is the verdict in words, with what is missing.
func (v *Verdict) Sentence() string {
	var lost, before []string
	for _, g := range v.Missing {
		if g.Kind == "start" {
			before = append(before, fmt.Sprintf("the log of %s begins at event %d: what was before it is not judged", g.Node, g.Last+1))
		} else {
			lost = append(lost, g.Text())
		}
	}
	s := "every invariant that these logs can show holds"
	switch {
	case v.Verdict == Violated:
		if s = fmt.Sprintf("%d violations", len(v.Violations)); len(v.Violations) == 1 {
			s = "1 violation"
		}
	case v.Verdict == Undetermined:
		s = "undetermined, because " + strings.Join(lost, ", ") + ": every invariant that the rest can show holds"
	}
	if v.Verdict == Violated && len(lost) > 0 {
		s += "; there may be more: " + strings.Join(lost, ", ")
	}
	return strings.Join(append([]string{s}, before...), "\n")
}

// Text is the finding in one line.
func (f Finding) Text() string {
	s := fmt.Sprintf("%-3s %s#%d", f.Invariant, f.Node, f.Seq)
	if f.Room != nil {
		s += fmt.Sprintf(" room %d/%d", *f.Room, *f.RoomSeq)
	}
	if f.Page != nil {
		s += fmt.Sprintf(" page %d", *f.Page)
	}
	return s + ": " + f.Detail
}
