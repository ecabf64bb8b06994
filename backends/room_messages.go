package backends

// Abort asks prefill to end a room and names where the ACK goes (wire.md 1.4).
type Abort struct {
	Room uint64 // 0 … 2^63-1
	// Peer is the decode's PULL socket; the zero Endpoint if the message names
	// none that can be used. Then the room ends and nobody is answered.
	Peer Endpoint
	// Generation is the arming the ACK has to name; only next to a Peer.
	Generation Opt[uint64]
	// DroppedAddress and DroppedGeneration say that such frames were there
	// and could not be read, so that they can be counted.
	DroppedAddress, DroppedGeneration bool

	Ext        *Extension
	ExtIgnored string
}

// AckForm is the form of an ABORT_ACK: what it can prove depends on it
// (wire.md 1.5, F6).
type AckForm uint8

// The three forms in the field.
const (
	AckReceipt   AckForm = iota + 1 // v1: no rank; proves that the ABORT arrived, nothing about writes
	AckDrainOld                     // v2: rank, no generation
	AckDrainFull                    // v3: rank and generation
)

// String returns "v1", "v2" or "v3".
func (f AckForm) String() string {
	switch f {
	case AckReceipt:
		return "v1"
	case AckDrainOld:
		return "v2"
	case AckDrainFull:
		return "v3"
	}
	return ""
}

// AbortAck answers an Abort (wire.md 1.5).
type AbortAck struct {
	Room        uint64      // 0 … 2^63-1
	PrefillRank Opt[int32]  // prefill_unique_rank (wire.md 4.3); absent in a receipt
	Generation  Opt[uint64] // echo of the ABORT's

	Ext        *Extension
	ExtIgnored string
}

// Form tells which of the three forms the ACK has.
func (m *AbortAck) Form() AckForm {
	switch {
	case !m.PrefillRank.Set:
		return AckReceipt
	case !m.Generation.Set:
		return AckDrainOld
	}
	return AckDrainFull
}

// The KVPoll numbers of a Status (wire.md 3.1).
const (
	PollFailed          uint8 = 0
	PollBootstrapping   uint8 = 1
	PollWaitingForInput uint8 = 2
	PollTransferring    uint8 = 3
	PollSuccess         uint8 = 4
)

// Status tells decode how a room stands on one prefill rank (wire.md 1.6).
type Status struct {
	Room        uint64 // 0 … 2^63-1
	Status      uint8  // PollFailed … PollSuccess
	PrefillRank int32  // prefill_unique_rank
	Reason      string // UTF-8; empty if none was sent
	ReasonBytes []byte // what was sent as a reason if it is not UTF-8, else nil

	Ext        *Extension
	ExtIgnored string
}

// Bootstrap announces a decode endpoint before pages are allocated
// (wire.md 1.9).
type Bootstrap struct {
	Room uint64
	Peer Endpoint
}

// AuxData carries one row of an auxiliary buffer (wire.md 1.8). Nothing about
// its target has been checked (wire.md F28).
type AuxData struct {
	Room        uint64
	BufferIndex int32
	AuxIndex    int32
	Data        []byte // at most 2^32-1 bytes
}

// Kind implements Message.
func (*Abort) Kind() Kind { return KindAbort }

// Kind implements Message.
func (*AbortAck) Kind() Kind { return KindAbortAck }

// Kind implements Message.
func (*Status) Kind() Kind { return KindStatus }

// Kind implements Message.
func (*Bootstrap) Kind() Kind { return KindBootstrap }

// Kind implements Message.
func (*AuxData) Kind() Kind { return KindAuxData }
