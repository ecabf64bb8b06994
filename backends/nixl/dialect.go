package nixl

import "github.com/pdlog/pdlog/backends"

// Name is the dialect's name.
const Name = "nixl"

const (
	tags       = backends.TagsStaging
	guard      = "NixlMsgGuard"
	registered = "None" // frame 1 of a registration: the room slot of no room
	statusTag  = "KV_STATUS"

	// First places of the extension frame (wire.md 9.4).
	registerExtPlace = 24
	metadataExtPlace = 11
	statusExtPlace   = 5
)

// Dialect implements backends.Dialect. The zero value is ready.
type Dialect struct{}

var _ backends.Dialect = Dialect{}

func init() { backends.Register(Dialect{}) }

// Name implements backends.Dialect.
func (Dialect) Name() string { return Name }

// Habits implements backends.Dialect (sources: wire.md 1.2, 1.3, 1.6, 4.2).
func (Dialect) Habits() backends.Habits {
	return backends.Habits{
		ErrAck:        backends.ErrAckNever, // F3: the count is kept on purpose
		ExactDstCount: true,
	}
}

// Decode implements backends.Dialect.
func (Dialect) Decode(at backends.Side, f backends.Frames) backends.Message {
	if m, ok := backends.DecodeUnguarded(tags, at, f); ok {
		return m
	}
	if len(f) > 0 {
		switch {
		case at == backends.AtPrefill && string(f[0]) == guard:
			if len(f) > 1 && string(f[1]) == registered {
				return decodeRegistration(f)
			}
			return decodeMetadata(f)
		case at == backends.AtDecode && string(f[0]) == statusTag:
			return backends.ReadStatus(f, 1)
		}
	}
	return &backends.Foreign{Reason: "frame 0 is not a tag or guard of nixl"}
}

// Encode implements backends.Dialect. Every metadata needs an aux index, a
// dummy's too.
func (Dialect) Encode(m backends.Message) (backends.Frames, error) {
	switch m := m.(type) {
	case *backends.Registration:
		return encodeRegistration(m)
	case *backends.Metadata:
		return encodeMetadata(m)
	case *backends.Status:
		w := backends.NewWriter(backends.KindStatus, statusExtPlace+1)
		w.Tag(statusTag)
		w.WriteStatus(m)
		w.WriteReason(m)
		w.Ext(statusExtPlace, m.Ext)
		return w.Done()
	}
	return backends.EncodeUnguarded(tags, m)
}
