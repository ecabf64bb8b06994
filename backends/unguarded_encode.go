package backends

import (
	"encoding/binary"
	"fmt"
	"strconv"
)

// EncodeUnguarded encodes a message that has no guard, if the dialect knows it.
// Every other message is an error: the dialect has taken its own before.
func EncodeUnguarded(known Tags, m Message) (Frames, error) {
	switch m := m.(type) {
	case *Abort:
		return encodeAbort(m)
	case *AbortAck:
		return encodeAbortAck(m)
	case *Watermark:
		if known&TagWatermark != 0 {
			return encodeWatermark(m)
		}
	case *StagingReq:
		if known&TagStagingReq != 0 {
			return encodeStagingReq(m)
		}
	case *StagingRsp:
		if known&TagStagingRsp != 0 {
			return encodeStagingRsp(m)
		}
	case *ChunkReady:
		if known&TagChunkReady != 0 {
			return encodeChunkReady(m)
		}
	case *AuxData:
		if known&TagAuxData != 0 {
			return encodeAuxData(m)
		}
	case *Bootstrap:
		if known&TagBootstrap != 0 {
			return encodeBootstrap(m)
		}
	case nil:
		return nil, fmt.Errorf("encode: no message")
	}
	return nil, fmt.Errorf("encode %s: %w", m.Kind(), ErrKind)
}

func encodeAbort(m *Abort) (Frames, error) {
	w := NewWriter(KindAbort, abortExtPlace+1)
	w.Tag("ABORT")
	w.Room(m.Room)
	w.Endpoint(m.Peer)
	if m.Generation.Set {
		w.U63("generation", m.Generation.V)
	}
	w.Ext(abortExtPlace, m.Ext)
	return w.Done()
}

func encodeAbortAck(m *AbortAck) (Frames, error) {
	w := NewWriter(KindAbortAck, ackExtPlace+1)
	w.Tag("ABORT_ACK")
	w.Room(m.Room)
	ext := m.Ext
	switch {
	case ext != nil && ext.Proof == ProofCannotTell:
		// With an empty rank no decode of any version counts it, even if the
		// extension was sent to a peer that cannot read it (wire.md 9.4).
		ext = cannotTell(&w, m)
		w.Empty()
	case m.PrefillRank.Set:
		w.I31("prefill_rank", m.PrefillRank.V)
	case ext != nil:
		w.Empty()
	default: // the receipt of an old peer has two frames
		return w.Done()
	}
	if m.Generation.Set {
		w.U63("generation", m.Generation.V)
	}
	w.Ext(ackExtPlace, ext)
	return w.Done()
}

// cannotTell moves the rank into a copy of the extension.
func cannotTell(w *Writer, m *AbortAck) *Extension {
	if !m.PrefillRank.Set {
		return m.Ext
	}
	rank := m.PrefillRank.V
	if rank < 0 {
		w.Fail("prefill_rank %d is below 0", rank)
	}
	ext := *m.Ext
	if !ext.PrefillRank.Set {
		ext.PrefillRank = Some(uint32(rank))
	}
	return &ext
}

func encodeWatermark(m *Watermark) (Frames, error) {
	w := NewWriter(KindWatermark, 4)
	w.Tag("WATERMARK")
	w.U63("round", m.Round)
	w.U63("tail", m.Tail)
	w.Name("session_id", m.SessionID)
	return w.Done()
}

func encodeStagingReq(m *StagingReq) (Frames, error) {
	w := NewWriter(KindStagingReq, 6)
	w.Tag("STAGING_REQ")
	w.Room(m.Room)
	w.I31("chunk_idx", m.ChunkIdx)
	w.I31("chunk_pages", m.ChunkPages)
	w.Name("session_id", m.SessionID)
	if m.PPRank.Set {
		w.I31("pp_rank", m.PPRank.V)
	}
	return w.Done()
}

func encodeStagingRsp(m *StagingRsp) (Frames, error) {
	w := NewWriter(KindStagingRsp, 7)
	w.Tag("STAGING_RSP")
	w.Room(m.Room)
	w.I31("chunk_idx", m.ChunkIdx)
	if !m.valid() {
		w.Fail("offset %d, round %d, end %d are no range", m.Offset, m.Round, m.End)
	}
	for _, v := range [...]int64{m.Offset, m.Round, m.End} {
		w.push(strconv.AppendInt(w.buf, v, 10))
	}
	w.Name("session_id", m.SessionID)
	return w.Done()
}

func encodeChunkReady(m *ChunkReady) (Frames, error) {
	w := NewWriter(KindChunkReady, 7)
	w.Tag("CHUNK_READY")
	w.Room(m.Room)
	w.I31("chunk_idx", m.ChunkIdx)
	w.I31("page_start", m.PageStart)
	w.I31("num_pages", m.NumPages)
	w.Name("writer_id", m.WriterID)
	w.I31("prefill_rank", m.PrefillRank)
	return w.Done()
}

func encodeAuxData(m *AuxData) (Frames, error) {
	w := NewWriter(KindAuxData, 6)
	if uint64(len(m.Data)) > 1<<32-1 {
		w.Fail("data of %d bytes does not fit its length frame", len(m.Data))
		return w.Done()
	}
	w.Tag("AUX_DATA")
	w.Room(m.Room)
	w.I31("buffer_index", m.BufferIndex)
	w.I31("aux_index", m.AuxIndex)
	w.push(binary.BigEndian.AppendUint32(w.buf, uint32(len(m.Data))))
	w.Bytes(m.Data)
	return w.Done()
}

func encodeBootstrap(m *Bootstrap) (Frames, error) {
	w := NewWriter(KindBootstrap, 4)
	w.Tag("BOOTSTRAP")
	w.Room(m.Room)
	w.Endpoint(m.Peer)
	return w.Done()
}
