package backendtest

import (
	"errors"
	"reflect"
	"runtime"
	"testing"

	"pgregory.net/rapid"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/test/conformance"
)

// RoundTrip checks that whatever the dialect encodes it decodes to the same
// message, that the message it decodes to encodes to the same frames, and that
// a kind it does not have is ErrKind.
func RoundTrip(t *testing.T, d backends.Dialect) {
	sent := 0
	for k := backends.KindRegister; k.ReceivedAt() != 0; k++ {
		known := false
		t.Run(k.String(), rapid.MakeCheck(func(t *rapid.T) {
			m := message(t, k)
			f, err := d.Encode(m)
			if errors.Is(err, backends.ErrKind) {
				return
			}
			if err != nil {
				t.Fatalf("encode: %v", err)
			}
			known = true
			checkRoundTrip(t, d, k.ReceivedAt(), m, f)
		}))
		if known {
			sent++
		}
	}
	if sent == 0 {
		t.Error("the dialect encodes no message at all")
	}
	if _, err := d.Encode(&backends.Foreign{}); !errors.Is(err, backends.ErrKind) {
		t.Errorf("encode of a foreign message: %v, want ErrKind", err)
	}
}

func checkRoundTrip(t *rapid.T, d backends.Dialect, at backends.Side, m backends.Message, f backends.Frames) {
	got := d.Decode(at, f)
	if got.Kind() != m.Kind() {
		t.Fatalf("%q decodes to %s", f, backends.AppendResult(nil, got))
	}
	// A dialect drops what its frames have no place for, and adds nothing but
	// a prefix length of 0 and empty lists.
	if err := conformance.Contains(backends.FieldsJSON(m), backends.FieldsJSON(withoutDefaults(got, m))); err != nil {
		t.Fatalf("sent and received differ: %v", err)
	}
	again, err := d.Encode(got)
	if err != nil {
		t.Fatalf("encode what was received: %v", err)
	}
	if !reflect.DeepEqual(again, f) {
		t.Fatalf("received message encodes to\n%q, want\n%q", again, f)
	}
	if second := d.Decode(at, again); !reflect.DeepEqual(second, got) {
		t.Fatalf("second decode differs:\n%+v\n%+v", second, got)
	}
}

// withoutDefaults takes away from a received message what stands for absent.
func withoutDefaults(got, sent backends.Message) backends.Message {
	g, ok := got.(*backends.Metadata)
	if !ok {
		return got
	}
	c := *g
	if s := sent.(*backends.Metadata); !s.DecodePrefixLen.Set && c.DecodePrefixLen.V == 0 {
		c.DecodePrefixLen = s.DecodePrefixLen
	}
	return &c
}

// frames draws frame lists that are near the dialect's own.
func frames(t *rapid.T, d backends.Dialect) backends.Frames {
	junk := rapid.SliceOfN(rapid.OneOf(
		rapid.SliceOfN(rapid.Byte(), 0, 24),
		rapid.Map(rapid.SampledFrom([]string{
			"", "0", "-1", "1", "-0", "4242", "9223372036854775807", "9223372036854775808", "18446744073709551616",
			"None", "ABORT", "ABORT_ACK", "AUX_DATA", "10.0.0.1", "5000", "10.0.0.1:17800", "PDX1", "PDX2", "x",
			"\x01\x00\x00\x00\x04\x00\x00\x00\x05\x00\x00\x00", "\xff\xff\xff\xff", "\xdd\xff\xff\xff\xff", "\x00\x00\x00\x00",
		}), func(s string) []byte { return []byte(s) }),
	), 0, 26)
	if rapid.Bool().Draw(t, "junk") {
		return junk.Draw(t, "frames")
	}
	k := backends.Kind(rapid.IntRange(int(backends.KindRegister), int(backends.KindBootstrap)).Draw(t, "kind"))
	f, err := d.Encode(message(t, k))
	if err != nil {
		return junk.Draw(t, "frames")
	}
	// Damage a good message: swap, cut or grow it.
	for range rapid.IntRange(1, 3).Draw(t, "damages") {
		i := rapid.IntRange(0, len(f)-1).Draw(t, "place")
		switch rapid.IntRange(0, 3).Draw(t, "damage") {
		case 0:
			f[i] = rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "frame")
		case 1:
			f[i] = append([]byte{}, f[i][:rapid.IntRange(0, len(f[i])).Draw(t, "cut")]...)
		case 2:
			f = append(f, junk.Draw(t, "tail")...)
		case 3:
			f = f[:i+1]
		}
	}
	return f
}

// Total checks on arbitrary frames what Decode promises: no panic, a message of
// the side it was received at, claimed by frame 0 alone, nothing shared with
// the frames; and that what decodes to a message can be sent again.
func Total(t *testing.T, d backends.Dialect) {
	rapid.Check(t, func(t *rapid.T) {
		f := frames(t, d)
		for _, at := range []backends.Side{backends.AtPrefill, backends.AtDecode} {
			if err := checkTotal(d, at, f); err != nil {
				t.Fatalf("at %s, frames %q: %v", at, f, err)
			}
		}
	})
	if m := d.Decode(0, backends.Frames{[]byte("1"), []byte("1"), []byte("1")}); m == nil {
		t.Error("no message for an unknown side")
	}
	t.Run("allocation", func(t *testing.T) { checkAllocation(t, d) })
}

func checkTotal(d backends.Dialect, at backends.Side, f backends.Frames) error {
	m := d.Decode(at, clone(f))
	if m == nil {
		return errors.New("no message")
	}
	if side := m.Kind().ReceivedAt(); side != 0 && side != at {
		return errors.New("a " + m.Kind().String() + " does not belong to this side")
	}
	if len(f) > 0 {
		head := d.Decode(at, f[:1]).Kind() == backends.KindForeign
		if head != (m.Kind() == backends.KindForeign) {
			return errors.New("frame 0 alone does not decide whose message it is")
		}
	}
	var report errorf
	checkOwnMemory(&report, d, at, f)
	if report.err != nil {
		return report.err
	}
	return checkResend(d, at, m)
}

// checkResend: a decoded message in a form that can be sent must come back as
// it was. What cannot be sent: an ABORT without address, an extension with a log
// id of a length that no log has.
func checkResend(d backends.Dialect, at backends.Side, m backends.Message) error {
	switch m := m.(type) {
	case *backends.Malformed, *backends.Foreign, *backends.Metadata:
		return nil // metadata of older peers may lack what a newer one must have
	case *backends.Abort:
		if m.Peer.IsZero() {
			return nil
		}
	}
	if e := backends.ExtensionOf(m); e != nil && !(isLogID(e.LogID) && isLogID(e.SeenLogID)) {
		return nil
	}
	f, err := d.Encode(m)
	if err != nil {
		return err
	}
	if got := d.Decode(at, f); got.Kind() != m.Kind() {
		return errors.New("sent again it is " + got.Kind().String())
	}
	return nil
}

func isLogID(b []byte) bool { return len(b) == 0 || len(b) == 16 }

// errorf is a testing.TB that keeps the first error.
type errorf struct {
	testing.TB
	err error
}

func (e *errorf) Helper() {}

func (e *errorf) Errorf(format string, args ...any) {
	if e.err == nil {
		e.err = errors.New(format)
	}
}

// checkAllocation decodes frames that announce far more than they hold.
func checkAllocation(t *testing.T, d backends.Dialect) {
	huge := [][]byte{
		{0xff, 0xff, 0xff, 0xff}, {0xdd, 0xff, 0xff, 0xff, 0xff}, {0xdb, 0xff, 0xff, 0xff, 0xff},
		{0x96, 0xdb, 0xff, 0xff, 0xff, 0xff}, {0x91, 0xc6, 0xff, 0xff, 0xff, 0xff}, {0, 0, 0, 0x40, 0, 0, 0, 0},
	}
	for k := backends.KindRegister; k.ReceivedAt() != 0; k++ {
		base, err := d.Encode(rapid.Custom(func(t *rapid.T) backends.Message { return message(t, k) }).Example(0))
		if err != nil && !errors.Is(err, backends.ErrKind) {
			t.Fatal(err)
		}
		for i := 1; i < len(base); i++ {
			for _, frame := range huge {
				f := clone(base)
				f[i] = frame
				size := 0
				for _, b := range f {
					size += len(b)
				}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				d.Decode(k.ReceivedAt(), f)
				runtime.ReadMemStats(&after)
				// 48 bytes of slice header and growth per byte announced.
				if got, most := after.TotalAlloc-before.TotalAlloc, uint64(64*size+1<<16); got > most {
					t.Errorf("%s, frame %d %x: %d bytes allocated for %d", k, i, frame, got, size)
				}
			}
		}
	}
}
