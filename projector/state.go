package projector

import (
	"slices"

	"github.com/pdlog/pdlog/events"
)

// State is everything a node knows of its rooms, pages and peers: a fold over
// its log. Only apply changes it.
type State struct {
	Seq         uint64
	HLC         events.HLC
	LogSince    uint64 // hlc of the oldest event
	Boot        uint64
	Incarnation uint64
	LogID       []byte
	Started     bool // a life has been recorded
	Clean       bool // the newest life ended with NodeStopped
	Draining    bool
	DrainUntil  uint64
	UnknownPast bool
	// Unsettled are the peers that have to settle the past of a decode node
	// before it offers pages; PastHeld says that its pages are quarantined.
	Unsettled map[string]bool
	PastHeld  bool
	OlderCopy bool
	LifeSince uint64 // seq of the newest NodeStarted
	// Lives are the lives of which this log holds everything, by boot: the last
	// seq of each, 0 of the present one.
	Lives   map[uint64]uint64
	LastGen uint64

	// decode
	Rooms   map[roomKey]*Room
	Current map[uint64]roomKey
	Pages   []PageSlot
	Aux     []roomKey
	free    rowSet // pages that no room has
	auxFree rowSet
	Known   *KnownRooms
	// Rooms that were released without evidence: their keys end when the rank
	// answers, or with this life.
	Unsafe map[roomKey]*Room
	Peers  map[string]*Peer
	Rings  map[RankID]*Ring // staging rings of the local ranks

	// prefill
	PRooms    map[roomKey]*PRoom
	PCurrent  map[uint64]roomKey
	Endpoints map[string]*Endpoint
	Receipts  map[uint64][]*Receipt // by room number, oldest first
	receiptQ  []*Receipt
	tokens    map[uint64]roomKey // open write -> its room
	Watermark map[string]uint64  // decode node -> room_seq
	// Boots and log ids of lives of decode nodes that their own later life has
	// asked about: over for good.
	Closed     map[uint64]bool
	ClosedLogs map[string]bool

	byNumber map[uint64][]roomKey // room number -> its incarnations in Rooms or PRooms, oldest first
}

// PageSlot is one page of the pool.
type PageSlot struct {
	owner roomKey
	index int32 // place in the room's page list
}

// Outcome is the terminal outcome of a room incarnation.
type Outcome uint8

// The outcomes.
const (
	OutcomeNone Outcome = iota
	OutcomeSucceeded
	OutcomeFailed
)

// Publish is how far the metadata of one pair got.
type Publish uint8

// The publish states; all but PublishNone count as published.
const (
	PublishNone Publish = iota
	PublishStarted
	PublishDone
	PublishFailed
)

// Room is one incarnation of a room on a decode node. A node may hold a million:
// the fields of Room and Pair stand in the order that packs best.
type Room struct {
	Room        uint64
	Seq         roomKey
	Pages       []uint32
	Pairs       []*Pair
	OpenedAt    uint64
	Until       uint64 // the request's own limit; 0 = none
	PublishedAt uint64
	LandedAt    uint64
	Gen         uint64
	ArmedAt     uint64
	CoveredAt   uint64 // seq of CoverageCompleted
	FailedSeq   uint64
	Reason      string
	RequestID   string
	TraceID     string
	Staged      []*Staged            // chunks that have a part of a staging ring
	Copies      map[uint64]LocalCopy // open copies of our own into the room's memory
	AuxCopied   map[RankID]bool      // decode ranks whose aux row came as a message
	AuxNoted    map[RankID]bool      // decode ranks to whom a transfer engine told that the aux row has landed
	Aux         uint32
	Cause       events.AbortCause
	Outcome     Outcome
	ReserveOnly bool
	TimedOut    bool
	Quarantined bool
	Covered     bool
	Finished    bool

	timer uint64 // of the present life: when its entry in the heap is due
}

// Pair is one prefill rank and one local decode rank of a room.
type Pair struct {
	Rank      RankID
	To        RankID
	Lease     uint64
	PublishAt uint64 // deadline clock, ms
	Boot      uint64
	Inc       uint64
	LogSince  uint64
	LogID     []byte

	bits       []uint64 // landed pages, by place in the room's list
	noted      *noted   // what its transfer engine has told
	SuccessAt  uint64   // seq of its report of success
	EvidenceAt uint64   // seq
	landed     int32

	WireID     uint32
	Required   uint32
	Fence      events.FenceKind
	Evidence   events.Basis
	Proof      events.Proof
	FenceProof events.FenceKind

	Publish    Publish
	Dummy      bool
	PDLog      bool
	AuxLanded  bool
	Succeeded  bool // reported success
	Fencing    bool
	CannotTell bool // its answer would prove nothing: it said so, or it is another process now
}

// Peer is a prefill node as a decode node knows it.
type Peer struct {
	Node     string
	PDLog    bool
	Boot     uint64
	Inc      uint64
	LogSince uint64
	LogID    []byte
	Fence    events.FenceKind
	Form     events.AckForm
	Weak     bool
	PageSize uint64
	DType    string
	Ranks    map[RankID]PeerRank
	Missed   uint32
	Seen     []SeenLife // what our log names of its log as a cause
	Suspect  bool
	Lost     bool
}

// SeenLife is the highest sequence that one life of a peer has told.
type SeenLife struct{ Boot, Seq uint64 }

// seen notes that the peer's present life has told a sequence of its log.
func (p *Peer) seen(seq uint64) {
	for i := range p.Seen {
		if p.Seen[i].Boot == p.Boot {
			p.Seen[i].Seq = max(p.Seen[i].Seq, seq)
			return
		}
	}
	p.Seen = append(p.Seen, SeenLife{Boot: p.Boot, Seq: seq})
}

// dropSeen forgets what lives have told that no room was published to; the
// present life and the one that told most stay.
func (st *State) dropSeen(peer *Peer) {
	if len(peer.Seen) < 3 {
		return
	}
	keep := map[uint64]bool{peer.Boot: true, peer.seenOf(0).Boot: true}
	for _, r := range st.Rooms {
		for _, p := range r.Pairs {
			if p.Rank.Node() == peer.Node {
				keep[p.Boot] = true
			}
		}
	}
	peer.Seen = slices.DeleteFunc(peer.Seen, func(l SeenLife) bool { return !keep[l.Boot] })
}

// holds: this log holds everything of that life.
func (st *State) holds(boot uint64) bool {
	_, ok := st.Lives[boot]
	return ok
}

// seenOf is what the life that is asked for has told, else the highest of all:
// of that the peer can tell whether its log has lost an end (wire.md 9.5).
func (p *Peer) seenOf(boot uint64) (best SeenLife) {
	for _, l := range p.Seen {
		if l.Boot == boot {
			return l
		}
		if l.Seq > best.Seq {
			best = l
		}
	}
	return best
}

// Endpoint is a decode rank as a prefill node knows it, by "ip:port".
type Endpoint struct {
	Rank    RankID
	Address string
	Session string
	Boot    uint64 // 0 = not pdlog
	Inc     uint64
	LogID   []byte
	Memory  *events.PeerMemory // as it registered it; nil: not said
	at      map[RankID]bool
}

// PRoom is one incarnation of a room on a prefill node.
type PRoom struct {
	Room       uint64
	Seq        roomKey
	Life       uint64 // incarnation of the node that opened it
	OpenedAt   uint64
	ActiveAt   uint64   // last metadata, post or end of a write
	Awaited    bool     // the engine knows it
	Expect     []RankID // local ranks that the engine said would send
	Dests      []*Dest
	Tokens     map[uint64]*Token
	Queue      []queued
	Posted     bool
	Outcome    Outcome
	Cause      events.AbortCause
	Reason     string
	Cleared    bool
	SourceFree bool
	Targets    []*Target
	Ranks      map[RankID]*PRank
	OldLife    bool // an earlier life of this node opened it
	LifeClean  bool // that life ended with NodeStopped
	LostUse    bool // it came from late metadata of a use that a lost part of this log held: it says nothing of that use
	RequestID  string
	TraceID    string
	TermNode   string             // decode node whose ABORT ended it
	Refused    map[[2]RankID]bool // pairs whose late metadata was answered Failed

	timer uint64
}

// PRank is what one local rank has done for a room.
type PRank struct {
	Concluded bool // its success was told
	Drained   bool // a Drained event stands
	Writes    uint64
}

// Dest is one destination: a decode rank that gave its pages to a local rank.
type Dest struct {
	Rank       RankID
	To         RankID
	Address    string
	Session    string
	Node       string // decode node
	RoomSeq    uint64 // decode's room_seq, 0 = not known
	LogID      []byte
	Boot       uint64
	Pages      []uint32
	Aux        *uint32
	Dummy      bool
	Required   uint32
	Keys       []*events.WriteKey
	MetaSeq    uint64
	StatusTold events.TerminalStatus
	LastPosted bool // its last chunk has been posted
}

// Token is one posted write that has not ended.
type Token struct {
	ID        uint64
	Rank      RankID
	To        RankID
	Chunk     uint32
	Bytes     uint64
	PostedAt  uint64
	Uncertain bool
	Staged    bool   // it goes into the destination's staging ring
	First     uint32 // place of the first of its Pages pages
	Pages     uint32
}

type queued struct {
	seq uint64
	cmd SendChunk
}

// Target is one decode endpoint that asked for an ACK of one local rank.
type Target struct {
	Rank     RankID
	To       RankID
	Address  string
	Gen      *uint64
	RoomSeq  uint64
	LogID    []byte // of the decode node, when it asked
	Answered bool
	Repeats  uint64

	Held bool // AckTargetHeld stands
}

// Receipt is what is remembered of an ended room incarnation, or of an
// incarnation that was aborted or refused before its metadata was taken. There
// are Config.MaxReceipts of them, so they are small, and share what they name.
type Receipt struct {
	Room       uint64
	Seq        roomKey // 0: never opened here
	Outcome    Outcome
	NeverSeen  bool
	Dests      []ReceiptDest
	Ranks      []ReceiptRank // by rank
	CannotTell bool
}

// ReceiptRank is what a local rank had done for the room.
type ReceiptRank struct {
	Rank RankID
	PRank
}

// ReceiptDest names a decode rank's incarnation in a receipt.
type ReceiptDest struct {
	Rank    RankID
	To      RankID
	Node    string
	LogID   []byte
	RoomSeq uint64
	Gen     *uint64
}

func newState(cfg *Config) *State {
	st := &State{
		Rooms:      map[roomKey]*Room{},
		Current:    map[uint64]roomKey{},
		Known:      newKnownRooms(),
		Unsafe:     map[roomKey]*Room{},
		Unsettled:  map[string]bool{},
		Peers:      map[string]*Peer{},
		Rings:      map[RankID]*Ring{},
		PRooms:     map[roomKey]*PRoom{},
		PCurrent:   map[uint64]roomKey{},
		Endpoints:  map[string]*Endpoint{},
		Receipts:   map[uint64][]*Receipt{},
		Watermark:  map[string]uint64{},
		Closed:     map[uint64]bool{},
		ClosedLogs: map[string]bool{},
		Lives:      map[uint64]uint64{},
		tokens:     map[uint64]roomKey{},
		byNumber:   map[uint64][]roomKey{},
	}
	if cfg.Role == events.Role_ROLE_DECODE {
		st.Pages = make([]PageSlot, cfg.Pages)
		st.Aux = make([]roomKey, cfg.AuxRows)
		st.free, st.auxFree = fullRowSet(cfg.Pages), fullRowSet(cfg.AuxRows)
	}
	return st
}

func (r *Room) pair(rank, to RankID) *Pair {
	for _, p := range r.Pairs {
		if p.Rank == rank && p.To == to {
			return p
		}
	}
	return nil
}

func (r *Room) published() int {
	n := 0
	for _, p := range r.Pairs {
		if p.Publish != PublishNone {
			n++
		}
	}
	return n
}

// live: no terminal outcome yet.
func (r *Room) live() bool { return r.Outcome == OutcomeNone }

// bootstrapping: metadata has not left for all pairs.
func (r *Room) bootstrapping() bool {
	for _, p := range r.Pairs {
		if p.Publish != PublishDone {
			return true
		}
	}
	return false
}

func (p *Pair) owesEvidence() bool { return p.Publish != PublishNone && p.Evidence == 0 }

// tracked: its writes go through our provider, so what landed is known.
func (p *Pair) tracked() bool {
	return p.PDLog || p.Fence == events.FenceKind_FENCE_KIND_HARD || p.Fence == events.FenceKind_FENCE_KIND_READER_STOPPED
}

// cover books the page at place i of n as landed.
func (p *Pair) cover(i, n int) {
	if p.bits == nil {
		p.bits = make([]uint64, (n+63)/64)
	}
	if w, b := i/64, uint64(1)<<(i%64); p.bits[w]&b == 0 {
		p.bits[w] |= b
		p.landed++
	}
}

// owes: evidence of a pair is missing.
func (r *Room) owes() bool {
	for _, p := range r.Pairs {
		if p.owesEvidence() {
			return true
		}
	}
	return false
}

// fencing: a fence of one of its pairs has not ended.
func (r *Room) fencing() bool {
	for _, p := range r.Pairs {
		if p.Fencing {
			return true
		}
	}
	return false
}

// missing lists the pairs that owe evidence.
func (m *Machine) missing(r *Room) []*events.Pair {
	out := m.pairs.open()
	for _, p := range r.Pairs {
		if p.owesEvidence() {
			x := m.pool.Pair()
			x.Rank, x.To, x.WireId, x.Dummy = string(p.Rank), string(p.To), p.WireID, p.Dummy
			out = append(out, x)
		}
	}
	return m.pairs.close(out)
}

func (p *Pair) proto() *events.Pair {
	return &events.Pair{Rank: string(p.Rank), To: string(p.To), WireId: p.WireID, Dummy: p.Dummy}
}

func (r *PRoom) live() bool { return r.Outcome == OutcomeNone }

func (r *PRoom) dest(rank, to RankID) *Dest {
	for _, d := range r.Dests {
		if d.Rank == rank && d.To == to {
			return d
		}
	}
	return nil
}

func (r *PRoom) target(rank RankID, addr string) *Target {
	for _, t := range r.Targets {
		if t.Rank == rank && t.Address == addr {
			return t
		}
	}
	return nil
}

func (r *PRoom) openTokens(rank RankID) int {
	n := 0
	for _, t := range r.Tokens {
		if t.Rank == rank {
			n++
		}
	}
	return n
}

// open: a write of the rank may still land. A room has thousands of tokens, and
// this is asked at the end of each.
func (r *PRoom) open(rank RankID) bool {
	for _, t := range r.Tokens {
		if t.Rank == rank {
			return true
		}
	}
	return false
}

// writing: a write is under way whose end is expected.
func (r *PRoom) writing() bool {
	for _, t := range r.Tokens {
		if !t.Uncertain {
			return true
		}
	}
	return false
}

func (r *PRoom) rank(id RankID) *PRank {
	p := r.Ranks[id]
	if p == nil {
		p = &PRank{}
		r.Ranks[id] = p
	}
	return p
}

// done is what a rank has done so far, without making an entry for it.
func (r *PRoom) done(id RankID) PRank {
	if p := r.Ranks[id]; p != nil {
		return *p
	}
	return PRank{}
}

// ready: the rank has its metadata from as many peers as they said there are.
func (r *PRoom) ready(rank RankID) bool {
	n, need := 0, uint32(1)
	for _, d := range r.Dests {
		if d.Rank == rank {
			n++
			need = max(need, d.Required)
		}
	}
	return n > 0 && uint32(n) >= need //nolint:gosec // few
}

func (r *PRoom) unanswered() int {
	n := 0
	for _, t := range r.Targets {
		if !t.Answered {
			n++
		}
	}
	return n
}
