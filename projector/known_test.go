package projector

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/pdlog/pdlog/events"
)

// Receipts are what a plain map of views would hold, whatever comes and goes.
func TestKnownRoomsAreAMapOfViews(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type use struct {
			seq, at uint64
			uses    uint32
			view    RoomView
		}
		k, want := newKnownRooms(), map[uint64]use{}
		open, queue := map[uint64][]uint64{}, []knownRef{}
		now, seq := uint64(1), uint64(0)
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			seq++
			now += rapid.Uint64Range(0, knownFor/20).Draw(t, "pause")
			room := rapid.Uint64Range(1, 12).Draw(t, "room")
			u := want[room]
			if uses := open[room]; len(uses) == 0 || rapid.Bool().Draw(t, "again") {
				k.opened(room, seq, now)
				want[room] = use{seq: seq, at: now, uses: u.uses + 1, view: RoomView{Room: room, RoomSeq: seq}}
				open[room] = append(open[room], seq)
				continue
			}
			i := rapid.IntRange(0, len(open[room])-1).Draw(t, "which")
			of := open[room][i]
			open[room] = slices.Delete(open[room], i, i+1)
			view := RoomView{
				Room: room, RoomSeq: of, State: "released", Basis: "acks", Cause: "client", Reason: rapid.StringN(0, 9, -1).Draw(t, "reason"),
				Generation: seq, ReleasedSeq: seq, Pages: rapid.SliceOfN(rapid.Uint32(), 1, 40).Draw(t, "pages"), Missing: []RankID{"p0/1"},
			}
			end := endingOf(view, events.AbortCause_ABORT_CAUSE_CLIENT, &events.Released{Basis: events.Basis_BASIS_ACKS})
			k.released(room, of, now, seq, &end)
			queue = append(queue, knownRef{room: room, at: now})
			if u.at = now; u.seq <= of {
				u.view, u.seq = view, of
			}
			want[room] = u
			k.forget(now, func(room uint64) bool { return len(open[room]) > 0 })
			for len(queue) > 0 && queue[0].at+knownFor < now {
				if u := want[queue[0].room]; u.at == queue[0].at && len(open[queue[0].room]) == 0 {
					delete(want, queue[0].room)
				}
				queue = queue[1:]
			}
			if !slices.Equal(k.queue, queue) {
				t.Fatalf("to be forgotten: %v, want %v", k.queue, queue)
			}
		}
		var released []uint64
		for room := range uint64(14) {
			r, u := k.find(room), want[room]
			if (r == nil) != (u.uses == 0) {
				t.Fatalf("room %d: known %v, want %d uses", room, r != nil, u.uses)
			}
			if r == nil {
				continue
			}
			if have := fmt.Sprintf("%d %d %+v", r.At, r.Uses, k.view(r)); have != fmt.Sprintf("%d %d %+v", u.at, u.uses, u.view) {
				t.Fatalf("room %d is\n%s, want\n%d %d %+v", room, have, u.at, u.uses, u.view)
			}
			if u.view.ReleasedSeq > seq/2 {
				released = append(released, u.view.ReleasedSeq)
			}
		}
		slices.Sort(released)
		var have []uint64
		for _, v := range k.ReleasedAfter(seq / 2) {
			have = append(have, v.ReleasedSeq)
		}
		if !slices.Equal(have, released) || k.Len() != len(want) {
			t.Fatalf("%d known, want %d; released after %d: %v, want %v", k.Len(), len(want), seq/2, have, released)
		}
	})
}

// What is forgotten gives its memory back, and its slots are used again.
func TestKnownRoomsComeToRest(t *testing.T) {
	k := newKnownRooms()
	const rate, hours = 10_000, 4 // rooms an hour
	for i := range uint64(rate * hours) {
		at := 1 + i*knownFor/rate
		k.opened(i, i, at)
		end := ending{Generation: i, Basis: events.Basis_BASIS_ACKS, Reason: "aborted by the engine", Pages: []uint32{1, 2, 3}}
		k.released(i, i, at, i, &end)
		k.forget(at, func(uint64) bool { return false })
	}
	if n := k.Len(); n < rate || n > rate+2 {
		t.Errorf("%d receipts after %d rooms, want those of an hour", n, rate*hours)
	}
	if k.used > rate+2 {
		t.Errorf("%d slots for %d receipts", k.used, k.Len())
	}
	live := 0
	for _, p := range k.texts.pieces {
		live += len(p.b)
	}
	if most := (k.Len() + 2) * 64; live > most+2*textPieceBytes {
		t.Errorf("%d bytes of endings for %d receipts", live, k.Len())
	}
}

// The table of numbers holds what a map holds, full of numbers that collide.
func TestNumbersAreAMap(t *testing.T) {
	var numbers []uint64 // all of one part
	var x numberTable
	for room := uint64(0); len(numbers) < 200; room++ {
		if p, _ := x.place(room); p == &x.parts[0] {
			numbers = append(numbers, room)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		k, want := newKnownRooms(), map[uint64]bool{}
		if rapid.Bool().Draw(t, "restored") {
			for _, room := range rapid.SliceOfNDistinct(rapid.SampledFrom(numbers), 0, 50, rapid.ID).Draw(t, "from") {
				k.slot(k.take()).Room = room
				want[room] = true
			}
			k.enterAll()
		}
		for range rapid.IntRange(0, 500).Draw(t, "steps") {
			room := rapid.SampledFrom(numbers).Draw(t, "room")
			switch have := k.find(room) != nil; {
			case have != want[room]:
				t.Fatalf("room %d is there: %v, want %v", room, have, want[room])
			case have:
				i := k.leave(room)
				*k.slot(i) = KnownRoom{}
				k.free = append(k.free, i)
				delete(want, room)
			default:
				k.add(room)
				want[room] = true
			}
		}
		rooms := []uint64{}
		for _, i := range k.byNumber() {
			rooms = append(rooms, k.slot(i).Room)
		}
		if !slices.Equal(rooms, sortedKeys(want)) || k.Len() != len(want) {
			t.Fatalf("%d rooms %v, want %v", k.Len(), rooms, sortedKeys(want))
		}
	})
}

// What is written is not touched: a view may be read on another goroutine while
// its room becomes a receipt. The race detector is the judge.
func TestReceiptIsWrittenBesideItsReaders(t *testing.T) {
	e := ending{Generation: 1, OpenedAt: 2, ArmedAt: 3, Acked: 1, Pairs: 2, Fenced: true, Missing: []RankID{"p/0"}, Pages: []uint32{7, 8}, Aux: 4}
	var wg sync.WaitGroup
	var wrote [2][]byte
	for i := range wrote {
		wg.Go(func() {
			var c coder
			c.ending(&e)
			wrote[i] = c.b
		})
	}
	wg.Wait()
	var back ending
	c := coder{b: wrote[0], reading: true}
	c.ending(&back)
	if !bytes.Equal(wrote[0], wrote[1]) || c.err != nil || !reflect.DeepEqual(back, e) {
		t.Errorf("%x and %x give %+v, %v; want %+v", wrote[0], wrote[1], back, c.err, e)
	}
}
