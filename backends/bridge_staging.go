package backends

import "github.com/pdlog/pdlog/projector"

// stagingCommand turns the messages of the staging ring into commands.
func stagingCommand(m Message, at projector.RankID, f Frames) projector.Command {
	switch m := m.(type) {
	case *StagingReq:
		if m.ChunkIdx < 0 || m.ChunkPages < 0 {
			return rejected(m.Kind(), "negative number", f)
		}
		return projector.WireStagingReq{At: at, Room: m.Room, Chunk: uint32(m.ChunkIdx), Pages: uint32(m.ChunkPages), Session: m.SessionID}
	case *StagingRsp:
		c := projector.WireStagingRsp{At: at, Room: m.Room, Chunk: uint32(max(m.ChunkIdx, 0)), Session: m.SessionID, Never: m.WillNeverFit()} //nolint:gosec // not negative
		if m.ChunkIdx < 0 {
			return rejected(m.Kind(), "negative number", f)
		}
		if !c.Never {
			c.Offset, c.Round, c.End = uint64(m.Offset), uint64(m.Round), uint64(m.End) //nolint:gosec // decoded >= 0
		}
		return c
	case *Watermark:
		return projector.WireWatermark{At: at, Round: m.Round, Tail: m.Tail, Session: m.SessionID}
	case *ChunkReady:
		if m.ChunkIdx < 0 || m.PageStart < 0 || m.NumPages < 0 || m.PrefillRank < 0 {
			return rejected(m.Kind(), "negative number", f)
		}
		return projector.WireChunkReady{
			At: at, Room: m.Room, Chunk: uint32(m.ChunkIdx), First: uint32(m.PageStart), Pages: uint32(m.NumPages),
			Writer: m.WriterID, Rank: uint32(m.PrefillRank),
		}
	}
	return rejected(m.Kind(), "no room here uses it", f)
}

// FromStagingReq builds the STAGING_REQ of an effect.
func FromStagingReq(a projector.SendStagingReq) *StagingReq {
	return &StagingReq{Room: a.Room, ChunkIdx: int32(a.Chunk), ChunkPages: int32(a.Pages), SessionID: a.Session} //nolint:gosec // encoder checks
}

// FromStagingRsp builds the STAGING_RSP of an effect.
func FromStagingRsp(a projector.SendStagingRsp, self Self) *StagingRsp {
	m := &StagingRsp{Room: a.Room, ChunkIdx: int32(a.Chunk), SessionID: self.PeerKey} //nolint:gosec // encoder checks
	if a.Never {
		m.Offset, m.Round, m.End = -2, 0, -1
		return m
	}
	m.Offset, m.Round, m.End = int64(a.Offset), int64(a.Round), int64(a.End) //nolint:gosec // bytes of a buffer
	return m
}

// FromWatermark builds the WATERMARK of an effect.
func FromWatermark(a projector.SendWatermark, self Self) *Watermark {
	return &Watermark{Round: a.Round, Tail: a.Tail, SessionID: self.PeerKey}
}

// FromChunkReady builds the CHUNK_READY of an effect.
func FromChunkReady(a projector.SendChunkReady) *ChunkReady {
	return &ChunkReady{
		Room: a.Room, ChunkIdx: int32(a.Chunk), PageStart: int32(a.First), NumPages: int32(a.Pages), WriterID: a.Session, PrefillRank: int32(a.WireID), //nolint:gosec // encoder checks
	}
}
