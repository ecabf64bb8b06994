package picture

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
)

// lifelines is how many rooms a report draws; the table has the rest.
const lifelines = 12

type report struct {
	Bad     bool
	Verdict []sentence
	Blame   []sentence
	Broken  []sentence
	Lives   []life
	Logs    []*replay.LogReport
}

// sentence is a statement and the events it rests on.
type sentence struct {
	Text string
	Refs []ref
}

type ref struct{ ID, Anchor string }

type life struct {
	Title string
	Text  string
}

func (s *Scene) report(v *replay.Verdict) (*report, error) {
	r := &report{Bad: len(s.incidents) > 0 || !v.OK || v.Verdict == replay.Undetermined, Logs: v.Logs}
	r.Blame = s.blame()
	for _, f := range v.Violations {
		r.Broken = append(r.Broken, sentence{f.Text(), refsOf([]string{fmt.Sprintf("%s#%d", f.Node, f.Seq)})})
	}
	r.Verdict = s.verdict(v)
	var err error
	r.Lives, err = s.lives()
	return r, err
}

func (s *Scene) verdict(v *replay.Verdict) []sentence {
	var out []sentence
	switch n := len(s.incidents); {
	case n == 0 && v.Verdict == replay.Clean:
		out = append(out, sentence{Text: "No page was written after its release, none failed its check, and every invariant that these logs can show holds."})
	case n == 0:
		out = append(out, sentence{Text: "No page was written after its release, and none failed its check."})
	default:
		writers, victims := map[string]bool{}, map[uint64]bool{}
		for _, in := range s.incidents {
			if in.Writer != nil {
				writers[*in.Writer] = true
			}
			for _, o := range in.Others {
				writers[o.Writer] = true
			}
			if in.VictimRoom != nil {
				victims[*in.VictimRoom] = true
			}
		}
		text := fmt.Sprintf("%s; %s had the page then.", plural(n, "page was written by a write that had no business there, or failed its check", "pages were written by a write that had no business there, or failed their check"),
			plural(len(victims), "room", "rooms"))
		switch {
		case len(writers) > 0:
			text += " Written by " + strings.Join(sorted(writers), ", ") + "."
		default:
			text += " No transfer in these logs wrote there."
		}
		out = append(out, sentence{text, refsOf(slices.Compact(slices.Sorted(slices.Values(s.incidents[0].Evidence))))})
	}
	if len(v.Violations) > 0 {
		out = append(out, sentence{Text: plural(len(v.Violations), "rule is broken", "breaches of rules") + ", listed below."})
	}
	for _, g := range v.Missing {
		out = append(out, sentence{Text: "Evidence is missing, and what it would say stays undetermined: " + g.Text() + "."})
	}
	for _, c := range v.Clocks {
		out = append(out, sentence{Text: strings.ToUpper(c.Text()[:1]) + c.Text()[1:] + "."})
	}
	for _, l := range v.Logs {
		if l.Error != "" || !l.ChainOK {
			out = append(out, sentence{Text: fmt.Sprintf("The log of %s (%s) is not whole: what is missing from it is missing from this report.", l.Node, l.Source)})
		}
		if l.Unknown > 0 {
			out = append(out, sentence{Text: fmt.Sprintf("%d events of %s are of a newer schema and were skipped.", l.Unknown, l.Node)})
		}
	}
	return out
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func sorted(m map[string]bool) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// blame tells incidents that differ in nothing but the page together.
func (s *Scene) blame() []sentence {
	var out []sentence
	for i := 0; i < len(s.incidents); {
		in := s.incidents[i]
		story := in.Story()
		pages := []uint32{in.Page}
		evidence := slices.Clone(in.Evidence)
		for i++; i < len(s.incidents) && s.incidents[i].Node == in.Node && s.incidents[i].Story() == story; i++ {
			pages = append(pages, s.incidents[i].Page)
			evidence = append(evidence, s.incidents[i].Evidence...)
		}
		slices.Sort(evidence)
		noun := "Page"
		if len(pages) > 1 {
			noun = "Pages"
		}
		out = append(out, sentence{fmt.Sprintf("%s %s of %s: %s", noun, replay.Ranges(pages), in.Node, story), refsOf(slices.Compact(evidence))})
	}
	return out
}

func refsOf(ids []string) []ref {
	out := make([]ref, 0, len(ids))
	for _, id := range ids {
		out = append(out, ref{id, anchor(id)})
	}
	return out
}

// lives are the lifelines of the rooms that the incidents name.
func (s *Scene) lives() ([]life, error) {
	type key struct{ room, seq uint64 }
	var order []key
	add := func(room, seq *uint64) {
		if room != nil && seq != nil && !slices.Contains(order, key{*room, *seq}) && len(order) < lifelines {
			order = append(order, key{*room, *seq})
		}
	}
	for _, in := range s.incidents {
		add(in.WriterRoom, in.WriterRoomSeq)
		add(in.VictimRoom, in.VictimRoomSeq)
	}
	var out []life
	for _, k := range order {
		l, err := replay.Lifeline(stream(s.rows), k.room, k.seq)
		if err != nil {
			return nil, err
		}
		var b strings.Builder
		if err := l.Write(&b); err != nil {
			return nil, err
		}
		out = append(out, life{fmt.Sprintf("Room %d", k.room), b.String()})
	}
	return out, nil
}

func stream(evs []*events.Event) iter.Seq2[*events.Event, error] {
	return func(yield func(*events.Event, error) bool) {
		for _, e := range evs {
			if !yield(e, nil) {
				return
			}
		}
	}
}
