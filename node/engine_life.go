package node

import (
	"context"
	"sync"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// engineClock runs while no engine watches, after one has.
type engineClock struct {
	mu    sync.Mutex
	timer *time.Timer
	// gone: the engine has not come back in time. What it left is let go as soon
	// as no room needs it.
	gone bool
}

// kept: an engine is there, or registers its memory.
func (c *engineClock) kept() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	c.gone = false
}

func (c *engineClock) isGone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone
}

// engineCame stops the clock.
func (n *Node) engineCame() { n.engines.kept() }

// engineGone starts it: an engine that does not come back in time has no use
// for its rooms any more (events.md, terminal outcomes).
func (n *Node) engineGone() {
	n.engines.mu.Lock()
	defer n.engines.mu.Unlock()
	if after := n.live.Load().engineTimeout; n.engines.timer == nil && after > 0 && n.life.Err() == nil {
		n.engines.timer = time.AfterFunc(after, n.engineLost)
	}
}

// engineLost ends what the engine left: its open rooms are aborted, its ended
// ones finished or cleared; its memory goes with the last of them.
func (n *Node) engineLost() {
	if n.hub.watchers() > 0 || n.life.Err() != nil {
		return
	}
	n.engines.mu.Lock()
	n.engines.gone = true
	n.engines.mu.Unlock()
	n.log.Warn("the engine has not come back", "engine_timeout", n.live.Load().engineTimeout)
	n.dropChunks(0)
	var cmds []projector.Command
	err := n.loop.see(func(m *projector.Machine, _ uint64) {
		for _, v := range m.RoomViews() {
			prefill := m.State().PRooms[v.RoomSeq] != nil
			switch {
			case v.State == "succeeded" && !prefill:
				cmds = append(cmds, projector.FinishRoom{Room: v.Room})
			case prefill && (v.State == "succeeded" || v.State == "failed"):
				cmds = append(cmds, projector.ClearRoom{Room: v.Room})
			case prefill: // aborts it, and forgets it
				cmds = append(cmds,
					projector.AbortRoom{Room: v.Room, Reason: "the engine went away", Cause: events.AbortCause_ABORT_CAUSE_ENGINE_LOST},
					projector.ClearRoom{Room: v.Room})
			case v.State != "held" && v.State != "quarantined":
				cmds = append(cmds, projector.AbortRoom{Room: v.Room, Reason: "the engine went away", Cause: events.AbortCause_ABORT_CAUSE_ENGINE_LOST})
			}
		}
	})
	if err != nil {
		return
	}
	for _, c := range cmds {
		n.loop.tell(c)
	}
	n.roomLeft()
}

// roomLeft looks whether the memory of an engine that is gone can go. It does
// not wait: it is called from the outbox.
func (n *Node) roomLeft() {
	if n.engines.isGone() && n.life.Err() == nil {
		n.background.Go(n.letMemoryGo)
	}
}

// letMemoryGo unmaps what an engine that is gone had registered, when no room
// holds a page of it and no write reads from it. Whoever comes next registers
// its own.
func (n *Node) letMemoryGo() {
	n.memoryMu.Lock()
	defer n.memoryMu.Unlock()
	ctx, cancel := context.WithTimeout(n.life, revokeTime)
	defer cancel()
	var names []string
	for i := range n.cfg.Ranks {
		if n.memory.rank(i) != nil {
			names = append(names, memoryName(i))
		}
	}
	if len(names) == 0 || !n.engines.isGone() {
		return
	}
	_, err := n.loop.ask(ctx, task{durable: true, build: func(m *projector.Machine) ([]projector.Command, *projector.Refusal) {
		if inUse(m) {
			return nil, &projector.Refusal{Word: "pages_busy", Detail: "rooms still need the memory"}
		}
		n.offered.Store(false) // no room can be opened behind this
		return []projector.Command{projector.MemoryRemoved{Names: names, Reason: "the engine went away"}}, nil
	}})
	if err != nil {
		return // the last room that leaves asks again
	}
	if n.receive != nil {
		err = n.receive.revokeAll()
	}
	for i := range n.cfg.Ranks {
		if m := n.memory.rank(i); m != nil {
			err = errors.CombineErrors(err, m.deregister(ctx))
		}
	}
	if err != nil { // a key may still be good: the mapping stays until the node ends
		n.log.Error("the memory of the engine stays mapped", "err", err)
		return
	}
	if err := n.memory.letGo(); err != nil {
		n.log.Error("unmap the engine's memory", "err", err)
		return
	}
	n.log.Info("the engine's memory was let go", "ranks", len(names))
}

// inUse: a room holds pages, or a write of ours reads from source pages.
func inUse(m *projector.Machine) bool {
	st := m.State()
	if len(st.Rooms) > 0 {
		return true
	}
	for _, r := range st.PRooms {
		if r.Outcome == projector.OutcomeNone || len(r.Tokens) > 0 {
			return true
		}
	}
	return false
}
