package mori

import "github.com/pdlog/pdlog/backends"

// Name is the dialect's name.
const Name = "mori"

const (
	tags       = backends.TagAuxData
	guard      = "MoriMsgGuard"
	registered = "None" // frame 1 of a registration: the room slot of no room

	// First places of the extension frame (wire.md 9.4).
	registerExtPlace = 14
	metadataExtPlace = 10
	statusExtPlace   = 5
)

// Dialect implements backends.Dialect. The zero value is ready.
type Dialect struct{}

var _ backends.Dialect = Dialect{}

func init() { backends.Register(Dialect{}) }

// Name implements backends.Dialect.
func (Dialect) Name() string { return Name }

// Habits implements backends.Dialect (sources: wire.md 1.2, 1.3, 1.8, 4.2).
func (Dialect) Habits() backends.Habits {
	return backends.Habits{
		ErrAck:          backends.ErrAckAfterDrain, // F2: the status may be an error with siblings running
		SuccessByStatus: true,
		AuxByMessage:    true,
	}
}

// Decode implements backends.Dialect.
func (Dialect) Decode(at backends.Side, f backends.Frames) backends.Message {
	if m, ok := backends.DecodeUnguarded(tags, at, f); ok {
		return m
	}
	if len(f) > 0 && string(f[0]) == guard {
		switch {
		case at == backends.AtPrefill && len(f) > 1 && string(f[1]) == registered:
			return decodeRegistration(f)
		case at == backends.AtPrefill:
			return decodeMetadata(f)
		case at == backends.AtDecode:
			return backends.ReadStatus(f, 1)
		}
	}
	return &backends.Foreign{Reason: "frame 0 is not a tag or guard of mori"}
}

// Encode implements backends.Dialect.
func (Dialect) Encode(m backends.Message) (backends.Frames, error) {
	switch m := m.(type) {
	case *backends.Registration:
		return encodeRegistration(m)
	case *backends.Metadata:
		return encodeMetadata(m)
	case *backends.Status:
		w := backends.NewWriter(backends.KindStatus, statusExtPlace+1)
		w.Tag(guard)
		w.WriteStatus(m)
		w.WriteReason(m)
		w.Ext(statusExtPlace, m.Ext)
		return w.Done()
	}
	return backends.EncodeUnguarded(tags, m)
}
