package demo

import (
	"context"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/store"
)

// tally is what the logs say happened. The zero value is not usable.
type tally struct {
	events map[string]uint64 // by node

	// Decode, by room_seq.
	opened   map[uint64]bool
	released map[uint64]events.Basis
	armedMS  map[uint64]uint64
	waits    []uint64 // AbortArmed to Released, ms
	corrupt  map[RoomPage]bool
	unsafe   int
	bytes    uint64 // that landed

	// Prefill, by room_seq.
	aborted map[uint64]bool // AbortReceived seen
	// inFlight: a write of the room ended after its abort had come in.
	inFlight map[uint64]bool
}

func newTally() *tally {
	return &tally{
		events: map[string]uint64{}, opened: map[uint64]bool{}, released: map[uint64]events.Basis{},
		armedMS: map[uint64]uint64{}, corrupt: map[RoomPage]bool{},
		aborted: map[uint64]bool{}, inFlight: map[uint64]bool{},
	}
}

// add takes the next event of a node's log, in order.
func (t *tally) add(e *events.Event) {
	t.events[e.Node]++
	switch p := e.Payload.(type) {
	case *events.Event_PagesReserved:
		t.opened[e.RoomSeq] = true
	case *events.Event_AbortArmed:
		if _, again := t.armedMS[e.RoomSeq]; !again {
			t.armedMS[e.RoomSeq] = e.Clock()
		}
	case *events.Event_Released:
		t.released[e.RoomSeq] = p.Released.GetBasis()
		if p.Released.GetUnsafe() {
			t.unsafe++
		}
		if at, ok := t.armedMS[e.RoomSeq]; ok {
			t.waits = append(t.waits, e.Clock()-min(at, e.Clock()))
		}
	case *events.Event_PageCheckFailed:
		t.corrupt[RoomPage{e.RoomSeq, p.PageCheckFailed.GetPage()}] = true
	case *events.Event_WriteLanded:
		t.bytes += p.WriteLanded.GetBytes()
	case *events.Event_AbortReceived:
		t.aborted[e.RoomSeq] = true
	case *events.Event_ChunkCompleted:
		if t.aborted[e.RoomSeq] {
			t.inFlight[e.RoomSeq] = true
		}
	}
}

// readDir adds a closed log.
func (t *tally) readDir(dir string) error {
	_, err := store.ReadDir(dir, 1, func(e *events.Event) error { t.add(e); return nil })
	return errors.Wrapf(err, "read log %s", dir)
}

// readLive adds the durable log of a node that runs, as far as it goes now.
func (t *tally) readLive(ctx context.Context, c enginepb.EngineClient) error {
	var until uint64
	for from := uint64(1); ; {
		res, err := c.Events(ctx, connect.NewRequest(&enginepb.EventsRequest{FromSeq: from, Frames: true}))
		if err != nil {
			return errors.Wrap(err, "read the node's log")
		}
		if until == 0 {
			until = res.Msg.GetDurableSeq() // it goes on behind us; this is the end
		}
		if len(res.Msg.GetFrames()) == 0 || res.Msg.GetLastSeq() < from {
			return nil
		}
		_, _, err = events.DecodeFrames(res.Msg.GetFrames(), res.Msg.GetNode(), func(e *events.Event) error {
			if e.Seq >= from && e.Seq <= until {
				t.add(e)
			}
			return nil
		})
		if err != nil {
			return errors.Wrap(err, "read the node's log")
		}
		if from = res.Msg.GetLastSeq() + 1; from > until {
			return nil
		}
	}
}
