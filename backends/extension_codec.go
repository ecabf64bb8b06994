package backends

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pdlog/pdlog/backends/wirepb"
)

const (
	extPrefix    = "PDX"
	extVersion   = '1'
	maxExtFrame  = 1 << 20 // bytes, wire.md 9.3
	maxExtReason = 1 << 10 // bytes, wire.md 9.3
	logIDLen     = 16
)

// Ext takes the last frame as the extension if it stands at `place` or later
// and begins with PDX and one more byte (wire.md 9.4). An extension that
// cannot be used never makes the message malformed: why says what was wrong.
func (r *Reader) Ext(place int) (ext *Extension, why string) {
	last := len(r.f) - 1
	if last < place || r.bad != "" {
		return nil, ""
	}
	b := r.f[last]
	if len(b) <= len(extPrefix) || string(b[:len(extPrefix)]) != extPrefix {
		return nil, ""
	}
	if b[len(extPrefix)] != extVersion {
		return nil, ExtVersion
	}
	if len(b) > maxExtFrame {
		return nil, ExtMalformed
	}
	e := new(Extension)
	if !e.unmarshal(append([]byte(nil), b[len(extPrefix)+1:]...)) || e.Node == "" || e.Boot == 0 || e.Incarnation == 0 {
		return nil, ExtMalformed
	}
	return e, ""
}

// unmarshal reads pdlog.wire.v1.Extension by proto3's rules: the last value of
// a field wins, unknown fields and known numbers with another wire type are
// skipped, strings are UTF-8. It reads straight into the plain struct, since
// this is on the path of every message between pdlog nodes; a test holds it
// against the generated code. What it reads goes on lying in b, which must not
// change any more.
func (e *Extension) unmarshal(b []byte) bool {
	if n := countField(b, 9); n > 0 {
		e.WriteKeys = make([]WriteKey, 0, n)
	}
	return walkFields(b, func(num protowire.Number, f field) bool {
		switch {
		case num == 1 && f.typ == protowire.BytesType:
			return f.text(&e.Node)
		case num == 2 && f.typ == protowire.Fixed64Type:
			e.Boot = f.num
		case num == 3 && f.typ == protowire.VarintType:
			e.Incarnation = f.num
		case num == 4 && f.typ == protowire.Fixed64Type:
			e.HLC = f.num
		case num == 5 && f.typ == protowire.VarintType:
			e.RoomSeq = f.num
		case num == 6 && f.typ == protowire.VarintType:
			e.CauseSeq = f.num
		case num == 7 && f.typ == protowire.VarintType:
			e.Proof = Proof(int32(f.num))
		case num == 8 && f.typ == protowire.VarintType:
			e.Drained = Some(f.num != 0)
		case num == 9 && f.typ == protowire.BytesType:
			var k WriteKey
			if !k.unmarshal(f.bytes) {
				return false
			}
			e.WriteKeys = append(e.WriteKeys, k)
		case num == 10 && f.typ == protowire.BytesType:
			return f.text(&e.Reason)
		case num == 11 && f.typ == protowire.VarintType:
			e.PrefillRank = Some(uint32(f.num))
		case num == 12 && f.typ == protowire.Fixed64Type:
			e.LogSince = f.num
		case num == 13 && f.typ == protowire.BytesType:
			e.LogID = f.opaque()
		case num == 14 && f.typ == protowire.BytesType:
			e.SeenLogID = f.opaque()
		case num == 15 && f.typ == protowire.VarintType:
			e.SeenSeq = f.num
		case num == 16 && f.typ == protowire.Fixed64Type:
			e.PublishedBoot = f.num
		case num == 17 && f.typ == protowire.Fixed64Type:
			e.SeenBoot = f.num
		}
		return true
	})
}

func (k *WriteKey) unmarshal(b []byte) bool {
	return walkFields(b, func(num protowire.Number, f field) bool {
		switch {
		case num == 1 && f.typ == protowire.VarintType:
			k.Kind = WriteKeyKind(int32(f.num))
		case num == 2 && f.typ == protowire.VarintType:
			k.Index = uint32(f.num)
		case num == 3 && f.typ == protowire.VarintType:
			k.Component = uint32(f.num)
		case num == 4 && f.typ == protowire.BytesType:
			return f.text(&k.Provider)
		case num == 5 && f.typ == protowire.BytesType:
			return f.text(&k.Endpoint)
		case num == 6 && f.typ == protowire.BytesType:
			k.Key = f.opaque()
		}
		return true
	})
}

// field is one protobuf field: num for varint and fixed64, bytes for
// length-delimited; other wire types carry nothing we read.
type field struct {
	typ   protowire.Type
	num   uint64
	bytes []byte
}

func (f field) text(dst *string) bool {
	*dst = unsafe.String(unsafe.SliceData(f.bytes), len(f.bytes)) //nolint:gosec // the bytes do not change any more
	return utf8.ValidString(*dst)
}

// opaque is the bytes, nil if there are none.
func (f field) opaque() []byte {
	if len(f.bytes) == 0 {
		return nil
	}
	return f.bytes[:len(f.bytes):len(f.bytes)]
}

// walkFields calls see for each field of b; false if b is not protobuf or see
// says so.
func walkFields(b []byte, see func(protowire.Number, field) bool) bool {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || num > protowire.MaxValidNumber {
			return false
		}
		b = b[n:]
		f := field{typ: typ}
		switch typ {
		case protowire.VarintType:
			f.num, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			f.num, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 || !see(num, f) {
			return false
		}
		b = b[n:]
	}
	return true
}

// countField counts the length-delimited fields with that number, so that the
// list is allocated once; 0 if b is not protobuf.
func countField(b []byte, want protowire.Number) int {
	count := 0
	if !walkFields(b, func(num protowire.Number, f field) bool {
		if num == want && f.typ == protowire.BytesType {
			count++
		}
		return true
	}) {
		return 0
	}
	return count
}

// Encoding errors of an extension.
var (
	errExtIdentity = errors.New("extension needs node, boot and incarnation")
	errExtText     = errors.New("extension: a string is not UTF-8")
	errExtLogID    = errors.New("extension: a log id has 16 bytes")
)

// appendFrame appends the extension frame. A reason longer than 1 KiB is cut
// and bytes in it that are not UTF-8 are replaced: it is for people, and no
// message may be lost for its sake.
func (e *Extension) appendFrame(b []byte) ([]byte, error) {
	if e.Node == "" || e.Boot == 0 || e.Incarnation == 0 {
		return nil, errExtIdentity
	}
	if l := len(e.LogID); l != 0 && l != logIDLen {
		return nil, errExtLogID
	}
	if l := len(e.SeenLogID); l != 0 && l != logIDLen {
		return nil, errExtLogID
	}
	texts := utf8.ValidString(e.Node)
	m := wirepb.Extension{
		Node: e.Node, Boot: e.Boot, Incarnation: e.Incarnation, Hlc: e.HLC,
		RoomSeq: e.RoomSeq, CauseSeq: e.CauseSeq,
		Proof: wirepb.Proof(e.Proof), Reason: cutText(strings.ToValidUTF8(e.Reason, "\uFFFD"), maxExtReason),
		LogSince: e.LogSince, LogId: e.LogID, SeenLogId: e.SeenLogID, SeenSeq: e.SeenSeq, PublishedBoot: e.PublishedBoot, SeenBoot: e.SeenBoot,
	}
	if e.Drained.Set {
		m.Drained = &e.Drained.V
	}
	if e.PrefillRank.Set {
		m.PrefillRank = &e.PrefillRank.V
	}
	if len(e.WriteKeys) > 0 {
		keys := make([]wirepb.WriteKey, len(e.WriteKeys))
		m.WriteKeys = make([]*wirepb.WriteKey, len(e.WriteKeys))
		for i := range e.WriteKeys {
			k := &e.WriteKeys[i]
			texts = texts && utf8.ValidString(k.Provider) && utf8.ValidString(k.Endpoint)
			keys[i].Kind = wirepb.WriteKey_Kind(k.Kind)
			keys[i].Index, keys[i].Component = k.Index, k.Component
			keys[i].Provider, keys[i].Endpoint, keys[i].Key = k.Provider, k.Endpoint, k.Key
			m.WriteKeys[i] = &keys[i]
		}
	}
	if !texts {
		return nil, errExtText
	}
	size := len(extPrefix) + 1 + m.SizeVT()
	if size > maxExtFrame {
		return nil, fmt.Errorf("extension of %d bytes, at most %d go on the wire", size, maxExtFrame)
	}
	start := len(b)
	b = append(b, extPrefix...)
	b = append(b, extVersion)
	b = append(b, make([]byte, m.SizeVT())...)
	if _, err := m.MarshalToSizedBufferVT(b[start+len(extPrefix)+1:]); err != nil {
		return nil, fmt.Errorf("extension: %w", err)
	}
	return b, nil
}

// cutText cuts s to at most n bytes without splitting a character.
func cutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
