package projector

import "github.com/pdlog/pdlog/events"

// Command is one thing that happened: the closed set below.
type Command interface{ isCommand() }

// ---- life of the node

// Start begins a life, after every event of the log was applied.
type Start struct {
	Boot        uint64
	Incarnation uint64
	LogID       []byte // 16 bytes
	// GenerationBase is used when the log is empty or its past is unknown:
	// generations start above it (events.md, identity).
	GenerationBase uint64
	// UnknownPast: the log is empty or older than what others remember of this
	// node (events.md). Such a node proves nothing about earlier lives.
	UnknownPast bool
	// AskPeers are the prefill nodes that may remember an earlier life of a
	// decode node with an unknown past: each has to settle it.
	AskPeers []string
	Root     string // which log root was taken, and why
}

// Tick lets due deadlines fire.
type Tick struct{}

// Stop begins a graceful stop: no new rooms, open rooms may end for Grace
// milliseconds, the rest is aborted.
type Stop struct {
	Grace  uint64
	Reason string
}

// LogState tells whether the log can take new rooms (disk full, back-pressure).
type LogState struct{ Full bool }

// ReRegister: the node's memory is registered anew; old addresses and keys are
// void, open rooms are aborted (cases.md C-62).
type ReRegister struct{ Memory *events.MemoryRegistered }

// MemoryAdded records a registration of engine memory.
type MemoryAdded struct{ Memory *events.MemoryRegistered }

// MemoryRemoved records that engine memory was let go. The shell has made sure
// that no room holds a page of it and no write reads from it.
type MemoryRemoved struct {
	Names  []string
	Reason string
}

// Rejected: a message that no rule takes (foreign, malformed, over a limit).
// It changes nothing; the record is rate-limited and counted.
type Rejected struct {
	Kind, Reason string
	First        []byte // at most 32 bytes are kept
	From         string
}

// ---- peers

// PeerDiscovered is what a decode node has learnt of a prefill node: the
// answer to discovery (wire.md 9.2), or that there is none.
type PeerDiscovered struct {
	Node         string
	PDLog        bool
	Boot         uint64
	Incarnation  uint64
	LogSince     uint64
	LogID        []byte
	Fence        events.FenceKind // what our provider can prove about this peer's writers
	Form         events.AckForm   // v1: receipts only (a weak peer); v2, v3
	PageSize     uint64
	DType        string
	Incompatible string // why this peer cannot be served; empty = compatible
	Ranks        []PeerRank
}

// PeerRank is a rank of a prefill node.
type PeerRank struct {
	Rank    RankID
	Address string
	WireID  uint32
	Source  uint32 // its number in NIXL's notifications (wire.md 1.10)
}

// Heartbeat is the outcome of one probe of a prefill node.
type Heartbeat struct {
	Node string
	OK   bool
}

// ConnectionEnded: the provider proved that nothing more can land from the
// given life of a peer: its connections are gone and our reader has stopped.
type ConnectionEnded struct {
	Node     string
	Boot     uint64
	Evidence events.FenceKind
}

// PastAnswer is what a prefill node answered to the question of a decode node
// with an unknown past (wire.md 9.2).
type PastAnswer struct {
	Node     string
	Answered bool // false: no answer, or one of a peer that is not pdlog
	Known    bool
	Open     uint64
}

// PeerFenced is the outcome of a FencePeer effect.
type PeerFenced struct {
	Node     string
	Evidence events.FenceKind
}

// PastQuestion: a decode node with an unknown past asks what is outstanding to
// its earlier lives. What is still live of those ends first, so that nothing
// new is posted. The answer is in Result.Past.
type PastQuestion struct {
	Node  string
	Boot  uint64
	LogID []byte // of the life that asks; nil: not said
}

// GateClosed: the PUSH connection to a decode endpoint dropped (wire.md 9.1).
type GateClosed struct{ Address string }

// ---- decode: engine

// OpenRoom reserves pages and (unless Reserve) publishes metadata to every
// pair at once.
type OpenRoom struct {
	Room      uint64
	Pages     []uint32
	Aux       int // row, -1 = the lowest free one
	Pairs     []OpenPair
	Reserve   bool
	RequestID string
	TraceID   string
	Timeout   uint64 // ms from now to the room's outcome; 0 = the node's own limits alone
}

// OpenPair is one prefill rank and the local decode rank it writes to.
type OpenPair struct {
	Rank     RankID
	To       RankID
	Dummy    bool
	Required uint32 // required_dst_info_num told to the rank
}

// PublishRoom publishes a room that was opened with Reserve.
type PublishRoom struct{ Room uint64 }

// PublishResult is the outcome of a SendMetadata effect.
type PublishResult struct {
	RoomSeq uint64
	Rank    RankID
	To      RankID
	Err     string // empty = it left
}

// FinishRoom: the engine is done with a succeeded room.
type FinishRoom struct{ Room uint64 }

// AbortRoom: the engine aborts. On decode, of a succeeded room it is a finish;
// of any other ended room, nothing. Cause is CLIENT if it is left out.
type AbortRoom struct {
	Room   uint64
	Reason string
	Cause  events.AbortCause
}

// ForceRelease is an operator's forced release (marked unsafe).
type ForceRelease struct{ Room uint64 }

// FenceRoom is an operator's order to fence what a room still waits for: all of
// it, or the ranks of one peer, which may have keys that others have not.
type FenceRoom struct {
	Room uint64
	Peer string // a node, or one rank of it; empty = all
}

// reaches: the order is about this rank.
func (c FenceRoom) reaches(r RankID) bool {
	return c.Peer == "" || c.Peer == string(r) || c.Peer == r.Node()
}

// PageReport is the engine's own finding that bytes of a page are wrong.
type PageReport struct {
	Room   uint64
	Page   uint32
	To     RankID
	Detail string
	// The wrong bytes lie in PageLen bytes of the page from PageOff on; 0: not known.
	PageOff, PageLen uint64
}

// PagesChecked is the outcome of a CheckPages effect.
type PagesChecked struct {
	RoomSeq uint64
	Skipped string       // why nothing was checked
	Bad     []PageReport // empty = every page is as it landed
}

// ---- decode: data plane

// Landed: the provider placed a peer's write in our memory.
type Landed struct {
	Lease                     uint64
	Room                      uint64
	RoomSeq                   uint64
	Rank                      RankID
	To                        RankID
	Pages                     []uint32
	PageOff                   uint64 // of each page it wrote PageLen bytes from here on
	PageLen                   uint64 // 0 = the whole page
	StagingOffset, StagingEnd uint64 // bytes of the ring that it lies between; 0, 0: none
	Aux                       bool
	Bytes                     uint64
	Chunk                     uint32
}

// AuxArrived: an aux buffer came as a message (AUX_DATA, wire.md 1.8), received
// by local decode rank At. The shell has checked Index and the length against
// the buffers it registered; whether the room owns the row is for the core.
type AuxArrived struct {
	At    RankID
	Room  uint64
	Index uint32 // of the aux buffer
	Row   uint32
	Bytes uint64
	Data  []byte // handed back in CopyAux, not looked at
}

// CopyDone is the outcome of a CopyAux effect.
type CopyDone struct {
	RoomSeq uint64
	Token   uint64
	Err     string
}

// LateWrite: the provider refused writes to a lease that is revoked.
type LateWrite struct {
	Lease   uint64
	Room    uint64
	RoomSeq uint64
	Rank    RankID
	To      RankID
	Pages   []uint32
	Bytes   uint64
	Writes  uint64
}

// FenceResult is the outcome of a Fence effect.
type FenceResult struct {
	RoomSeq  uint64
	Lease    uint64
	Evidence events.FenceKind // NONE or UNSPECIFIED: not proven
	Reason   string
	Method   string
	TookUS   uint64
}

// ---- wire messages (already decoded; see backends)

// Ext is the extension frame of a message (wire.md 9.3), nil if there was none
// or it was ignored.
type Ext struct {
	Node        string
	Boot        uint64
	Incarnation uint64
	HLC         uint64
	RoomSeq     uint64
	CauseSeq    uint64
	Proof       events.Proof
	Drained     *bool
	Keys        []*events.WriteKey
	Reason      string
	PrefillRank *uint32
	LogSince    uint64
	LogID       []byte
	SeenLogID   []byte
	SeenSeq     uint64
	// PublishedBoot is the receiver's boot that the room was published to.
	PublishedBoot uint64
	SeenBoot      uint64 // the receiver's boot that told SeenSeq; 0: not known
}

// WireRegister: a decode rank registers with one of our prefill ranks.
type WireRegister struct {
	At         RankID // our rank
	Address    string
	Session    string
	EngineRank uint32
	Memory     *events.PeerMemory // nil: nothing is known of it; not written to from here on
	Ext        *Ext
}

// WireMetadata: a room's destination, from a decode rank to a prefill rank.
type WireMetadata struct {
	At        RankID
	Room      uint64
	Address   string
	Session   string
	Pages     []uint32
	Aux       *uint32
	Dummy     bool
	Required  uint32
	PrefixLen uint32
	Ext       *Ext
}

// WireAbort is an ABORT. Address is empty when the message had no usable one.
type WireAbort struct {
	At         RankID
	Room       uint64
	Address    string
	Generation *uint64
	Ext        *Ext
}

// WireAck is an ABORT_ACK, received by local decode rank At.
type WireAck struct {
	At         RankID
	Room       uint64
	Rank       *uint32 // prefill_unique_rank
	Generation *uint64
	Ext        *Ext
}

// WireStatus is a terminal status, received by local decode rank At.
type WireStatus struct {
	At      RankID
	Room    uint64
	Success bool
	Rank    uint32
	Reason  string
	Ext     *Ext
}

// WireNotification is what a prefill's transfer engine said in-band, beside its
// data (wire.md 1.10), to local decode rank At. It is already parsed.
type WireNotification struct {
	At       RankID
	Room     uint64
	What     string // kv, stg, aux, aux_nokv, state
	Source   uint32
	Chunk    uint32
	Last     bool
	Part     uint32
	Parts    uint32 // 1 or more
	Expected uint32
}

// WireStagingReq asks for room in the staging ring of local decode rank At
// (STAGING_REQ, wire.md 1.7).
type WireStagingReq struct {
	At      RankID
	Room    uint64
	Chunk   uint32 // chunk_idx: between pdlog nodes the place of the chunk's first page
	Pages   uint32
	Session string // ours
}

// WireChunkReady says that a rank's bytes of a staged chunk have landed
// (CHUNK_READY).
type WireChunkReady struct {
	At     RankID
	Room   uint64
	Chunk  uint32
	First  uint32 // place of the first page in the room's list
	Pages  uint32
	Writer string // our session
	Rank   uint32 // prefill_unique_rank
}

// WireStagingRsp is decode's answer to a STAGING_REQ of local prefill rank At.
type WireStagingRsp struct {
	At      RankID
	Room    uint64
	Chunk   uint32
	Offset  uint64
	Round   uint64
	End     uint64
	Never   bool // it will never fit
	Session string
}

// WireWatermark says up to where a decode rank's ring is free (WATERMARK).
type WireWatermark struct {
	At      RankID
	Round   uint64
	Tail    uint64
	Session string
}

// ---- prefill: engine

// AwaitRoom: the engine has the request and waits for metadata.
type AwaitRoom struct {
	Room      uint64
	RequestID string
	TraceID   string
	Timeout   uint64 // ms from now to the room's outcome; 0 = the node's own limits alone
	// Ranks are the local ranks that will send; empty = not said. The room has
	// not succeeded before each of them is done.
	Ranks []RankID
}

// SendChunk hands one chunk of a room to the writers of a rank. The
// destination is given by Pages (page numbers of the room), or, if Pages is
// nil, by position: pages First .. First+Count of the metadata's list.
type SendChunk struct {
	Room        uint64
	RoomSeq     uint64 // the incarnation it is meant for; 0 = the number's newest (F17)
	Rank        RankID
	Chunk       uint32
	Pages       []uint32
	First       uint32
	Count       uint32
	SourcePages []uint32
	Bytes       uint64 // that one destination gets, for the record
	Last        bool
	SourceAux   uint32   // row of the rank's own aux memory that goes with the last chunk
	To          []RankID // empty = every destination of the rank
}

// ClearRoom: the engine forgets the room.
type ClearRoom struct{ Room uint64 }

// WriteOutcome says what the provider knows of a posted write.
type WriteOutcome uint8

const (
	// WriteCompleted: placed in the target's memory.
	WriteCompleted WriteOutcome = iota + 1
	// WriteFailed: an error, and the provider proves that nothing of it lands
	// from now on.
	WriteFailed
	// WriteUncertain: an error, and it may still land.
	WriteUncertain
	// WriteDrained: the true end of a write that was uncertain.
	WriteDrained
)

// WriteDone is the outcome of a PostWrite effect.
type WriteDone struct {
	Token   uint64
	Outcome WriteOutcome
	Landed  bool // WriteDrained: its bytes arrived
	Reason  string
}

func (Start) isCommand()            {}
func (Tick) isCommand()             {}
func (Stop) isCommand()             {}
func (LogState) isCommand()         {}
func (ReRegister) isCommand()       {}
func (MemoryAdded) isCommand()      {}
func (MemoryRemoved) isCommand()    {}
func (Rejected) isCommand()         {}
func (PeerDiscovered) isCommand()   {}
func (Heartbeat) isCommand()        {}
func (ConnectionEnded) isCommand()  {}
func (GateClosed) isCommand()       {}
func (PastAnswer) isCommand()       {}
func (PeerFenced) isCommand()       {}
func (PastQuestion) isCommand()     {}
func (OpenRoom) isCommand()         {}
func (PublishRoom) isCommand()      {}
func (PublishResult) isCommand()    {}
func (FinishRoom) isCommand()       {}
func (AbortRoom) isCommand()        {}
func (ForceRelease) isCommand()     {}
func (FenceRoom) isCommand()        {}
func (PageReport) isCommand()       {}
func (PagesChecked) isCommand()     {}
func (Landed) isCommand()           {}
func (LateWrite) isCommand()        {}
func (AuxArrived) isCommand()       {}
func (CopyDone) isCommand()         {}
func (FenceResult) isCommand()      {}
func (WireRegister) isCommand()     {}
func (WireMetadata) isCommand()     {}
func (WireAbort) isCommand()        {}
func (WireAck) isCommand()          {}
func (WireStatus) isCommand()       {}
func (WireNotification) isCommand() {}
func (WireStagingReq) isCommand()   {}
func (WireChunkReady) isCommand()   {}
func (WireStagingRsp) isCommand()   {}
func (WireWatermark) isCommand()    {}
func (AwaitRoom) isCommand()        {}
func (SendChunk) isCommand()        {}
func (ClearRoom) isCommand()        {}
func (WriteDone) isCommand()        {}
