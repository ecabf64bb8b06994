package mooncake

import "github.com/pdlog/pdlog/backends"

// Name is the dialect's name.
const Name = "mooncake"

const (
	tags       = backends.TagsStaging | backends.TagAuxData | backends.TagBootstrap
	registered = "None" // frame 0 of a registration: the room slot of no room

	// First places of the extension frame (wire.md 9.4).
	registerExtPlace = 20
	metadataExtPlace = 10
	statusExtPlace   = 4
)

// Dialect implements backends.Dialect. The zero value is ready.
type Dialect struct{}

var _ backends.Dialect = Dialect{}

func init() { backends.Register(Dialect{}) }

// Name implements backends.Dialect.
func (Dialect) Name() string { return Name }

// Habits implements backends.Dialect (sources: wire.md 1.2, 1.3, 1.5, 4.2).
func (Dialect) Habits() backends.Habits {
	return backends.Habits{
		ErrAck:          backends.ErrAckUnproven, // F1: the engine returns with writes in flight
		ReceiptAcks:     true,
		SuccessByStatus: true,
		Reregisters:     true,
		ExactDstCount:   true,
	}
}

// Decode implements backends.Dialect.
func (Dialect) Decode(at backends.Side, f backends.Frames) backends.Message {
	if m, ok := backends.DecodeUnguarded(tags, at, f); ok {
		return m
	}
	if len(f) > 0 {
		switch {
		case at == backends.AtPrefill && string(f[0]) == registered:
			return decodeRegistration(f)
		case !backends.LooksNumeric(f[0]):
		case at == backends.AtPrefill:
			return decodeMetadata(f)
		case at == backends.AtDecode:
			return backends.ReadStatus(f, 0)
		}
	}
	return &backends.Foreign{Reason: "frame 0 is neither a tag of mooncake nor a number"}
}

// Encode implements backends.Dialect. A metadata that is no dummy needs an aux
// index. A status to an SGLang peer (no extension) has three frames and loses
// its reason: the oldest decode unpacks exactly three (wire.md 9.6).
func (Dialect) Encode(m backends.Message) (backends.Frames, error) {
	switch m := m.(type) {
	case *backends.Registration:
		return encodeRegistration(m)
	case *backends.Metadata:
		return encodeMetadata(m)
	case *backends.Status:
		w := backends.NewWriter(backends.KindStatus, statusExtPlace+1)
		w.WriteStatus(m)
		if m.Ext != nil {
			w.WriteReason(m)
			w.Ext(statusExtPlace, m.Ext)
		}
		return w.Done()
	}
	return backends.EncodeUnguarded(tags, m)
}
