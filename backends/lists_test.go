package backends

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"testing"
)

func TestListsFillTheirFrameExactly(t *testing.T) {
	for _, c := range []struct {
		hex  string
		want [][]uint32 // nil: bad
	}{
		{"", [][]uint32{}},
		{"00000000", [][]uint32{}},
		{"01000000" + "00000000", [][]uint32{{}}},
		{"02000000" + "00000000" + "04000000" + "ffffffff", [][]uint32{{}, {1<<32 - 1}}},
		{"01000000" + "08000000" + "0100000002000000", [][]uint32{{1, 2}}},
		{"00", nil}, {"000000", nil},
		{"00000000" + "00", nil},                                 // n = 0 and a byte behind
		{"00000000" + "00000000", nil},                           // n = 0 and four
		{"01000000", nil},                                        // length missing
		{"01000000" + "0400", nil},                               // length cut
		{"01000000" + "04000000", nil},                           // payload missing
		{"01000000" + "04000000" + "010000", nil},                // payload cut
		{"01000000" + "04000000" + "0100000000", nil},            // one byte more
		{"01000000" + "06000000" + "010000000200", nil},          // not a multiple of 4
		{"02000000" + "02000000" + "02000000" + "01000000", nil}, // sums up, items do not
		{"ffffffff", nil}, {"ffffff3f", nil}, {"ffffffff" + "ffffffff", nil},
		{"02000000" + "00000080" + "00000080", nil}, // sum wraps in 32 bits
	} {
		frame, err := hex.DecodeString(c.hex)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := parseLists[uint32](frame)
		if ok != (c.want != nil) || ok && !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", c.hex, got, ok, c.want)
		}
	}
}

func TestListWidths(t *testing.T) {
	if _, ok := parseLists[uint64]([]byte("\x01\x00\x00\x00\x04\x00\x00\x00abcd")); ok {
		t.Error("half of a 64-bit item was taken")
	}
	if v, ok := parseLists[uint64]([]byte("\x01\x00\x00\x00\x08\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff")); !ok || v[0][0] != 1<<64-1 {
		t.Errorf("2^64-1 was read as %v", v)
	}
	if _, ok := parseLists[int32]([]byte("\x01\x00\x00\x00\x04\x00\x00\x00\xff\xff\xff\xff")); ok {
		t.Error("a negative index was taken")
	}
	if _, ok := parseArray[int32]([]byte{0, 0, 0, 0x80}); ok {
		t.Error("a negative page was taken")
	}
	if v, ok := parseArray[int32]([]byte{0xff, 0xff, 0xff, 0x7f}); !ok || v[0] != 1<<31-1 {
		t.Errorf("page 2^31-1 was read as %v", v)
	}
	if v, ok := parseArray[uint64](nil); !ok || v == nil || len(v) != 0 {
		t.Errorf("an empty frame is %v, want an empty list", v)
	}
}

// The inner lists share one array; growing one must not write into the next.
func TestInnerListsAreApart(t *testing.T) {
	frame, _ := appendLists[uint32](nil, [][]uint32{{1}, {2}})
	got, _ := parseLists[uint32](frame)
	_ = append(got[0], 9)
	if got[1][0] != 2 {
		t.Errorf("the second list became %v", got[1])
	}
}

func TestEmptyListsAreNotOneEmptyList(t *testing.T) {
	none, _ := appendLists[uint32](nil, [][]uint32{})
	one, _ := appendLists[uint32](nil, [][]uint32{{}})
	if len(none) != 0 || !bytes.Equal(one, []byte{1, 0, 0, 0, 0, 0, 0, 0}) {
		t.Errorf("[] is %x, [[]] is %x", none, one)
	}
}
