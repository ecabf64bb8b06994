package backendtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/test/conformance"
)

// Run runs the whole suite on a dialect that has conformance vectors.
func Run(t *testing.T, d backends.Dialect) {
	t.Run("decode vectors", func(t *testing.T) { decodeVectors(t, d) })
	t.Run("encode vectors", func(t *testing.T) { encodeVectors(t, d) })
	t.Run("round trip", func(t *testing.T) { RoundTrip(t, d) })
	t.Run("total", func(t *testing.T) { Total(t, d) })
}

func decodeVectors(t *testing.T, d backends.Dialect) {
	vectors, err := conformance.DecodeVectors(d.Name())
	if err != nil || len(vectors) == 0 {
		t.Fatalf("%d decode vectors, error %v", len(vectors), err)
	}
	for _, v := range vectors {
		t.Run(v.ID, func(t *testing.T) {
			at, ok := backends.ParseSide(v.At)
			if !ok {
				t.Fatalf("vector has side %q", v.At)
			}
			m := d.Decode(at, backends.Frames(v.Frames))
			CheckMessage(t, m, v.Expect.Kind, v.Expect.Fields)
			if claimed := m.Kind() != backends.KindForeign; claimed != v.Expect.Claimed {
				t.Errorf("claimed %v, want %v", claimed, v.Expect.Claimed)
			}
			checkOwnMemory(t, d, at, backends.Frames(v.Frames))
		})
	}
}

// CheckMessage compares a decoded message with the kind and fields expected of
// it, by the rules of the conformance vectors.
func CheckMessage(t *testing.T, m backends.Message, kind string, fields []byte) {
	t.Helper()
	if m.Kind().String() != kind {
		t.Errorf("%s (%s), want %s", m.Kind(), backends.AppendResult(nil, m), kind)
		return
	}
	if m.Kind() == backends.KindForeign || m.Kind() == backends.KindMalformed {
		return
	}
	if err := conformance.Contains(backends.FieldsJSON(m), fields); err != nil {
		t.Error(err)
	}
}

// checkOwnMemory decodes a copy of f, overwrites the copy and requires that the
// message does not notice.
func checkOwnMemory(t testing.TB, d backends.Dialect, at backends.Side, f backends.Frames) {
	t.Helper()
	f = clone(f)
	m := d.Decode(at, f)
	before := backends.AppendResult(nil, m)
	for _, frame := range f {
		for i := range frame {
			frame[i] ^= 0xff
		}
	}
	if after := backends.AppendResult(nil, m); !bytes.Equal(before, after) {
		t.Errorf("message shares memory with its frames:\n%s\n%s", before, after)
	}
}

func clone(f backends.Frames) backends.Frames {
	c := make(backends.Frames, len(f))
	for i := range f {
		c[i] = bytes.Clone(f[i])
	}
	return c
}

func encodeVectors(t *testing.T, d backends.Dialect) {
	vectors, err := conformance.EncodeVectors(d.Name())
	if err != nil || len(vectors) == 0 {
		t.Fatalf("%d encode vectors, error %v", len(vectors), err)
	}
	for _, v := range vectors {
		t.Run(v.ID, func(t *testing.T) {
			f, err := EncodeFields(d, v.Kind, v.Fields)
			if v.Frames == nil {
				if err == nil || f != nil {
					t.Fatalf("encoded as %q, error %v; want a refusal", f, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			CheckFrames(t, d, v.Kind, f, backends.Frames(v.Frames), v.Fields)
		})
	}
}

// EncodeFields encodes a message that is given as in an encode vector.
func EncodeFields(d backends.Dialect, kind string, fields []byte) (backends.Frames, error) {
	k, ok := backends.ParseKind(kind)
	if !ok {
		return nil, errors.New("unknown kind " + kind)
	}
	m, err := backends.MessageFromFields(k, fields)
	if err != nil {
		return nil, err
	}
	return d.Encode(m)
}

// CheckFrames compares frames byte by byte, but the extension frame, which
// fields announce with "ext", by its decoded message.
func CheckFrames(t *testing.T, d backends.Dialect, kind string, have, want backends.Frames, fields []byte) {
	t.Helper()
	if len(have) != len(want) {
		t.Fatalf("%d frames %q, want %d %q", len(have), have, len(want), want)
	}
	plain := len(want)
	var announced struct{ Ext json.RawMessage }
	if err := json.Unmarshal(fields, &announced); err != nil {
		t.Fatal(err)
	}
	if announced.Ext != nil {
		plain--
		k, _ := backends.ParseKind(kind)
		h := backends.FieldsJSON(d.Decode(k.ReceivedAt(), have))
		w := backends.FieldsJSON(d.Decode(k.ReceivedAt(), want))
		if !bytes.Equal(h, w) {
			t.Errorf("decodes to\n%s, want\n%s", h, w)
		}
	}
	for i := range plain {
		if !bytes.Equal(have[i], want[i]) {
			t.Errorf("frame %d is %x, want %x", i, have[i], want[i])
		}
	}
}
