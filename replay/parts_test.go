package replay_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector/invariants/historytest"
	"github.com/pdlog/pdlog/replay"
)

// twoRanks is a prefill of TP 2 and a decode of TP 1: each page is written by both
// ranks. A page is 64 bytes, of 4 tokens with two heads of 8 bytes each. In the
// pools of an SGLang decode (boot 0) the ranks' slices lie between one another,
// token by token (wire.md 5); of a pdlog node each writes one half of a page.
func twoRanks(boot uint64) *historytest.History {
	h := historytest.New()
	h.Start("d", events.Role_ROLE_DECODE, 64)
	h.Add("d", 0, 0, "", nil, &events.MemoryRegistered{Name: "rank0", Pages: 64, ItemBytes: 64})
	h.Add("p", 0, 0, "", nil, &events.NodeStarted{
		Role: events.Role_ROLE_PREFILL, LogId: []byte("p"), Ranks: 2, PageSize: 4, Version: "test", Place: &events.Place{TpSize: 2, PpSize: 1, CpSize: 1},
	})
	for rank := range 2 {
		h.Add("p", 0, 0, "", nil, &events.MemoryRegistered{Name: fmt.Sprint("rank", rank), LocalRank: uint32(rank), Pages: 64, ItemBytes: 32}) //nolint:gosec // 0 and 1
		h.Add("p", 0, 0, "", nil, &events.PeerRegistered{
			Peer: "d/0", Address: "10.0.0.1:1", PeerBoot: boot, At: fmt.Sprint("p/", rank),
			Memory: &events.PeerMemory{KvPtrs: []uint64{0x7f0000000000}, KvItemBytes: []uint64{64}, TpSize: 1},
		})
	}
	return h
}

// freed gives the pages of room 7 to room 8 while the writes of both ranks are
// open, or only those that are named.
func freed(h *historytest.History, late ...string) (room *historytest.Room, open map[string]*events.Event) {
	a := h.At(100).Open(7, "d/0", pages, "p/0", "p/1")
	open = map[string]*events.Event{}
	for _, rank := range a.Ranks {
		post := a.Post(rank, 0, pages, false)
		if slices.Contains(late, rank) {
			open[rank] = post
			continue
		}
		a.Land(post, false)
		a.Complete(post)
	}
	h.At(120)
	a.Abort()
	h.At(1120)
	a.Release(events.Basis_BASIS_TIMEOUT)
	h.At(1300)
	h.Open(8, "d/0", pages[2:3], "p/0", "p/1")
	return a, open
}

// fates tells one page's incident: who is named, who is cleared, and by which bytes.
func fates(t *testing.T, h *historytest.History, page uint32) []string {
	t.Helper()
	var out []string
	say := func(what, rank string, parts []replay.Part) {
		s := what + " " + rank
		for _, p := range parts {
			s += fmt.Sprintf(" %#x-%#x: %d of %d at %d, %d times %d", p.Start, p.End, p.Len, p.Page, p.Off, p.Times, p.Stride)
		}
		out = append(out, s)
	}
	for _, in := range replay.Blame(gather(t, h.All)) {
		if in.Page != page || in.Writer == nil {
			continue
		}
		say("named", *in.Writer, in.Bytes)
		for _, o := range in.Others {
			say("named", o.Writer, o.Bytes)
		}
		for _, c := range in.Cleared {
			say("cleared", c.Writer, c.Bytes)
		}
	}
	slices.SortFunc(out, func(a, b string) int { return cmp.Compare(a, b) })
	return out
}

func TestRanksThatWriteSlicesOfOnePageAreNamedOrClearedByTheirBytes(t *testing.T) {
	// Page 12 stands 768 bytes behind the buffer's start. Rank 0 writes the first 8
	// bytes of each token of 16, rank 1 the second; the last piece of rank 0 ends 56
	// bytes into the page.
	const zero, one = "0x7f0000000300-0x7f0000000338: 8 of 64 at 0, 4 times 16", "0x7f0000000308-0x7f0000000340: 8 of 64 at 8, 4 times 16"
	for _, tc := range []struct {
		late []string
		want []string
	}{
		{[]string{"p/1"}, []string{"cleared p/0 " + zero, "named p/1 " + one}},
		{[]string{"p/0"}, []string{"cleared p/1 " + one, "named p/0 " + zero}},
		{[]string{"p/0", "p/1"}, []string{"named p/0 " + zero, "named p/1 " + one}},
	} {
		h := twoRanks(0)
		room, open := freed(h, tc.late...)
		h.At(4000)
		for _, rank := range tc.late {
			room.Land(open[rank], true)
			room.Complete(open[rank])
		}
		if have := fates(t, h, 12); !slices.Equal(have, tc.want) {
			t.Errorf("late %v:\n%s\nwant\n%s", tc.late, strings.Join(have, "\n"), strings.Join(tc.want, "\n"))
		}
	}
}

// Both ranks' writes are still open when bytes are found wrong: which bytes they
// are says whose.
func TestWrongBytesNameTheRankThatWritesThem(t *testing.T) {
	for _, tc := range []struct {
		boot     uint64
		off, len uint64
		want     string // of named and cleared, without the bytes
	}{
		{9, 32, 32, "cleared p/0 named p/1"}, // pdlog: halves
		{9, 0, 1, "cleared p/1 named p/0"},
		{0, 24, 8, "cleared p/0 named p/1"}, // interleaved: the second head of the second token
		{0, 16, 8, "cleared p/1 named p/0"},
	} {
		h := twoRanks(tc.boot)
		freed(h, "p/0", "p/1")
		h.At(1500)
		room8 := h.All[len(h.All)-1]
		victim := uint64(0)
		for _, e := range h.Of("d") {
			if e.Room == 8 {
				victim = e.RoomSeq
			}
		}
		h.Add("d", 8, victim, "", nil, &events.PageCheckFailed{Page: 12, To: "d/0", Detail: "other bytes", PageOff: tc.off, PageLen: tc.len})
		var have []string
		for _, s := range fates(t, h, 12) {
			have = append(have, strings.Join(strings.Fields(s)[:2], " "))
		}
		if got := strings.Join(have, " "); got != tc.want {
			t.Errorf("bytes %d to %d (boot %d, after %s): %s, want %s", tc.off, tc.off+tc.len, tc.boot, room8.TypeName(), got, tc.want)
		}
	}
}

// A check on another local rank's memory is none of a write's to this one.
func TestWrongBytesOnAnotherRankNameNobody(t *testing.T) {
	h := twoRanks(9)
	freed(h, "p/0", "p/1")
	victim := uint64(0)
	for _, e := range h.Of("d") {
		if e.Room == 8 {
			victim = e.RoomSeq
		}
	}
	h.At(1500).Add("d", 8, victim, "", nil, &events.PageCheckFailed{Page: 12, To: "d/1", Detail: "other bytes", PageLen: 8})
	for _, in := range replay.Blame(gather(t, h.All)) {
		if in.Page == 12 && in.Chunk != nil {
			t.Errorf("named: %s", in.Story())
		}
	}
}

func TestAPageIsToldByItsBytes(t *testing.T) {
	h := twoRanks(9)
	room, open := freed(h, "p/1")
	h.At(4000)
	room.Land(open["p/1"], true)
	room.Complete(open["p/1"])
	hist := gather(t, h.All)
	var sb strings.Builder
	if err := replay.PageHistory(hist, "d", 12, nil).Write(&sb); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"write_posted 7/3 p/0 0 bytes 0–31 of 64", "write_ended 7/3 p/1 0 bytes 32–63 of 64"} {
		if !strings.Contains(strings.Join(strings.Fields(sb.String()), " "), want) {
			t.Errorf("%q is not in\n%s", want, sb.String())
		}
	}
	var story string
	for _, in := range replay.Blame(hist) {
		if in.Page == 12 {
			story = in.Story()
		}
	}
	for _, want := range []string{"Written by p/1 for room 7/", "bytes 32–63 of 64 of the page", "p/0, chunk 0 (bytes 0–31 of 64), is cleared: landed while the page was its room's."} {
		if !strings.Contains(story, want) {
			t.Errorf("%q is not in %q", want, story)
		}
	}
}
