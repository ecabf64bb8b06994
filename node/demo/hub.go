package demo

import (
	"context"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/node/engineclient"
	"github.com/pdlog/pdlog/node/enginepb"
)

// hub spreads the notices of a node to the goroutines that serve its rooms, by
// room incarnation. A notice may come before the call that opened the room has
// returned; it waits then. Safe for concurrent use.
type hub struct {
	mu    sync.Mutex
	rooms map[uint64]*inbox // by room_seq
	// onRestart is called when the node is back after having been away, before
	// its notices are read.
	onRestart func(context.Context) error
	live      chan struct{} // closed while a stream is up and caught up
}

// inbox holds what was told of one room incarnation and not yet read.
type inbox struct {
	mu    sync.Mutex
	queue []*enginepb.Notice
	wake  chan struct{} // capacity 1
}

func newHub() *hub {
	return &hub{rooms: map[uint64]*inbox{}, live: make(chan struct{})}
}

// room is the inbox of an incarnation, made on first use by either side.
func (h *hub) room(seq uint64) *inbox {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.rooms[seq]
	if b == nil {
		b = &inbox{wake: make(chan struct{}, 1)}
		h.rooms[seq] = b
	}
	return b
}

// down: the stream has ended.
func (h *hub) down() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.live = make(chan struct{})
}

// awaitLive waits until the node has our memory and we hear what it tells: no
// room is opened before. A node that is back takes rooms earlier than that, but
// its peers do not know it yet.
func (h *hub) awaitLive(ctx context.Context) error {
	h.mu.Lock()
	live := h.live
	h.mu.Unlock()
	select {
	case <-live:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *hub) forget(seq uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.rooms, seq)
}

func (b *inbox) push(n *enginepb.Notice) {
	b.mu.Lock()
	b.queue = append(b.queue, n)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// pop takes the oldest notice, nil if there is none. Wait on wake first.
func (b *inbox) pop() *enginepb.Notice {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		return nil
	}
	n := b.queue[0]
	b.queue = b.queue[1:]
	if len(b.queue) > 0 { // more to read: keep the bell rung
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
	return n
}

// run watches the node until ctx ends, through restarts of the node.
func (h *hub) run(ctx context.Context, c *engineclient.Client) {
	for first := true; ctx.Err() == nil; first = false {
		if !first {
			t := time.NewTimer(retryFirst)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return
			}
			if h.onRestart != nil && h.onRestart(ctx) != nil {
				continue
			}
		}
		h.watch(ctx, c)
	}
}

// watch reads one stream to its end. After a restart the stream begins with
// the rooms that the node still holds: one that is not among them was released
// while nobody listened.
func (h *hub) watch(ctx context.Context, c *engineclient.Client) {
	// Before the call: a room that is opened while it is made is not of the past.
	h.mu.Lock()
	unseen := make(map[uint64]bool, len(h.rooms))
	for seq := range h.rooms {
		unseen[seq] = true
	}
	h.mu.Unlock()
	st, err := c.Watch(ctx, connect.NewRequest(&enginepb.WatchRequest{}))
	if err != nil {
		return
	}
	defer func() { _ = st.Close() }()
	for st.Receive() {
		n := st.Msg()
		switch n.GetKind() {
		case enginepb.Notice_KIND_CAUGHT_UP: // once a stream
			for seq := range unseen {
				h.room(seq).push(&enginepb.Notice{Kind: kindGone, RoomSeq: seq, Resumed: true})
			}
			unseen = nil
			h.mu.Lock()
			close(h.live)
			h.mu.Unlock()
			defer h.down()
		case enginepb.Notice_KIND_STOPPING, enginepb.Notice_KIND_LOG_FAILED:
			// No room's own news; what follows from it is told room by room.
		default:
			if unseen != nil {
				delete(unseen, n.GetRoomSeq())
			}
			h.room(n.GetRoomSeq()).push(n)
		}
	}
}

// kindGone is our own: the node no longer holds the room.
const kindGone = enginepb.Notice_Kind(-1)
