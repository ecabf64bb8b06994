package replay_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector/invariants/historytest"
	"github.com/pdlog/pdlog/replay"
)

// acked is an abort as it should go: nothing is wrong in it.
func acked(h *historytest.History) *historytest.History {
	r := h.At(100).Open(7, "d/0", pages, "p/0")
	h.At(101)
	r.Write("p/0", 0, pages, false)
	h.At(105)
	r.Abort()
	h.At(106)
	r.Hear("p/0")
	r.Drain("p/0")
	h.At(107)
	r.Ack("p/0")
	r.Release(events.Basis_BASIS_ACKS)
	return h
}

func TestVerifyIsUndeterminedWhereEvidenceIsMissing(t *testing.T) {
	h := acked(begin())
	d, p := h.Of("d"), h.Of("p")
	ack := p[len(p)-1].Seq // d names it as a cause
	for _, tc := range []struct {
		name    string
		logs    [][]*events.Event
		verdict string
		ok      bool
		says    string
	}{
		{"both logs, whole", [][]*events.Event{d, p}, replay.Clean, true, "every invariant that these logs can show holds"},
		{"the writer's log is not here", [][]*events.Event{d}, replay.Undetermined, true, "undetermined, because no log of node p is here"},
		{"the decode log is not here", [][]*events.Event{p}, replay.Undetermined, true, "undetermined, because no log of node d is here"},
		{"a hole", [][]*events.Event{d, without(p, 3, 4)}, replay.Undetermined, false, "undetermined, because node p's events 3–4 are missing"},
		{"an end that was cut", [][]*events.Event{d, without(p, ack, ack)}, replay.Undetermined, false, "undetermined, because node p's event"},
		{"a beginning that retention dropped", [][]*events.Event{d, without(p, 1, 2)}, replay.Clean, true, "the log of p begins at event 3: what was before it is not judged"},
	} {
		var files []string
		for _, evs := range tc.logs {
			files = append(files, writeFile(t, evs))
		}
		v := verify(t, files...)
		if v.Verdict != tc.verdict || v.OK != tc.ok || !strings.Contains(v.Sentence(), tc.says) {
			t.Errorf("%s: %s, ok %v, says %q; want %s, ok %v with %q", tc.name, v.Verdict, v.OK, v.Sentence(), tc.verdict, tc.ok, tc.says)
		}
	}
	v := verify(t, writeFile(t, lateWrite().Of("d")))
	if v.Verdict != replay.Violated || v.OK || !strings.Contains(v.Sentence(), "there may be more: no log of node p is here") {
		t.Errorf("a breach with the writer's log away: %s, says %q", v.Verdict, v.Sentence())
	}
}

// Whatever is cut from the logs of a healthy run, verify accuses nobody: it says
// what is missing.
func TestVerifyAccusesNobodyForWhatIsMissing(t *testing.T) {
	h := acked(begin())
	r := h.At(200).Open(8, "d/0", pages, "p/0")
	h.At(201)
	r.Write("p/0", 0, pages[:2], false)
	r.Write("p/0", 1, pages[2:], true)
	h.At(203)
	r.Succeed()
	r.Release(events.Basis_BASIS_SUCCESS)
	r = h.At(300).Open(9, "d/0", pages[1:3], "p/0")
	post := r.Post("p/0", 0, pages[1:3], false)
	h.At(301)
	r.Abort()
	h.At(302)
	r.Hear("p/0")
	h.At(400)
	r.Land(post, false)
	r.Complete(post)
	r.Drain("p/0")
	r.Ack("p/0")
	r.Release(events.Basis_BASIS_ACKS)
	if v := verify(t, writeFile(t, h.All)); !v.OK {
		t.Fatal(v.Violations)
	}
	rapid.Check(t, func(rt *rapid.T) {
		var files []string
		cut := false
		for _, node := range []string{"d", "p"} {
			evs := h.Of(node)
			first := rapid.Uint64Range(1, uint64(len(evs))).Draw(rt, "cut "+node)
			last := rapid.Uint64Range(first, uint64(len(evs))).Draw(rt, "to")
			if left := without(evs, first, last); len(left) > 0 {
				files = append(files, writeFile(t, left))
				cut = cut || first > 1 && last < uint64(len(evs))
			}
		}
		if len(files) == 0 {
			return
		}
		v := verify(t, files...)
		if v.Verdict == replay.Violated || cut && v.Verdict == replay.Clean {
			rt.Fatalf("%s: %v, missing %v", v.Verdict, v.Violations, v.Missing)
		}
	})
}

// A clock that is off is said, with an estimate that holds the truth, and breaks
// no rule.
func TestAClockThatIsOffIsAFinding(t *testing.T) {
	for _, skew := range []int64{-7000, 9000} {
		h := historytest.New()
		h.Skew("p", skew)
		h.Start("d", events.Role_ROLE_DECODE, 64)
		h.Start("p", events.Role_ROLE_PREFILL, 64)
		h.Start("q", events.Role_ROLE_PREFILL, 64)
		acked(h)
		h.At(200)
		r := h.Open(9, "d/0", []uint32{20}, "q/0")
		h.At(201)
		r.Write("q/0", 0, r.Pages, true)
		h.At(203)
		r.Succeed()
		v := verify(t, writeFile(t, h.All))
		if !v.OK || len(v.Clocks) != 1 || v.Clocks[0].Node != "p" || v.Clocks[0].WithinMS == nil {
			t.Fatalf("skew %d: ok %v, %v, clocks %+v; want p's alone, with a bound", skew, v.OK, v.Violations, v.Clocks)
		}
		if off := v.Clocks[0].AheadMS - skew; off < -*v.Clocks[0].WithinMS || off > *v.Clocks[0].WithinMS {
			t.Errorf("skew %d ms: said to be %d, within %d", skew, v.Clocks[0].AheadMS, *v.Clocks[0].WithinMS)
		}
		var b strings.Builder
		if err := v.Write(&b); err != nil || !strings.Contains(b.String(), "the clock of p is ") {
			t.Errorf("%v: %q", err, b.String())
		}
		if j := judge(t, writeFile(t, h.All)); len(j.Clocks) != 1 {
			t.Errorf("blame: clocks %+v", j.Clocks)
		}
	}
	h := acked(begin())
	if v := verify(t, writeFile(t, h.All)); len(v.Clocks) != 0 || slices.Contains(invariantsOf(v), "I9") {
		t.Errorf("clocks that agree: %+v", v.Clocks)
	}
}
