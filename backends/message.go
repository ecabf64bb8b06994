package backends

import "strconv"

// Frames is one ZeroMQ multipart message, without the ZMTP framing.
type Frames [][]byte

// Side is the role of the process that receives a message. The same frames
// mean different things on the two sides (wire.md 1.1).
type Side uint8

// The two sides.
const (
	AtPrefill Side = iota + 1
	AtDecode
)

// String returns the side's name as used in capture files.
func (s Side) String() string {
	switch s {
	case AtPrefill:
		return "prefill"
	case AtDecode:
		return "decode"
	}
	return "side(" + strconv.Itoa(int(s)) + ")"
}

// ParseSide is the inverse of String; ok is false for any other text.
func ParseSide(s string) (side Side, ok bool) {
	switch s {
	case "prefill":
		return AtPrefill, true
	case "decode":
		return AtDecode, true
	}
	return 0, false
}

// Kind says which message a Message is.
type Kind uint8

// The kinds of wire.md section 1, and the two outcomes that are no message.
const (
	KindForeign   Kind = iota // not ours: another protocol, dialect or side
	KindMalformed             // ours, and cannot be read: dropped and counted
	KindRegister
	KindMetadata
	KindAbort
	KindAbortAck
	KindStatus
	KindStagingReq
	KindStagingRsp
	KindWatermark
	KindChunkReady
	KindAuxData
	KindBootstrap
	kindEnd
)

var kindNames = [kindEnd]string{
	"foreign", "malformed", "register", "metadata", "abort", "abort_ack", "status",
	"staging_req", "staging_rsp", "watermark", "chunk_ready", "aux_data", "bootstrap",
}

// String returns the kind's name as `pdnode wire decode` prints it.
func (k Kind) String() string {
	if k < kindEnd {
		return kindNames[k]
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// ParseKind is the inverse of String; ok is false for any other text.
func ParseKind(s string) (k Kind, ok bool) {
	for i, name := range kindNames {
		if name == s {
			return Kind(i), true
		}
	}
	return 0, false
}

// Message is one decoded message: one of *Registration, *Metadata, *Abort,
// *AbortAck, *Status, *StagingReq, *StagingRsp, *Watermark, *ChunkReady,
// *AuxData, *Bootstrap, *Malformed, *Foreign.
type Message interface {
	Kind() Kind
}

// Malformed is a message that is ours by its first frame and breaks the rules
// behind it. The node drops and counts it; nothing changes (wire.md F25).
type Malformed struct {
	Of     Kind   // what it set out to be
	Reason string // for people; no rule depends on it
}

// Foreign is a message the node does not take as its own.
type Foreign struct {
	Reason string // for people; no rule depends on it
}

// Kind implements Message.
func (*Malformed) Kind() Kind { return KindMalformed }

// Kind implements Message.
func (*Foreign) Kind() Kind { return KindForeign }

// Opt is a value that a frame may leave out. The zero Opt is absent, which is
// something else than a value of 0: generation 0 is a generation.
type Opt[T any] struct {
	V   T
	Set bool
}

// Some returns a present value.
func Some[T any](v T) Opt[T] { return Opt[T]{V: v, Set: true} }

// Or returns the value, or def if it is absent.
func (o Opt[T]) Or(def T) T {
	if o.Set {
		return o.V
	}
	return def
}

// ReceivedAt is the side that a message of this kind is sent to; 0 for
// malformed and foreign.
func (k Kind) ReceivedAt() Side {
	switch k {
	case KindRegister, KindMetadata, KindAbort, KindStagingRsp, KindWatermark, KindBootstrap:
		return AtPrefill
	case KindAbortAck, KindStatus, KindStagingReq, KindChunkReady, KindAuxData:
		return AtDecode
	}
	return 0
}
