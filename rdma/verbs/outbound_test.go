//go:build verbs

package verbs

import (
	"testing"

	"github.com/pdlog/pdlog/rdma"
)

// TestSmallWritesWaitInTheQueue: of many small writes no more are taken than keep
// a device busy. What is not taken, Cancel and Abort take back at once.
func TestSmallWritesWaitInTheQueue(t *testing.T) {
	const posted, each = 1000, 32
	var ends []rdma.Completion
	e := &endpoint{peer: "d"}
	e.ledger = rdma.NewLedger(func(c rdma.Completion) { ends = append(ends, c) })
	o := newOutbound(e, nil)
	e.conns = []*outbound{o}
	for range posted {
		if err := e.ledger.Begin(7); err != nil {
			t.Fatal(err)
		}
		o.queue = append(o.queue, &transfer{tag: 7, pieces: make([]source, each), bytes: each * 512})
		o.writes += each
	}
	o.take()
	if n := len(o.window); n != maxWindowWrites/each {
		t.Errorf("%d transfers of %d writes were taken, want %d", n, each, maxWindowWrites/each)
	}
	e.Cancel(7)
	if want := posted - maxWindowWrites/each; len(ends) != want || len(o.queue) != 0 {
		t.Fatalf("%d transfers were taken back and %d are queued, want %d and none", len(ends), len(o.queue), want)
	}
	for _, c := range ends {
		if c.Status != rdma.Failed || !c.Proven {
			t.Fatalf("taken back as %+v", c)
		}
	}
	if c := e.Inflight(7); c.Open() != maxWindowWrites/each || o.writes != maxWindowWrites {
		t.Errorf("%d transfers are open with %d writes", c.Open(), o.writes)
	}
}

// TestALargeTransferIsTakenAlone: it would never fit.
func TestALargeTransferIsTakenAlone(t *testing.T) {
	e := &endpoint{peer: "d", ledger: rdma.NewLedger(func(rdma.Completion) {})}
	o := newOutbound(e, nil)
	for range 2 {
		if err := e.ledger.Begin(1); err != nil {
			t.Fatal(err)
		}
		o.queue = append(o.queue, &transfer{tag: 1, pieces: make([]source, 2*maxWindowWrites), bytes: 2 * maxWindow})
	}
	o.take()
	if len(o.window) != 1 || len(o.queue) != 1 {
		t.Errorf("%d taken, %d queued, want one each", len(o.window), len(o.queue))
	}
}
