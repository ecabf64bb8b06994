package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"

	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/rdma"
)

const (
	workers   = 512 // rooms at once
	pageBytes = 256
	poolPages = 4096
	auxRows   = 4096
	auxBytes  = 64
	ofWorker  = poolPages / workers
)

// engines are both nodes' engines: workers that let rooms begin and end.
type engines struct {
	p, d   *node
	limit  *rate.Limiter
	cancel context.CancelFunc
	wg     sync.WaitGroup
	end    chan struct{} // no new rooms

	mu    sync.Mutex
	boxes map[key]chan *enginepb.Notice

	number, ended, succeeded, aborted, failed, refused atomic.Uint64
}

// key is a room on one side.
type key struct {
	decode bool
	room   uint64
}

func newEngines(t *testing.T, p, d *node) *engines {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	e := &engines{p: p, d: d, cancel: cancel, end: make(chan struct{}), boxes: map[key]chan *enginepb.Notice{}}
	t.Cleanup(func() { cancel(); e.wg.Wait() })
	for _, n := range []*node{p, d} {
		m, err := rdma.AllocMemfd("soak-"+n.name, poolPages*pageBytes+auxRows*auxBytes)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		if _, err := n.client.Passing(m.FD()).RegisterMemory(ctx, connect.NewRequest(&enginepb.RegisterMemoryRequest{
			PassedFd: true, PageBytes: pageBytes, Pages: poolPages, AuxBytes: auxBytes, AuxRows: auxRows,
		})); err != nil {
			t.Fatal(err)
		}
		e.watch(ctx, t, n)
	}
	eventually(t, "d0 knows p0", func() bool {
		r, err := d.client.Peers(ctx, connect.NewRequest(&enginepb.PeersRequest{}))
		return err == nil && len(r.Msg.GetPeers()) == 1 && len(r.Msg.GetPeers()[0].GetRanks()) == 1
	})
	return e
}

// watch spreads a node's notices to the workers, and acknowledges them.
func (e *engines) watch(ctx context.Context, t *testing.T, n *node) {
	t.Helper()
	st, err := n.client.Watch(ctx, connect.NewRequest(&enginepb.WatchRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	var last atomic.Uint64
	e.wg.Go(func() {
		defer func() { _ = st.Close() }()
		for st.Receive() {
			m := st.Msg()
			last.Store(m.GetSeq())
			e.mu.Lock()
			box := e.boxes[key{n == e.d, m.GetRoom()}]
			e.mu.Unlock()
			if box != nil {
				box <- m // it holds all that a room is told
			}
		}
	})
	e.wg.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_, _ = n.client.Acknowledge(ctx, connect.NewRequest(&enginepb.AcknowledgeRequest{Seq: last.Load()}))
			case <-ctx.Done():
				return
			}
		}
	})
}

func (e *engines) box(k key) chan *enginepb.Notice {
	b := make(chan *enginepb.Notice, 64)
	e.mu.Lock()
	e.boxes[k] = b
	e.mu.Unlock()
	return b
}

func (e *engines) drop(k key) {
	e.mu.Lock()
	delete(e.boxes, k)
	e.mu.Unlock()
}

// start lets rooms come at that rate.
func (e *engines) start(perSecond float64) {
	e.limit = rate.NewLimiter(rate.Limit(perSecond), 16)
	ctx, cancel := context.WithCancel(context.Background())
	e.wg.Go(func() { <-e.end; cancel() })
	for w := range workers {
		e.wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 7)) //nolint:gosec // dice
			for e.limit.Wait(ctx) == nil {
				e.one(w, rng)
			}
		})
	}
}

// stop lets what has begun end.
func (e *engines) stop(t *testing.T) {
	t.Helper()
	close(e.end)
	eventually(t, "all rooms have ended", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.boxes) == 0
	})
}

// longest is how long a room may take: every deadline of the nodes is shorter.
const longest = 40 * time.Second

// one is the life of a room on both sides.
func (e *engines) one(w int, rng *rand.Rand) {
	room := 1 + e.number.Add(1)
	count := 1 + rng.IntN(4)
	pages := make([]uint32, count)
	for i := range pages {
		pages[i] = uint32(w*ofWorker + i) //nolint:gosec // small
	}
	abortAfter := time.Duration(-1)
	if rng.IntN(10) == 0 {
		abortAfter = time.Duration(rng.IntN(int(20 * time.Millisecond)))
	}
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	dk, pk := key{true, room}, key{false, room}
	dbox, pbox := e.box(dk), e.box(pk)
	defer e.drop(dk)
	var prefill sync.WaitGroup
	prefill.Go(func() {
		defer e.drop(pk)
		e.send(ctx, room, pages, pbox)
	})
	defer prefill.Wait()
	if _, err := e.d.client.OpenReceive(ctx, connect.NewRequest(&enginepb.OpenReceiveRequest{Room: room, Pages: pages, Prefill: "p0"})); err != nil {
		e.refused.Add(1)
		_, _ = e.p.client.Abort(ctx, connect.NewRequest(&enginepb.AbortRequest{Room: room, Reason: "refused"}))
		return
	}
	var due <-chan time.Time
	if abortAfter >= 0 {
		due = time.After(abortAfter)
	}
	said := false
	for {
		select {
		case <-due:
			_, _ = e.d.client.Abort(ctx, connect.NewRequest(&enginepb.AbortRequest{Room: room, Reason: "client went away"}))
			due = nil
		case n := <-dbox:
			switch n.GetKind() {
			case enginepb.Notice_KIND_SUCCEEDED:
				if !said {
					e.succeeded.Add(1)
				}
				said, due = true, nil
				_, _ = e.d.client.Finish(ctx, connect.NewRequest(&enginepb.RoomRequest{Room: room}))
			case enginepb.Notice_KIND_FAILED:
				if n.GetCause() == "client" {
					e.aborted.Add(1)
				} else {
					e.failed.Add(1)
				}
				said, due = true, nil
			case enginepb.Notice_KIND_RELEASED:
				e.ended.Add(1)
				return
			default:
			}
		case <-ctx.Done():
			panic(fmt.Sprintf("room %d has not ended in %s", room, longest))
		}
	}
}

// send is the room's prefill side.
func (e *engines) send(ctx context.Context, room uint64, pages []uint32, box chan *enginepb.Notice) {
	if _, err := e.p.client.OpenSend(ctx, connect.NewRequest(&enginepb.OpenSendRequest{Room: room, Ranks: []uint32{0}})); err != nil {
		return
	}
	for {
		select {
		case n := <-box:
			switch n.GetKind() {
			case enginepb.Notice_KIND_READY:
				half := len(pages) / 2
				for k, part := range [][]uint32{pages[:half], pages[half:]} {
					if len(part) == 0 {
						continue
					}
					_, _ = e.p.client.SendChunk(ctx, connect.NewRequest(&enginepb.SendChunkRequest{
						Room: room, Chunk: uint32(k), First: uint32(k * half), Count: uint32(len(part)), //nolint:gosec // small
						SourcePages: part, SourceAux: part[0], Last: k == 1,
					}))
				}
			case enginepb.Notice_KIND_SUCCEEDED, enginepb.Notice_KIND_FAILED:
				_, _ = e.p.client.Clear(ctx, connect.NewRequest(&enginepb.RoomRequest{Room: room}))
				return
			default:
			}
		case <-ctx.Done():
			panic(fmt.Sprintf("room %d has not ended on the prefill side in %s", room, longest))
		}
	}
}
