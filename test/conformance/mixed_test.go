package conformance_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pdlog/pdlog/backends"
	_ "github.com/pdlog/pdlog/backends/all"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// prefill is a prefill node's core behind a dialect: frames in, frames out.
type prefill struct {
	t       *testing.T
	dialect backends.Dialect
	m       *projector.Machine
	now     uint64
	sent    []string // ABORT_ACKs, frames joined by commas
	events  []string // type names
	ready   int
}

func newPrefill(t *testing.T, dialect string) *prefill {
	t.Helper()
	d, err := backends.Lookup(dialect)
	if err != nil {
		t.Fatal(err)
	}
	c := projector.DefaultConfig()
	c.Node, c.Role, c.Ranks = "p0", events.Role_ROLE_PREFILL, []projector.LocalRank{{Address: "10.0.0.2:41001"}}
	p := &prefill{t: t, dialect: d, m: projector.New(c), now: uint64(time.Hour / time.Millisecond)}
	p.step(projector.Start{Boot: 1, Incarnation: 1, LogID: make([]byte, 16), GenerationBase: 1})
	return p
}

func (p *prefill) step(c projector.Command) {
	p.t.Helper()
	p.now += 10
	r := p.m.Step(projector.At(p.now), c)
	if r.Refused != nil {
		p.t.Fatalf("%T is refused: %v", c, r.Refused)
	}
	for _, e := range r.Events {
		p.events = append(p.events, e.TypeName())
	}
	for _, e := range r.Effects {
		switch a := e.Do.(type) {
		case projector.SendAck:
			f, err := p.dialect.Encode(backends.FromAck(a))
			if err != nil {
				p.t.Fatal(err)
			}
			texts := make([]string, len(f))
			for i := range f {
				texts[i] = string(f[i])
			}
			p.sent = append(p.sent, strings.Join(texts, ","))
		case projector.Tell:
			if a.Kind == projector.TellReady {
				p.ready++
			}
		}
	}
}

// receive takes a message as it comes from a socket.
func (p *prefill) receive(f backends.Frames) {
	p.t.Helper()
	p.step(backends.ToCommand(p.dialect.Decode(backends.AtPrefill, f), projector.MakeRank("p0", 0), f))
}

func (p *prefill) say(m backends.Message) {
	p.t.Helper()
	f, err := p.dialect.Encode(m)
	if err != nil {
		p.t.Fatal(err)
	}
	p.receive(f)
}

// join is a decode rank that registers and offers its pages for a room.
func (p *prefill) join(room uint64, port uint16, required int32) {
	p.t.Helper()
	ep := backends.Endpoint{IP: "10.0.0.1", Port: port}
	key := ep.Key()
	p.say(&backends.Registration{
		Peer: ep, SessionID: key, AgentName: key, AgentMetadata: []byte("x"), KVItemLen: 64, KVDataPtrs: []uint64{0}, KVMemoryKinds: []string{"DRAM"},
		DstTPRank: backends.Some(int32(port - 5000)), EngineRank: backends.Some(int32(port - 5000)), GPUID: backends.Some(int32(0)), AttnTPSize: 4,
		Engine: &backends.Engine{Key: key},
	})
	p.say(&backends.Metadata{
		Room: room, Peer: ep, SessionID: key, AgentName: key, EngineKey: key, DstPageIndices: []int32{1, 2}, AuxIndex: backends.Some(int32(3)), RequiredDstInfoNum: required,
	})
}

func frames(texts ...string) backends.Frames {
	f := make(backends.Frames, len(texts))
	for i, s := range texts {
		f[i] = []byte(s)
	}
	return f
}

var dialects = []string{"mooncake", "nixl", "mori"}

// Each form of ABORT is answered in its own form, in every dialect: three frames
// for a decode that does not know generations, four for one that does (F45).
func TestAckEchoesTheFormOfItsAbort(t *testing.T) {
	for _, name := range dialects {
		t.Run(name, func(t *testing.T) {
			for _, c := range []struct {
				abort backends.Frames
				want  []string
			}{
				{frames("ABORT", "7", "10.0.0.1", "5000"), []string{"ABORT_ACK,7,0"}},
				{frames("ABORT", "7", "10.0.0.1", "5000", "9"), []string{"ABORT_ACK,7,0,9"}},
				{frames("ABORT", "7", "10.0.0.1", "5000", "0"), []string{"ABORT_ACK,7,0,0"}},
				{frames("ABORT", "7", "10.0.0.1", "5000", "x9"), []string{"ABORT_ACK,7,0"}},
			} {
				p := newPrefill(t, name)
				p.join(7, 5000, 1)
				p.receive(c.abort)
				if !slices.Equal(p.sent, c.want) {
					t.Errorf("%q is answered with %q, want %q", c.abort, p.sent, c.want)
				}
			}
		})
	}
}

// An ABORT that says no usable address ends the room, and nobody is answered
// (F38).
func TestAbortWithoutAddressEndsTheRoom(t *testing.T) {
	for _, name := range dialects {
		for _, f := range []backends.Frames{
			frames("ABORT", "7"),
			frames("ABORT", "7", "10.0.0.1", "bad"),
			frames("ABORT", "7", "", "5000", "9"),
			frames("ABORT", "7", "host", "5000"),
		} {
			p := newPrefill(t, name)
			p.join(7, 5000, 1)
			p.receive(f)
			if !slices.Contains(p.events, "RoomFailed") || len(p.sent) != 0 {
				t.Errorf("%s, %q: events %v, sent %q", name, f, p.events, p.sent)
			}
		}
	}
}

// More peers than required do not keep a rank from starting (F39).
func TestSurplusPeersDoNotStopARank(t *testing.T) {
	for _, name := range dialects {
		p := newPrefill(t, name)
		p.join(7, 5000, 2)
		if p.ready != 0 {
			t.Errorf("%s: ready with 1 peer of 2", name)
		}
		p.join(7, 5001, 2)
		p.join(7, 5002, 2)
		if p.ready == 0 || slices.Contains(p.events, "RoomFailed") {
			t.Errorf("%s: with 3 peers for 2 the rank is not ready: %v", name, p.events)
		}
	}
}
