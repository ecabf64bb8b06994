package stream

import (
	"encoding/hex"
	"errors"
	"testing"

	"github.com/pdlog/pdlog/rdma"
)

var sample = header{
	op: opWrite, flags: flagLast, length: 0x10000, key: key{0: 1, 15: 16},
	tag: 0x0102030405060708, offset: 0x40000, seq: 3, meta: 9, user: 0xa0,
	sum: 0x0badf00d, source: 0x50000, pool: 7,
}

// The bytes of the wire are fixed: peers of other builds read them.
func TestFrameBytesAreFixed(t *testing.T) {
	b := make([]byte, headerLen)
	sample.encode(b)
	const want = "0102000100010000" + "01000000000000000000000000000010" + "0102030405060708" +
		"0000000000040000" + "0000000000000003" + "0000000000000009" + "000000a0" + "0badf00d" +
		"0000000000050000" + "00000007" + "62158fd5"
	if got := hex.EncodeToString(b); got != want {
		t.Errorf("header\n have %s\n want %s", got, want)
	}
	r := reply{op: opNak, reason: rdma.RefusedRevoked, frames: 2, seq: 3, placed: 0x1000}.append(nil)
	const wantReply = "0183000200000002" + "0000000000000003" + "0000000000001000" + "00000000" + "f4b996b3"
	if got := hex.EncodeToString(r); got != wantReply {
		t.Errorf("reply\n have %s\n want %s", got, wantReply)
	}
}

func TestDecodeIsTheInverseOfEncode(t *testing.T) {
	b := make([]byte, headerLen)
	sample.encode(b)
	var h header
	if err := h.decode(b); err != nil || h != sample {
		t.Errorf("have %+v, %v", h, err)
	}
	want := reply{op: opAck, seq: 77}
	var r reply
	if err := r.decode(want.append(nil)); err != nil || r != want {
		t.Errorf("have %+v, %v", r, err)
	}
}

func TestEveryFlippedBitIsNoticed(t *testing.T) {
	good := make([]byte, headerLen)
	sample.encode(good)
	goodReply := reply{op: opAck, seq: 77}.append(nil)
	for bit := range headerLen * 8 {
		b := append([]byte(nil), good...)
		b[bit/8] ^= 1 << (bit % 8)
		if err := new(header).decode(b); !errors.Is(err, errFrame) {
			t.Errorf("header bit %d: %v", bit, err)
		}
	}
	for bit := range replyLen * 8 {
		b := append([]byte(nil), goodReply...)
		b[bit/8] ^= 1 << (bit % 8)
		if err := new(reply).decode(b); !errors.Is(err, errFrame) {
			t.Errorf("reply bit %d: %v", bit, err)
		}
	}
}

// TestBadHeadersAreRefused: headers with a good checksum that no writer sends.
func TestBadHeadersAreRefused(t *testing.T) {
	for name, spoil := range map[string]func(*header){
		"no payload":        func(h *header) { h.length = 0 },
		"payload too big":   func(h *header) { h.length = maxFrame + 1 },
		"copy of nothing":   func(h *header) { h.op, h.length = opCopy, 0 },
		"copy of no pool":   func(h *header) { h.op, h.pool = opCopy, 0 },
		"pool with payload": func(h *header) { h.op = opPool },
		"pool without name": func(h *header) { h.op, h.length, h.pool = opPool, 0, 0 },
		"ring with payload": func(h *header) { h.op = opRing },
		"sequence 0":        func(h *header) { h.seq = 0 },
		"unknown flag":      func(h *header) { h.flags = 0x8000 },
		"unknown op":        func(h *header) { h.op = 9 },
		"a reply's op":      func(h *header) { h.op = opAck },
		"long name":         func(h *header) { h.op, h.length = opHello, maxPeerLen+1 },
	} {
		h := sample
		spoil(&h)
		b := make([]byte, headerLen)
		h.encode(b)
		if err := new(header).decode(b); !errors.Is(err, errFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzHeader: whatever decodes is within bounds and encodes to the same bytes.
func FuzzHeader(f *testing.F) {
	b := make([]byte, headerLen)
	sample.encode(b)
	f.Add(b)
	hello := header{op: opHello, length: 4}
	hello.encode(b)
	f.Add(b)
	f.Add(reply{op: opAck, seq: 1}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h header
		if err := h.decode(b); err == nil {
			if h.length > maxFrame || h.op == opWrite && (h.length == 0 || h.seq == 0) {
				t.Fatalf("decoded %+v", h)
			}
			again := make([]byte, headerLen)
			h.encode(again)
			if string(again) != string(b) {
				t.Fatalf("\n have %x\n want %x", again, b)
			}
		}
		var r reply
		if err := r.decode(b); err == nil {
			if again := r.append(nil); string(again) != string(b) {
				t.Fatalf("\n have %x\n want %x", again, b)
			}
		}
	})
}
