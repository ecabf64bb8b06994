package replay

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Span is a run of sequences, both ends included.
type Span struct {
	First uint64 `json:"first_seq"`
	Last  uint64 `json:"last_seq"`
}

func (s Span) String() string {
	if s.First == s.Last {
		return fmt.Sprint(s.First)
	}
	return fmt.Sprintf("%d–%d", s.First, s.Last)
}

// Spans are runs of sequences of one log, ascending and apart.
type Spans []Span

// Add puts a run in. Runs mostly come in order, which costs nothing.
func (s *Spans) Add(first, last uint64) {
	if n := len(*s); n > 0 && first <= (*s)[n-1].Last+1 {
		if first >= (*s)[n-1].First {
			(*s)[n-1].Last = max((*s)[n-1].Last, last)
			return
		}
		*s = append(*s, Span{first, last})
		s.tidy()
		return
	}
	*s = append(*s, Span{first, last})
}

func (s *Spans) tidy() {
	all := *s
	slices.SortFunc(all, func(a, b Span) int { return cmp.Compare(a.First, b.First) })
	out := all[:1]
	for _, x := range all[1:] {
		if end := &out[len(out)-1]; x.First <= end.Last+1 {
			end.Last = max(end.Last, x.Last)
		} else {
			out = append(out, x)
		}
	}
	*s = out
}

// Union is what either has.
func (s Spans) Union(other Spans) Spans {
	out := append(slices.Clone(s), other...)
	if len(out) > 0 {
		out.tidy()
	}
	return out
}

// Holes are the runs up to last that are not there.
func (s Spans) Holes(last uint64) Spans {
	var out Spans
	next := uint64(1)
	for _, x := range s {
		if x.First > next {
			out = append(out, Span{next, x.First - 1})
		}
		next = x.Last + 1
	}
	if next <= last {
		out = append(out, Span{next, last})
	}
	return out
}

func (s Spans) String() string {
	parts := make([]string, len(s))
	for i, x := range s {
		parts[i] = x.String()
	}
	return strings.Join(parts, ", ")
}
