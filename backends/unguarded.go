package backends

import "encoding/binary"

// Tags is the set of unguarded messages a dialect knows. They carry no guard
// frame in any backend and are told apart by their tag alone, so a receiver
// tests them before its guard: a guard test that came first once dropped every
// ABORT (wire.md F24).
type Tags uint16

// The unguarded messages. ABORT and ABORT_ACK are known to every dialect and
// need not be named.
const (
	TagWatermark Tags = 1 << iota
	TagStagingRsp
	TagStagingReq
	TagChunkReady
	TagAuxData
	TagBootstrap
)

// TagsStaging are the messages of the staging ring.
const TagsStaging = TagWatermark | TagStagingRsp | TagStagingReq | TagChunkReady

// First places of the extension frame; the same in every dialect (wire.md 9.4).
const (
	abortExtPlace = 5
	ackExtPlace   = 4
)

// DecodeUnguarded decodes f if it is an unguarded message that the dialect
// knows on this side. ok is false if frame 0 is none of those tags: then the
// dialect goes on to its guard. The tag of the other side is left to the
// dialect as well, which will find it foreign.
func DecodeUnguarded(known Tags, at Side, f Frames) (m Message, ok bool) {
	if len(f) == 0 {
		return nil, false
	}
	has := func(t Tags) bool { return known&t != 0 }
	if at == AtPrefill {
		switch string(f[0]) {
		case "ABORT":
			return decodeAbort(f), true
		case "WATERMARK":
			if has(TagWatermark) {
				return decodeWatermark(f), true
			}
		case "STAGING_RSP":
			if has(TagStagingRsp) {
				return decodeStagingRsp(f), true
			}
		case "BOOTSTRAP":
			if has(TagBootstrap) {
				return decodeBootstrap(f), true
			}
		}
		return nil, false
	}
	switch string(f[0]) {
	case "ABORT_ACK":
		return decodeAbortAck(f), true
	case "STAGING_REQ":
		if has(TagStagingReq) {
			return decodeStagingReq(f), true
		}
	case "CHUNK_READY":
		if has(TagChunkReady) {
			return decodeChunkReady(f), true
		}
	case "AUX_DATA":
		if has(TagAuxData) {
			return decodeAuxData(f), true
		}
	}
	return nil, false
}

// Result is what a decoder returns: the Malformed of r if a frame was bad,
// else m.
func Result(r *Reader, m Message) Message {
	if bad := r.Bad(); bad != nil {
		return bad
	}
	return m
}

// abortMemory is an Abort and the text of its address in one allocation: ABORTs
// come in storms, when a node or a router ends.
type abortMemory struct {
	m  Abort
	ip ipText
}

func decodeAbort(f Frames) Message {
	r := NewReader(KindAbort, f, 2)
	mem := &abortMemory{m: Abort{Room: r.Room(1)}}
	m := &mem.m
	// A bad address or generation is dropped alone: an ABORT we can only half
	// read must still end the room (wire.md 1.4, F38).
	ip, ipOK := mem.ip.read(r.Frame(2))
	port, portOK := parsePort(r.Frame(3))
	switch {
	case ipOK && portOK:
		m.Peer = Endpoint{IP: ip, Port: port}
	case !r.Empty(2) || !r.Empty(3):
		m.DroppedAddress = true
	}
	if !r.Empty(4) {
		gen, ok := parseUint(r.Frame(4), MaxRoom)
		if ok && !m.Peer.IsZero() {
			m.Generation = Some(gen)
		}
		m.DroppedGeneration = !ok
	}
	m.Ext, m.ExtIgnored = r.Ext(abortExtPlace)
	return Result(&r, m)
}

func decodeAbortAck(f Frames) Message {
	r := NewReader(KindAbortAck, f, 2)
	// Unlike in an ABORT, a bad frame spoils the message: a damaged ACK must
	// not turn into a weaker one that might count.
	m := &AbortAck{
		Room:        r.Room(1),
		PrefillRank: r.OptI31(2, "bad prefill_rank"),
		Generation:  r.OptU63(3, "bad generation"),
	}
	m.Ext, m.ExtIgnored = r.Ext(ackExtPlace)
	return Result(&r, m)
}

func decodeWatermark(f Frames) Message {
	r := NewReader(KindWatermark, f, 4)
	m := &Watermark{Round: r.U63(1, "bad round"), Tail: r.U63(2, "bad tail"), SessionID: r.Name(3, "bad session_id")}
	return Result(&r, m)
}

func decodeStagingReq(f Frames) Message {
	r := NewReader(KindStagingReq, f, 5)
	m := &StagingReq{
		Room:       r.Room(1),
		ChunkIdx:   r.I31(2, "bad chunk_idx"),
		ChunkPages: r.I31(3, "bad chunk_pages"),
		SessionID:  r.Name(4, "bad session_id"),
		PPRank:     r.OptI31(5, "bad pp_rank"),
	}
	return Result(&r, m)
}

func decodeStagingRsp(f Frames) Message {
	r := NewReader(KindStagingRsp, f, 7)
	m := &StagingRsp{
		Room:      r.Room(1),
		ChunkIdx:  r.I31(2, "bad chunk_idx"),
		Offset:    r.i64(3, "bad offset"),
		Round:     r.i64(4, "bad round"),
		End:       r.i64(5, "bad end"),
		SessionID: r.Name(6, "bad session_id"),
	}
	if !m.valid() {
		r.fail(3, "offset, round and end are no range")
	}
	return Result(&r, m)
}

func decodeChunkReady(f Frames) Message {
	r := NewReader(KindChunkReady, f, 7)
	m := &ChunkReady{
		Room:        r.Room(1),
		ChunkIdx:    r.I31(2, "bad chunk_idx"),
		PageStart:   r.I31(3, "bad page_start"),
		NumPages:    r.I31(4, "bad num_pages"),
		WriterID:    r.Name(5, "bad writer_id"),
		PrefillRank: r.I31(6, "bad prefill_rank"),
	}
	return Result(&r, m)
}

func decodeAuxData(f Frames) Message {
	r := NewReader(KindAuxData, f, 6)
	m := &AuxData{Room: r.Room(1), BufferIndex: r.I31(2, "bad buffer_index"), AuxIndex: r.I31(3, "bad aux_index")}
	if l := r.Frame(4); len(l) != 4 || uint64(binary.BigEndian.Uint32(l)) != uint64(len(r.Frame(5))) {
		r.fail(4, "length is not 4 bytes that hold the size of the data")
	}
	if bad := r.Bad(); bad != nil {
		return bad
	}
	m.Data = r.Bytes(5)
	return m
}

func decodeBootstrap(f Frames) Message {
	r := NewReader(KindBootstrap, f, 4)
	m := &Bootstrap{Room: r.Room(1), Peer: r.Endpoint(2)}
	return Result(&r, m)
}

// i64 reads a dec of 64 bits; only a StagingRsp has negative ones.
func (r *Reader) i64(i int, what string) int64 {
	mag, neg, ok := parseDec(r.Frame(i))
	if !ok || mag > MaxRoom {
		r.fail(i, what)
		return 0
	}
	if neg {
		return -int64(mag)
	}
	return int64(mag)
}
