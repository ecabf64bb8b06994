package events_test

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/pdlog/pdlog/events"
)

// A selection decodes what a whole read decodes, but for what nobody wants.
func TestASelectionIsAFilterOfTheWhole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := events.NewFrameWriter(events.Position{})
		n := rapid.IntRange(1, 20).Draw(rt, "events")
		for i := range n {
			e := &events.Event{Seq: uint64(i + 1), Hlc: uint64(i + 1), Boot: 1, Incarnation: 1} //nolint:gosec // small
			e.Room = rapid.Uint64Range(0, 3).Draw(rt, "room")
			e.RoomSeq = rapid.Uint64Range(0, 3).Draw(rt, "room_seq")
			e.Rank = rapid.SampledFrom([]string{"", "p/0"}).Draw(rt, "rank")
			if rapid.Bool().Draw(rt, "cause") {
				e.Cause = &events.Cause{Node: "d", Seq: 1}
			}
			switch rapid.IntRange(0, 2).Draw(rt, "type") {
			case 0:
				e.Payload = &events.Event_Released{Released: &events.Released{Pages: []uint32{1, 2}}}
			case 1:
				e.Payload = &events.Event_RoomCleared{RoomCleared: &events.RoomCleared{}}
			}
			if err := w.Append(e); err != nil {
				rt.Fatal(err)
			}
		}
		var b events.FrameBatch
		w.Swap(&b)
		room := rapid.Uint64Range(0, 3).Draw(rt, "wanted")
		want := func(h events.Head) bool { return h.Room == room && h.Type == 57 }
		for i := range b.Len() {
			_, f := b.Frame(i)
			var whole, part []*events.Event
			keep := func(to *[]*events.Event) func(*events.Event) error {
				return func(e *events.Event) error { *to = append(*to, e); return nil }
			}
			if _, err := events.DecodeFrame(f, "n", keep(&whole)); err != nil {
				rt.Fatal(err)
			}
			if _, err := events.DecodeFrameIf(f, "n", want, keep(&part)); err != nil {
				rt.Fatal(err)
			}
			for _, e := range whole {
				h := events.HeadOf(e)
				if (e.GetReleased() != nil) != (h.Type == 57) {
					rt.Fatalf("%s has type %d", e.TypeName(), h.Type)
				}
				if !want(h) { // its Record is not looked at
					continue
				}
				if len(part) == 0 || !proto.Equal(part[0], e) {
					rt.Fatalf("event %d is not in the selection", e.Seq)
				}
				part = part[1:]
			}
			if len(part) > 0 {
				rt.Fatalf("event %d was not asked for", part[0].Seq)
			}
		}
	})
}
