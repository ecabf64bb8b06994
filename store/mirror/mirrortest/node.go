package mirrortest

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
	"github.com/pdlog/pdlog/store/mirror"
)

// Cluster is the pdlog cluster of every mirror that this package runs.
const Cluster = "c1"

// Writer appends made-up events to a log.
type Writer struct {
	Log  *store.Log
	Node string
	Seq  uint64 // of the last event

	hlc, boot, incarnation uint64
}

// OpenWriter opens the log in dir, in small segments.
func OpenWriter(ctx context.Context, dir, node string, boot uint64) (*Writer, error) {
	l, rec, err := store.Open(ctx, dir, store.Options{Node: node, Boot: boot, SegmentBytes: 4 << 20})
	if err != nil {
		return nil, err
	}
	return &Writer{Log: l, Node: node, Seq: rec.LastSeq, hlc: rec.LastHLC, boot: boot, incarnation: rec.Incarnation}, nil
}

// Make gives the next n events, every 50th a milestone; they are not appended.
func (w *Writer) Make(n int) []*events.Event {
	now := uint64(events.MakeHLC(uint64(time.Now().UnixMilli()), 0)) //nolint:gosec // after 1970
	evs := make([]*events.Event, n)
	for i := range evs {
		w.Seq++
		w.hlc = max(w.hlc+1, now)
		e := &events.Event{Seq: w.Seq, Hlc: w.hlc, Node: w.Node, Boot: w.boot, Incarnation: w.incarnation, Room: 1<<62 + w.Seq/10}
		if w.Seq%50 == 1 {
			e.Payload = &events.Event_AbortArmed{AbortArmed: &events.AbortArmed{Generation: w.Seq, Cause: events.AbortCause_ABORT_CAUSE_CLIENT}}
		} else {
			e.Payload = &events.Event_ChunkPosted{ChunkPosted: &events.ChunkPosted{Token: w.Seq, To: "d0/0", Pages: []uint32{1, 2, 3}}}
		}
		evs[i] = e
	}
	return evs
}

// MustStart appends the NodeStarted that a node's log begins with.
func (w *Writer) MustStart(t testing.TB) {
	t.Helper()
	e := w.Make(1)[0]
	id := w.Log.LogID()
	e.Room, e.Payload = 0, &events.Event_NodeStarted{NodeStarted: &events.NodeStarted{LogId: id[:]}}
	if err := w.Log.Append([]*events.Event{e}, events.Sync); err != nil {
		t.Fatal(err)
	}
}

// Append appends n events and waits for the disk.
func (w *Writer) Append(n int) error {
	if err := w.Log.Append(w.Make(n), events.Sync); err != nil {
		return err
	}
	return w.Log.Sync(context.Background())
}

// Open opens a log that is closed with the test.
func OpenNode(t testing.TB, dir, node string, boot uint64) *Writer {
	t.Helper()
	w, err := OpenWriter(context.Background(), dir, node, boot)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Log.Close() })
	return w
}

// MustAppend is Append in a test.
func (w *Writer) MustAppend(t testing.TB, n int) {
	t.Helper()
	if err := w.Append(n); err != nil {
		t.Fatal(err)
	}
}

// Running is a mirror that runs.
type Running struct {
	*mirror.Mirror
	Done    <-chan error // what Run returned
	Notices <-chan mirror.Notice
	cancel  context.CancelFunc
}

// Run mirrors w until Stop or the end of the test.
func Run(t testing.TB, w *Writer, o mirror.Options) *Running {
	t.Helper()
	notices := make(chan mirror.Notice, 10_000)
	o.Cluster, o.Node, o.Log = Cluster, w.Node, w.Log
	o.OnNotice = func(n mirror.Notice) { notices <- n }
	m, err := mirror.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		done <- m.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return &Running{Mirror: m, Done: done, Notices: notices, cancel: cancel}
}

// Stop ends the mirror at once.
func (r *Running) Stop(t testing.TB) {
	t.Helper()
	r.cancel()
	if err := <-r.Done; err != nil {
		t.Fatal(err)
	}
}

// Wait returns when everything up to seq is mirrored.
func (r *Running) Wait(t testing.TB, seq uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	if err := r.WaitMirrored(ctx, seq); err != nil {
		t.Fatalf("%v; trouble: %v", err, r.Err())
	}
}

// WaitNotice returns the next notice of a kind.
func (r *Running) WaitNotice(t testing.TB, kind mirror.NoticeKind) mirror.Notice {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case n := <-r.Notices:
			if n.Kind == kind {
				return n
			}
		case <-timeout:
			t.Fatalf("no notice of kind %s; trouble: %v", kind, r.Err())
		}
	}
}

// Count is what a mirror holds, beside what it should hold.
type Count struct {
	Events                        uint64
	Duplicates, Gaps, Other       int // findings of mirror.Read
	AuditMissing, AuditDuplicates int
}

// Exact says that nothing is missing and nothing is there twice.
func (c Count) Exact() bool {
	return c.Duplicates+c.Gaps+c.Other+c.AuditMissing+c.AuditDuplicates == 0
}

// Compare reads both streams and holds them against the log, record by record:
// the chain value that every event carries stands for all bytes before it.
func Compare(t testing.TB, nc *nats.Conn, w *Writer) Count {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	defer cancel()
	var c Count
	var page []*events.Event
	milestones := map[uint64]int{}
	findings, err := mirror.Read(ctx, nc, mirror.Filter{Cluster: Cluster, Node: w.Node}, func(it mirror.Item) error {
		if len(page) == 0 {
			var err error
			if page, err = w.Log.ReadFrom(it.Event.Seq, 10_000); err != nil || len(page) == 0 {
				t.Fatalf("event %d of the mirror is not in the log: %v", it.Event.Seq, err)
			}
		}
		if e := page[0]; e.Seq != it.Event.Seq || e.PrevHash != it.Event.PrevHash || e.Hlc != it.Event.Hlc {
			t.Fatalf("the mirror has event %d, chain %08x; the log %d, %08x", it.Event.Seq, it.Event.PrevHash, e.Seq, e.PrevHash)
		}
		page = page[1:]
		c.Events++
		if it.Event.GetAbortArmed() != nil {
			milestones[it.Event.Seq] = 0
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Events != w.Log.Durable() {
		c.Gaps++
	}
	for _, f := range findings {
		t.Logf("finding: %v", f)
		switch f.Kind {
		case mirror.FindingDuplicate:
			c.Duplicates++
		case mirror.FindingGap:
			c.Gaps++
		case mirror.FindingChain, mirror.FindingMessage, mirror.FindingOtherLog:
			c.Other++
		}
	}
	seen := auditSeqs(t, nc, w.Node)
	if !slices.IsSorted(seen) {
		t.Errorf("milestones out of order")
	}
	for _, seq := range seen {
		milestones[seq]++
	}
	for _, n := range milestones {
		switch {
		case n == 0:
			c.AuditMissing++
		case n > 1:
			c.AuditDuplicates += n - 1
		}
	}
	return c
}

// auditSeqs are the sequences of a node's milestones, in the stream's order.
func auditSeqs(t testing.TB, nc *nats.Conn, node string) []uint64 {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	defer cancel()
	filter := mirror.SubjectAudit(Cluster, node, "*")
	st, err := js.Stream(ctx, mirror.StreamAudit)
	if err != nil {
		t.Fatal(err)
	}
	last, err := st.GetLastMsgForSubject(ctx, filter)
	if err != nil {
		t.Fatal(err)
	}
	c, err := st.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}, HeadersOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	it, err := c.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer it.Stop()
	var out []uint64
	for {
		msg, err := it.Next(jetstream.NextContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		seq, err := strconv.ParseUint(msg.Headers().Get(mirror.HeaderSeq), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, seq)
		meta, err := msg.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		if meta.Sequence.Stream >= last.Sequence {
			return out
		}
	}
}
