package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/cockroachdb/errors"
	"google.golang.org/protobuf/proto"

	"github.com/pdlog/pdlog/events"
)

// Difference is the first place where two copies of one node's log differ.
type Difference struct {
	Node string `json:"node"`
	Seq  uint64 `json:"seq"`
	// Kind: missing_left, missing_right (one side lacks the event; at the end of
	// a mirror that is its lag), differs, or damaged_left, damaged_right: the
	// events that can be read there are equal so far, but the copy is not as it
	// was written (a mirror that holds messages twice, out of order, or broken).
	Kind   string          `json:"kind"`
	Detail string          `json:"detail,omitempty"` // of damaged_*
	Fields []string        `json:"fields"`           // keys of the JSON form that differ
	Left   json.RawMessage `json:"left"`             // null if it lacks the event
	Right  json.RawMessage `json:"right"`
}

// DiffResult is the answer of diff.
type DiffResult struct {
	Equal       bool          `json:"equal"`
	Compared    uint64        `json:"compared"` // events on both sides
	Nodes       []string      `json:"nodes"`
	Differences []*Difference `json:"differences"` // the first one of each node
}

// Diff compares two sources node by node, from the first sequence that both
// keep to the end of the longer one. A side that holds one node's log alone says
// which is meant: the other may be the mirror of a whole fleet. Else nodes that
// only one side has are an ErrBadSource, unless node names the one to compare
// ("" = all).
func Diff(ctx context.Context, left, right []*Log, node string) (*DiffResult, error) {
	l, r := byNode(left, node), byNode(right, node)
	if node == "" {
		if len(l) == 1 {
			r = only(r, l)
		} else if len(r) == 1 {
			l = only(l, r)
		}
	}
	res := &DiffResult{Nodes: []string{}, Differences: []*Difference{}}
	for name := range l {
		if r[name] == nil {
			return nil, errors.Wrapf(ErrBadSource, "node %s is in %s only", name, l[name].Source)
		}
		res.Nodes = append(res.Nodes, name)
	}
	for name := range r {
		if l[name] == nil {
			return nil, errors.Wrapf(ErrBadSource, "node %s is in %s only", name, r[name].Source)
		}
	}
	if len(res.Nodes) == 0 {
		return nil, errors.Wrapf(ErrBadSource, "no log of node %s", node)
	}
	slices.Sort(res.Nodes)
	for _, name := range res.Nodes {
		d, n, err := diffLogs(ctx, l[name], r[name])
		if err != nil {
			return nil, err
		}
		d = firstOf(d, l[name], "damaged_left")
		d = firstOf(d, r[name], "damaged_right")
		res.Compared += n
		if d != nil {
			res.Differences = append(res.Differences, d)
		}
	}
	res.Equal = len(res.Differences) == 0
	return res, nil
}

// only keeps of many what the one of the other side is compared with.
func only(many, one map[string]*Log) map[string]*Log {
	out := map[string]*Log{}
	for name := range one {
		if l := many[name]; l != nil {
			out[name] = l
		}
	}
	return out
}

func byNode(logs []*Log, node string) map[string]*Log {
	out := map[string]*Log{}
	for _, l := range logs {
		if (node == "" || l.Node == node) && out[l.Node] == nil {
			out[l.Node] = l
		}
	}
	return out
}

func diffLogs(ctx context.Context, left, right *Log) (*Difference, uint64, error) {
	ln, lstop := iter.Pull2(left.Events(ctx))
	defer lstop()
	rn, rstop := iter.Pull2(right.Events(ctx))
	defer rstop()
	from := max(left.First, right.First)
	var n uint64
	for {
		a, err := pullFrom(ln, from)
		if err != nil {
			return nil, n, errors.Wrapf(err, "%s", left.Source)
		}
		b, err := pullFrom(rn, from)
		if err != nil {
			return nil, n, errors.Wrapf(err, "%s", right.Source)
		}
		switch {
		case a == nil && b == nil:
			return nil, n, nil
		case b == nil || a != nil && a.Seq < b.Seq:
			return difference("missing_right", a, nil), n, nil
		case a == nil || b.Seq < a.Seq:
			return difference("missing_left", nil, b), n, nil
		case !proto.Equal(a, b):
			if d := difference("differs", a, b); len(d.Fields) > 0 {
				return d, n, nil
			}
		}
		n++
	}
}

// firstOf is d, or what the log's reader found wrong before it.
func firstOf(d *Difference, l *Log, kind string) *Difference {
	for _, p := range l.problems {
		if d == nil || p.seq < d.Seq {
			d = &Difference{Node: l.Node, Seq: p.seq, Kind: kind, Detail: p.detail, Fields: []string{}}
		}
	}
	return d
}

func pullFrom(next func() (*events.Event, error, bool), from uint64) (*events.Event, error) {
	for {
		e, err, ok := next()
		if !ok || err != nil || e.Seq >= from {
			return e, err
		}
	}
}

func difference(kind string, a, b *events.Event) *Difference {
	d := &Difference{Kind: kind, Fields: []string{}}
	for _, e := range []*events.Event{a, b} {
		if e != nil {
			d.Node, d.Seq = e.Node, e.Seq
		}
	}
	if a != nil {
		d.Left = events.AppendJSON(nil, a)
	}
	if b != nil {
		d.Right = events.AppendJSON(nil, b)
	}
	if a != nil && b != nil {
		d.Fields = differingKeys(d.Left, d.Right)
	}
	return d
}

func differingKeys(a, b []byte) []string {
	var ma, mb map[string]json.RawMessage
	out := []string{}
	if json.Unmarshal(a, &ma) != nil || json.Unmarshal(b, &mb) != nil {
		return out
	}
	for k, v := range ma {
		if !bytes.Equal(v, mb[k]) {
			out = append(out, k)
		}
	}
	for k := range mb {
		if _, ok := ma[k]; !ok {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// Write prints the result for people.
func (r *DiffResult) Write(w io.Writer) error {
	for _, d := range r.Differences {
		fmt.Fprintf(w, "%s#%d: %s", d.Node, d.Seq, map[string]string{
			"missing_left":  "only the second source has it",
			"missing_right": "only the first source has it",
			"differs":       "the sources differ in",
			"damaged_left":  "the first source is damaged: " + d.Detail,
			"damaged_right": "the second source is damaged: " + d.Detail,
		}[d.Kind])
		for _, f := range d.Fields {
			fmt.Fprintf(w, " %s", f)
		}
		fmt.Fprintln(w)
		if d.Left != nil {
			fmt.Fprintf(w, "  - %s\n", d.Left)
		}
		if d.Right != nil {
			fmt.Fprintf(w, "  + %s\n", d.Right)
		}
	}
	if r.Equal {
		_, err := fmt.Fprintf(w, "equal: %d events of %v\n", r.Compared, r.Nodes)
		return err
	}
	_, err := fmt.Fprintf(w, "%d events are equal before that\n", r.Compared)
	return err
}
