package events

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// A frame is the unit of storage and of the mirror: consecutive events of one
// node, one boot and one incarnation. All integers are little-endian.
//
//	offset size
//	     0    1  version (1)
//	     1    1  chain kind (1 = CRC-32C)
//	     2    2  count of records, at least 1
//	     4    4  body length: the bytes of all records
//	     8    8  first seq
//	    16    8  base hlc: the first record's
//	    24    8  boot
//	    32    8  incarnation
//	    40    4  chain before the first record
//	    44    n  records
//	  44+n    4  CRC-32C (Castagnoli) of everything before it
//
// A record is: uvarint length, uvarint hlc delta to the record before it (0
// for the first, at least 1 for the others: events.md I9), and the Event in
// protobuf with seq, hlc, node, boot, incarnation and prev_hash left out.
//
// The chain runs over records, not frames, so it survives a re-framing:
//
//	chain(i) = CRC32C( chain(i-1) || seq || hlc || record bytes )
//
// and an event's PrevHash is chain(i-1). The chain of an empty log is 0.
const (
	frameVersion   = 1
	chainCRC32C    = 1
	frameHeaderLen = 44
	frameTrailLen  = 4
	chainPrefixLen = 4 + 8 + 8

	// FrameLimit is the size in bytes a frame stays under unless a single
	// record is larger: two of them fill a 4 KiB page (store.md 2.1, 5).
	FrameLimit = 1900
	// RecordLimit is the largest record in bytes that a FrameWriter takes. It
	// leaves room for headers in a message of a NATS server with its default
	// max_payload of 1 MiB, so that every record can be mirrored.
	RecordLimit = 900 << 10

	maxFrameCount = math.MaxUint16
)

var (
	// ErrFrameShort: the bytes end before the frame does.
	ErrFrameShort = errors.New("frame is cut short")
	// ErrFrameCRC: the frame's checksum does not fit its bytes.
	ErrFrameCRC = errors.New("frame checksum does not fit")
	// ErrFrameVersion: a frame version or chain kind this build does not know.
	ErrFrameVersion = errors.New("unknown frame version")
	// ErrFrameMalformed: the checksum fits, the structure inside does not.
	ErrFrameMalformed = errors.New("frame is malformed")
	// ErrChain: the chain does not continue where it should (events.md I9).
	ErrChain = errors.New("chain broken")
	// ErrSeqGap: the sequence does not continue where it should (events.md I9).
	ErrSeqGap = errors.New("sequence gap")
	// ErrClockOrder: an hlc that is not above the one before it (events.md I9).
	ErrClockOrder = errors.New("hlc does not grow")
	// ErrRecordTooBig: an event above RecordLimit.
	ErrRecordTooBig = errors.New("record is too big")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// FrameInfo says what a frame holds.
type FrameInfo struct {
	FirstSeq    uint64
	LastSeq     uint64
	Count       int
	FirstHLC    uint64
	LastHLC     uint64
	Boot        uint64
	Incarnation uint64
	PrevChain   uint32 // chain before the first record
	Chain       uint32 // chain after the last record
	Size        int    // bytes of the whole frame, header and checksum included
}

// FramePeek reads a frame's header alone: no checksum is verified, LastHLC and
// Chain stay zero. It is for finding one's way, not for trusting.
func FramePeek(b []byte) (FrameInfo, error) {
	var in FrameInfo
	if len(b) < 2 {
		return in, fmt.Errorf("%w: %d bytes", ErrFrameShort, len(b))
	}
	if b[0] != frameVersion || b[1] != chainCRC32C {
		return in, fmt.Errorf("%w: version %d, chain kind %d", ErrFrameVersion, b[0], b[1])
	}
	if len(b) < frameHeaderLen+frameTrailLen {
		return in, fmt.Errorf("%w: %d bytes", ErrFrameShort, len(b))
	}
	le := binary.LittleEndian
	body := uint64(le.Uint32(b[4:]))
	if body > uint64(len(b)-frameHeaderLen-frameTrailLen) { //nolint:gosec // checked above
		return in, fmt.Errorf("%w: body of %d bytes in %d", ErrFrameShort, body, len(b))
	}
	in = FrameInfo{
		FirstSeq:    le.Uint64(b[8:]),
		Count:       int(le.Uint16(b[2:])),
		FirstHLC:    le.Uint64(b[16:]),
		Boot:        le.Uint64(b[24:]),
		Incarnation: le.Uint64(b[32:]),
		PrevChain:   le.Uint32(b[40:]),
		Size:        frameHeaderLen + int(body) + frameTrailLen,
	}
	in.LastSeq = in.FirstSeq + uint64(in.Count) - 1 //nolint:gosec // wraps for 0, refused by DecodeFrame
	return in, nil
}

// DecodeFrame reads the first frame of b, verifies it, and calls visit with
// each event in order, every envelope field filled in. Events are new and keep
// no reference to b. A nil visit verifies checksum, structure, clock and chain
// and decodes no event. FrameInfo.Size says where the next frame starts.
//
// It is total: any bytes give a frame or an error (one of the sentinels of
// this file, or visit's own), and it allocates in proportion to len(b) alone.
func DecodeFrame(b []byte, node string, visit func(*Event) error) (FrameInfo, error) {
	return DecodeFrameIf(b, node, nil, visit)
}

// DecodeFrameIf is DecodeFrame that decodes only the events that want says true
// to (nil: all). The rest is verified all the same. A record whose head cannot be
// read is decoded, so that its fault shows.
func DecodeFrameIf(b []byte, node string, want func(Head) bool, visit func(*Event) error) (FrameInfo, error) {
	in, err := FramePeek(b)
	if err != nil {
		return FrameInfo{}, err
	}
	le := binary.LittleEndian
	end := in.Size - frameTrailLen
	if have, want := crc32.Checksum(b[:end], castagnoli), le.Uint32(b[end:]); have != want {
		return FrameInfo{}, fmt.Errorf("%w: have %08x, want %08x", ErrFrameCRC, have, want)
	}
	if in.Count == 0 || in.FirstSeq == 0 || in.LastSeq < in.FirstSeq {
		return FrameInfo{}, fmt.Errorf("%w: %d records from seq %d", ErrFrameMalformed, in.Count, in.FirstSeq)
	}
	body := b[frameHeaderLen:end]
	seq, hlc, chain := in.FirstSeq, in.FirstHLC, in.PrevChain
	var prefix [chainPrefixLen]byte
	for i := range in.Count {
		size, n := binary.Uvarint(body)
		if n <= 0 {
			return FrameInfo{}, fmt.Errorf("%w: length of record %d", ErrFrameMalformed, seq)
		}
		body = body[n:]
		delta, n := binary.Uvarint(body)
		if n <= 0 {
			return FrameInfo{}, fmt.Errorf("%w: hlc of record %d", ErrFrameMalformed, seq)
		}
		body = body[n:]
		if size > uint64(len(body)) {
			return FrameInfo{}, fmt.Errorf("%w: record %d is %d bytes, %d are left", ErrFrameMalformed, seq, size, len(body))
		}
		rec := body[:size:size]
		body = body[size:]
		if (delta == 0) != (i == 0) || hlc+delta < hlc {
			return FrameInfo{}, fmt.Errorf("%w: record %d is %d after %d", ErrClockOrder, seq, delta, hlc)
		}
		hlc += delta
		before := chain
		chain = chainNext(prefix[:], before, seq, hlc, rec)
		if visit == nil {
			seq++
			continue
		}
		h, ok := peek(rec)
		h.Seq, h.Record = seq, rec
		if !ok || want == nil || want(h) {
			e := newEvent(h.Type)
			if err := e.UnmarshalVT(rec); err != nil {
				return FrameInfo{}, fmt.Errorf("%w: record %d: %w", ErrFrameMalformed, seq, err)
			}
			e.Seq, e.Hlc, e.Node = seq, hlc, node
			e.Boot, e.Incarnation, e.PrevHash = in.Boot, in.Incarnation, before
			if err := visit(e); err != nil {
				return FrameInfo{}, err
			}
		}
		seq++
	}
	if len(body) != 0 {
		return FrameInfo{}, fmt.Errorf("%w: %d bytes after record %d", ErrFrameMalformed, len(body), in.LastSeq)
	}
	in.LastHLC, in.Chain = hlc, chain
	return in, nil
}

// DecodeFrames reads a concatenation of frames (a mirror message) to its end.
// Each frame must continue the one before it.
func DecodeFrames(b []byte, node string, visit func(*Event) error) (first, last FrameInfo, err error) {
	var at Position
	for len(b) > 0 {
		in, err := DecodeFrame(b, node, visit)
		if err != nil {
			return first, last, err
		}
		if first.Count == 0 {
			first = in
			at = Position{Seq: in.FirstSeq - 1, Chain: in.PrevChain}
		}
		if err := at.Advance(in); err != nil {
			return first, last, err
		}
		last, b = in, b[in.Size:]
	}
	if first.Count == 0 {
		return first, last, fmt.Errorf("%w: no frame", ErrFrameShort)
	}
	return first, last, nil
}

// Position is a place in a log: after record Seq. The zero value is the start
// of an empty log.
type Position struct {
	Seq   uint64
	HLC   uint64 // of record Seq; 0 = not known
	Chain uint32 // chain after record Seq
}

// Advance checks that the frame continues the log at p and moves p behind it
// (events.md I9). The error is ErrSeqGap, ErrChain or ErrClockOrder; p then
// stays where it was.
func (p *Position) Advance(in FrameInfo) error {
	if in.FirstSeq != p.Seq+1 {
		return fmt.Errorf("%w: have %d, want %d", ErrSeqGap, in.FirstSeq, p.Seq+1)
	}
	if in.PrevChain != p.Chain {
		return fmt.Errorf("%w at %d: have %08x, want %08x", ErrChain, in.FirstSeq, in.PrevChain, p.Chain)
	}
	if in.FirstHLC <= p.HLC && p.HLC != 0 {
		return fmt.Errorf("%w: record %d has %d after %d", ErrClockOrder, in.FirstSeq, in.FirstHLC, p.HLC)
	}
	*p = Position{Seq: in.LastSeq, HLC: in.LastHLC, Chain: in.Chain}
	return nil
}

// chainNext is the chain after a record. prefix is scratch of chainPrefixLen
// bytes, passed in because it would otherwise be allocated per record.
func chainNext(prefix []byte, chain uint32, seq, hlc uint64, rec []byte) uint32 {
	le := binary.LittleEndian
	le.PutUint32(prefix, chain)
	le.PutUint64(prefix[4:], seq)
	le.PutUint64(prefix[12:], hlc)
	return crc32.Update(crc32.Checksum(prefix[:chainPrefixLen], castagnoli), castagnoli, rec)
}
