package backendtest

import (
	"encoding/binary"
	"testing"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/test/conformance"
)

// Fuzz is the body of a dialect's fuzz target. Its seeds are the frames of the
// dialect's conformance vectors, packed into one byte string.
func Fuzz(f *testing.F, d backends.Dialect) {
	vectors, err := conformance.DecodeVectors(d.Name())
	if err != nil || len(vectors) == 0 {
		f.Fatalf("%d seeds, error %v", len(vectors), err)
	}
	for _, v := range vectors {
		f.Add(pack(backends.Frames(v.Frames)), v.At == backends.AtDecode.String())
	}
	f.Fuzz(func(t *testing.T, packed []byte, atDecode bool) {
		at := backends.AtPrefill
		if atDecode {
			at = backends.AtDecode
		}
		frames := unpack(packed)
		if err := checkTotal(d, at, frames); err != nil {
			t.Errorf("at %s, frames %q: %v", at, frames, err)
		}
	})
}

// pack writes each frame behind its length as a varint.
func pack(f backends.Frames) []byte {
	var b []byte
	for _, frame := range f {
		b = append(binary.AppendUvarint(b, uint64(len(frame))), frame...)
	}
	return b
}

// unpack is total: a length beyond the end takes what is there.
func unpack(b []byte) backends.Frames {
	f := backends.Frames{}
	for len(b) > 0 {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			return append(f, b)
		}
		b = b[size:]
		n = min(n, uint64(len(b)))
		f, b = append(f, b[:n:n]), b[n:]
	}
	return f
}
