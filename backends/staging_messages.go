package backends

// StagingReq asks decode for room in its staging ring (wire.md 1.7).
type StagingReq struct {
	Room       uint64
	ChunkIdx   int32
	ChunkPages int32
	SessionID  string     // Mooncake session or NIXL agent name
	PPRank     Opt[int32] // answer this PP rank only; absent: all ranks
}

// StagingRsp answers a StagingReq with a byte range of decode's ring
// (wire.md 1.7), or says that the chunk will never fit.
type StagingRsp struct {
	Room     uint64
	ChunkIdx int32
	Offset   int64 // bytes from the ring's base; -2 with Round 0 and End -1: will never fit
	Round    int64 // allocation round of the ring
	End      int64 // bytes; End >= Offset
	// SessionID is the Mooncake session or NIXL agent name.
	SessionID string
}

// WillNeverFit reports the answer -2, 0, -1: the chunk is larger than the ring.
func (m *StagingRsp) WillNeverFit() bool {
	return m.Offset == -2 && m.Round == 0 && m.End == -1
}

func (m *StagingRsp) valid() bool {
	return m.WillNeverFit() || m.Offset >= 0 && m.Round >= 0 && m.End >= m.Offset
}

// Watermark tells prefill up to where decode's ring is free (wire.md 1.7).
type Watermark struct {
	Round     uint64 // 0 … 2^63-1
	Tail      uint64 // bytes, 0 … 2^63-1
	SessionID string
}

// ChunkReady tells decode that the bytes of a staged chunk have landed
// (wire.md 1.7).
type ChunkReady struct {
	Room        uint64
	ChunkIdx    int32
	PageStart   int32
	NumPages    int32
	WriterID    string
	PrefillRank int32
}

// Kind implements Message.
func (*StagingReq) Kind() Kind { return KindStagingReq }

// Kind implements Message.
func (*StagingRsp) Kind() Kind { return KindStagingRsp }

// Kind implements Message.
func (*Watermark) Kind() Kind { return KindWatermark }

// Kind implements Message.
func (*ChunkReady) Kind() Kind { return KindChunkReady }
