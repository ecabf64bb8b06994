package replay_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector/invariants/historytest"
	"github.com/pdlog/pdlog/replay"
)

// lines are the incidents in a form that a table can hold.
func lines(in []*replay.Incident) string {
	var out []string
	for _, i := range in {
		victim, writer, chunk, basis, landed := "none", "none", "?", "-", "?"
		if i.VictimRoom != nil {
			victim = fmt.Sprint(*i.VictimRoom)
		}
		if i.Writer != nil {
			writer = fmt.Sprintf("%s room %d", *i.Writer, *i.WriterRoom)
		}
		if i.Chunk != nil {
			chunk = fmt.Sprint(*i.Chunk)
		}
		if i.ReleaseBasis != nil {
			basis = *i.ReleaseBasis
		}
		if i.WriteLandedAt != nil {
			landed = fmt.Sprint(i.WriteLandedAt.UnixMilli() - 1_767_225_600_000)
		}
		out = append(out, fmt.Sprintf("page %d victim %s writer %s chunk %s basis %s missing %v landed %s %s",
			i.Page, victim, writer, chunk, basis, i.MissingAcks, landed, i.Certainty))
	}
	return strings.Join(out, "\n")
}

func TestBlameNamesTheWriter(t *testing.T) {
	h := lateWrite()
	want := strings.Join([]string{
		"page 10 victim none writer p/0 room 7 chunk 2 basis timeout missing [p/0] landed 4000 landed",
		"page 11 victim none writer p/0 room 7 chunk 2 basis timeout missing [p/0] landed 4000 landed",
		"page 12 victim 8 writer p/0 room 7 chunk 2 basis timeout missing [p/0] landed 4000 landed",
		"page 13 victim 8 writer p/0 room 7 chunk 2 basis timeout missing [p/0] landed 4000 landed",
	}, "\n")
	views := map[string][]*events.Event{
		"both logs":      h.All,
		"the decode log": h.Of("d"),
		"a decode node that knew the room no more": h.With(func(e *events.Event) {
			if e.GetWriteLanded().GetAfterRelease() {
				e.RoomSeq = 0
			}
		}),
		"the writer's end": h.Without(func(e *events.Event) bool { return e.GetWriteLanded().GetAfterRelease() }),
	}
	for name, evs := range views {
		if got := lines(replay.Blame(gather(t, evs))); got != want {
			t.Errorf("%s:\nhave\n%s\nwant\n%s", name, got, want)
		}
	}
	if got := replay.Blame(gather(t, h.Of("p"))); len(got) != 0 {
		t.Errorf("the prefill log alone does not know of releases, yet: %s", lines(got))
	}
}

func TestBlameHasNoSuspect(t *testing.T) {
	cases := map[string]func(h *historytest.History){
		"a proper ack": func(h *historytest.History) {
			r := h.At(10).Open(7, "d/0", pages, "p/0")
			post := r.Post("p/0", 0, pages, false)
			r.Abort()
			r.Hear("p/0")
			h.At(500)
			r.Land(post, false)
			r.Complete(post)
			r.Drain("p/0")
			r.Ack("p/0")
			r.Release(events.Basis_BASIS_ACKS)
			h.Open(8, "d/0", pages, "p/0")
		},
		"a fence, and a write that bounced": func(h *historytest.History) {
			r := h.At(10).Open(7, "d/0", pages, "p/0")
			post := r.Post("p/0", 0, pages, false)
			r.Abort()
			r.Fence("p/0")
			r.Release(events.Basis_BASIS_FENCE)
			r.D("p/0", &events.LateWriteRejected{To: "d/0", Pages: pages})
			r.P("p/0", &events.ChunkDrained{Token: post.Seq, Landed: true})
		},
		"a timed release after the write had landed": func(h *historytest.History) {
			r := h.At(10).Open(7, "d/0", pages, "p/0")
			post := r.Post("p/0", 0, pages, false)
			r.Abort()
			r.Land(post, false)
			r.Release(events.Basis_BASIS_TIMEOUT)
			h.At(2000)
			r.Complete(post) // the writer learnt of it later
		},
		"a proper ack, read through clocks that disagree": func(h *historytest.History) {
			h.Skew("p", 30_000)
			r := h.At(10).Open(7, "d/0", pages, "p/0")
			post := r.Post("p/0", 0, pages, false)
			r.Abort()
			r.Hear("p/0")
			r.Complete(post)
			r.Drain("p/0")
			r.Ack("p/0")
			r.Release(events.Basis_BASIS_ACKS)
		},
	}
	for name, tell := range cases {
		h := begin()
		tell(h)
		merged := collect(t, replay.Merge(t.Context(), open(t, writeFile(t, h.All))))
		if got := replay.Blame(gather(t, merged)); len(got) != 0 {
			t.Errorf("%s: %s", name, lines(got))
		}
	}
}

func TestBlameOfAForcedRelease(t *testing.T) {
	h := begin()
	a := h.At(5).Open(7, "d/0", pages, "p/0", "p/1")
	post := a.Post("p/1", 3, pages[:2], false)
	a.Abort()
	a.Hear("p/0")
	a.Drain("p/0")
	a.Ack("p/0")
	a.Release(events.Basis_BASIS_FORCED)
	h.At(900)
	h.Open(8, "d/0", []uint32{11}, "p/0")
	h.At(1000)
	a.Land(post, true)
	want := "page 10 victim none writer p/1 room 7 chunk 3 basis forced missing [p/1] landed 1000 landed\n" +
		"page 11 victim 8 writer p/1 room 7 chunk 3 basis forced missing [p/1] landed 1000 landed"
	if got := lines(replay.Blame(gather(t, h.All))); got != want {
		t.Errorf("have\n%s\nwant\n%s", got, want)
	}
}

func TestBlameOfAnAckThatLied(t *testing.T) {
	h := begin()
	a := h.At(5).Open(7, "d/0", pages[:1], "p/0")
	post := a.Post("p/0", 0, pages[:1], false)
	a.Abort()
	a.Ack("p/0") // while the write is open
	a.Release(events.Basis_BASIS_ACKS)
	h.At(50)
	h.Open(8, "d/0", pages[:1], "p/0")
	h.At(60)
	a.Complete(post)
	want := "page 10 victim 8 writer p/0 room 7 chunk 0 basis acks missing [] landed 60 landed"
	if got := lines(replay.Blame(gather(t, h.All))); got != want {
		t.Errorf("have %s, want %s", got, want)
	}
}

func TestBlameOfAWriteOutsideItsRoom(t *testing.T) {
	h := begin()
	a := h.At(5).Open(7, "d/0", pages, "p/0")
	h.Open(8, "d/0", []uint32{20}, "p/0")
	a.Land(a.Post("p/0", 1, []uint32{20}, false), false)
	want := "page 20 victim 8 writer p/0 room 7 chunk 1 basis - missing [] landed 5 landed"
	if got := lines(replay.Blame(gather(t, h.All))); got != want {
		t.Errorf("have %s, want %s", got, want)
	}
}

func TestBlameOfAFailedPageCheck(t *testing.T) {
	late := func(h *historytest.History) (b *historytest.Room, post *events.Event, a *historytest.Room) {
		a = h.At(5).Open(7, "d/0", pages, "p/0")
		post = a.Post("p/0", 4, pages, false)
		a.Abort()
		a.Release(events.Basis_BASIS_TIMEOUT)
		h.At(100)
		b = h.Open(8, "d/0", pages[:2], "p/0")
		b.Write("p/0", 0, b.Pages, true)
		h.At(200)
		return b, post, a
	}
	check := func(b *historytest.Room) {
		b.D("", &events.PageCheckFailed{Page: 10, To: "d/0", Detail: "bytes differ"})
	}
	cases := map[string]struct {
		want string
		tell func(h *historytest.History)
	}{
		"nothing else wrote it": {
			"page 12 victim 7 writer none chunk ? basis - missing [] landed ? unknown",
			func(h *historytest.History) {
				r := h.At(5).Open(7, "d/0", pages, "p/0")
				r.Write("p/0", 0, pages, true)
				r.D("", &events.PageCheckFailed{Page: 12, To: "d/0"})
			},
		},
		"a write that was still open": {
			"page 10 victim 8 writer p/0 room 7 chunk 4 basis timeout missing [p/0] landed ? possible",
			func(h *historytest.History) { b, _, _ := late(h); check(b) },
		},
		"a write that landed and was reported by both sides": {
			"page 10 victim 8 writer p/0 room 7 chunk 4 basis timeout missing [p/0] landed 200 landed\n" +
				"page 11 victim 8 writer p/0 room 7 chunk 4 basis timeout missing [p/0] landed 200 landed\n" +
				"page 12 victim none writer p/0 room 7 chunk 4 basis timeout missing [p/0] landed 200 landed\n" +
				"page 13 victim none writer p/0 room 7 chunk 4 basis timeout missing [p/0] landed 200 landed",
			func(h *historytest.History) {
				b, post, a := late(h)
				a.Land(post, true)
				check(b)
				a.Complete(post)
			},
		},
	}
	for name, tc := range cases {
		h := begin()
		tc.tell(h)
		if got := lines(replay.Blame(gather(t, h.All))); got != tc.want {
			t.Errorf("%s:\nhave\n%s\nwant\n%s", name, got, tc.want)
		}
	}
	h := begin()
	b, _, _ := late(h)
	check(b)
	want := "page 10 victim 8 writer p/0 room 7 chunk ? basis timeout missing [p/0] landed ? possible"
	if got := lines(replay.Blame(gather(t, h.Of("d")))); got != want {
		t.Errorf("the decode log alone: have %s, want %s", got, want)
	}
}
