package backends

// Proof says what an ABORT_ACK proves (wire.md 9.5). Unknown numbers decode as
// they are and count as nothing.
type Proof int32

// The proofs of wire.md 9.3.
const (
	ProofUnspecified Proof = 0
	ProofDrained     Proof = 1 // every write of the room incarnation is over
	ProofNeverSeen   Proof = 2 // this log never held the room incarnation
	ProofCannotTell  Proof = 3 // the past is not known: fence, do not wait
)

var proofNames = [...]string{"unspecified", "drained", "never_seen", "cannot_tell"}

// String returns the name used in JSON; "unspecified" for unknown numbers.
func (p Proof) String() string { return enumName(proofNames[:], int32(p)) }

// WriteKeyKind names the list of buffers that a WriteKey belongs to.
type WriteKeyKind int32

// The kinds of wire.md 9.3.
const (
	WriteKeyUnspecified WriteKeyKind = 0
	WriteKeyKV          WriteKeyKind = 1
	WriteKeyAux         WriteKeyKind = 2
	WriteKeyState       WriteKeyKind = 3
	WriteKeyStaging     WriteKeyKind = 4
)

var writeKeyKindNames = [...]string{"unspecified", "kv", "aux", "state", "staging"}

// String returns the name used in JSON; "unspecified" for unknown numbers.
func (k WriteKeyKind) String() string { return enumName(writeKeyKindNames[:], int32(k)) }

func enumName(names []string, v int32) string {
	if v < 0 || int(v) >= len(names) {
		return names[0]
	}
	return names[v]
}

// WriteKey is what the prefill's rdma provider needs to write one buffer.
type WriteKey struct {
	Kind      WriteKeyKind
	Index     uint32 // place in the pointer list of that kind
	Component uint32 // state only
	Provider  string
	Endpoint  string
	Key       []byte // opaque; belongs to the provider
}

// Extension is what a pdlog node says to another beyond SGLang's frames
// (wire.md 9.3). Only such peers get one, through the gates of wire.md 9.1.
type Extension struct {
	Node        string // sender's name; required
	Boot        uint64 // sender's boot; required, not 0
	Incarnation uint64 // sender's incarnation; required, not 0
	HLC         uint64 // sender's hybrid logical clock when it sent

	RoomSeq  uint64 // the decode node's room_seq of the room incarnation; 0 = not known
	CauseSeq uint64 // the sender's log sequence this message follows from

	Proof       Proof       // ACK
	Drained     Opt[bool]   // status: no write of the room incarnation is open on this rank
	WriteKeys   []WriteKey  // registration, metadata
	Reason      string      // at most 1 KiB; decides nothing
	PrefillRank Opt[uint32] // ACK with ProofCannotTell
	LogSince    uint64      // ACK with ProofNeverSeen: oldest hlc of the sender's log

	// LogID and SeenLogID are 16 bytes, or empty if not said. What a peer
	// sent is kept at any length: it then equals no log's id.
	LogID, SeenLogID []byte
	SeenSeq          uint64 // highest sequence of SeenLogID the sender has on record
	PublishedBoot    uint64 // ABORT: the receiver's boot that the room was published to; 0 = not known
	SeenBoot         uint64 // receiver's boot that told SeenSeq; 0 = not known
}

// Why an extension frame was ignored (wire.md 9.7).
const (
	ExtVersion   = "version"   // PDX and a byte other than 1
	ExtMalformed = "malformed" // not a valid message
)

// ExtensionOf returns the extension that came with m, nil if there was none.
func ExtensionOf(m Message) *Extension {
	switch m := m.(type) {
	case *Registration:
		return m.Ext
	case *Metadata:
		return m.Ext
	case *Abort:
		return m.Ext
	case *AbortAck:
		return m.Ext
	case *Status:
		return m.Ext
	}
	return nil
}
