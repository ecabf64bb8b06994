package events

import (
	"testing"

	"google.golang.org/protobuf/proto"
)

// fillPool takes n events and makes them all different from zero.
func fillPool(p *Pool, n int) []*Event {
	var out []*Event
	for i := range n {
		e, a := p.AbortArmed.New()
		pair := p.Pair()
		pair.Rank = "p/0"
		e.Seq, e.Rank, e.Cause = uint64(i+1), "p/0", p.Cause() //nolint:gosec // small
		e.Cause.Seq, a.Generation, a.Expected = 7, 9, append(a.Expected, pair)
		out = append(out, e)
	}
	return out
}

func empty(t *testing.T, p *Pool, n int) {
	t.Helper()
	for range n {
		e, a := p.AbortArmed.New()
		if !proto.Equal(a, &AbortArmed{}) || !proto.Equal(e, &Event{Payload: &Event_AbortArmed{AbortArmed: a}}) || e.GetAbortArmed() != a {
			t.Fatalf("not empty: %v", e)
		}
		if c, x := p.Cause(), p.Pair(); c.Seq != 0 || x.Rank != "" {
			t.Fatalf("not empty: %v %v", c, x)
		}
	}
}

func TestPoolGivesEmptyEventsAgain(t *testing.T) {
	for _, n := range []int{1, pieceLen, 3*pieceLen + 1, (pieceMost + 2) * pieceLen} {
		p := NewPool()
		p.Reuse()
		first := fillPool(p, n)
		p.Recycle()
		empty(t, p, n)
		p.Recycle()
		if again := fillPool(p, n); again[0] != first[0] {
			t.Errorf("%d: the first event is made anew", n)
		}
	}
}

func TestPoolKeepsWhatIsKept(t *testing.T) {
	for name, reuse := range map[string]bool{"kept": true, "never reused": false} {
		p := NewPool()
		if reuse {
			p.Reuse()
		}
		mine := fillPool(p, 40)
		want := proto.CloneOf(mine[39])
		if reuse {
			p.Keep()
		} else {
			p.Recycle() // nothing of it is the pool's
		}
		empty(t, p, 80)
		if !proto.Equal(mine[39], want) {
			t.Errorf("%s: have %v, want %v", name, mine[39], want)
		}
	}
}

func TestPoolOfManyDoesNotAllocate(t *testing.T) {
	p := NewPool()
	p.Reuse()
	if n := testing.AllocsPerRun(100, func() {
		for range 100 {
			e, x := p.Drained.New()
			e.Cause, x.Writes = p.Cause(), 1
		}
		p.Recycle()
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
