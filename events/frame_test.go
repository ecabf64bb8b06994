package events

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// goldenEvents are three events whose frame is pinned below: the form of what
// is on disks and on mirrors.
func goldenEvents() []*Event {
	base := Event{Node: "d0", Boot: 0xb007, Incarnation: 3}
	mk := func(seq, hlc uint64) *Event {
		e := &Event{Node: base.Node, Boot: base.Boot, Incarnation: base.Incarnation, Seq: seq, Hlc: hlc}
		return e
	}
	a := mk(41, 1<<40)
	a.Room, a.RoomSeq = 5009007199254740993, 41
	a.Payload = &Event_PagesReserved{PagesReserved: &PagesReserved{Pages: []uint32{1, 2, 300}, Aux: 7}}
	b := mk(42, 1<<40+1)
	b.Rank, b.Cause = "p0/1", &Cause{Node: "p0", Seq: 9}
	b.Payload = &Event_AbortArmed{AbortArmed: &AbortArmed{Generation: 1 << 50, Cause: AbortCause_ABORT_CAUSE_CLIENT}}
	c := mk(43, 1<<41)
	c.TimeOffsetMs = -5
	c.Payload = &Event_TimerFired{TimerFired: &TimerFired{}}
	return []*Event{a, b, c}
}

const goldenFrame = "" +
	"01010300" + "43000000" + "2900000000000000" + "0000000000010000" +
	"07b0000000000000" + "0300000000000000" + "0d0c0b0a" +
	"1700308180d0a7a4b0e4c1453829ca02080a040102ac021007" +
	"1c01420470302f314a060a027030100982030b0880808080808080" +
	"02100105ffffffffff1f5809fa060058a3d8ad"

func frameOf(t testing.TB, at Position, evs ...*Event) *FrameBatch {
	t.Helper()
	w := NewFrameWriter(at)
	for _, e := range evs {
		if err := w.Append(e); err != nil {
			t.Fatalf("append %d: %v", e.Seq, err)
		}
	}
	var b FrameBatch
	w.Swap(&b)
	return &b
}

func TestFrameBytesAreGolden(t *testing.T) {
	b := frameOf(t, Position{Seq: 40, Chain: 0x0a0b0c0d}, goldenEvents()...)
	if b.Len() != 1 {
		t.Fatalf("have %d frames, want 1", b.Len())
	}
	_, frame := b.Frame(0)
	if have := hex.EncodeToString(frame); have != goldenFrame {
		t.Errorf("frame bytes changed:\nhave %s\nwant %s", have, goldenFrame)
	}
	raw, err := hex.DecodeString(goldenFrame)
	if err != nil {
		t.Fatal(err)
	}
	want := goldenEvents()
	in, err := DecodeFrame(raw, "d0", func(e *Event) error {
		w := want[0]
		want = want[1:]
		w.PrevHash = e.PrevHash
		if !proto.Equal(e, w) {
			t.Errorf("have %v, want %v", e, w)
		}
		return nil
	})
	if err != nil || len(want) != 0 {
		t.Fatalf("decode: %v, %d events missing", err, len(want))
	}
	if in.FirstSeq != 41 || in.LastSeq != 43 || in.LastHLC != 1<<41 || in.PrevChain != 0x0a0b0c0d || in.Size != len(raw) {
		t.Errorf("info: %+v", in)
	}
}

func drawEvents(t *rapid.T) (Position, []*Event) {
	at := Position{
		Seq:   rapid.Uint64Range(0, 1<<62).Draw(t, "seq"),
		HLC:   rapid.Uint64Range(0, 1<<62).Draw(t, "hlc"),
		Chain: rapid.Uint32().Draw(t, "chain"),
	}
	n := rapid.IntRange(1, 60).Draw(t, "n")
	evs := make([]*Event, n)
	hlc, boot, inc := at.HLC, uint64(7), uint64(1)
	for i := range evs {
		hlc += rapid.Uint64Range(1, 1<<40).Draw(t, "delta")
		if rapid.IntRange(0, 15).Draw(t, "restart") == 0 {
			boot, inc = rapid.Uint64().Draw(t, "boot"), inc+1
		}
		e := &Event{
			Seq: at.Seq + 1 + uint64(i), Hlc: hlc, Node: "n", Boot: boot, Incarnation: inc,
			Room: rapid.Uint64().Draw(t, "room"), Rank: rapid.String().Draw(t, "rank"),
		}
		switch rapid.IntRange(0, 3).Draw(t, "type") {
		case 0:
			e.Payload = &Event_PagesReserved{PagesReserved: &PagesReserved{Pages: rapid.SliceOfN(rapid.Uint32(), 1, 800).Draw(t, "pages")}}
		case 1:
			e.Payload = &Event_RoomFailed{RoomFailed: &RoomFailed{Reason: rapid.String().Draw(t, "reason")}}
		case 2:
			e.Payload = &Event_ConfigChanged{ConfigChanged: &ConfigChanged{Values: map[string]string{"a": "1", "b": "2"}}}
		}
		evs[i] = e
	}
	return at, evs
}

// What goes in comes out: every field, gapless, chained, in frames below the
// limit unless one record alone is above it.
func TestFramesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at, evs := drawEvents(t)
		w := NewFrameWriter(at)
		var all []byte
		var b FrameBatch
		pos := at
		flush := func() {
			w.Swap(&b)
			for i := range b.Len() {
				start, f := b.Frame(i)
				in, err := DecodeFrame(f, "n", nil)
				if err != nil {
					t.Fatalf("frame %d: %v", start.Seq, err)
				}
				if err := pos.Advance(in); err != nil {
					t.Fatalf("advance: %v", err)
				}
				if start != (FrameStart{Seq: in.FirstSeq, Last: in.LastSeq, Chain: in.Chain, HLC: in.LastHLC, offset: start.offset}) {
					t.Fatalf("start %+v does not fit %+v", start, in)
				}
				if len(f) > FrameLimit && in.Count > 1 {
					t.Fatalf("frame of %d records has %d bytes", in.Count, len(f))
				}
				all = append(all, f...)
			}
		}
		for i, e := range evs {
			if err := w.Append(e); err != nil {
				t.Fatalf("append: %v", err)
			}
			if i%17 == 16 {
				flush()
			}
		}
		flush()
		if pos != w.Position() {
			t.Fatalf("decoded to %+v, written to %+v", pos, w.Position())
		}
		first, last, err := DecodeFrames(all, "n", func(e *Event) error {
			want := evs[0]
			evs = evs[1:]
			want.PrevHash = e.PrevHash
			if !proto.Equal(e, want) {
				t.Fatalf("have %v, want %v", e, want)
			}
			return nil
		})
		if err != nil || len(evs) != 0 {
			t.Fatalf("decode all: %v, %d missing", err, len(evs))
		}
		if first.PrevChain != at.Chain || last.Chain != pos.Chain || last.LastSeq != pos.Seq {
			t.Fatalf("ends: %+v %+v", first, last)
		}
	})
}

// One flipped bit anywhere is found.
func TestFlippedBitIsFound(t *testing.T) {
	_, frame := frameOf(t, Position{Seq: 40}, goldenEvents()...).Frame(0)
	for i := range len(frame) * 8 {
		bad := bytes.Clone(frame)
		bad[i/8] ^= 1 << (i % 8)
		if _, err := DecodeFrame(bad, "d0", nil); err == nil {
			t.Fatalf("bit %d: no error", i)
		}
	}
}

func TestCutFrameIsShort(t *testing.T) {
	_, frame := frameOf(t, Position{Seq: 40}, goldenEvents()...).Frame(0)
	for i := range frame {
		if _, err := DecodeFrame(frame[:i], "d0", nil); !errors.Is(err, ErrFrameShort) {
			t.Fatalf("cut to %d: %v", i, err)
		}
	}
}

func TestWriterRefusesWhatBreaksOrder(t *testing.T) {
	w := NewFrameWriter(Position{Seq: 4, HLC: 10})
	big := &Event{Seq: 5, Hlc: 11, Payload: &Event_RoomFailed{RoomFailed: &RoomFailed{Reason: strings.Repeat("x", RecordLimit)}}}
	for _, c := range []struct {
		e    *Event
		want error
	}{
		{&Event{Seq: 6, Hlc: 11}, ErrSeqGap},
		{&Event{Seq: 4, Hlc: 11}, ErrSeqGap},
		{&Event{Seq: 5, Hlc: 10}, ErrClockOrder},
		{big, ErrRecordTooBig},
	} {
		if err := w.Append(c.e); !errors.Is(err, c.want) {
			t.Errorf("append %d/%d: have %v, want %v", c.e.Seq, c.e.Hlc, err, c.want)
		}
	}
	if w.Bytes() != 0 || w.Position() != (Position{Seq: 4, HLC: 10}) {
		t.Errorf("a refused event left %d bytes, %+v", w.Bytes(), w.Position())
	}
}

func TestRollbackForgets(t *testing.T) {
	evs := goldenEvents()
	w := NewFrameWriter(Position{Seq: 40})
	if err := w.Append(evs[0]); err != nil {
		t.Fatal(err)
	}
	m := w.Mark()
	big := &Event{Seq: 42, Hlc: 1 << 41, Boot: 0xb007, Incarnation: 3, Rank: strings.Repeat("r", FrameLimit)}
	if err := w.Append(big); err != nil { // closes the first frame
		t.Fatal(err)
	}
	w.Rollback(m)
	for _, e := range evs[1:] {
		if err := w.Append(e); err != nil {
			t.Fatal(err)
		}
	}
	var b FrameBatch
	w.Swap(&b)
	_, have := b.Frame(0)
	_, want := frameOf(t, Position{Seq: 40}, evs...).Frame(0)
	if b.Len() != 1 || !bytes.Equal(have, want) {
		t.Errorf("rolled back writer gives other bytes:\nhave %x\nwant %x", have, want)
	}
}

func TestPositionNamesTheBreak(t *testing.T) {
	at := Position{Seq: 9, HLC: 5, Chain: 1}
	for _, c := range []struct {
		in   FrameInfo
		want error
	}{
		{FrameInfo{FirstSeq: 11, PrevChain: 1, FirstHLC: 6}, ErrSeqGap},
		{FrameInfo{FirstSeq: 10, PrevChain: 2, FirstHLC: 6}, ErrChain},
		{FrameInfo{FirstSeq: 10, PrevChain: 1, FirstHLC: 5}, ErrClockOrder},
	} {
		p := at
		if err := p.Advance(c.in); !errors.Is(err, c.want) || p != at {
			t.Errorf("%+v: have %v at %+v, want %v", c.in, err, p, c.want)
		}
	}
}

func TestAppendDoesNotAllocatePerEvent(t *testing.T) {
	w := NewFrameWriter(Position{})
	e := goldenEvents()[0]
	e.Seq, e.Hlc = 0, 0
	var b FrameBatch
	step := func() {
		for range 100 {
			e.Seq++
			e.Hlc++
			if err := w.Append(e); err != nil {
				t.Fatal(err)
			}
		}
		w.Swap(&b)
	}
	step()
	step() // both buffers have their size now
	if n := testing.AllocsPerRun(20, step); n > 0 {
		t.Errorf("100 events allocate %v times", n)
	}
}

func FuzzDecodeFrame(f *testing.F) {
	_, frame := frameOf(f, Position{Seq: 40}, goldenEvents()...).Frame(0)
	f.Add(frame)
	f.Add(frame[:len(frame)-1])
	f.Add(append(bytes.Clone(frame), frame...))
	f.Add([]byte{1, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		// Repair the checksum so that the inside is reached too.
		if in, err := FramePeek(b); err == nil {
			b = bytes.Clone(b)
			sealFrame(b[:in.Size])
		}
		var evs []*Event
		in, err := DecodeFrame(b, "n", func(e *Event) error {
			evs = append(evs, e)
			return nil
		})
		if err != nil {
			return
		}
		if len(evs) != in.Count || in.Size > len(b) {
			t.Fatalf("%d events, info %+v of %d bytes", len(evs), in, len(b))
		}
		// What was decoded can be written again and reads the same.
		w := NewFrameWriter(Position{Seq: in.FirstSeq - 1, Chain: in.PrevChain})
		var out FrameBatch
		for _, e := range evs {
			if err := w.Append(e); err != nil {
				if errors.Is(err, ErrClockOrder) && e.Hlc == 0 {
					return // the one value a writer never takes
				}
				t.Fatalf("append what was decoded: %v", err)
			}
		}
		w.Swap(&out)
		i := 0
		for k := range out.Len() {
			_, again := out.Frame(k)
			if _, err := DecodeFrame(again, "n", func(e *Event) error {
				evs[i].PrevHash = e.PrevHash
				if !proto.Equal(e, evs[i]) {
					t.Fatalf("have %v, want %v", e, evs[i])
				}
				i++
				return nil
			}); err != nil {
				t.Fatalf("decode again: %v", err)
			}
		}
	})
}

func BenchmarkFrameAppend(b *testing.B) {
	w := NewFrameWriter(Position{})
	e := goldenEvents()[0]
	e.Seq, e.Hlc = 0, 0
	var out FrameBatch
	b.ReportAllocs()
	for b.Loop() {
		e.Seq++
		e.Hlc++
		if err := w.Append(e); err != nil {
			b.Fatal(err)
		}
		if w.Bytes() > 1<<20 {
			w.Swap(&out)
		}
	}
}

func BenchmarkFrameDecode(b *testing.B) {
	_, frame := frameOf(b, Position{Seq: 40}, goldenEvents()...).Frame(0)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeFrame(frame, "d0", func(*Event) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

func sealFrame(frame []byte) {
	end := len(frame) - frameTrailLen
	binary.LittleEndian.PutUint32(frame[end:], crc32.Checksum(frame[:end], castagnoli))
}
