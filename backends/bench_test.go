package backends_test

import (
	"strings"
	"testing"

	"github.com/pdlog/pdlog/backends"
)

func benchDecode(b *testing.B, name string, at backends.Side, parts ...string) {
	d, err := backends.Lookup(name)
	if err != nil {
		b.Fatal(err)
	}
	f := make(backends.Frames, len(parts))
	for i := range parts {
		f[i] = []byte(parts[i])
	}
	b.ReportAllocs()
	for b.Loop() {
		if m := d.Decode(at, f); m.Kind() == backends.KindForeign || m.Kind() == backends.KindMalformed {
			b.Fatalf("%s", backends.AppendResult(nil, m))
		}
	}
}

// The message itself, with the text of its address, is all that an ABORT takes:
// they come in storms.
func TestDecodeAbortAllocatesTheMessageAlone(t *testing.T) {
	for _, name := range []string{"mooncake", "nixl", "mori"} {
		d, err := backends.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range []backends.Frames{
			{[]byte("ABORT"), []byte("4793981895866140836"), []byte("10.0.0.1"), []byte("5000"), []byte("7")},
			{[]byte("ABORT"), []byte("4793981895866140836"), []byte("fe80:1111:2222:3333:4444:5555:6666:7777"), []byte("40123"), []byte("9223372036854775807")},
			{[]byte("ABORT"), []byte("0"), []byte("10.0.0.1"), []byte("5000")},
			{[]byte("ABORT"), []byte("4242")},
		} {
			var m backends.Message
			n := testing.AllocsPerRun(100, func() { m = d.Decode(backends.AtPrefill, f) })
			if m.Kind() != backends.KindAbort || n > 1 {
				t.Errorf("%s %q: %s takes %v allocations, want 1", name, f, m.Kind(), n)
			}
		}
	}
}

const benchExt = "PDX1\x0a\x02d0\x11\xef\xcd\xab\x89\x67\x45\x23\x01\x18\x04\x21\x01\x00\xc0\x9c\x96\xc4\xa0\x01\x28\xac\x06\x30\xaf\x06"

func BenchmarkDecodeAbort(b *testing.B) {
	benchDecode(b, "mooncake", backends.AtPrefill, "ABORT", "4793981895866140836", "10.0.0.1", "5000", "7")
}

func BenchmarkDecodeAbortAck(b *testing.B) {
	benchDecode(b, "mori", backends.AtDecode, "ABORT_ACK", "4793981895866140836", "3", "7")
}

func BenchmarkDecodeAbortAckExtension(b *testing.B) {
	benchDecode(b, "mori", backends.AtDecode, "ABORT_ACK", "4793981895866140836", "3", "7", benchExt)
}

func BenchmarkDecodeStatus(b *testing.B) {
	benchDecode(b, "mooncake", backends.AtDecode, "4793981895866140836", "4", "3")
}

func BenchmarkDecodeMetadata256Pages(b *testing.B) {
	benchDecode(b, "mooncake", backends.AtPrefill, "4793981895866140836", "10.0.0.1", "5000", "10.0.0.1:17800",
		strings.Repeat("\x01\x02\x00\x00", 256), "9", "", "1", "0", "")
}

func benchEncode(b *testing.B, m backends.Message) {
	d, err := backends.Lookup("mori")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Encode(m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeAbortAck(b *testing.B) {
	benchEncode(b, &backends.AbortAck{Room: 4793981895866140836, PrefillRank: backends.Some[int32](3), Generation: backends.Some[uint64](7)})
}

func BenchmarkEncodeAbortAckExtension(b *testing.B) {
	benchEncode(b, &backends.AbortAck{
		Room: 4793981895866140836, PrefillRank: backends.Some[int32](3), Generation: backends.Some[uint64](7),
		Ext: &backends.Extension{Node: "p0", Boot: 1, Incarnation: 1, HLC: 1, Proof: backends.ProofDrained},
	})
}
