package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/pdlog/pdlog/rdma"
)

const (
	version    = 1
	headerLen  = 80
	replyLen   = 32
	keyLen     = 16
	maxFrame   = 1 << 20 // bytes of payload; a larger write is several frames
	maxPeerLen = 255     // bytes of a peer's name
)

// key is the secret of a lease.
type key [keyLen]byte

// Operations. Requests have headers, the rest are replies.
const (
	opHello   = 1 // payload: the writer's PeerID
	opWrite   = 2 // payload: the bytes
	opPool    = 3 // no payload, a file descriptor comes with it: pool is its name from here on
	opCopy    = 4 // no payload: the bytes are in a pool
	opRing    = 5 // no payload, the file of a ring comes with it: an offer, answered by opHelloOK
	opTurn    = 6 // in a ring alone: the next frame is on the socket
	opBell    = 7 // on the socket beside a ring: there are frames in it
	opHelloOK = 0x81
	opAck     = 0x82 // every transfer up to seq that was not refused is in memory
	opNak     = 0x83 // this one transfer was refused, wholly or in part
	opRang    = 0x84 // on the socket beside a ring: there are answers in it, or room for frames
)

// Frame flags of a header.
const (
	flagLast    = 1 << 0 // last frame of its transfer
	flagPartial = 1 << 1 // rdma.Batch.Partial
	flagSum     = 1 << 2 // sum is there
	flagAsk     = 1 << 3 // of a hello: only asks for the near listener; another hello follows, or nothing
	flagsKnown  = flagLast | flagPartial | flagSum | flagAsk
)

// featureRing is in reply.frames of an opHelloOK: the target takes an offer of a
// ring, or has taken it. Builds that know of none send 0 there and do not look.
const featureRing = 1

var errFrame = errors.New("malformed frame")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header stands before each payload. All numbers are big endian:
//
//	0 version 1, 1 op 1, 2 flags 2, 4 length 4, 8 key 16, 24 tag 8,
//	32 offset 8, 40 seq 8, 48 meta 8, 56 user flags 4, 60 payload's crc32c 4,
//	64 source offset 8, 72 pool 4, 76 crc32c of 0-75
type header struct {
	op     byte
	flags  uint16
	length uint32
	key    key
	tag    uint64
	offset uint64
	seq    uint64 // of the transfer, from 1 on, one more for each on a connection
	meta   uint64
	user   uint32
	sum    uint32 // of the frame's bytes, with flagSum
	source uint64 // of opCopy, where in the pool the bytes are
	pool   uint32 // of opPool and opCopy, from 1 on
}

// encode writes h into b, which must hold headerLen bytes.
func (h *header) encode(b []byte) {
	_ = b[headerLen-1]
	b[0], b[1] = version, h.op
	binary.BigEndian.PutUint16(b[2:], h.flags)
	binary.BigEndian.PutUint32(b[4:], h.length)
	copy(b[8:24], h.key[:])
	binary.BigEndian.PutUint64(b[24:], h.tag)
	binary.BigEndian.PutUint64(b[32:], h.offset)
	binary.BigEndian.PutUint64(b[40:], h.seq)
	binary.BigEndian.PutUint64(b[48:], h.meta)
	binary.BigEndian.PutUint32(b[56:], h.user)
	binary.BigEndian.PutUint32(b[60:], h.sum)
	binary.BigEndian.PutUint64(b[64:], h.source)
	binary.BigEndian.PutUint32(b[72:], h.pool)
	binary.BigEndian.PutUint32(b[76:], crc32.Checksum(b[:76], castagnoli))
}

// decode reads a header. Any error means that the stream can not be trusted
// any more. It checks what holds for every frame, not what a lease allows.
func (h *header) decode(b []byte) error {
	if len(b) != headerLen {
		return fmt.Errorf("%w: header of %d bytes", errFrame, len(b))
	}
	if sum := crc32.Checksum(b[:76], castagnoli); sum != binary.BigEndian.Uint32(b[76:]) {
		return fmt.Errorf("%w: header checksum", errFrame)
	}
	if b[0] != version {
		return fmt.Errorf("%w: version %d, want %d", errFrame, b[0], version)
	}
	h.op = b[1]
	h.flags = binary.BigEndian.Uint16(b[2:])
	h.length = binary.BigEndian.Uint32(b[4:])
	copy(h.key[:], b[8:24])
	h.tag = binary.BigEndian.Uint64(b[24:])
	h.offset = binary.BigEndian.Uint64(b[32:])
	h.seq = binary.BigEndian.Uint64(b[40:])
	h.meta = binary.BigEndian.Uint64(b[48:])
	h.user = binary.BigEndian.Uint32(b[56:])
	h.sum = binary.BigEndian.Uint32(b[60:])
	h.source = binary.BigEndian.Uint64(b[64:])
	h.pool = binary.BigEndian.Uint32(b[72:])
	switch {
	case h.flags&^flagsKnown != 0:
		return fmt.Errorf("%w: flags %#x", errFrame, h.flags)
	case h.op == opHello && h.length <= maxPeerLen:
		return nil
	case h.flags&flagAsk != 0:
		return fmt.Errorf("%w: flags %#x of op %d", errFrame, h.flags, h.op)
	case h.op == opWrite && h.length > 0 && h.length <= maxFrame && h.seq > 0:
		return nil
	case h.op == opPool && h.length == 0 && h.pool > 0:
		return nil
	case (h.op == opRing || h.op == opTurn || h.op == opBell) && h.length == 0:
		return nil
	case h.op == opCopy && h.length > 0 && h.length <= maxFrame && h.seq > 0 && h.pool > 0:
		return nil
	default:
		return fmt.Errorf("%w: op %d, %d bytes, sequence %d", errFrame, h.op, h.length, h.seq)
	}
}

// reply goes from target to writer:
//
//	0 version 1, 1 op 1, 2 reason 2, 4 frames refused 4, 8 seq 8,
//	16 bytes placed 8, 24 zero 4, 28 crc32c of 0-27
type reply struct {
	op     byte
	reason rdma.Refusal
	frames uint32 // of opHelloOK: features
	seq    uint64
	placed uint64
}

// append encodes r at the end of b.
func (r reply) append(b []byte) []byte {
	at := len(b)
	b = append(b, version, r.op)
	b = binary.BigEndian.AppendUint16(b, uint16(r.reason))
	b = binary.BigEndian.AppendUint32(b, r.frames)
	b = binary.BigEndian.AppendUint64(b, r.seq)
	b = binary.BigEndian.AppendUint64(b, r.placed)
	b = append(b, 0, 0, 0, 0)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
}

// decode reads a reply. Any error means that the stream can not be trusted.
func (r *reply) decode(b []byte) error {
	if len(b) != replyLen {
		return fmt.Errorf("%w: reply of %d bytes", errFrame, len(b))
	}
	if sum := crc32.Checksum(b[:28], castagnoli); sum != binary.BigEndian.Uint32(b[28:]) {
		return fmt.Errorf("%w: reply checksum", errFrame)
	}
	if b[0] != version {
		return fmt.Errorf("%w: version %d, want %d", errFrame, b[0], version)
	}
	r.op = b[1]
	r.reason = rdma.Refusal(binary.BigEndian.Uint16(b[2:]))
	r.frames = binary.BigEndian.Uint32(b[4:])
	r.seq = binary.BigEndian.Uint64(b[8:])
	r.placed = binary.BigEndian.Uint64(b[16:])
	if r.op < opHelloOK || r.op > opRang || binary.BigEndian.Uint32(b[24:]) != 0 {
		return fmt.Errorf("%w: reply op %d", errFrame, r.op)
	}
	return nil
}
