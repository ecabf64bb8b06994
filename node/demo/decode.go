package demo

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/node/enginepb"
)

// decodeEngine admits requests when pages are free, opens their rooms, checks
// what arrives, and gives pages back the moment the node says so.
type decodeEngine struct {
	*engine
	active atomic.Int64    // requests that have pages and no outcome
	ended  []chan struct{} // by request: it has its outcome
	orders []chan string   // by request: the prefill stand-in's word: abort, or give up
}

func newDecodeEngine(e *engine) *decodeEngine {
	d := &decodeEngine{engine: e}
	for range e.plan.Items {
		d.ended = append(d.ended, make(chan struct{}))
		d.orders = append(d.orders, make(chan string, 2))
	}
	return d
}

// hear takes a message of the prefill stand-in.
func (d *decodeEngine) hear(_ context.Context, m Message) {
	if m.Kind == msgAgain {
		_ = d.link.send(Message{Kind: msgDone, Report: d.snapshot()})
		return
	}
	if (m.Kind != msgAbort && m.Kind != msgGiveUp) || m.Index < 0 || m.Index >= len(d.orders) {
		return
	}
	select {
	case d.orders[m.Index] <- m.Kind:
	default: // it was told already
	}
}

// progressEvery: fast enough for a progress bar.
const progressEvery = 200 * time.Millisecond

// run is the whole demo as the decode side sees it.
func (d *decodeEngine) run(ctx context.Context) {
	stop := make(chan struct{})
	var reporter sync.WaitGroup
	reporter.Go(func() {
		t := time.NewTicker(progressEvery)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				r := d.snapshot()
				r.Corrupt, r.Found, r.Taken = nil, nil, nil // long lists only at the end
				_ = d.link.send(Message{Kind: msgProgress, Report: r})
			case <-stop:
				return
			}
		}
	})
	var outcomes, rooms sync.WaitGroup
	d.admit(ctx, &outcomes, &rooms)
	outcomes.Wait()
	released := make(chan struct{})
	go func() { rooms.Wait(); close(released) }()
	select {
	case <-released:
	case <-time.After(d.plan.Settle): // held pages stay held, and are said
	case <-ctx.Done():
	}
	close(stop)
	reporter.Wait()
	_ = d.link.send(Message{Kind: msgDone, Report: d.snapshot()})
	<-released // they end with ctx at the latest
}

// admit starts the requests in order of arrival, each when its pages are free.
func (d *decodeEngine) admit(ctx context.Context, outcomes, rooms *sync.WaitGroup) {
	start, patience := time.Now(), d.plan.Settle
	d.touch()
	for _, it := range d.plan.Items {
		if it.TooLarge {
			d.failed("needs more pages than the pool has")
			d.count(func(r *EngineReport) { r.TooLarge++ })
			close(d.ended[it.Index])
			continue
		}
		if !sleep(ctx, time.Until(start.Add(time.Duration(it.ArriveMS)*time.Millisecond))) {
			return
		}
		if it.Previous >= 0 { // the number may come back once its use before has ended
			select {
			case <-d.ended[it.Previous]:
			case <-ctx.Done():
				return
			}
		}
		pages, err := d.take(ctx, it.Pages, patience)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			patience = d.plan.Settle / 10 // it was waited for once
			d.failed("no pages came free")
			close(d.ended[it.Index])
			continue
		}
		d.active.Add(1)
		outcomes.Add(1)
		rooms.Go(func() {
			var once sync.Once
			end := func() {
				once.Do(func() {
					d.touch()
					d.active.Add(-1)
					close(d.ended[it.Index])
					_ = d.link.send(Message{Kind: msgEnded, Index: it.Index})
					outcomes.Done()
				})
			}
			defer end()
			d.serve(ctx, it, pages, end)
		})
	}
}

// take waits for pages. It gives up when none can come any more as far as
// anyone can tell: every request has ended, and for as long as patience no page
// came back (policy hold, and writes that never end).
func (d *decodeEngine) take(ctx context.Context, n int, patience time.Duration) ([]uint32, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		t := time.NewTicker(progressEvery / 10)
		defer t.Stop()
		for {
			if d.active.Load() == 0 && d.still() > patience {
				cancel()
			}
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return d.pool.Take(ctx, n)
}

// serve is the life of one request. end is called at its outcome.
func (d *decodeEngine) serve(ctx context.Context, it Item, pages []uint32, end func()) {
	_ = d.link.send(Message{Kind: msgAdmitted, Index: it.Index})
	seq, word := d.open(ctx, it, pages)
	if word != "" { // refused: nothing was left behind
		d.giveBack(pages)
		d.failed("open refused: " + word)
		return
	}
	if seq == 0 {
		return // ctx ended
	}
	box := d.hub.room(seq)
	defer d.hub.forget(seq)
	r := &receiving{d: d, it: it, seq: seq, pages: pages, box: box}
	n := r.untilOutcome(ctx)
	if n == nil {
		return
	}
	if n.GetKind() == enginepb.Notice_KIND_SUCCEEDED {
		d.count(func(rep *EngineReport) { rep.Succeeded++ })
		r.decode(ctx)
		end()
	} else {
		r.countFailure(n)
		end()
		if n.GetKind() == enginepb.Notice_KIND_RELEASED || n.GetKind() == kindGone {
			d.giveBack(pages)
			return
		}
	}
	if r.untilReleased(ctx) {
		d.giveBack(pages)
	}
}

// open calls OpenReceive. A node that was away may have carried out a call whose
// answer was lost: then the room is live, and known by asking for it.
func (d *decodeEngine) open(ctx context.Context, it Item, pages []uint32) (seq uint64, refused string) {
	req := &enginepb.OpenReceiveRequest{
		Room: it.Room, Pages: pages, Prefill: d.plan.PrefillNode,
		RequestId: "demo-" + strconv.Itoa(it.Index),
	}
	err := persist(ctx, func(again bool) error {
		if err := d.hub.awaitLive(ctx); err != nil {
			return err
		}
		res, err := d.c.OpenReceive(ctx, connect.NewRequest(req))
		if err == nil {
			seq = res.Msg.GetRoomSeq()
			return nil
		}
		if word := refusedWith(err); again && (word == "room_live" || word == "pages_busy") {
			view, verr := d.c.Room(ctx, connect.NewRequest(&enginepb.RoomViewRequest{Room: it.Room}))
			if verr == nil {
				for _, v := range view.Msg.GetRooms() {
					if v.GetRequestId() == req.GetRequestId() {
						seq = v.GetRoomSeq()
						return nil
					}
				}
			}
		}
		return err
	})
	if err == nil || ctx.Err() != nil {
		return seq, ""
	}
	if word := refusedWith(err); word != "" {
		return 0, word
	}
	return 0, connect.CodeOf(err).String()
}

// receiving is a room that is open on the decode side.
type receiving struct {
	d     *decodeEngine
	it    Item
	seq   uint64
	pages []uint32
	box   *inbox

	aborted bool // we asked for it
	gaveUp  bool // the prefill stand-in could not serve it
	bad     map[uint32]bool
}

// untilOutcome waits for the room's outcome and fires its abort when it is due.
// nil: ctx ended.
func (r *receiving) untilOutcome(ctx context.Context) *enginepb.Notice {
	var due <-chan time.Time
	switch r.it.Abort {
	case AbortEarly:
		r.abort(ctx, "client went away")
	case AbortTimed:
		t := time.NewTimer(time.Duration(r.it.AbortAfterMS) * time.Millisecond)
		defer t.Stop()
		due = t.C
	case AbortInFlight, AbortNever:
	}
	for {
		select {
		case <-r.box.wake:
			switch n := r.box.pop(); n.GetKind() {
			case enginepb.Notice_KIND_SUCCEEDED, enginepb.Notice_KIND_FAILED,
				enginepb.Notice_KIND_HELD, enginepb.Notice_KIND_RELEASED, kindGone:
				return n
			}
		case <-due:
			r.abort(ctx, "client went away")
		case order := <-r.d.orders[r.it.Index]:
			r.gaveUp = order == msgGiveUp
			r.abort(ctx, "client went away")
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *receiving) abort(ctx context.Context, reason string) {
	r.aborted = true
	_ = r.d.abort(ctx, r.it.Room, reason)
}

// countFailure: a failure is an abort if we asked for it and the node did not
// have another cause before.
func (r *receiving) countFailure(n *enginepb.Notice) {
	ours := n.GetCause() == "client" || n.GetCause() == ""
	if r.aborted && !r.gaveUp && ours {
		r.d.count(func(rep *EngineReport) { rep.Aborted++ })
		return
	}
	why := n.GetCause()
	if r.gaveUp {
		why = "prefill stand-in gave up"
	}
	if why == "" {
		why = "unknown"
	}
	r.d.failed(why)
}

// decode checks every page, keeps it in use for the time the answer takes,
// checks again, and finishes.
func (r *receiving) decode(ctx context.Context) {
	r.check(ctx, "when it arrived")
	if !sleep(ctx, time.Duration(r.it.DecodeMS)*time.Millisecond) {
		return
	}
	r.check(ctx, "while decoding")
	if ctx.Err() != nil {
		return
	}
	r.d.count(func(rep *EngineReport) {
		rep.PagesChecked += len(r.pages)
		rep.Bytes += uint64(len(r.pages)) * uint64(r.d.plan.PageBytes) //nolint:gosec // positive
	})
	_ = r.d.call(ctx, func(ctx context.Context) error {
		_, err := r.d.c.Finish(ctx, connect.NewRequest(&enginepb.RoomRequest{Room: r.it.Room}))
		return err
	})
}

// check compares every byte of every page on every rank with the pattern. A
// page that is wrong is reported to the node once.
func (r *receiving) check(ctx context.Context, when string) {
	for k, page := range r.pages {
		if r.bad[page] {
			continue
		}
		st := Stamp{Room: r.it.Room, Use: r.it.Use, Position: uint32(k)} //nolint:gosec // few pages
		var wrong []stretch
		r.d.withCPU(ctx, func() { wrong = r.wrong(st, page) })
		if len(wrong) == 0 {
			continue
		}
		var found []Found
		r.d.withCPU(ctx, func() { found = r.authors(st, page) })
		if r.bad == nil {
			r.bad = map[uint32]bool{}
		}
		r.bad[page] = true
		r.d.count(func(rep *EngineReport) {
			rp := RoomPage{RoomSeq: r.seq, Page: page}
			rep.Corrupt = append(rep.Corrupt, rp)
			rep.Found = append(rep.Found, found...)
		})
		for _, w := range wrong {
			detail := fmt.Sprintf("byte %d of page %d (position %d) is wrong %s", w.at, page, k, when)
			_ = r.d.call(ctx, func(ctx context.Context) error {
				_, err := r.d.c.ReportPage(ctx, connect.NewRequest(&enginepb.ReportPageRequest{
					Room: r.it.Room, Page: page, To: r.d.rankName(w.rank), Detail: detail, PageOff: uint64(w.at), PageLen: uint64(w.n), //nolint:gosec // not negative
				}))
				return err
			})
		}
	}
}

// stretch is n bytes of a page on one local rank, the first of them wrong: the
// rest of what one prefill rank writes there.
type stretch struct{ rank, at, n int }

func (r *receiving) wrong(st Stamp, page uint32) []stretch {
	part := r.d.rankBytes()
	step := min(part, r.d.plan.PageBytes/r.d.plan.PrefillRanks)
	var out []stretch
	for j, m := range r.d.mem {
		for at := 0; at < part; at += step {
			have := m.page(page)[at:min(at+step, part)]
			if i := st.Check(have, j*part+at); i >= 0 {
				out = append(out, stretch{j, at + i, len(have) - i})
			}
		}
	}
	return out
}

// authors tells whose bytes are in the parts of a page that are not as st says.
// A page is cut among the prefill ranks by position.
func (r *receiving) authors(st Stamp, page uint32) []Found {
	part, cut := r.d.rankBytes(), r.d.plan.PageBytes/r.d.plan.PrefillRanks
	var out []Found
	for rank := range r.d.plan.PrefillRanks {
		seen := map[*Item]bool{}
		for at := rank * cut; at < (rank+1)*cut; {
			have := r.d.mem[at/part].page(page)[at%part:]
			have = have[:min(len(have), (rank+1)*cut-at)]
			wrong := st.Check(have, at)
			if wrong < 0 {
				at += len(have)
				continue
			}
			at += wrong
			it, position := r.d.plan.author(binary.LittleEndian.Uint64(have[wrong:]), at)
			if it != nil && !seen[it] {
				seen[it] = true
				out = append(out, Found{
					RoomPage: RoomPage{RoomSeq: r.seq, Page: page}, Room: it.Room, Use: it.Use,
					Position: position, Chunk: position / it.ChunkPages, Rank: r.d.plan.PrefillNode + "/" + strconv.Itoa(rank),
				})
			}
			at += 8
			for at < (rank+1)*cut && it != nil { // past what is the same request's
				other := Stamp{Room: it.Room, Use: it.Use, Position: uint32(position)} //nolint:gosec // few pages
				rest := r.d.mem[at/part].page(page)[at%part:]
				rest = rest[:min(len(rest), (rank+1)*cut-at)]
				same := other.Check(rest, at)
				if same >= 0 {
					at += same
					break
				}
				at += len(rest)
			}
		}
	}
	return out
}

// untilReleased waits for the word that the pages are free. false: ctx ended.
func (r *receiving) untilReleased(ctx context.Context) bool {
	for {
		select {
		case <-r.box.wake:
			n := r.box.pop()
			switch n.GetKind() {
			case enginepb.Notice_KIND_RELEASED, kindGone:
				return true
			case enginepb.Notice_KIND_SUCCEEDED:
				if n.GetResumed() { // our Finish was lost with the node's earlier life
					_ = r.d.call(ctx, func(ctx context.Context) error {
						_, err := r.d.c.Finish(ctx, connect.NewRequest(&enginepb.RoomRequest{Room: r.it.Room}))
						return err
					})
				}
			}
		case <-ctx.Done():
			return false
		}
	}
}
