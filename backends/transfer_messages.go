package backends

// Registration tells a prefill rank where a decode process keeps its buffers
// (wire.md 1.2). It is the union of the three dialects: a list that is nil and
// a string or Opt that is zero does not exist in the dialect; a list that
// exists is never nil after Decode, only empty. Encode takes nil for empty.
type Registration struct {
	Peer Endpoint // the decode's PULL socket

	SessionID     string  // Mooncake: host:rpc_port
	AgentName     string  // NIXL
	AgentMetadata []byte  // NIXL, opaque
	Engine        *Engine // Mori

	KVDataPtrs    []uint64   // Mooncake, NIXL: addresses
	AuxDataPtrs   []uint64   // Mooncake, NIXL: addresses
	StateDataPtrs [][]uint64 // Mooncake, NIXL: addresses per component

	KVMemDescs    []MemDesc   // Mori
	AuxMemDescs   []MemDesc   // Mori
	StateMemDescs [][]MemDesc // Mori, per component

	DstTPRank  Opt[int32] // Mooncake: the decode's engine rank
	GPUID      Opt[int32] // NIXL, Mori; -1 = none
	AttnTPSize int32      // >= 1
	EngineRank Opt[int32] // NIXL, Mori

	KVItemLen         uint64     // bytes per page of the first KV entry; 0 = no full-token KV
	KVItemLens        []uint64   // Mooncake, NIXL: bytes per page and entry; empty, or as many as KVDataPtrs
	StateItemLens     [][]uint32 // bytes
	StateDimPerTensor [][]uint32
	KVLayerIDs        []uint32   // Mooncake, NIXL
	StateLayerIDs     [][]uint32 // Mooncake, NIXL

	StagingBase         Opt[uint64] // Mooncake, NIXL: address of the staging ring
	StagingSize         Opt[uint64] // Mooncake, NIXL: bytes
	StagingSlotLayerIDs []uint64    // Mooncake

	NumKVSlots    Opt[uint64] // NIXL
	KVMemoryKinds []string    // NIXL: "VRAM" or "DRAM"; empty, or as many as KVDataPtrs

	DCPSize Opt[int32] // Mooncake, NIXL: >= 1, default 1
	DCPRank Opt[int32] // Mooncake, NIXL: default 0

	Ext        *Extension
	ExtIgnored string
}

// PeerKey is the name the transfer engine knows the decode process by: Mooncake
// session id, NIXL agent name, or Mori engine key.
func (m *Registration) PeerKey() string {
	switch {
	case m.SessionID != "":
		return m.SessionID
	case m.AgentName != "":
		return m.AgentName
	case m.Engine != nil:
		return m.Engine.Key
	}
	return ""
}

// Rank is the decode's engine rank, whatever the dialect calls it.
func (m *Registration) Rank() int32 {
	return m.EngineRank.Or(m.DstTPRank.V)
}

// Engine is Mori's EngineDesc.
type Engine struct {
	Key      string // bytes 0x21-0x7e
	NodeID   string
	Hostname string
	Host     string
	Port     uint16 // 0 is allowed
	PID      uint64 // 0 … 2^63-1
}

// MemDesc is the part of Mori's MemoryDesc that is read: the first seven
// elements (wire.md 1.2).
type MemDesc struct {
	EngineKey   string
	ID          uint64 // 0 … 2^63-1
	DeviceID    int32  // -1 = host memory
	DeviceBusID string
	Data        uint64 // address
	Size        uint64 // bytes
	Loc         uint8  // 1 CPU, 2 GPU
}

// Metadata names the pages of one room that a prefill rank may write
// (wire.md 1.3).
type Metadata struct {
	Room uint64   // 0 … 2^63-1
	Peer Endpoint // the decode's PULL socket

	// Exactly one of these is set, by dialect; PeerKey returns it.
	SessionID string // Mooncake
	AgentName string // NIXL
	EngineKey string // Mori

	DstPageIndices     []int32 // in token order, none negative
	AuxIndex           Opt[int32]
	StateIndices       [][]int32 // per component, none negative
	RequiredDstInfoNum int32     // >= 1
	DecodePrefixLen    Opt[int32]
	DevicePageIndices  []int32 // Mooncake (HiSparse)
	// IsDummy: the rank concludes the room but carries no data for it.
	IsDummy bool

	Ext        *Extension
	ExtIgnored string
}

// PeerKey is the name the transfer engine knows the decode process by.
func (m *Metadata) PeerKey() string {
	switch {
	case m.SessionID != "":
		return m.SessionID
	case m.AgentName != "":
		return m.AgentName
	}
	return m.EngineKey
}

// Kind implements Message.
func (*Registration) Kind() Kind { return KindRegister }

// Kind implements Message.
func (*Metadata) Kind() Kind { return KindMetadata }
