package replay_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
)

// judge blames sources and says what is missing of them.
func judge(t *testing.T, sources ...string) replay.Judgement {
	t.Helper()
	logs := open(t, sources...)
	var damage error
	h, err := replay.Gather(replay.Readable(replay.Merge(t.Context(), logs), &damage))
	if err != nil {
		t.Fatal(err)
	}
	return h.Judge(replay.Blame(h), h.Missing(logs))
}

func without(evs []*events.Event, first, last uint64) []*events.Event {
	var out []*events.Event
	for _, e := range evs {
		if e.Seq < first || e.Seq > last {
			out = append(out, e)
		}
	}
	return out
}

func TestVerdictsRestOnWholeEvidence(t *testing.T) {
	acked := begin()
	r := acked.At(100).Open(7, "d/0", pages, "p/0")
	r.Write("p/0", 0, pages, false)
	r.Abort()
	r.Hear("p/0")
	r.Drain("p/0")
	r.Ack("p/0")
	r.Release(events.Basis_BASIS_ACKS)

	unsafe := begin()
	u := unsafe.At(100).Open(7, "d/0", pages, "p/0")
	u.Post("p/0", 0, pages, false)
	u.Abort()
	u.Release(events.Basis_BASIS_TIMEOUT)

	p := acked.Of("p")
	ack := p[len(p)-1].Seq // d names it as a cause
	for _, tc := range []struct {
		name  string
		logs  [][]*events.Event
		want  string
		story string
	}{
		{"both logs, whole", [][]*events.Event{acked.Of("d"), p}, replay.Clean, "no page was written"},
		{"a hole in the writer's log", [][]*events.Event{acked.Of("d"), without(p, 3, 4)}, replay.Undetermined, "undetermined, because node p's events 3–4 are missing"},
		{"the writer's log ends before what it is known to hold", [][]*events.Event{acked.Of("d"), without(p, ack, ack)}, replay.Undetermined, "undetermined, because node p's event"},
		{"the writer's log is not here, its rank gave its word", [][]*events.Event{acked.Of("d")}, replay.Clean, "no page was written"},
		{"the writer's log is not here, its rank gave no word", [][]*events.Event{unsafe.Of("d")}, replay.Undetermined, "no log of node p is here"},
		{"the unsafe release, both logs", [][]*events.Event{unsafe.Of("d"), unsafe.Of("p")}, replay.Clean, "no page was written"},
		{"a log whose beginning is gone", [][]*events.Event{acked.Of("d"), without(p, 1, 1)}, replay.Clean, "the log of p begins at event 2"},
	} {
		var files []string
		for _, evs := range tc.logs {
			files = append(files, writeFile(t, evs))
		}
		j := judge(t, files...)
		var sb strings.Builder
		if err := replay.WriteBlame(&sb, j); err != nil {
			t.Fatal(err)
		}
		if j.Verdict != tc.want || !strings.Contains(sb.String(), tc.story) {
			t.Errorf("%s: %s, want %s with %q; says %q", tc.name, j.Verdict, tc.want, tc.story, sb.String())
		}
	}
}

// Holes of one copy are filled from another: what both together have is all
// that counts, whichever comes first.
func TestHolesOfOneCopyAreFilledFromAnother(t *testing.T) {
	h := lateWrite()
	d, p := writeFile(t, h.Of("d")), h.Of("p")
	whole := lines(judge(t, d, writeFile(t, p)).Incidents)
	rapid.Check(t, func(rt *rapid.T) {
		end := p[len(p)-1].Seq
		at := rapid.Uint64Range(2, end-2).Draw(rt, "hole in one")
		to := rapid.Uint64Range(at, end-1).Draw(rt, "its end")
		a, b := writeFile(t, without(p, at, to)), writeFile(t, without(p, to+1, end))
		if rapid.Bool().Draw(rt, "swap") {
			a, b = b, a
		}
		j := judge(t, d, a, b)
		if len(j.Doubts) > 0 || lines(j.Incidents) != whole {
			rt.Fatalf("missing %v, incidents\n%s", j.Doubts, lines(j.Incidents))
		}
	})
}

func TestSpansAddUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var s replay.Spans
		in := map[uint64]bool{}
		for range rapid.IntRange(1, 12).Draw(rt, "runs") {
			first := rapid.Uint64Range(1, 40).Draw(rt, "first")
			last := first + rapid.Uint64Range(0, 8).Draw(rt, "more")
			s.Add(first, last)
			for q := first; q <= last; q++ {
				in[q] = true
			}
		}
		missing := map[uint64]bool{}
		for _, hole := range s.Holes(50) {
			for q := hole.First; q <= hole.Last; q++ {
				missing[q] = true
			}
		}
		for q := uint64(1); q <= 50; q++ {
			if in[q] == missing[q] {
				rt.Fatalf("%d: in %v, missing %v, spans %s", q, in[q], missing[q], s)
			}
		}
	})
}
