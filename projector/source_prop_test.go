package projector

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/pdlog/pdlog/events"
)

// sourceUse is what a prefill log says of a room incarnation's source pages: the
// writes that read them, whether it has ended, and how often they were given back.
type sourceUse struct {
	open     map[uint64]bool // tokens
	posted   int
	ended    bool
	released int
	told     int
}

// sourceWatch follows a prefill machine's log and effects, by nothing but them.
type sourceWatch struct {
	rooms map[uint64]*sourceUse // by room_seq
	of    map[uint64]uint64     // token to room_seq
}

func (w *sourceWatch) room(seq uint64) *sourceUse {
	if w.rooms[seq] == nil {
		w.rooms[seq] = &sourceUse{open: map[uint64]bool{}}
	}
	return w.rooms[seq]
}

func (w *sourceWatch) event(t *rapid.T, e *events.Event) {
	end := func(token uint64) {
		delete(w.room(w.of[token]).open, token)
	}
	switch p := e.Payload.(type) {
	case *events.Event_ChunkPosted:
		u := w.room(e.RoomSeq)
		if u.released > 0 {
			t.Fatalf("seq %d: a write of room_seq %d is posted after its source pages were given back", e.Seq, e.RoomSeq)
		}
		token := p.ChunkPosted.Token
		w.of[token], u.open[token] = e.RoomSeq, true
		u.posted++
	case *events.Event_ChunkCompleted:
		end(p.ChunkCompleted.Token)
	case *events.Event_ChunkFailed:
		if p.ChunkFailed.Proven {
			end(p.ChunkFailed.Token)
		}
	case *events.Event_ChunkDrained:
		end(p.ChunkDrained.Token)
	case *events.Event_RoomSucceeded:
		w.room(e.RoomSeq).ended = true
	case *events.Event_RoomFailed:
		w.room(e.RoomSeq).ended = true
	case *events.Event_SourceReleased:
		u := w.room(e.RoomSeq)
		if u.released++; u.released > 1 || !u.ended || len(u.open) > 0 {
			t.Fatalf("seq %d: source pages of room_seq %d are given back (time %d) with %d writes open, ended %v", e.Seq, e.RoomSeq, u.released, len(u.open), u.ended)
		}
	}
}

// settled: what has ended and is read no more is given back, by the same Step.
func (w *sourceWatch) settled(t *rapid.T, c Command) {
	for _, seq := range sortedKeys(w.rooms) {
		u := w.rooms[seq]
		if u.ended && len(u.open) == 0 && u.released == 0 {
			t.Fatalf("%T: room_seq %d has ended, no write of it is open, and its source pages are not given back", c, seq)
		}
	}
}

// Source pages are given back once, not before every write that reads them has
// closed, and by the very Step that closes the last one or ends the room,
// restarts in between or not; the engine is told behind that event (F21, I8).
func TestSourcePagesComeBackWithTheLastWrite(t *testing.T) {
	posted, held := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		cfg := prefillConfig()
		cfg.Staging = rapid.IntRange(0, 3).Draw(t, "staging") == 0
		m := New(cfg)
		w := &sourceWatch{rooms: map[uint64]*sourceUse{}, of: map[uint64]uint64{}}
		now := uint64(t0)
		var log []*events.Event
		step := func(c Command) {
			res := m.Step(At(now), c)
			at := map[uint64]uint64{}
			for _, e := range res.Events {
				w.event(t, e)
				if e.GetSourceReleased() != nil {
					at[e.RoomSeq] = e.Seq
				}
				log = append(log, proto.CloneOf(e))
			}
			for _, ef := range res.Effects {
				tell, ok := ef.Do.(Tell)
				if !ok || tell.Kind != TellSourceReleased {
					continue
				}
				w.room(tell.RoomSeq).told++
				if at[tell.RoomSeq] == 0 || ef.After < at[tell.RoomSeq] {
					t.Fatalf("%T: room_seq %d is told behind seq %d, released by seq %d", c, tell.RoomSeq, ef.After, at[tell.RoomSeq])
				}
			}
			w.settled(t, c)
		}
		start := func() {
			step(Start{Boot: now, Incarnation: m.st.Incarnation + 1, LogID: make([]byte, 16)})
		}
		open := func() (tokens []uint64) {
			for _, r := range sortedKeys(m.st.PRooms) {
				tokens = append(tokens, sortedKeys(m.st.PRooms[r].Tokens)...)
			}
			return tokens
		}
		start()
		for _, at := range []RankID{"p/0", "p/1"} {
			step(WireRegister{At: at, Address: "10.0.0.2:5000", Session: "s", Memory: &events.PeerMemory{KvPtrs: []uint64{0}, KvItemBytes: []uint64{16}, TpSize: 1, StagingBytes: 64}})
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.SampledFrom([]uint64{0, 1, 1, 200, 900}).Draw(t, "dt")
			at, room := MakeRank("p", rapid.IntRange(0, 1).Draw(t, "rank")), drawRoom(t)
			switch rapid.IntRange(0, 11).Draw(t, "what") {
			case 0, 1:
				step(WireMetadata{At: at, Room: room, Address: "10.0.0.2:5000", Pages: []uint32{1, 2, 3}, Required: 1, Ext: drawExt(t, "d")})
			case 2, 3, 4:
				n := rapid.Uint32Range(1, 2).Draw(t, "count")
				step(SendChunk{Room: room, Rank: at, Chunk: rapid.Uint32Range(0, 2).Draw(t, "chunk"), Count: n, SourcePages: []uint32{4, 5}[:n], Last: rapid.Bool().Draw(t, "last")})
			case 5, 6, 7:
				if tokens := open(); len(tokens) > 0 {
					step(WriteDone{Token: rapid.SampledFrom(tokens).Draw(t, "token"), Outcome: WriteOutcome(rapid.IntRange(0, 5).Draw(t, "outcome")), Landed: true}) //nolint:gosec // small
				}
			case 8:
				if rapid.IntRange(0, 3).Draw(t, "restart?") == 0 {
					m = fold(cfg, log)
					start()
				}
			default:
				step(drawPrefill(t))
			}
			for _, u := range w.rooms {
				if u.ended && len(u.open) > 0 {
					held++
				}
			}
		}
		// Every room ends, and the provider says of every write that it is over.
		for room := range uint64(5) {
			step(AbortRoom{Room: room})
		}
		now += uint64(time.Hour.Milliseconds())
		step(Tick{})
		for _, token := range open() {
			step(WriteDone{Token: token, Outcome: WriteUncertain})
			step(WriteDone{Token: token, Outcome: WriteDrained})
		}
		for _, seq := range sortedKeys(w.rooms) {
			u := w.rooms[seq]
			posted += u.posted
			if len(u.open) > 0 || u.posted > 0 && (u.released != 1 || u.told != 1) {
				t.Fatalf("room_seq %d, at the end: %+v", seq, *u)
			}
		}
	})
	if posted == 0 || held == 0 {
		t.Errorf("%d writes were posted, %d times an ended room was held: nothing was shown", posted, held)
	}
}
