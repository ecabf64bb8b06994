package node

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

type recorder struct {
	mu   sync.Mutex
	done []string
}

func (r *recorder) perform(a projector.Action, _ uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch a := a.(type) {
	case projector.Tell:
		r.done = append(r.done, fmt.Sprintf("tell %d", a.Room))
	case projector.PostWrite:
		r.done = append(r.done, fmt.Sprintf("post %d", a.Token))
	}
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.done...)
}

func tell(room uint64) projector.Tell       { return projector.Tell{Room: room} }
func post(token uint64) projector.PostWrite { return projector.PostWrite{Token: token} }

func TestEffectsWaitForTheirEventsAndKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		o := newOutbox(10, r.perform)
		go o.run()
		defer o.close()
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if d := cmp.Diff(append([]string{}, want...), r.all()); d != "" {
				t.Fatal(d)
			}
		}
		o.push([]projector.Effect{{After: 12, Do: tell(1)}, {After: 0, Do: tell(2)}})
		expect() // the second waits behind the first
		o.push([]projector.Effect{{After: 9, Do: post(7)}})
		expect("post 7") // its own gate is open
		o.push([]projector.Effect{{After: 13, Do: tell(3)}, {After: 9, Do: post(8)}})
		expect("post 7") // of its own Step it is the second
		o.advance(11)
		expect("post 7")
		o.advance(12)
		expect("post 7", "tell 1", "tell 2")
		o.advance(20)
		expect("post 7", "tell 1", "tell 2", "tell 3", "post 8")
		if n := o.pending(); n != 0 {
			t.Fatalf("%d are pending", n)
		}
	})
}

func TestNothingIsDoneAfterTheLogFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		o := newOutbox(0, r.perform)
		go o.run()
		defer o.close()
		o.push([]projector.Effect{{After: 5, Do: tell(1)}})
		o.kill()
		o.push([]projector.Effect{{After: 0, Do: tell(2)}, {After: 0, Do: post(3)}})
		o.advance(9)
		synctest.Wait()
		if have := r.all(); len(have) != 0 {
			t.Fatalf("done: %v", have)
		}
	})
}

// failingLog takes a number of appends.
type failingLog struct{ left int }

var errDisk = errors.New("disk gone")

func (l *failingLog) Append(evs []*events.Event, _ events.Class) error {
	if len(evs) == 0 {
		return nil
	}
	if l.left--; l.left < 0 {
		return errDisk
	}
	return nil
}

func (l *failingLog) Full() bool { return false }

func TestLoopEndsWhenTheLogRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		o := newOutbox(1<<40, r.perform)
		go o.run()
		defer o.close()
		m := projector.New(projector.Config{Node: "p0", Role: events.Role_ROLE_PREFILL, Ranks: []projector.LocalRank{{Address: "127.0.0.1:1"}}})
		var failed error
		l := &loop{
			m: m, log: &failingLog{left: 2}, clock: startClock(0), out: o,
			queue: make(chan task, queueLen), stop: make(chan struct{}), done: make(chan struct{}),
		}
		l.fail = func(err error) { failed = err; o.kill() }
		go l.run()
		ask := func(cmd projector.Command) error {
			_, err := l.ask(testContext(t), task{cmd: cmd, durable: true})
			return err
		}
		if err := ask(projector.Start{Boot: 1, Incarnation: 1, LogID: make([]byte, 16)}); err != nil {
			t.Fatal(err)
		}
		if err := ask(projector.AwaitRoom{Room: 1}); err != nil {
			t.Fatal(err)
		}
		if err := ask(projector.AwaitRoom{Room: 2}); !errors.Is(err, ErrStopped) {
			t.Fatalf("have %v, want ErrStopped", err)
		}
		synctest.Wait()
		if !errors.Is(failed, errDisk) {
			t.Fatalf("failed with %v", failed)
		}
		if err := l.submit(task{cmd: projector.Tick{}}); !errors.Is(err, ErrStopped) {
			t.Fatalf("submit after the end: %v", err)
		}
	})
}

// TestALookSeesWhatWasSubmittedBefore: also when the loop has not come to it
// yet, from many goroutines, each of its own commands.
func TestALookSeesWhatWasSubmittedBefore(t *testing.T) {
	var r recorder
	o := newOutbox(1<<40, r.perform)
	go o.run()
	defer o.close()
	l := &loop{
		m: projector.New(projector.Config{
			Node: "p0", Role: events.Role_ROLE_PREFILL, MaxRooms: 1 << 20, Ranks: []projector.LocalRank{{Address: "127.0.0.1:1"}},
		}),
		log: &failingLog{left: 1 << 40}, clock: startClock(0), out: o, fail: func(err error) { t.Error(err) },
		queue: make(chan task, queueLen), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go l.run()
	l.tell(projector.Start{Boot: 1, Incarnation: 1, LogID: make([]byte, 16)})
	var wg sync.WaitGroup
	const rooms = 300
	for g := range uint64(4) {
		wg.Go(func() {
			for i := range uint64(rooms) {
				room := g*rooms + i + 1
				l.tell(projector.AwaitRoom{Room: room})
				var state string
				if err := l.see(func(m *projector.Machine, _ uint64) { state = m.RoomView(room).State }); err != nil {
					t.Error(err)
					return
				}
				if state != "bootstrapping" {
					t.Errorf("room %d is %q", room, state)
					return
				}
			}
		})
	}
	wg.Wait()
	close(l.stop)
	<-l.done
	if err := l.see(func(*projector.Machine, uint64) { t.Error("a look after the end") }); !errors.Is(err, ErrStopped) {
		t.Errorf("after the end: %v", err)
	}
}
