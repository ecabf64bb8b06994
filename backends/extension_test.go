package backends

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/pdlog/pdlog/backends/wirepb"
)

var identity = Extension{Node: "p0", Boot: 1, Incarnation: 1}

func extFrame(t testing.TB, e Extension) []byte {
	t.Helper()
	b, err := e.appendFrame(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// readExt reads b as the last frame of an ABORT_ACK at its first place.
func readExt(b []byte) (*Extension, string) {
	m := decodeAbortAck(Frames{[]byte("ABORT_ACK"), []byte("1"), nil, nil, b})
	ack, ok := m.(*AbortAck)
	if !ok {
		return nil, "the extension made the message " + m.Kind().String()
	}
	return ack.Ext, ack.ExtIgnored
}

func TestExtensionFaults(t *testing.T) {
	good := extFrame(t, identity)
	with := func(tail ...byte) []byte { return append(bytes.Clone(good), tail...) }
	big := extFrame(t, Extension{Node: "p0", Boot: 1, Incarnation: 1, WriteKeys: []WriteKey{{Key: make([]byte, 1<<20-100)}}})
	over := append(protowire.AppendTag(bytes.Clone(good), 6000, protowire.BytesType), protowire.AppendBytes(nil, make([]byte, 1<<20))...)
	for _, c := range []struct {
		name  string
		frame []byte
		why   string // "" = good
	}{
		{"plain", good, ""},
		{"almost 1 MiB", big, ""},
		{"over 1 MiB", over, ExtMalformed},
		{"version 2", []byte("PDX2"), ExtVersion},
		{"version 2 and over 1 MiB", append([]byte("PDX2"), make([]byte, 1<<20)...), ExtVersion},
		{"version NUL", []byte("PDX\x00"), ExtVersion},
		{"nothing behind", []byte("PDX1"), ExtMalformed},
		{"field number 0", with(0x00, 0x00), ExtMalformed},
		{"tag cut", with(0x80), ExtMalformed},
		{"varint cut", with(0x28, 0xff), ExtMalformed},
		{"varint of 11 bytes", with(0x28, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01), ExtMalformed},
		{"fixed64 cut", with(0x21, 1, 2, 3), ExtMalformed},
		{"string beyond the end", with(0x52, 0x05, 'a'), ExtMalformed},
		{"reason not UTF-8", with(0x52, 0x01, 0xff), ExtMalformed},
		{"provider not UTF-8", with(0x4a, 0x03, 0x22, 0x01, 0xff), ExtMalformed},
		{"endpoint not UTF-8", with(0x4a, 0x03, 0x2a, 0x01, 0xff), ExtMalformed},
		{"write key cut", with(0x4a, 0x02, 0x10, 0xff), ExtMalformed},
		{"key is bytes", with(0x4a, 0x03, 0x32, 0x01, 0xff), ""},
		{"end of no group", with(0x0c), ExtMalformed},
		{"group, unknown", with(0xa3, 0x06, 0xa4, 0x06), ""},
		{"group not ended", with(0xa3, 0x06), ExtMalformed},
		{"node twice, last empty", with(0x0a, 0x00), ExtMalformed},
		{"node twice", with(0x0a, 0x01, 'x'), ""},
		{"boot twice, last 0", with(0x11, 0, 0, 0, 0, 0, 0, 0, 0), ExtMalformed},
		{"incarnation twice, last 0", with(0x18, 0x00), ExtMalformed},
		{"known number, other wire type: unknown", with(0x50, 0x07), ""},
		{"unknown field", with(0x98, 0x01, 0x05), ""},
		{"log id of another length", with(0x6a, 0x02, 1, 2), ""},
	} {
		ext, why := readExt(c.frame)
		if why != c.why || (ext != nil) != (c.why == "") {
			t.Errorf("%s: extension %v, ignored %q; want %q", c.name, ext, why, c.why)
		}
	}
	for _, plain := range []string{"", "PDX", "pdx1", "XPDX1", "PD"} {
		if ext, why := readExt([]byte(plain)); ext != nil || why != "" {
			t.Errorf("surplus frame %q counts as an extension", plain)
		}
	}
}

// The hand-written reader must be the schema's: same verdict, same values.
func FuzzExtensionAgainstSchema(f *testing.F) {
	full := Extension{
		Node: "d0", Boot: 1<<64 - 1, Incarnation: 4, HLC: 5, RoomSeq: 6, CauseSeq: 7, Proof: ProofNeverSeen,
		Drained: Some(false), Reason: "échec", PrefillRank: Some(uint32(0)), LogSince: 8,
		LogID: bytes.Repeat([]byte{1}, 16), SeenLogID: bytes.Repeat([]byte{2}, 16), SeenSeq: 9, PublishedBoot: 11, SeenBoot: 12,
		WriteKeys: []WriteKey{{Kind: WriteKeyStaging, Index: 1<<32 - 1, Component: 2, Provider: "tcp", Endpoint: "e", Key: []byte{0xff}}, {}},
	}
	f.Add(extFrame(f, full)[4:])
	f.Add(extFrame(f, identity)[4:])
	f.Add([]byte{0x38, 0x81, 0x80, 0x80, 0x80, 0x10, 0x58, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x40, 0x02})
	f.Add([]byte{0xa3, 0x06, 0xa4, 0x06, 0x50, 0x07})
	f.Fuzz(func(t *testing.T, b []byte) {
		var e Extension
		var m wirepb.Extension
		ok, err := e.unmarshal(b), proto.Unmarshal(b, &m)
		if ok != (err == nil) {
			t.Fatalf("%x: read %v, schema says %v", b, ok, err)
		}
		if !ok {
			return
		}
		want := Extension{
			Node: m.Node, Boot: m.Boot, Incarnation: m.Incarnation, HLC: m.Hlc, RoomSeq: m.RoomSeq, CauseSeq: m.CauseSeq,
			Proof: Proof(m.Proof), Reason: m.Reason, LogSince: m.LogSince, SeenSeq: m.SeenSeq, PublishedBoot: m.PublishedBoot, SeenBoot: m.SeenBoot,
		}
		if m.Drained != nil {
			want.Drained = Some(*m.Drained)
		}
		if m.PrefillRank != nil {
			want.PrefillRank = Some(*m.PrefillRank)
		}
		for _, k := range m.WriteKeys {
			want.WriteKeys = append(want.WriteKeys, WriteKey{
				Kind: WriteKeyKind(k.Kind), Index: k.Index, Component: k.Component, Provider: k.Provider, Endpoint: k.Endpoint,
			})
		}
		if !bytes.Equal(e.LogID, m.LogId) || !bytes.Equal(e.SeenLogID, m.SeenLogId) {
			t.Errorf("log ids %x %x, want %x %x", e.LogID, e.SeenLogID, m.LogId, m.SeenLogId)
		}
		e.LogID, e.SeenLogID = nil, nil
		for i := range e.WriteKeys {
			if !bytes.Equal(e.WriteKeys[i].Key, m.WriteKeys[i].Key) {
				t.Errorf("key %d is %x, want %x", i, e.WriteKeys[i].Key, m.WriteKeys[i].Key)
			}
			e.WriteKeys[i].Key = nil
		}
		if !reflect.DeepEqual(e, want) {
			t.Errorf("%x:\nread %+v\nwant %+v", b, e, want)
		}
	})
}

func TestExtensionRefusesWhatNobodyWouldRead(t *testing.T) {
	for name, e := range map[string]Extension{
		"no node":        {Boot: 1, Incarnation: 1},
		"no boot":        {Node: "a", Incarnation: 1},
		"no incarnation": {Node: "a", Boot: 1},
		"node":           {Node: "\xff", Boot: 1, Incarnation: 1},
		"provider":       {Node: "a", Boot: 1, Incarnation: 1, WriteKeys: []WriteKey{{Provider: "\xff"}}},
		"endpoint":       {Node: "a", Boot: 1, Incarnation: 1, WriteKeys: []WriteKey{{Endpoint: "\xff"}}},
		"log id":         {Node: "a", Boot: 1, Incarnation: 1, LogID: []byte{1}},
		"seen log id":    {Node: "a", Boot: 1, Incarnation: 1, SeenLogID: make([]byte, 17)},
		"too long":       {Node: "a", Boot: 1, Incarnation: 1, WriteKeys: []WriteKey{{Key: make([]byte, 1<<20)}}},
	} {
		f, err := encodeAbort(&Abort{Room: 1, Peer: Endpoint{"10.0.0.1", 1}, Ext: &e})
		if err == nil || f != nil {
			t.Errorf("%s: sent %q", name, f)
		}
	}
}

func TestLongReasonIsCutNotRefused(t *testing.T) {
	e := identity
	e.Reason = strings.Repeat("é", 600) + "\xff"
	ext, why := readExt(extFrame(t, e))
	if why != "" {
		t.Fatal(why)
	}
	if !utf8.ValidString(ext.Reason) || len(ext.Reason) != 1024 || !strings.HasPrefix(e.Reason, ext.Reason) {
		t.Errorf("%d bytes of reason arrived", len(ext.Reason))
	}
}

func TestCannotTellMovesTheRankAndLeavesTheMessageAlone(t *testing.T) {
	ext := Extension{Node: "p0", Boot: 1, Incarnation: 1, Proof: ProofCannotTell}
	f, err := encodeAbortAck(&AbortAck{Room: 7, PrefillRank: Some(int32(3)), Generation: Some(uint64(9)), Ext: &ext})
	if err != nil {
		t.Fatal(err)
	}
	if len(f) != 5 || len(f[2]) != 0 || string(f[3]) != "9" {
		t.Fatalf("frames %q", f)
	}
	got := decodeAbortAck(f).(*AbortAck)
	if got.Form() != AckReceipt || got.Ext.PrefillRank != Some(uint32(3)) || got.Ext.Proof != ProofCannotTell {
		t.Errorf("received %+v with %+v", got, got.Ext)
	}
	if ext.PrefillRank.Set {
		t.Error("the sender's extension was changed")
	}
	// Without generation the place is kept.
	f, err = encodeAbortAck(&AbortAck{Room: 7, Ext: &ext})
	if err != nil || len(f) != 5 || len(f[2])+len(f[3]) != 0 {
		t.Errorf("frames %q, error %v", f, err)
	}
}
