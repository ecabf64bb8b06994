package events

import (
	"google.golang.org/protobuf/reflect/protoreflect"
)

// payloadOneof is set once the generated code has registered its descriptors,
// which happens in an init of its own.
var payloadOneof protoreflect.OneofDescriptor

func init() {
	file_events_proto_init()
	payloadOneof = File_events_proto.Messages().ByName("Event").Oneofs().ByName("payload")
}

// PayloadMessage is the payload, or nil when the event has none that this
// schema knows.
func (x *Event) PayloadMessage() protoreflect.Message {
	m := x.ProtoReflect()
	fd := m.WhichOneof(payloadOneof)
	if fd == nil {
		return nil
	}
	return m.Get(fd).Message()
}

// TypeName is the payload's type, e.g. "AbortArmed"; "Unknown" for a payload
// of a newer schema.
func (x *Event) TypeName() string {
	m := x.ProtoReflect()
	fd := m.WhichOneof(payloadOneof)
	if fd == nil {
		return "Unknown"
	}
	return string(fd.Message().Name())
}

// TypeNames lists every event type of the schema, in field order.
func TypeNames() []string {
	fds := payloadOneof.Fields()
	names := make([]string, fds.Len())
	for i := range names {
		names[i] = string(fds.Get(i).Message().Name())
	}
	return names
}

// Class is the durability class of an event (store.md 5).
type Class uint8

const (
	// Group rides the next commit (at most 2 ms later).
	Group Class = iota
	// Sync must be durable before its effect: the commit starts at once.
	Sync
)

// ClassOf gives the class of an event by what waits for it (architecture.md,
// the table of effects). Effects carry the exact sequence they wait for; the
// class only decides whether a commit may linger.
func ClassOf(e *Event) Class {
	switch e.Payload.(type) {
	case *Event_NodeStarted, *Event_NodeStopped, *Event_NodeDraining,
		*Event_PublishStarted, *Event_AbortArmed, *Event_Released,
		*Event_RoomSucceeded, *Event_RoomFailed, *Event_FenceStarted,
		*Event_Fenced, *Event_Quarantined, *Event_PageCheckFailed,
		*Event_MetadataReceived, *Event_Drained, *Event_AckSent,
		*Event_SourceReleased, *Event_StatusSent, *Event_InvariantViolated:
		return Sync
	default:
		return Group
	}
}

// Payload is the closed set of event payloads.
type Payload = isEvent_Payload
