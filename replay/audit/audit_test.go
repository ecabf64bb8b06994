package audit_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector/invariants/historytest"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/replay/audit"
	"github.com/pdlog/pdlog/store"
	"github.com/pdlog/pdlog/store/mirror"
)

// An ordered consumer that is stopped while it is made anew leaves these behind
// (nats.go 1.55, orderedSubscription.resetMessages).
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/nats-io/nats.go/jetstream.(*pullConsumer).Messages.func2"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats.go/jetstream.(*pullSubscription).pullMessages"))
}

// patience is a deadline for what must happen at all, on a loaded machine.
const patience = 2 * time.Minute

// server is an embedded mirror; its URL names the cluster.
func server(t *testing.T) string {
	t.Helper()
	srv, err := mirror.StartEmbedded(mirror.EmbeddedOptions{StoreDir: t.TempDir(), Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	return srv.ClientURL()
}

// node is a log whose events are mirrored as they come.
type node struct {
	log *store.Log
	m   *mirror.Mirror
}

func start(t *testing.T, url, cluster string, first *events.Event) *node {
	t.Helper()
	log, _, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "log"), store.Options{Node: first.Node, Boot: first.Boot, SegmentBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(url, nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	m, err := mirror.New(mirror.Options{Conn: nc, Cluster: cluster, Node: first.Node, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ran
		nc.Close()
		_ = log.Close()
	})
	return &node{log, m}
}

func (n *node) append(t *testing.T, evs []*events.Event) {
	t.Helper()
	if err := n.log.Append(evs, events.Sync); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := n.m.WaitMirrored(ctx, evs[len(evs)-1].Seq); err != nil {
		t.Fatal(err)
	}
}

// follow runs an auditor until the test ends.
func follow(t *testing.T, url string, m *audit.Metrics) (found <-chan replay.Finding, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ch := make(chan replay.Finding, 100)
	ran := make(chan error, 1)
	go func() {
		ran <- audit.Follow(ctx, audit.Options{URL: url, Settle: 200 * time.Millisecond, Metrics: m, Report: func(f replay.Finding) error {
			ch <- f
			return nil
		}})
	}()
	return ch, func() error {
		cancel()
		return <-ran
	}
}

func next(t *testing.T, found <-chan replay.Finding) replay.Finding {
	t.Helper()
	select {
	case f := <-found:
		return f
	case <-time.After(patience):
		t.Fatal("no finding came")
		return replay.Finding{}
	}
}

// story is an abort with a proper ACK, then one that a timer releases; late is
// the write that lands after it.
func story() (h *historytest.History, late func()) {
	h = historytest.New()
	h.Start("d", events.Role_ROLE_DECODE, 64)
	h.Start("p", events.Role_ROLE_PREFILL, 64)
	pages := []uint32{10, 11}
	a := h.At(10).Open(5, "d/0", pages, "p/0")
	post := a.Post("p/0", 0, pages, false)
	a.Abort()
	a.Hear("p/0")
	a.Land(post, false)
	a.Complete(post)
	a.Drain("p/0")
	a.Ack("p/0")
	a.Release(events.Basis_BASIS_ACKS)
	b := h.At(100).Open(7, "d/0", pages, "p/0")
	post = b.Post("p/0", 2, pages, false)
	b.Abort()
	b.Hear("p/0")
	return h, func() {
		h.At(1100)
		b.Release(events.Basis_BASIS_TIMEOUT)
		h.At(2000)
		b.Land(post, true)
		b.Complete(post)
	}
}

func TestViolationsAreReportedAsTheyHappen(t *testing.T) {
	url := server(t)
	h, late := story()
	d, p := start(t, url, "prod", h.Of("d")[0]), start(t, url, "prod", h.Of("p")[0])
	d.append(t, h.Of("d"))
	p.append(t, h.Of("p"))
	reg := prometheus.NewRegistry()
	m, err := audit.NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	found, stop := follow(t, url+"/prod", m)

	before, beforeP := len(h.Of("d")), len(h.Of("p"))
	late()
	d.append(t, h.Of("d")[before:])
	p.append(t, h.Of("p")[beforeP:])

	if f := next(t, found); f.Invariant != "I2" || f.Node != "d" || f.Room == nil || *f.Room != 7 {
		t.Errorf("the unsafe release is reported as %s", f.Text())
	}
	for range 2 {
		if f := next(t, found); f.Invariant != "I1" || f.Page == nil || !strings.Contains(f.Detail, "p/0") {
			t.Errorf("the late write is reported as %s", f.Text())
		}
	}
	if err := stop(); err != nil {
		t.Errorf("an interrupt ends it with %v", err)
	}
	if len(found) > 0 {
		t.Errorf("one more: %s", (<-found).Text())
	}
	want := `
# HELP pdreplay_audit_violations_total Violations found, by invariant.
# TYPE pdreplay_audit_violations_total counter
pdreplay_audit_violations_total{invariant="I1"} 2
pdreplay_audit_violations_total{invariant="I2"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "pdreplay_audit_violations_total"); err != nil {
		t.Error(err)
	}
}

// A node that joins later, and whose mirror is behind, makes no violation up:
// the ACK's cause is in a log that is not there yet.
func TestACauseThatComesLaterIsWaitedFor(t *testing.T) {
	url := server(t)
	h, _ := story()
	d, p := start(t, url, "prod", h.Of("d")[0]), start(t, url, "prod", h.Of("p")[0])
	found, stop := func() (<-chan replay.Finding, func() error) {
		d.append(t, h.Of("d")) // also makes the stream
		return follow(t, url, nil)
	}()
	p.append(t, h.Of("p"))
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for len(found) > 0 {
		t.Errorf("found %s", (<-found).Text())
	}
}

func TestWhatCannotBeFollowedIsSaid(t *testing.T) {
	url := server(t)
	for src, want := range map[string]error{
		"nats://127.0.0.1/a/b": replay.ErrBadSource, "nats://127.0.0.1:1": replay.ErrUnavailable, url: replay.ErrUnavailable, // no stream yet
	} {
		err := audit.Follow(t.Context(), audit.Options{URL: src, Report: func(replay.Finding) error { return nil }})
		if !errors.Is(err, want) {
			t.Errorf("%s: have %v, want %v", src, err, want)
		}
	}
	h, _ := story()
	d := start(t, url, "one", h.Of("d")[0])
	d.append(t, h.Of("d"))
	p := start(t, url, "two", h.Of("p")[0])
	p.append(t, h.Of("p"))
	err := audit.Follow(t.Context(), audit.Options{URL: url, Report: func(replay.Finding) error { return nil }})
	if !errors.Is(err, replay.ErrBadSource) || !strings.Contains(err.Error(), "name one") {
		t.Errorf("two clusters: have %v", err)
	}
	full := errors.New("disk full")
	h2, late := story()
	late()
	srv := server(t)
	e := start(t, srv, "x", h2.Of("d")[0])
	e.append(t, h2.Of("d"))
	if err := audit.Follow(t.Context(), audit.Options{URL: srv, Settle: time.Millisecond, Report: func(replay.Finding) error { return full }}); !errors.Is(err, full) {
		t.Errorf("a report that fails: have %v", err)
	}
}
