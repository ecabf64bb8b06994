package projector

import "github.com/pdlog/pdlog/events"

// Effect is something the shell must do once the log is durable up to After
// (0: at once). Effects of one Step are done in order.
type Effect struct {
	After uint64
	Do    Action
}

// Action is the closed set of effects.
type Action interface{ isAction() }

// SendMetadata: grant a lease tagged Lease on Pages and Aux to the peer,
// unless the pair is a dummy, and send the room's metadata to it. Outcome:
// PublishResult.
type SendMetadata struct {
	Room     uint64
	RoomSeq  uint64
	Rank     RankID // prefill rank it goes to
	Address  string // of that rank
	To       RankID // our decode rank it comes from
	Pages    []uint32
	Aux      uint32
	Dummy    bool
	Required uint32
	Lease    uint64
	WithExt  bool
	Ext      Ext
}

// SendAbort: ABORT to a prefill rank, with the generation.
type SendAbort struct {
	Room       uint64
	Rank       RankID
	Address    string
	To         RankID // our decode rank it comes from
	Generation uint64
	WithExt    bool
	Ext        Ext
}

// SendAck: ABORT_ACK to a decode endpoint. With Ext.Proof cannot_tell it goes
// only to a peer that is known to read the extension (wire.md 9.4).
type SendAck struct {
	Room       uint64
	Rank       RankID // our prefill rank
	WireID     uint32
	To         RankID
	Address    string
	Generation *uint64 // echoed: absent if the ABORT had none
	WithExt    bool
	Ext        Ext
}

// SendStatus: terminal status to a decode endpoint.
type SendStatus struct {
	Room    uint64
	Rank    RankID
	WireID  uint32
	To      RankID
	Address string
	Success bool
	Reason  string
	Foreign bool // the endpoint is not pdlog
	WithExt bool
	Ext     Ext
}

// PostWrite: post one chunk's write to one destination rank. Outcome:
// WriteDone, possibly twice (uncertain, then drained).
type PostWrite struct {
	Token       uint64
	Room        uint64
	RoomSeq     uint64
	Rank        RankID
	To          RankID
	Address     string
	Session     string
	Chunk       uint32
	Pages       []uint32 // destination pages
	SourcePages []uint32
	Last        bool    // aux and state go with it
	Aux         *uint32 // the destination's row
	SourceAux   uint32  // ours, with Aux
	Keys        []*events.WriteKey
	Staged      bool   // into the destination's staging ring, from StagingAt on
	StagingAt   uint64 // bytes from the ring's start
}

// SealRoom: nothing more of this room incarnation is posted; queued writes
// that have not left are dropped (each still reports its WriteDone).
type SealRoom struct{ Room, RoomSeq uint64 }

// DropPublish: the room has ended; a SendMetadata of it that has not left yet
// must not leave any more. Each one dropped reports PublishResult with an error.
type DropPublish struct{ Room, RoomSeq uint64 }

// Fence: revoke the lease and prove that nothing lands any more. Outcome:
// FenceResult.
type Fence struct {
	Room    uint64
	RoomSeq uint64
	Lease   uint64
	Rank    RankID
	To      RankID
}

// RevokeLease: the room ends, its key ends with it. No outcome is waited for.
type RevokeLease struct {
	RoomSeq uint64
	Lease   uint64
	Rank    RankID
	To      RankID
}

// CopyAux: copy Data into row Row of aux buffer Index of our rank To. Outcome:
// CopyDone.
type CopyAux struct {
	Room    uint64
	RoomSeq uint64
	Token   uint64
	To      RankID
	Index   uint32
	Row     uint32
	Data    []byte
}

// CopyStaged: copy whole pages, one behind the other from Offset of the staging
// ring of our rank To on, to Pages. Outcome: CopyDone.
type CopyStaged struct {
	Room    uint64
	RoomSeq uint64
	Token   uint64
	To      RankID
	Offset  uint64 // bytes from the ring's start
	Pages   []uint32
}

// SendStagingReq: STAGING_REQ to a decode endpoint.
type SendStagingReq struct {
	Room    uint64
	Address string
	Session string
	Chunk   uint32
	Pages   uint32
}

// SendStagingRsp: STAGING_RSP from our decode rank To to a prefill rank.
type SendStagingRsp struct {
	Room    uint64
	Address string
	To      RankID
	Chunk   uint32
	Offset  uint64
	Round   uint64
	End     uint64
	Never   bool // it will never fit
}

// SendWatermark: WATERMARK from our decode rank To to a prefill rank.
type SendWatermark struct {
	Address string
	To      RankID
	Round   uint64
	Tail    uint64
}

// SendChunkReady: CHUNK_READY to a decode endpoint.
type SendChunkReady struct {
	Room    uint64
	Address string
	Session string
	Chunk   uint32
	First   uint32
	Pages   uint32
	WireID  uint32
}

// CheckPages: compare the room's pages with what landed. Outcome: PagesChecked.
type CheckPages struct {
	Room    uint64
	RoomSeq uint64
	Pages   []uint32
	Ranks   []RankID // local decode ranks
}

// TellKind is what an engine is told.
type TellKind uint8

const (
	// TellSucceeded: decode: the room's pages may be used; prefill: sent.
	TellSucceeded TellKind = iota + 1
	// TellFailed: the room failed. Its pages are not free by that.
	TellFailed
	// TellReleased: decode: the room's pages are free, for all local ranks.
	TellReleased
	// TellSourceReleased: prefill: the source pages may be reused.
	TellSourceReleased
	// TellReady: prefill: metadata is complete, chunks will be posted at once.
	TellReady
)

// Tell tells the engine. Each is told once per room incarnation.
type Tell struct {
	Kind    TellKind
	Room    uint64
	RoomSeq uint64
	Pages   []uint32
	Aux     uint32
	Basis   events.Basis
	Unsafe  bool
	Cause   events.AbortCause
	Reason  string
	Who     string
}

// AskPast: ask a prefill node what is outstanding to earlier lives of this one
// (GET /pdlog/v1/outstanding). Outcome: PastAnswer.
type AskPast struct{ Node string }

// FencePeer: revoke whatever a prefill node may hold on this node's memory,
// of any life. Outcome: PeerFenced.
type FencePeer struct{ Node string }

// Rediscover: ask the peer again who it is.
type Rediscover struct{ Node string }

// Stopped: the graceful stop is complete; close the log and exit.
type Stopped struct{}

func (SendMetadata) isAction()   {}
func (SendAbort) isAction()      {}
func (SendAck) isAction()        {}
func (SendStatus) isAction()     {}
func (PostWrite) isAction()      {}
func (SealRoom) isAction()       {}
func (DropPublish) isAction()    {}
func (Fence) isAction()          {}
func (RevokeLease) isAction()    {}
func (CopyAux) isAction()        {}
func (CheckPages) isAction()     {}
func (CopyStaged) isAction()     {}
func (SendStagingReq) isAction() {}
func (SendStagingRsp) isAction() {}
func (SendWatermark) isAction()  {}
func (SendChunkReady) isAction() {}
func (Tell) isAction()           {}
func (AskPast) isAction()        {}
func (FencePeer) isAction()      {}
func (Rediscover) isAction()     {}
func (Stopped) isAction()        {}

// Refusal says why a command was refused. It leaves nothing behind.
type Refusal struct {
	Word   string // pages_busy, room_live, weak_peer, incompatible, not_ready, limit, unknown_room, bad_request
	Detail string
}

// Error implements error.
func (r *Refusal) Error() string { return r.Word + ": " + r.Detail }

// Result is what one Step decided.
type Result struct {
	Events  []*events.Event
	Effects []Effect
	Refused *Refusal
	// RoomSeq is the incarnation an engine command was about, 0 if none.
	RoomSeq uint64
	// Aux is the row that an OpenRoom got.
	Aux uint32
	// Past answers a PastQuestion.
	Past *PastAnswer
}
