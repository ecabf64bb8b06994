package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/rdma"
)

// slowDomain is a provider of which some leases take long to revoke.
type slowDomain struct{ rdma.Domain }

func (slowDomain) Caps() rdma.Caps { return rdma.Caps{Fence: rdma.FenceReaderStopped} }

type slowLease struct {
	rdma.Lease
	takes time.Duration
}

func (l slowLease) Revoke(ctx context.Context) (rdma.Fence, error) {
	if l.takes > 0 {
		select {
		case <-ctx.Done():
			return rdma.Fence{}, ctx.Err()
		case <-time.After(l.takes):
		}
	}
	return rdma.Fence{Kind: rdma.FenceReaderStopped}, nil
}

// slowDecode is a decode node's outbox, its leases and its engine's stream.
type slowDecode struct {
	n    *Node
	told *subscriber
	seq  uint64
}

func startSlowDecode() *slowDecode {
	n := &Node{hub: newHub(), log: slog.New(slog.DiscardHandler), receive: newReceivePlane(newMemoryTable(1), nil)}
	n.receive.domain = slowDomain{}
	n.out = newOutbox(1<<40, n.perform)
	n.out.slow = n.revoke
	d := &slowDecode{n: n, told: &subscriber{ch: make(chan *enginepb.Notice, 1<<12)}}
	n.hub.join(d.told, nil)
	<-d.told.ch // caught up
	go n.out.run()
	return d
}

// release is what the core decides at the end of a room with two writers, one of
// whose keys takes long to take back.
func (d *slowDecode) release(room uint64, takes time.Duration) {
	d.seq++
	lease := 2 * d.seq
	d.n.receive.mu.Lock()
	d.n.receive.grants[lease] = &grant{id: lease, leases: []rdma.Lease{slowLease{takes: takes}}}
	d.n.receive.grants[lease+1] = &grant{id: lease + 1, leases: []rdma.Lease{slowLease{}}}
	d.n.receive.mu.Unlock()
	d.n.out.push([]projector.Effect{
		{After: d.seq, Do: projector.RevokeLease{RoomSeq: room, Lease: lease}},
		{After: d.seq, Do: projector.RevokeLease{RoomSeq: room, Lease: lease + 1}},
		{After: d.seq, Do: projector.Tell{Kind: projector.TellReleased, Room: room, RoomSeq: room, Pages: []uint32{uint32(room)}, Aux: uint32(room)}}, //nolint:gosec // small
	})
}

// A key that takes long to take back holds up the release of its own room, and
// of no other: on a virtual clock, where any wait would be seen to the
// nanosecond (F43, I12). An engine that acknowledges what it heard last does not
// acknowledge the releases that are still to come.
func TestSlowRevocationsDelayNoOtherRoom(t *testing.T) {
	const slow, healthy, takes = 1000, 50, 20 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		d := startSlowDecode()
		defer d.n.out.close()
		began := time.Now()
		for i := range slow {
			d.release(uint64(i)+1, takes)
		}
		for i := range healthy {
			d.release(slow+uint64(i)+1, 0)
		}
		for i := range healthy {
			n := <-d.told.ch
			if took := time.Since(began); n.Room != slow+uint64(i)+1 || took != 0 || n.Seq != 0 {
				t.Fatalf("room %d is told as released after %s, with sequence %d; want room %d at once, and no sequence of a room that is held", n.Room, took, n.Seq, slow+i+1)
			}
		}
		if n := d.n.out.pending(); n != 3*slow-slow {
			t.Errorf("%d effects are pending, want the revocation and the release of %d rooms", n, slow)
		}
		var last uint64
		rooms := map[uint64]bool{}
		for range slow {
			n := <-d.told.ch
			if time.Since(began) != takes {
				t.Fatalf("room %d is told as released after %s, its key is gone after %s", n.Room, time.Since(began), takes)
			}
			rooms[n.Room], last = true, n.Seq
		}
		synctest.Wait()
		if len(rooms) != slow || d.n.out.pending() != 0 || last > d.seq {
			t.Errorf("%d rooms are told, %d effects are pending", len(rooms), d.n.out.pending())
		}
		d.release(5000, 0)
		if n := <-d.told.ch; n.Seq != d.seq {
			t.Errorf("with everything told, a notice has sequence %d, want %d", n.Seq, d.seq)
		}
	})
}

// A revocation that never ends is given up after its time, its failure counted,
// and the room is told.
func TestARevocationThatHangsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := startSlowDecode()
		defer d.n.out.close()
		began := time.Now()
		d.release(1, time.Hour)
		if n := <-d.told.ch; n.Room != 1 || time.Since(began) != revokeTime || d.n.revokeFailed.Load() != 1 {
			t.Errorf("room %d after %s, %d failed", n.Room, time.Since(began), d.n.revokeFailed.Load())
		}
	})
}

// A stream that opens while a release waits is told that the room is held, and
// the release when it is told to all, once.
func TestAStreamHearsOfAReleaseThatWaitsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := startSlowDecode()
		defer d.n.out.close()
		d.release(1, 20*time.Millisecond)
		d.release(2, 0)
		<-d.told.ch
		if u := d.n.out.untold(1); !u.release || u.outcome {
			t.Errorf("of the room that waits: %+v", u)
		}
		if u := d.n.out.untold(2); u != (untold{}) {
			t.Errorf("of the room that was told: %+v", u)
		}
		late := &subscriber{ch: make(chan *enginepb.Notice, 16)}
		past := []*enginepb.Notice{ // the state has both as released
			{Kind: enginepb.Notice_KIND_RELEASED, Room: 1, RoomSeq: 1, Basis: "acks", Cause: "client", Resumed: true},
			{Kind: enginepb.Notice_KIND_RELEASED, Room: 2, RoomSeq: 2, Basis: "acks", Resumed: true},
		}
		d.n.out.call(0, 0, func() { d.n.hub.join(late, notYetTold(past, d.n.out.apart.untold())) })
		var have []string
		for range 4 {
			n := <-late.ch
			have = append(have, fmt.Sprintf("%s %d %s %s", n.Kind, n.Room, n.Basis, n.Cause))
		}
		want := []string{"KIND_HELD 1  client", "KIND_RELEASED 2 acks ", "KIND_CAUGHT_UP 0  ", "KIND_RELEASED 1  "}
		if diff := cmp.Diff(want, have); diff != "" {
			t.Error(diff)
		}
	})
}

// What the state has forgotten is held too; an outcome that waits is no outcome.
func TestAPastWithoutWhatIsNotTold(t *testing.T) {
	past := notYetTold([]*enginepb.Notice{{Kind: enginepb.Notice_KIND_FAILED, Room: 3, RoomSeq: 8, Cause: "client"}}, []projector.Tell{
		{Kind: projector.TellReleased, Room: 3, RoomSeq: 5, Pages: []uint32{4}, Aux: 2},
		{Kind: projector.TellReady, Room: 3, RoomSeq: 8},
		{Kind: projector.TellFailed, Room: 3, RoomSeq: 8},
		{Kind: projector.TellReleased, Room: 3, RoomSeq: 8},
	})
	var have []string
	for _, n := range past {
		have = append(have, fmt.Sprint(n.Kind, n.RoomSeq, n.Pages, n.Aux, n.Cause))
	}
	if diff := cmp.Diff([]string{"KIND_OPEN 8 [] 0", "KIND_HELD 5 [4] 2"}, have); diff != "" {
		t.Error(diff)
	}
}

// ---- the order, against a plain statement of it

type orderedEffect struct {
	step  uint64
	act   projector.Action
	name  string
	about []string
	slow  bool
	begun bool
	over  bool
	gate  chan struct{} // of a slow revocation
}

// mustFollow says that b, decided after a, waits for a. It is written apart from
// topicsOf on purpose.
func mustFollow(a, b *orderedEffect) bool {
	_, ra := a.act.(projector.RevokeLease)
	_, rb := b.act.(projector.RevokeLease)
	if ra && rb {
		return false
	}
	if a.step == b.step {
		return true
	}
	return slices.ContainsFunc(a.about, func(s string) bool { return slices.Contains(b.about, s) })
}

func nameOf(a projector.Action) string { return fmt.Sprintf("%T%+v", a, a) }

func roomsOf(a projector.Action) []string {
	both := func(room, seq uint64) []string { return []string{fmt.Sprint("room ", room), fmt.Sprint("seq ", seq)} }
	switch a := a.(type) {
	case projector.SendMetadata:
		return both(a.Room, a.RoomSeq)
	case projector.SendAbort:
		return []string{fmt.Sprint("room ", a.Room)}
	case projector.SendStagingRsp:
		return []string{fmt.Sprint("room ", a.Room)}
	case projector.RevokeLease:
		return []string{fmt.Sprint("seq ", a.RoomSeq)}
	case projector.Tell:
		return both(a.Room, a.RoomSeq)
	}
	return nil
}

func pagesOf(a projector.Action) (out []string) {
	var pages []uint32
	aux := uint32(0)
	switch a := a.(type) {
	case projector.SendMetadata:
		pages, aux = a.Pages, a.Aux
	case projector.Tell:
		if a.Kind != projector.TellReleased {
			return nil
		}
		pages, aux = a.Pages, a.Aux
	default:
		return nil
	}
	for _, p := range pages {
		out = append(out, fmt.Sprint("page ", p))
	}
	return append(out, fmt.Sprint("aux ", aux))
}

func ringsOf(a projector.Action) []string {
	switch a := a.(type) {
	case projector.SendStagingRsp:
		return []string{string(a.To)}
	case projector.SendWatermark:
		return []string{string(a.To)}
	}
	return nil
}

// ordered is a decode node's core, as far as it hands out memory, and what the
// outbox, whose goroutine the test is, has done of its effects.
type ordered struct {
	o       *outbox
	effects []*orderedEffect
	done    []string // in the order they were done

	seq  uint64
	free []uint32
	open map[uint64]*projector.SendMetadata // by room number
}

func (x *ordered) did(a projector.Action) { x.done = append(x.done, nameOf(a)) }

func (x *ordered) step(slow func() bool, acts ...projector.Action) {
	effects := make([]projector.Effect, 0, len(acts))
	for _, a := range acts {
		e := &orderedEffect{act: a, step: x.o.steps + 1, name: nameOf(a), about: slices.Concat(roomsOf(a), pagesOf(a), ringsOf(a)), gate: make(chan struct{})}
		if _, ok := a.(projector.RevokeLease); ok {
			e.slow = slow()
		}
		x.effects = append(x.effects, e)
		effects = append(effects, projector.Effect{Do: a})
	}
	x.o.push(effects)
	x.rounds()
}

func (x *ordered) rounds() {
	for x.o.round() {
	}
}

func (x *ordered) revoke(a projector.Action) func() {
	name := nameOf(a)
	i := slices.IndexFunc(x.effects, func(e *orderedEffect) bool { return e.name == name })
	e := x.effects[i]
	if e.begun {
		x.did(a) // a second time
	}
	if !e.slow {
		x.did(a)
		return nil
	}
	e.begun = true
	return func() { <-e.gate }
}

// under lists the revocations that are under way.
func (x *ordered) under() (out []*orderedEffect) {
	for _, e := range x.effects {
		if e.begun && !e.over {
			out = append(out, e)
		}
	}
	return out
}

// end lets a revocation end, and waits until the outbox has heard of it.
func (x *ordered) end(e *orderedEffect) {
	for len(x.o.wake) > 0 {
		<-x.o.wake
	}
	e.over = true
	x.did(e.act)
	close(e.gate)
	<-x.o.wake
	x.rounds()
}

// wants lists the effects that may be done by now: those that wait for no
// revocation that is not over, directly or by others.
func (x *ordered) wants() []string {
	var waits []*orderedEffect
	var out []string
	for _, e := range x.effects {
		if e.slow && !e.over || slices.ContainsFunc(waits, func(w *orderedEffect) bool { return mustFollow(w, e) }) {
			waits = append(waits, e)
			continue
		}
		out = append(out, e.name)
	}
	return out
}

func (x *ordered) check(t *rapid.T) {
	if d := cmp.Diff(slices.Sorted(slices.Values(x.wants())), slices.Sorted(slices.Values(x.done))); d != "" {
		t.Fatalf("what may be done and what was:\n%s", d)
	}
	at := map[string]int{}
	for i, name := range x.done {
		at[name] = i
	}
	for i, b := range x.effects {
		ib, done := at[b.name]
		for _, a := range x.effects[:i] {
			if done && at[a.name] > ib && mustFollow(a, b) {
				t.Fatalf("%s is done before %s", b.name, a.name)
			}
		}
	}
}

// Nothing overtakes what it must follow, and nothing waits for a revocation
// that it need not follow, whatever ends in which order.
func TestWhatWaitsForARevocation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := &ordered{open: map[uint64]*projector.SendMetadata{}, free: []uint32{1, 2, 3, 4}}
		x.o = newOutbox(1<<40, func(a projector.Action, _ uint64) { x.did(a) })
		x.o.slow = x.revoke
		slow := func() bool { return rapid.Bool().Draw(t, "slow") }
		to := func() projector.RankID { return projector.MakeRank("d0", rapid.IntRange(0, 1).Draw(t, "to")) }
		anOpen := func(t *rapid.T) *projector.SendMetadata {
			if len(x.open) == 0 {
				t.Skip()
			}
			x.seq++
			return x.open[rapid.SampledFrom(slices.Sorted(maps.Keys(x.open))).Draw(t, "room")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"publish": func(t *rapid.T) {
				room := rapid.Uint64Range(1, 3).Draw(t, "room")
				n := rapid.IntRange(1, 3).Draw(t, "pages")
				if x.open[room] != nil || len(x.free) < n {
					t.Skip()
				}
				x.seq++
				at := len(x.free) - n
				m := projector.SendMetadata{Room: room, RoomSeq: x.seq, Pages: slices.Clone(x.free[at:]), Aux: x.free[at], Lease: x.seq}
				x.free = x.free[:at]
				x.open[room] = &m
				x.step(slow, m)
			},
			"stage": func(t *rapid.T) {
				m := anOpen(t)
				x.step(slow, projector.SendStagingRsp{Room: m.Room, To: to(), Round: x.seq})
			},
			"abort": func(t *rapid.T) {
				m := anOpen(t)
				x.step(slow, projector.SendAbort{Room: m.Room, Generation: x.seq})
			},
			"release": func(t *rapid.T) {
				m := anOpen(t)
				delete(x.open, m.Room)
				x.free = append(x.free, m.Pages...)
				acts := []projector.Action{}
				for i := range rapid.IntRange(0, 3).Draw(t, "keys") {
					acts = append(acts, projector.RevokeLease{RoomSeq: m.RoomSeq, Lease: m.Lease<<8 + uint64(i)}) //nolint:gosec // small
				}
				acts = append(acts, projector.Tell{Kind: projector.TellReleased, Room: m.Room, RoomSeq: m.RoomSeq, Pages: m.Pages, Aux: m.Aux})
				if rapid.Bool().Draw(t, "staged") {
					acts = append(acts, projector.SendWatermark{To: to(), Round: x.seq})
				}
				x.step(slow, acts...)
			},
			"key ends": func(t *rapid.T) {
				under := x.under()
				if len(under) == 0 {
					t.Skip()
				}
				x.end(rapid.SampledFrom(under).Draw(t, "key"))
			},
			"": x.check,
		})
		for _, e := range x.under() {
			x.end(e)
		}
		for u := x.under(); len(u) > 0; u = x.under() { // those that waited for others
			x.end(u[0])
		}
		x.check(t)
		if n := x.o.pending(); n != 0 || x.o.apart.n != 0 || len(x.o.apart.last) != 0 || len(x.o.apart.all) != 0 || len(x.o.tells) != 0 {
			t.Errorf("with everything done, %d are pending, %d of %d apart", n, x.o.apart.n, len(x.o.apart.last))
		}
	})
}

// The end of a node waits for what is under way apart, and takes it with it.
func TestTheEndComesBehindEveryRevocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		var r recorder
		o := newOutbox(0, func(a projector.Action, seq uint64) {
			r.perform(a, seq)
			if _, ok := a.(projector.Stopped); ok {
				r.done = append(r.done, "stopped")
			}
		})
		o.slow = func(projector.Action) func() { return func() { <-gate } }
		go o.run()
		o.push([]projector.Effect{{Do: projector.RevokeLease{RoomSeq: 1}}, {Do: tell(1)}})
		o.push([]projector.Effect{{Do: projector.Stopped{}}})
		synctest.Wait()
		if d := cmp.Diff([]string{}, r.all()); d != "" {
			t.Fatal(d)
		}
		o.push([]projector.Effect{{Do: projector.RevokeLease{RoomSeq: 2}}, {Do: tell(2)}})
		close(gate)
		synctest.Wait()
		if have := r.all(); !slices.Contains(have, "stopped") || slices.Index(have, "stopped") < slices.Index(have, "tell 1") {
			t.Fatalf("done: %v", have)
		}
		// The log fails while a key is under way: nothing is told behind it.
		gate = make(chan struct{})
		o.push([]projector.Effect{{Do: projector.RevokeLease{RoomSeq: 3}}, {Do: tell(3)}})
		synctest.Wait()
		o.kill()
		close(gate)
		o.close()
		if have := r.all(); slices.Contains(have, "tell 3") {
			t.Fatalf("done: %v", have)
		}
	})
}

// Where all memory is taken back, keys that take long are waited for together,
// and one that can not be had does not keep the others.
func TestAllLeasesAreTakenBackTogether(t *testing.T) {
	const slow, each = 10 * revokers, 10 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		r := newReceivePlane(newMemoryTable(1), nil)
		r.domain = slowDomain{}
		for id := range uint64(1000) {
			l := slowLease{}
			if id < slow {
				l.takes = each
			}
			r.grants[id] = &grant{id: id, leases: []rdma.Lease{l}}
		}
		began := time.Now()
		if err := r.revokeAll(); err != nil || r.live() != 0 {
			t.Errorf("%d leases are left: %v", r.live(), err)
		}
		if took := time.Since(began); took != slow/revokers*each {
			t.Errorf("%d keys of %s took %s", slow, each, took)
		}
		r.grants[2000] = &grant{id: 2000, leases: []rdma.Lease{slowLease{takes: 2 * revokeTime}}}
		for id := range uint64(slow) {
			r.grants[3000+id] = &grant{id: 3000 + id, leases: []rdma.Lease{slowLease{takes: each}}}
		}
		began = time.Now()
		if err := r.revokeAll(); !errors.Is(err, context.DeadlineExceeded) || r.live() != 1 {
			t.Errorf("%d leases are left, want the one that takes too long: %v", r.live(), err)
		}
		if took := time.Since(began); took > revokeTime+(slow/revokers+1)*each {
			t.Errorf("took %s, of which one wait is %s", took, revokeTime)
		}
	})
}
