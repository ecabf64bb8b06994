package node

import (
	"context"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
)

// send posts every page of a ready room as a chunk of its own, from the source
// pages with the same numbers.
func (b *PairBench) send(room uint64, slot int) error {
	pages := b.slot(slot)
	for k, page := range pages {
		err := b.prefill.loop.submit(task{cmd: projector.SendChunk{
			Room: room, Rank: benchPair[0].Rank, Chunk: uint32(k), First: uint32(k), Count: 1, //nolint:gosec // below the pages of a room
			SourcePages: []uint32{page}, Bytes: uint64(b.shape.PageBytes), Last: k == len(pages)-1, //nolint:gosec // positive
		}})
		if err != nil {
			return err
		}
	}
	return nil
}

// Transfer runs rooms from opening to release for about d, as many at once as
// the shape allows, and gives the bytes of those that succeeded, per second.
func (b *PairBench) Transfer(ctx context.Context, d time.Duration) (float64, error) {
	slots := make(map[uint64]int, b.shape.Rooms) // of the open rooms
	open := func(slot int) error {
		if err := b.openSlot(ctx, slot); err != nil {
			return err
		}
		slots[b.next] = slot
		return nil
	}
	began, done := time.Now(), 0
	for slot := range b.shape.Rooms {
		if err := open(slot); err != nil {
			return 0, err
		}
	}
	for len(slots) > 0 {
		select {
		case m, ok := <-b.ready.ch:
			if !ok {
				return 0, errNotices
			}
			if slot, open := slots[m.Room]; open && m.Kind == enginepb.Notice_KIND_READY {
				if err := b.send(m.Room, slot); err != nil {
					return 0, err
				}
			}
		case m, ok := <-b.freed.ch:
			if !ok {
				return 0, errNotices
			}
			switch m.Kind {
			case enginepb.Notice_KIND_FAILED:
				return 0, errors.Newf("room %d failed: %s", m.Room, m.Reason)
			case enginepb.Notice_KIND_SUCCEEDED:
				done++
				if err := b.decode.loop.submit(task{cmd: projector.FinishRoom{Room: m.Room}}); err != nil {
					return 0, err
				}
			case enginepb.Notice_KIND_RELEASED:
				slot := slots[m.Room]
				delete(slots, m.Room)
				if time.Since(began) >= d {
					continue
				}
				if err := open(slot); err != nil {
					return 0, err
				}
			}
		case <-ctx.Done():
			return 0, errors.Wrap(ctx.Err(), "transfer")
		}
	}
	bytes := float64(done) * float64(b.shape.RoomPages) * float64(b.shape.PageBytes)
	return bytes / time.Since(began).Seconds(), nil
}

var errNotices = errors.New("the node has ended, or its notices were not read in time")

// AbortInFlight aborts n rooms, one after the other, while a write of each is
// under way that lands after the given time, by the fault "late". It gives the
// time from the write's landing to the notice that the pages are free.
func (b *PairBench) AbortInFlight(ctx context.Context, n int, held time.Duration) ([]time.Duration, error) {
	var beyond []time.Duration
	for range n {
		if err := b.Open(ctx, 1); err != nil {
			return nil, err
		}
		began := time.Now() // a write is posted within microseconds, and waits for no commit
		if err := b.send(b.next, 0); err != nil {
			return nil, err
		}
		// The provider has said that it does not know the write's end: it was posted.
		if _, err := await(ctx, b.ready, enginepb.Notice_KIND_FAILED); err != nil {
			return nil, err
		}
		if _, err := b.abort(ctx, 1, 1); err != nil {
			return nil, err
		}
		free := time.Since(began)
		if free < held {
			return nil, errors.Newf("pages were free %v after a write was sent that lands after %v", free, held)
		}
		beyond = append(beyond, free-held)
	}
	return beyond, nil
}
