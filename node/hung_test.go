package node

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/rdma"
)

const (
	hungWorkers = 8 // destinations, each with a writer of its own
	hungRooms   = 1 << 20
	hungPages   = 4
)

// hungDomain is a provider whose writes take wire, and of which those to rooms
// from hungRooms on never end. It has a real provider's queue: what hangs has
// left it.
type hungDomain struct {
	rdma.Domain
	wire time.Duration
	end  func(rdma.Completion)
	hung func(rdma.Tag) bool
}

type hungEndpoint struct {
	rdma.Endpoint
	d *hungDomain
}

func (d *hungDomain) Connect(context.Context, rdma.PeerInfo) (rdma.Endpoint, error) {
	return &hungEndpoint{d: d}, nil
}

func (e *hungEndpoint) Err() error            { return nil }
func (e *hungEndpoint) Seal(rdma.Tag)         {}
func (e *hungEndpoint) Cancel(rdma.Tag)       {}
func (e *hungEndpoint) Forget(rdma.Tag) error { return nil }

func (e *hungEndpoint) PostBatch(b rdma.Batch) (rdma.Transfer, error) {
	if !e.d.hung(b.Tag) {
		time.AfterFunc(e.d.wire, func() {
			e.d.end(rdma.Completion{Token: b.Token, Tag: b.Tag, Status: rdma.Completed})
		})
	}
	return rdma.Transfer{}, nil
}

// hungLog is durable at once.
type hungLog struct{ out *outbox }

func (l *hungLog) Append(evs []*events.Event, _ events.Class) error {
	if len(evs) > 0 {
		l.out.advance(evs[len(evs)-1].Seq)
	}
	return nil
}

func (*hungLog) Full() bool { return false }

// hungPrefill is a prefill node's loop, outbox and data plane, without sockets
// and disk: all that a transfer passes through.
type hungPrefill struct {
	loop  *loop
	out   *outbox
	plane *postPlane

	mu   sync.Mutex
	hung map[rdma.Tag]bool        // by room_seq
	done map[uint64]chan struct{} // by room: its status leaves
}

func startHungPrefill(t testing.TB, wire time.Duration) *hungPrefill {
	t.Helper()
	h := &hungPrefill{hung: map[rdma.Tag]bool{}, done: map[uint64]chan struct{}{}}
	memory := newMemoryTable(1)
	memory.ranks[0] = &rankMemory{layout: layout{pageBytes: 64, pages: hungPages}, kv: make([]byte, 64*hungPages)}
	h.plane = newPostPlane(memory, newShapes(TopologyConfig{TPSize: 1, PPSize: 1}), func(c projector.Command) { h.loop.tell(c) }, slog.New(slog.DiscardHandler))
	h.plane.domain = &hungDomain{wire: wire, end: h.plane.complete, hung: func(tag rdma.Tag) bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.hung[tag]
	}}
	h.out = newOutbox(0, h.perform)
	c := projector.DefaultConfig()
	c.Node, c.Role, c.Ranks = "p0", events.Role_ROLE_PREFILL, []projector.LocalRank{{Address: "10.0.0.2:1"}}
	h.loop = &loop{
		m: projector.New(c), log: &hungLog{h.out}, clock: startClock(0), out: h.out, fail: func(err error) { t.Error(err) },
		queue: make(chan task, queueLen), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go h.out.run()
	go h.loop.run()
	h.loop.tell(projector.Start{Boot: 1, Incarnation: 1, LogID: make([]byte, 16), GenerationBase: 1})
	for i := range hungWorkers {
		h.loop.tell(projector.WireRegister{At: "p0/0", Address: hungAddress(i), Session: "s", Ext: hungExt(i, 0)})
	}
	return h
}

func (h *hungPrefill) close() {
	close(h.loop.stop)
	<-h.loop.done
	h.out.close()
	h.plane.close()
}

func hungAddress(worker int) string { return fmt.Sprintf("10.0.0.1:%d", 5000+worker) }

func hungExt(worker int, roomSeq uint64) *projector.Ext {
	return &projector.Ext{
		Node: fmt.Sprintf("d%d", worker), Boot: uint64(worker) + 1, Incarnation: 1, RoomSeq: roomSeq,
		Keys: []*events.WriteKey{{Kind: keyKV, Provider: "hung", Endpoint: hungAddress(worker), Key: []byte("k")}},
	}
}

func (h *hungPrefill) perform(a projector.Action, seq uint64) {
	switch a := a.(type) {
	case projector.PostWrite:
		if a.Room >= hungRooms {
			h.mu.Lock()
			h.hung[rdma.Tag(a.RoomSeq)] = true
			h.mu.Unlock()
		}
		h.plane.post(a, seq)
	case projector.SealRoom:
		h.plane.seal(a.RoomSeq)
	case projector.SendStatus:
		h.mu.Lock()
		if c := h.done[a.Room]; c != nil {
			close(c)
			delete(h.done, a.Room)
		}
		h.mu.Unlock()
	}
}

// send hands over a room's only chunk.
func (h *hungPrefill) send(room uint64) {
	worker := int(room % hungWorkers)
	h.loop.tell(projector.WireMetadata{
		At: "p0/0", Room: room, Address: hungAddress(worker), Session: "s", Pages: []uint32{1}, Required: 1, Ext: hungExt(worker, room+1),
	})
	h.loop.tell(projector.SendChunk{Room: room, Rank: "p0/0", Count: 1, SourcePages: []uint32{2}, Last: true})
}

// latencies sends healthy rooms, one at a time and one each pause, beside hung
// ones that were sent before, and gives how long each took from its metadata to
// its status.
func (h *hungPrefill) latencies(hung, healthy int, pause time.Duration) []time.Duration {
	for i := range hung {
		h.send(hungRooms + uint64(i))
	}
	took := make([]time.Duration, 0, healthy)
	for room := range uint64(healthy) {
		done := make(chan struct{})
		h.mu.Lock()
		h.done[room+1] = done
		h.mu.Unlock()
		began := time.Now()
		h.send(room + 1)
		<-done
		took = append(took, time.Since(began))
		time.Sleep(pause) // the hung ones come to their time limit meanwhile
	}
	return took
}

// open counts the tokens of all rooms.
func (h *hungPrefill) open() int {
	n := 0
	_ = h.loop.see(func(m *projector.Machine, _ uint64) {
		for _, r := range m.State().PRooms {
			n += len(r.Tokens)
		}
	})
	return n
}

// A transfer that never ends blocks no worker: on a virtual clock, where any
// wait for it would be seen to the nanosecond, healthy rooms to the same
// destinations take as long as without it, before its time limit and after
// (F43, I12).
func TestHungTransfersDelayNoHealthyRoom(t *testing.T) {
	const wire, healthy = 10 * time.Millisecond, 160
	pause := 2 * projector.DefaultConfig().TransferTimeout / healthy
	for _, hung := range []int{0, 100, 1000} {
		synctest.Test(t, func(t *testing.T) {
			h := startHungPrefill(t, wire)
			defer h.close()
			took := h.latencies(hung, healthy, pause)
			if slices.Max(took) != wire || slices.Min(took) != wire {
				t.Errorf("beside %d hung transfers healthy rooms take %s to %s, without any %s", hung, slices.Min(took), slices.Max(took), wire)
			}
			if open := h.open(); open != hung {
				t.Errorf("%d writes are open, want the %d that hang", open, hung)
			}
		})
	}
}

// The same on the real clock, as a ratio of 99th percentiles to a run without
// hung transfers.
func BenchmarkHealthyRoomsBesideHungOnes(b *testing.B) {
	for _, hung := range []int{100, 1000} {
		b.Run(fmt.Sprint(hung), func(b *testing.B) {
			ratio := math.Inf(1)
			for b.Loop() {
				ratio = min(ratio, hungP99(b, hung)/hungP99(b, 0))
			}
			b.ReportMetric(ratio, "p99-ratio")
		})
	}
}

func hungP99(b *testing.B, hung int) float64 {
	b.Helper()
	h := startHungPrefill(b, time.Millisecond)
	defer h.close()
	took := h.latencies(hung, 500, 0)
	slices.Sort(took)
	return float64(took[len(took)*99/100])
}
