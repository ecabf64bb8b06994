package mirror

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

func testCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func startServer(t testing.TB, dir string, port int) *Embedded {
	t.Helper()
	e, err := StartEmbedded(EmbeddedOptions{StoreDir: dir, Port: port, Lazy: true})
	if err != nil {
		t.Fatalf("server: %v", err)
	}
	t.Cleanup(e.Shutdown)
	return e
}

func connect(t testing.TB, e *Embedded) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(e.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// node is a log with somebody who writes it.
type node struct {
	t        testing.TB
	name     string
	log      *store.Log
	seq, hlc uint64
	boot     uint64
	inc      uint64
	salt     uint64
}

func openNode(t testing.TB, name, dir string, boot uint64) *node {
	t.Helper()
	l, rec, err := store.Open(context.Background(), dir, store.Options{Node: name, Boot: boot, SegmentBytes: 1 << 20})
	if err != nil {
		t.Fatalf("open log: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &node{t: t, name: name, log: l, seq: rec.LastSeq, hlc: rec.LastHLC, boot: boot, inc: rec.Incarnation}
}

// append writes n events, every 50th a milestone, and syncs.
func (n *node) append(count int) {
	n.t.Helper()
	evs := make([]*events.Event, count)
	for i := range evs {
		n.seq++
		n.hlc += 2
		e := &events.Event{Seq: n.seq, Hlc: n.hlc, Node: n.name, Boot: n.boot, Incarnation: n.inc, Room: 1<<62 + n.seq/10 + n.salt}
		if n.seq%50 == 1 {
			e.Payload = &events.Event_AbortArmed{AbortArmed: &events.AbortArmed{Generation: n.seq, Cause: events.AbortCause_ABORT_CAUSE_CLIENT}}
		} else {
			e.Payload = &events.Event_ChunkPosted{ChunkPosted: &events.ChunkPosted{Token: n.seq, To: "d0/0", Pages: []uint32{1, 2, 3}}}
		}
		evs[i] = e
	}
	if err := n.log.Append(evs, events.Sync); err != nil {
		n.t.Fatalf("append: %v", err)
	}
	if err := n.log.Sync(context.Background()); err != nil {
		n.t.Fatalf("sync: %v", err)
	}
}

// roll appends until n more segments were begun.
func (n *node) roll(segments int) {
	n.t.Helper()
	for range segments {
		for sealed := n.log.Sealed(); n.log.Sealed() == sealed; {
			n.append(2000)
		}
	}
}

// snapshot writes one of everything that is durable.
func (n *node) snapshot() {
	n.t.Helper()
	evs, err := n.log.ReadFrom(n.seq, 1)
	if err != nil || len(evs) != 1 {
		n.t.Fatalf("read record %d: %v", n.seq, err)
	}
	chain, _ := events.ChainAfter(evs[0])
	if err := n.log.WriteSnapshot(n.seq, chain, []byte("state")); err != nil {
		n.t.Fatalf("snapshot: %v", err)
	}
}

func (n *node) close() {
	n.t.Helper()
	if err := n.log.Close(); err != nil {
		n.t.Fatalf("close log: %v", err)
	}
}

// notices collects what a mirror reports.
type notices struct {
	mu  sync.Mutex
	all []Notice
}

func (n *notices) add(x Notice) {
	n.mu.Lock()
	n.all = append(n.all, x)
	n.mu.Unlock()
}

// of are the details of one kind that name a stream.
func (n *notices) of(kind NoticeKind, stream string) (details []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, x := range n.all {
		if x.Kind == kind && (strings.Contains(x.Detail, "stream "+stream+" ") || strings.Contains(x.Detail, "stream "+stream+",")) {
			details = append(details, x.Detail)
		}
	}
	return details
}

// await returns when a notice of a kind names a stream.
func (n *notices) await(t testing.TB, kind NoticeKind, stream string) {
	t.Helper()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for ctx := testCtx(t); len(n.of(kind, stream)) == 0; {
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatalf("no notice of kind %s about %s: %v", kind, stream, n.all)
		}
	}
}

func (n *notices) has(kind NoticeKind) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, x := range n.all {
		if x.Kind == kind {
			return true
		}
	}
	return false
}

type running struct {
	*Mirror
	cancel context.CancelFunc
	done   chan error
	notes  *notices
}

func run(t testing.TB, n *node, url string, change ...func(*Options)) *running {
	t.Helper()
	notes := &notices{}
	o := Options{URL: url, Cluster: "c1", Node: n.name, Log: n.log, OnNotice: notes.add, PublishTimeout: 2 * time.Second}
	for _, f := range change {
		f(&o)
	}
	m, err := New(o)
	if err != nil {
		t.Fatalf("mirror: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Mirror: m, cancel: cancel, done: make(chan error, 1), notes: notes}
	go func() { r.done <- m.Run(ctx) }()
	t.Cleanup(cancel)
	return r
}

// stop ends the mirror as a killed process would: at once.
func (r *running) stop(t testing.TB) {
	t.Helper()
	r.cancel()
	if err := <-r.done; err != nil {
		t.Fatalf("run: %v", err)
	}
}

func (r *running) wait(t testing.TB, seq uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := r.WaitMirrored(ctx, seq); err != nil {
		t.Fatalf("%v (%v)", err, r.Err())
	}
}

// checkEqual compares log and audit stream with the log, event by event.
func checkEqual(t testing.TB, nc *nats.Conn, n *node) {
	t.Helper()
	want, err := n.log.ReadFrom(1, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	i := 0
	findings, err := Read(testCtx(t), nc, Filter{Cluster: "c1", Node: n.name}, func(it Item) error {
		if it.LogID != n.log.LogID() {
			return nil
		}
		if i >= len(want) || string(events.AppendJSON(nil, it.Event)) != string(events.AppendJSON(nil, want[i])) {
			return fmt.Errorf("event %d of the stream is %v", i, it.Event)
		}
		i++
		return nil
	})
	if err != nil || i != len(want) {
		t.Fatalf("stream has %d of %d events: %v", i, len(want), err)
	}
	for _, f := range findings {
		if f.Kind != FindingOtherLog {
			t.Errorf("finding: %v", f)
		}
	}
	var milestones []uint64
	for _, e := range want {
		if IsMilestone(e) {
			milestones = append(milestones, e.Seq)
		}
	}
	var have []uint64
	for _, msg := range auditMessages(t, nc, n) {
		p := headParser{h: msg.Headers()}
		if p.logID() == n.log.LogID() {
			have = append(have, p.uint(HeaderSeq, 10, 64))
		}
	}
	if fmt.Sprint(have) != fmt.Sprint(milestones) {
		t.Errorf("audit stream has %v, want %v", have, milestones)
	}
}

func auditMessages(t testing.TB, nc *nats.Conn, n *node) []jetstream.Msg {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	filter := (&auditLane{m: &Mirror{opts: Options{Cluster: "c1", Node: n.name}}}).filter()
	s, err := js.Stream(testCtx(t), StreamAudit)
	if err != nil {
		t.Fatal(err)
	}
	last, err := findLast(testCtx(t), s, filter)
	if err != nil || last == nil {
		t.Fatalf("audit stream of %s: %v, %v", n.name, last, err)
	}
	var out []jetstream.Msg
	if err := walk(testCtx(t), js, StreamAudit, filter, last.Sequence, false, func(m jetstream.Msg, _ uint64) error {
		out = append(out, m)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func copyDir(t testing.TB, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}
