package demo

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/node/engineclient"
	"github.com/pdlog/pdlog/node/enginepb"
)

// EngineConfig is what a stand-in process is started with.
type EngineConfig struct {
	Role   string // prefill or decode
	Socket string // of its node
	Plan   string // file, written by Plan.Save
}

// engine is what both stand-ins are made of.
type engine struct {
	plan  *Plan
	node  string // name of its node
	ranks int
	pool  *Pool
	mem   []*memory // by rank
	c     *engineclient.Client
	hub   *hub
	link  *link
	cpu   chan struct{} // a slot per core: filling and checking pages

	mu     sync.Mutex
	report EngineReport
	moved  time.Time // when pages last came back or a request last ended
}

// touch notes that something moved.
func (e *engine) touch() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.moved = time.Now()
}

// still is how long nothing has moved.
func (e *engine) still() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Since(e.moved)
}

// RunEngine is a stand-in's life: it registers memory with its node, says that
// it is ready, does what the plan and the other stand-in's messages say, and
// ends when in ends or ctx does. Messages go to out.
func RunEngine(ctx context.Context, cfg EngineConfig, in io.Reader, out io.Writer) error {
	plan, err := LoadPlan(cfg.Plan)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e := &engine{
		plan: plan, c: engineclient.Dial(cfg.Socket), hub: newHub(), link: newLink(in, out),
		cpu: make(chan struct{}, max(runtime.GOMAXPROCS(0), 2)),
	}
	defer e.c.CloseIdle()
	e.report.Total = len(plan.Items)
	var work interface {
		run(ctx context.Context)
		hear(ctx context.Context, m Message)
	}
	switch cfg.Role {
	case "decode":
		e.node, e.ranks, e.pool = plan.DecodeNode, plan.DecodeRanks, NewPool(plan.Pages)
		work = newDecodeEngine(e)
	case "prefill":
		e.node, e.ranks, e.pool = plan.PrefillNode, plan.PrefillRanks, NewPool(plan.SourcePages)
		work = newPrefillEngine(e)
	default:
		return errors.Newf("engine role %q is neither prefill nor decode", cfg.Role)
	}
	if err := e.makeMemory(); err != nil {
		return e.fatal(err)
	}
	if err := e.register(ctx); err != nil {
		return e.fatal(errors.Wrap(err, "register memory"))
	}
	e.hub.onRestart = e.register
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { e.hub.run(ctx, e.c) })
	if err := e.hub.awaitLive(ctx); err != nil { // nothing of the first rooms may be missed
		return err
	}
	if err := e.link.send(Message{Kind: msgReady}); err != nil {
		return err
	}
	for {
		m, err := e.link.receive()
		if err != nil { // the supervisor closed the link, or is gone
			return nil //nolint:nilerr // that is how a stand-in is told to end
		}
		if m.Kind == msgStart {
			wg.Go(func() { work.run(ctx) })
			continue
		}
		work.hear(ctx, m)
	}
}

func (e *engine) fatal(err error) error {
	_ = e.link.send(Message{Kind: msgFatal, Text: err.Error()})
	return err
}

// rankBytes is the part of a page that one rank of this side holds: the ranks
// of a side cut each page into equal, contiguous parts, in order.
func (e *engine) rankBytes() int { return e.plan.PageBytes / e.ranks }

func (e *engine) rankName(rank int) string { return e.node + "/" + strconv.Itoa(rank) }

func (e *engine) makeMemory() error {
	for r := range e.ranks {
		m, err := newMemory(fmt.Sprintf("pdlog-demo-%s-%d", e.node, r), e.rankBytes(), e.pool.Size(), e.plan.AuxRows)
		if err != nil {
			return err
		}
		e.mem = append(e.mem, m)
	}
	return nil
}

func (e *engine) register(ctx context.Context) error {
	for r, m := range e.mem {
		req := &enginepb.RegisterMemoryRequest{
			Rank: uint32(r), Path: m.path(), //nolint:gosec // few ranks
			PageBytes: uint64(m.pageBytes), Pages: uint64(m.pages), //nolint:gosec // positive
			AuxBytes: auxBytes, AuxRows: uint64(m.auxRows), //nolint:gosec // positive
		}
		err := persist(ctx, func(bool) error {
			_, err := e.c.RegisterMemory(ctx, connect.NewRequest(req))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// withCPU runs fn on one of the slots for byte work.
func (e *engine) withCPU(ctx context.Context, fn func()) {
	select {
	case e.cpu <- struct{}{}:
		defer func() { <-e.cpu }()
		fn()
	case <-ctx.Done():
	}
}

// call makes a room call that is safe to repeat; refusals are not errors of
// ours: the room may have ended in the meantime.
func (e *engine) call(ctx context.Context, fn func(context.Context) error) error {
	err := persist(ctx, func(bool) error { return fn(ctx) })
	if refusedWith(err) != "" {
		return nil
	}
	return err
}

func (e *engine) abort(ctx context.Context, room uint64, reason string) error {
	return e.call(ctx, func(ctx context.Context) error {
		_, err := e.c.Abort(ctx, connect.NewRequest(&enginepb.AbortRequest{Room: room, Reason: reason}))
		return err
	})
}

// count changes the report.
func (e *engine) count(fn func(r *EngineReport)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	fn(&e.report)
}

func (e *engine) failed(why string) {
	e.count(func(r *EngineReport) {
		r.Failed++
		if r.Faults == nil {
			r.Faults = map[string]int{}
		}
		r.Faults[why]++
	})
}

// snapshot is the report as it stands.
func (e *engine) snapshot() *EngineReport {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.report
	r.Corrupt = append([]RoomPage(nil), e.report.Corrupt...)
	r.Found = append([]Found(nil), e.report.Found...)
	r.Faults = make(map[string]int, len(e.report.Faults))
	for k, v := range e.report.Faults {
		r.Faults[k] = v
	}
	r.Taken = e.pool.Taken()
	return &r
}

// giveBack returns pages to the pool; a refusal is a finding, not a crash.
func (e *engine) giveBack(pages []uint32) {
	e.touch()
	if err := e.pool.Put(pages); err != nil {
		e.count(func(r *EngineReport) { r.PoolFault = err.Error() })
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
