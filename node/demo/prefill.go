package demo

import (
	"context"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/node/enginepb"
)

// prefillEngine computes pages (it writes the pattern) and hands them to its
// node chunk by chunk, as a prefill engine does while it works through a prompt.
type prefillEngine struct {
	*engine
	wg      sync.WaitGroup
	ended   []chan struct{} // by request: our side of it has ended
	overall []chan struct{} // by request: the decode stand-in has its outcome
	once    []sync.Once
}

func newPrefillEngine(e *engine) *prefillEngine {
	p := &prefillEngine{engine: e, once: make([]sync.Once, len(e.plan.Items))}
	for range e.plan.Items {
		p.ended = append(p.ended, make(chan struct{}))
		p.overall = append(p.overall, make(chan struct{}))
	}
	return p
}

// ranks are all ranks of our node: each writes its part of every page.
func (p *prefillEngine) ranks() []uint32 {
	out := make([]uint32, p.plan.PrefillRanks)
	for i := range out {
		out[i] = uint32(i) //nolint:gosec // few
	}
	return out
}

// run waits for its requests; they come by hear.
func (p *prefillEngine) run(ctx context.Context) {
	<-ctx.Done()
	p.wg.Wait()
}

// hear takes a message of the decode stand-in. It is called by one goroutine.
func (p *prefillEngine) hear(ctx context.Context, m Message) {
	if m.Index < 0 || m.Index >= len(p.ended) {
		return
	}
	it := p.plan.Items[m.Index]
	switch m.Kind {
	case msgAdmitted:
		p.wg.Go(func() {
			defer close(p.ended[it.Index])
			p.serve(ctx, it)
		})
	case msgEnded:
		p.once[it.Index].Do(func() { close(p.overall[it.Index]) })
	}
}

const (
	// sourceWait: a request that gets no source pages in this time is given up.
	sourceWait = 20 * time.Second
	// goneAfter: when decode has ended a request and nothing came over the wire in
	// this time, we end our side too, as a router would have it.
	goneAfter = 2 * time.Second
	// unheardAfter: when our side has ended and decode has not in this time, it
	// cannot have heard (its node was away), and is told as a router would.
	unheardAfter = 5 * time.Second
	// tricklePace between chunks of a request whose abort is under way.
	tricklePace = time.Millisecond
)

// serve is the life of one request on the prefill side, up to its end there.
// Its source pages may be held longer.
func (p *prefillEngine) serve(ctx context.Context, it Item) {
	if it.Previous >= 0 {
		select {
		case <-p.ended[it.Previous]:
		case <-ctx.Done():
			return
		}
	}
	seq, err := p.open(ctx, it)
	if err != nil {
		if ctx.Err() == nil {
			p.failed("open refused: " + refusedWith(err))
			_ = p.link.send(Message{Kind: msgGiveUp, Index: it.Index, Text: err.Error()})
		}
		return
	}
	s := &sending{p: p, it: it, seq: seq, box: p.hub.room(seq), ready: make(chan struct{}), end: make(chan struct{}), free: make(chan struct{})}
	p.wg.Go(func() { s.listen(ctx) })
	take, cancel := context.WithTimeout(ctx, sourceWait)
	go func() { // a room that has failed needs no pages
		select {
		case <-s.end:
			cancel()
		case <-take.Done():
		}
	}()
	pages, err := p.pool.Take(take, it.Pages)
	cancel()
	if err == nil {
		s.pages = pages
		s.send(ctx)
	} else if !s.over() && ctx.Err() == nil {
		p.failed("no source pages")
		_ = p.link.send(Message{Kind: msgGiveUp, Index: it.Index, Text: "no source pages"})
	}
	s.untilEnd(ctx)
	_ = p.call(ctx, func(ctx context.Context) error {
		_, err := p.c.Clear(ctx, connect.NewRequest(&enginepb.RoomRequest{Room: it.Room}))
		return err
	})
	p.wg.Go(func() { s.giveBack(ctx) })
	p.wg.Go(func() { s.untilOverall(ctx) })
}

func (p *prefillEngine) open(ctx context.Context, it Item) (seq uint64, err error) {
	err = persist(ctx, func(bool) error {
		if err := p.hub.awaitLive(ctx); err != nil {
			return err
		}
		res, err := p.c.OpenSend(ctx, connect.NewRequest(&enginepb.OpenSendRequest{Room: it.Room, Ranks: p.ranks()}))
		if err == nil {
			seq = res.Msg.GetRoomSeq()
		}
		return err
	})
	return seq, err
}

// sending is a room that is open on the prefill side.
type sending struct {
	p     *prefillEngine
	it    Item
	seq   uint64
	pages []uint32 // source pages, the same numbers on each rank
	box   *inbox
	sent  bool // at least one chunk was taken by the node

	ready, end, free chan struct{}
}

// listen turns notices into closed channels until the source pages are free.
func (s *sending) listen(ctx context.Context) {
	defer s.p.hub.forget(s.seq)
	var ready, end, free sync.Once
	ranks := map[string]bool{} // that are ready
	shut := func(o *sync.Once, c chan struct{}) { o.Do(func() { close(c) }) }
	for {
		select {
		case <-s.box.wake:
		case <-ctx.Done():
			return
		}
		n := s.box.pop()
		switch n.GetKind() {
		case enginepb.Notice_KIND_READY:
			ranks[n.GetWho()] = true
			// Told rank by rank. A room with one chunk could end on the first rank
			// before the second knows of it, so all are waited for.
			if len(ranks) == len(s.p.mem) || n.GetWho() == "" {
				shut(&ready, s.ready)
			}
		case enginepb.Notice_KIND_SUCCEEDED:
			shut(&end, s.end)
		case enginepb.Notice_KIND_FAILED, enginepb.Notice_KIND_HELD:
			shut(&end, s.end)
		case enginepb.Notice_KIND_SOURCE_RELEASED, kindGone:
			shut(&end, s.end)
			shut(&free, s.free)
			return
		}
	}
}

func (s *sending) over() bool {
	select {
	case <-s.end:
		return true
	default:
		return false
	}
}

// send hands over the chunks. A request that is to be aborted in flight is sent
// up to its middle; then the decode stand-in is told to abort, chunks follow at
// a walking pace, and the last one only after the room has failed: it must not
// be posted any more (events.md I3).
func (s *sending) send(ctx context.Context) {
	select {
	case <-s.ready:
	case <-s.end:
		return
	case <-s.p.overall[s.it.Index]: // refused or aborted before it was published
		return
	case <-ctx.Done():
		return
	}
	n := s.it.Chunks()
	held := s.it.Abort == AbortInFlight
	fire := -1
	if held {
		fire = (n - 1) / 2
	}
	for k := range n {
		if held && k == n-1 {
			if n == 1 {
				_ = s.p.link.send(Message{Kind: msgAbort, Index: s.it.Index})
			}
			s.untilEnd(ctx)
		}
		if s.over() && !(held && k == n-1) {
			continue // the node would skip it; one is enough to show that
		}
		s.chunk(ctx, k, k == n-1)
		if k == fire && n > 1 {
			_ = s.p.link.send(Message{Kind: msgAbort, Index: s.it.Index})
		}
		if held && k > fire && !sleep(ctx, tricklePace) {
			return
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// chunk computes one chunk on every rank and hands it over.
func (s *sending) chunk(ctx context.Context, k int, last bool) {
	first := k * s.it.ChunkPages
	count := min(s.it.ChunkPages, len(s.pages)-first)
	src := s.pages[first : first+count]
	part := s.p.rankBytes()
	for r, m := range s.p.mem {
		s.p.withCPU(ctx, func() {
			for i, page := range src {
				st := Stamp{Room: s.it.Room, Use: s.it.Use, Position: uint32(first + i)} //nolint:gosec // few pages
				st.Fill(m.page(page), r*part)
			}
		})
		req := &enginepb.SendChunkRequest{ //nolint:gosec // small numbers
			Room: s.it.Room, Rank: uint32(r), Chunk: uint32(k),
			First: uint32(first), Count: uint32(count), SourcePages: src,
			SourceAux: uint32(s.it.Index % s.p.plan.AuxRows), Last: last,
		}
		err := persist(ctx, func(bool) error {
			_, err := s.p.c.SendChunk(ctx, connect.NewRequest(req))
			return err
		})
		if err == nil {
			s.sent = true
		}
	}
}

// untilEnd waits until the room has ended here. If decode has ended it long ago
// and nothing arrived, we end it ourselves.
func (s *sending) untilEnd(ctx context.Context) {
	overall := s.p.overall[s.it.Index]
	var late <-chan time.Time
	for {
		select {
		case <-s.end:
			return
		case <-overall:
			overall = nil
			t := time.NewTimer(goneAfter)
			defer t.Stop()
			late = t.C
		case <-late:
			if err := s.p.abort(ctx, s.it.Room, "decode is done with it"); errors.Is(err, context.Canceled) {
				return
			}
			late = time.After(goneAfter) // a lost notice must not hang the demo
		case <-ctx.Done():
			return
		}
	}
}

// untilOverall makes sure that decode ends what has ended here.
func (s *sending) untilOverall(ctx context.Context) {
	t := time.NewTimer(unheardAfter)
	defer t.Stop()
	select {
	case <-s.p.overall[s.it.Index]:
	case <-t.C:
		_ = s.p.link.send(Message{Kind: msgGiveUp, Index: s.it.Index, Text: "ended on the prefill side"})
	case <-ctx.Done():
	}
}

// giveBack returns the source pages when the node reads them no more.
func (s *sending) giveBack(ctx context.Context) {
	if s.pages == nil {
		return
	}
	if s.sent {
		select {
		case <-s.free:
		case <-ctx.Done():
			return
		}
	}
	s.p.giveBack(s.pages)
}
