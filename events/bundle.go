package events

// bundle is an event with the payload that it is about to be decoded into, in
// one piece of memory: most of what decoding costs is what it allocates.
type bundle[W, P any] struct {
	event   Event
	wrap    W
	payload P
}

// newEvent is an empty event for a record of a type. The types a room's life
// is made of come with their payload, which UnmarshalVT fills; the others are
// too rare to matter.
func newEvent(t Type) *Event {
	switch t {
	case 40:
		b := new(bundle[Event_RoomOpened, RoomOpened])
		b.wrap.RoomOpened = &b.payload
		b.event.Payload = &b.wrap
		return &b.event
	case 41:
		b := new(bundle[Event_PagesReserved, PagesReserved])
		b.wrap.PagesReserved = &b.payload
		b.event.Payload = &b.wrap
		return &b.event
	case 42:
		b := new(bundle[Event_PublishStarted, PublishStarted])
		b.wrap.PublishStarted = &b.payload
		b.event.Payload = &b.wrap
		return &b.event
	case 43:
		b := new(bundle[Event_MetadataPublished, MetadataPublished])
		b.wrap.MetadataPublished = &b.payload
		b.event.Payload = &b.wrap
		return &b.event
	case 44:
		b := new(bundle[Event_StatusReceived, StatusReceived])
		b.wrap.StatusReceived = &b.payload
		b.event.Payload = &b.wrap
		return &b.event
	case 45:
		b := new(bundle[Event_CoverageCompleted, CoverageCompleted])
		b.wrap.CoverageCompleted = &b.payload
		b.event.Payload = &b.wrap
		return &b.event
	case 46:
		b := new(bundle[Event_RoomSucceeded, RoomSucceeded])
		b.wrap.RoomSucceeded = &b.payload
		b.event.Payload = &b.wrap
		return &b.event
	case 57:
		b := new(bundle[Event_Released, Released])
		b.wrap.Released = &b.payload
		b.event.Payload = &b.wrap
		return &b.event
	case 61:
		b := new(bundle[Event_WriteLanded, WriteLanded])
		b.wrap.WriteLanded = &b.payload
		b.event.Payload = &b.wrap
		return &b.event
	case 63:
		b := new(bundle[Event_RoomFinished, RoomFinished])
		b.wrap.RoomFinished = &b.payload
		b.event.Payload = &b.wrap
		return &b.event
	case 80:
		b := new(bundle[Event_MetadataReceived, MetadataReceived])
		b.wrap.MetadataReceived = &b.payload
		b.event.Payload = &b.wrap
		return &b.event
	case 81:
		b := new(bundle[Event_ChunkQueued, ChunkQueued])
		b.wrap.ChunkQueued = &b.payload
		b.event.Payload = &b.wrap
		return &b.event
	case 82:
		b := new(bundle[Event_ChunkPosted, ChunkPosted])
		b.wrap.ChunkPosted = &b.payload
		b.event.Payload = &b.wrap
		return &b.event
	case 83:
		b := new(bundle[Event_ChunkCompleted, ChunkCompleted])
		b.wrap.ChunkCompleted = &b.payload
		b.event.Payload = &b.wrap
		return &b.event
	case 88:
		b := new(bundle[Event_StatusSent, StatusSent])
		b.wrap.StatusSent = &b.payload
		b.event.Payload = &b.wrap
		return &b.event
	case 94:
		b := new(bundle[Event_SourceReleased, SourceReleased])
		b.wrap.SourceReleased = &b.payload
		b.event.Payload = &b.wrap
		return &b.event
	case 95:
		b := new(bundle[Event_RoomCleared, RoomCleared])
		b.wrap.RoomCleared = &b.payload
		b.event.Payload = &b.wrap
		return &b.event
	}
	return new(Event)
}
