package backends

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// This file joins the wire to the core: a decoded message becomes the core's
// command, an effect that sends becomes a message. The daemon and the simulator
// both come through here, so neither knows a rule of the wire.

// ToCommand turns a message received by local rank at into a command. What the
// core has no use for is Rejected: it changes nothing and is counted.
func ToCommand(m Message, at projector.RankID, f Frames) projector.Command {
	return new(Commands).Of(m, at, f)
}

// Commands is ToCommand for one receiver, which hears the same few peers again and
// again: it remembers the spelling of their addresses. The zero value is ready.
type Commands struct{ keys map[Endpoint]string }

// commandKeys bounds what strangers can make a receiver remember.
const commandKeys = 1 << 12

// key is the endpoint's Key.
func (k *Commands) key(e Endpoint) string {
	if key, ok := k.keys[e]; ok {
		return key
	}
	if k.keys == nil || len(k.keys) >= commandKeys {
		k.keys = map[Endpoint]string{}
	}
	key := e.Key()
	k.keys[Endpoint{IP: strings.Clone(e.IP), Port: e.Port}] = key
	return key
}

// Of is ToCommand.
func (k *Commands) Of(m Message, at projector.RankID, f Frames) projector.Command {
	switch m := m.(type) {
	case *Registration:
		rank := max(m.Rank(), 0)
		return projector.WireRegister{At: at, Address: k.key(m.Peer), Session: m.PeerKey(), EngineRank: uint32(rank), Memory: m.memory(), Ext: toExt(m.Ext)} //nolint:gosec // >= 0
	case *Metadata:
		c := projector.WireMetadata{
			At: at, Room: m.Room, Address: k.key(m.Peer), Session: m.PeerKey(), Dummy: m.IsDummy,
			Required: uint32(m.RequiredDstInfoNum), PrefixLen: uint32(m.DecodePrefixLen.Or(0)), Ext: toExt(m.Ext), //nolint:gosec // decoded >= 0
		}
		c.Pages = make([]uint32, len(m.DstPageIndices))
		for i, p := range m.DstPageIndices {
			c.Pages[i] = uint32(p) //nolint:gosec // decoded >= 0
		}
		if m.AuxIndex.Set && !m.IsDummy {
			aux := uint32(m.AuxIndex.V) //nolint:gosec // decoded >= 0
			c.Aux = &aux
		}
		return c
	case *Abort:
		c := projector.WireAbort{At: at, Room: m.Room, Ext: toExt(m.Ext)}
		if !m.Peer.IsZero() {
			c.Address = k.key(m.Peer)
		}
		if m.Generation.Set {
			g := m.Generation.V
			c.Generation = &g
		}
		return c
	case *AbortAck:
		c := projector.WireAck{At: at, Room: m.Room, Ext: toExt(m.Ext)}
		if m.PrefillRank.Set {
			r := uint32(m.PrefillRank.V) //nolint:gosec // decoded >= 0
			c.Rank = &r
		}
		if m.Generation.Set {
			g := m.Generation.V
			c.Generation = &g
		}
		return c
	case *Status:
		if m.Status != PollSuccess && m.Status != PollFailed {
			return rejected(m.Kind(), fmt.Sprintf("status %d is no end", m.Status), f)
		}
		return projector.WireStatus{
			At: at, Room: m.Room, Success: m.Status == PollSuccess, Rank: uint32(m.PrefillRank), Reason: m.Reason, Ext: toExt(m.Ext), //nolint:gosec // decoded >= 0
		}
	case *AuxData:
		if m.BufferIndex < 0 || m.AuxIndex < 0 {
			return rejected(m.Kind(), "negative index", f)
		}
		return projector.AuxArrived{
			At: at, Room: m.Room, Index: uint32(m.BufferIndex), Row: uint32(m.AuxIndex), Bytes: uint64(len(m.Data)), Data: m.Data, //nolint:gosec // >= 0
		}
	case *StagingReq, *StagingRsp, *Watermark, *ChunkReady:
		return stagingCommand(m, at, f)
	case *Malformed:
		return projector.Rejected{Kind: m.Of.String(), Reason: "malformed: " + m.Reason, First: first(f)}
	case *Foreign:
		return projector.Rejected{Kind: "foreign", Reason: "not a message of this dialect", First: first(f)}
	default:
		return rejected(m.Kind(), "no room here uses it", f)
	}
}

// NotificationToCommand turns a text that a transfer engine received for local
// rank at into a command; one that cannot be read is Rejected.
func NotificationToCommand(d Dialect, at projector.RankID, text []byte) projector.Command {
	nt, ok := d.(Notifier)
	if !ok {
		return projector.Rejected{Kind: notificationKind, Reason: d.Name() + " has no notifications", First: text}
	}
	n, err := nt.ParseNotification(text)
	if err != nil {
		return projector.Rejected{Kind: notificationKind, Reason: "malformed", First: text}
	}
	return projector.WireNotification{
		At: at, Room: n.Room, What: n.What.String(), Source: uint32(n.Source), Chunk: uint32(n.Chunk), Last: n.Last, //nolint:gosec // parsed >= 0
		Part: uint32(n.Part), Parts: uint32(max(n.Parts, 1)), Expected: uint32(n.Expected), //nolint:gosec // as above
	}
}

// notificationKind is the kind of a rejected notification: it is no message of
// the control plane.
const notificationKind = "notification"

func rejected(k Kind, why string, f Frames) projector.Command {
	return projector.Rejected{Kind: k.String(), Reason: why, First: first(f)}
}

func first(f Frames) []byte {
	var b []byte
	for i, fr := range f {
		if i > 0 {
			b = append(b, ' ')
		}
		b = append(b, fr[:min(len(fr), 32)]...)
		if len(b) >= 32 {
			return b[:32]
		}
	}
	return b
}

// Key is the endpoint in the one spelling that two texts of the same address
// share, "ip:port".
func (e Endpoint) Key() string { return e.AddrPort().String() }

// ParseEndpoint reads "ip:port" ("[ip]:port" for IPv6).
func ParseEndpoint(s string) (Endpoint, error) {
	ap, err := netip.ParseAddrPort(s)
	if err != nil {
		return Endpoint{}, fmt.Errorf("endpoint %q: %w", s, err)
	}
	return Endpoint{IP: ap.Addr().String(), Port: ap.Port()}, nil
}

// Builder builds the messages of effects that end rooms in memory of its own: what
// it gives is good until it is asked again. The zero value is ready.
type Builder struct {
	abort  Abort
	ack    AbortAck
	status Status
	ext    Extension

	self string // the endpoint that was read last
	at   Endpoint
}

// Self is what a decode rank says of itself in the messages it sends.
type Self struct {
	Endpoint string // "ip:port" of its control socket
	// PeerKey names the rank to the transfer engine. Each dialect takes its own
	// place for it; "host:port" is good in all of them.
	PeerKey string
}

// FromMetadata builds the metadata message of an effect.
func FromMetadata(a projector.SendMetadata, self Self) (*Metadata, error) {
	ep, err := ParseEndpoint(self.Endpoint)
	if err != nil {
		return nil, err
	}
	m := &Metadata{
		Room: a.Room, Peer: ep, SessionID: self.PeerKey, AgentName: self.PeerKey, EngineKey: self.PeerKey,
		RequiredDstInfoNum: int32(a.Required), IsDummy: a.Dummy, AuxIndex: Some(int32(a.Aux)), //nolint:gosec // encoder checks
	}
	for _, p := range a.Pages {
		m.DstPageIndices = append(m.DstPageIndices, int32(p)) //nolint:gosec // encoder checks
	}
	m.Ext = new(Builder).extension(a.WithExt, &a.Ext)
	return m, nil
}

// FromAbort builds the ABORT of an effect.
func FromAbort(a projector.SendAbort, self Self) (*Abort, error) { return new(Builder).Abort(&a, self) }

// Abort builds the ABORT of an effect.
func (b *Builder) Abort(a *projector.SendAbort, self Self) (*Abort, error) {
	if b.self != self.Endpoint || b.self == "" {
		ep, err := ParseEndpoint(self.Endpoint)
		if err != nil {
			return nil, err
		}
		b.self, b.at = self.Endpoint, ep
	}
	b.abort = Abort{Room: a.Room, Peer: b.at, Generation: Some(a.Generation), Ext: b.extension(a.WithExt, &a.Ext)}
	return &b.abort, nil
}

// SendsStatus: a status of the effect is sent at all. Where success travels with
// the data, no SGLang decode waits for it on the control plane (wire.md 1.6).
func SendsStatus(d Dialect, a projector.SendStatus) bool {
	return !a.Success || !a.Foreign || d.Habits().SuccessByStatus
}

// FromAck builds the ABORT_ACK of an effect: it echoes what was asked.
func FromAck(a projector.SendAck) *AbortAck { return new(Builder).Ack(&a) }

// Ack builds the ABORT_ACK of an effect: it echoes what was asked.
func (b *Builder) Ack(a *projector.SendAck) *AbortAck {
	b.ack = AbortAck{Room: a.Room, Ext: b.extension(a.WithExt, &a.Ext)}
	m := &b.ack
	if a.Ext.Proof != events.Proof_PROOF_CANNOT_TELL {
		m.PrefillRank = Some(int32(a.WireID)) //nolint:gosec // encoder checks
	}
	if a.Generation != nil {
		m.Generation = Some(*a.Generation)
	}
	return m
}

// FromStatus builds the terminal status of an effect.
func FromStatus(a projector.SendStatus) *Status { return new(Builder).Status(&a) }

// Status builds the terminal status of an effect.
func (b *Builder) Status(a *projector.SendStatus) *Status {
	b.status = Status{Room: a.Room, Status: PollFailed, PrefillRank: int32(a.WireID), Reason: a.Reason, Ext: b.extension(a.WithExt, &a.Ext)} //nolint:gosec // encoder checks
	m := &b.status
	if a.Success {
		m.Status = PollSuccess
	}
	return m
}

func toExt(x *Extension) *projector.Ext {
	if x == nil {
		return nil
	}
	out := &projector.Ext{
		Node: x.Node, Boot: x.Boot, Incarnation: x.Incarnation, HLC: x.HLC, RoomSeq: x.RoomSeq, CauseSeq: x.CauseSeq,
		Proof: events.Proof(x.Proof), Reason: x.Reason, LogSince: x.LogSince, LogID: x.LogID, SeenLogID: x.SeenLogID, SeenSeq: x.SeenSeq,
		PublishedBoot: x.PublishedBoot, SeenBoot: x.SeenBoot,
	}
	if x.Drained.Set {
		d := x.Drained.V
		out.Drained = &d
	}
	if x.PrefillRank.Set {
		r := x.PrefillRank.V
		out.PrefillRank = &r
	}
	for _, k := range x.WriteKeys {
		out.Keys = append(out.Keys, &events.WriteKey{
			Kind: uint32(k.Kind), Index: k.Index, Component: k.Component, Provider: k.Provider, Endpoint: k.Endpoint, Key: k.Key, //nolint:gosec // enum
		})
	}
	return out
}

const maxReason = 1024 // bytes (wire.md 9.3)

func (b *Builder) extension(with bool, x *projector.Ext) *Extension {
	if !with {
		return nil
	}
	out := &b.ext
	*out = Extension{
		Node: x.Node, Boot: x.Boot, Incarnation: x.Incarnation, HLC: x.HLC, RoomSeq: x.RoomSeq, CauseSeq: x.CauseSeq,
		Proof: Proof(x.Proof), Reason: x.Reason, LogSince: x.LogSince, LogID: x.LogID, SeenLogID: x.SeenLogID, SeenSeq: x.SeenSeq,
		PublishedBoot: x.PublishedBoot, SeenBoot: x.SeenBoot,
	}
	if len(out.Reason) > maxReason {
		out.Reason = out.Reason[:maxReason]
	}
	if x.Drained != nil {
		out.Drained = Some(*x.Drained)
	}
	if x.PrefillRank != nil && x.Proof == events.Proof_PROOF_CANNOT_TELL {
		out.PrefillRank = Some(*x.PrefillRank)
	}
	for _, k := range x.Keys {
		out.WriteKeys = append(out.WriteKeys, WriteKey{
			Kind: WriteKeyKind(k.Kind), Index: k.Index, Component: k.Component, Provider: k.Provider, Endpoint: k.Endpoint, Key: k.Key, //nolint:gosec // enum
		})
	}
	return out
}
