package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdlog/pdlog/store"
)

func TestMirrorEqualsLog(t *testing.T) {
	srv := startServer(t, t.TempDir(), -1)
	nc := connect(t, srv)
	dir := t.TempDir()
	n := openNode(t, "d0", dir, 1)
	n.append(3000)
	r := run(t, n, srv.ClientURL())
	n.append(10)
	r.wait(t, n.seq)
	for range 40 {
		n.append(37)
	}
	r.wait(t, n.seq)
	if r.Lag() != 0 || r.LastMirrored() != n.seq || r.LastAudited() != n.seq || r.Err() != nil || r.Ahead() {
		t.Errorf("lag %d, mirrored %d, audited %d, err %v", r.Lag(), r.LastMirrored(), r.LastAudited(), r.Err())
	}
	r.stop(t)
	checkEqual(t, nc, n)
	n.close()

	n = openNode(t, "d0", dir, 2) // the next life of the same log
	n.append(20)
	r = run(t, n, srv.ClientURL())
	r.wait(t, n.seq)
	r.stop(t)
	checkEqual(t, nc, n)
	nodes, err := Nodes(testCtx(t), nc, "")
	if err != nil || len(nodes) != 1 {
		t.Fatalf("nodes: %v, %v", nodes, err)
	}
	if in := nodes[0]; in.Cluster != "c1" || in.Node != "d0" || in.LogID != n.log.LogID() || in.LastSeq != n.seq || in.Boot != 2 || in.Incarnation != 2 || in.Messages < 2 {
		t.Errorf("node: %+v", in)
	}
	if _, ok, err := LastOf(testCtx(t), nc, "c1", "nobody"); ok || err != nil {
		t.Errorf("a node nobody knows: %v, %v", ok, err)
	}
}

func TestNodesShareTheStreams(t *testing.T) {
	srv := startServer(t, t.TempDir(), -1)
	nc := connect(t, srv)
	if _, ok, err := LastOf(testCtx(t), nc, "c1", "p0"); ok || err != nil {
		t.Errorf("no stream yet: %v, %v", ok, err)
	}
	a, b := openNode(t, "p0", t.TempDir(), 1), openNode(t, "host.with.dots", t.TempDir(), 2)
	ra, rb := run(t, a, srv.ClientURL()), run(t, b, srv.ClientURL())
	for range 20 {
		a.append(30)
		b.append(50)
	}
	ra.wait(t, a.seq)
	rb.wait(t, b.seq)
	checkEqual(t, nc, a)
	checkEqual(t, nc, b)
	ra.stop(t)
	rb.stop(t)
}

// A publisher that is killed at any point and started again leaves nothing
// out and repeats nothing.
func TestKilledPublisherLeavesNoGapAndNoDuplicate(t *testing.T) {
	srv := startServer(t, t.TempDir(), -1)
	nc := connect(t, srv)
	n := openNode(t, "d0", t.TempDir(), 1)
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	for range rounds {
		r := run(t, n, srv.ClientURL())
		kill := make(chan struct{})
		go func(target uint64) { // once the mirror is that far: in the middle of the next publish
			defer close(kill)
			for {
				ch := r.moved()
				if r.LastMirrored() >= target {
					r.cancel()
					return
				}
				<-ch
			}
		}(n.seq + uint64(rand.IntN(100)))
		for range 12 {
			n.append(1 + rand.IntN(20) + 10)
		}
		<-kill
		r.stop(t)
	}
	r := run(t, n, srv.ClientURL())
	r.wait(t, n.seq)
	r.stop(t)
	checkEqual(t, nc, n)
}

// Two publishers of one log fence each other by what the stream expects next.
func TestTwoPublishersDoNotRepeatEachOther(t *testing.T) {
	srv := startServer(t, t.TempDir(), -1)
	nc := connect(t, srv)
	n := openNode(t, "d0", t.TempDir(), 1)
	a, b := run(t, n, srv.ClientURL()), run(t, n, srv.ClientURL())
	for range 60 {
		n.append(11)
	}
	a.wait(t, n.seq)
	b.wait(t, n.seq)
	a.stop(t)
	b.stop(t)
	checkEqual(t, nc, n)
}

func TestServerRestartIsWaitedOut(t *testing.T) {
	dir := t.TempDir()
	srv := startServer(t, dir, -1)
	n := openNode(t, "d0", t.TempDir(), 1)
	r := run(t, n, srv.ClientURL())
	n.append(100)
	r.wait(t, n.seq)
	_, p, err := net.SplitHostPort(srv.ClientURL()[len("nats://"):])
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(p)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		srv.Shutdown()
		for range 20 { // the node goes on without its mirror
			n.append(25)
		}
		if r.Lag() == 0 {
			t.Error("no lag while the server is away")
		}
		srv = startServer(t, dir, port)
		n.append(5)
		r.wait(t, n.seq)
	}
	r.stop(t)
	checkEqual(t, connect(t, srv), n)
}

func TestServerThatComesLaterIsFound(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := ln.Addr().(*net.TCPAddr).Port
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	n := openNode(t, "d0", t.TempDir(), 1)
	r := run(t, n, "nats://127.0.0.1:"+strconv.Itoa(port))
	n.append(100)
	srv := startServer(t, t.TempDir(), port)
	r.wait(t, n.seq)
	r.stop(t)
	checkEqual(t, connect(t, srv), n)
}

// A stream that is deleted or emptied is written again from the oldest event,
// also when nothing new happens, and although the server still remembers the
// message ids of an emptied one.
func TestLostStreamIsPublishedAgain(t *testing.T) {
	for name, lose := range map[string]func(context.Context, jetstream.JetStream, string) error{
		"deleted": func(ctx context.Context, js jetstream.JetStream, s string) error { return js.DeleteStream(ctx, s) },
		"purged": func(ctx context.Context, js jetstream.JetStream, s string) error {
			st, err := js.Stream(ctx, s)
			if err != nil {
				return err
			}
			return st.Purge(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := startServer(t, t.TempDir(), -1)
			nc := connect(t, srv)
			js, err := jetstream.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			n := openNode(t, "d0", t.TempDir(), 1)
			r := run(t, n, srv.ClientURL(), func(o *Options) { o.CheckEvery = 50 * time.Millisecond })
			n.append(2000)
			r.wait(t, n.seq)
			for _, s := range []string{StreamLog, StreamAudit} {
				if err := lose(testCtx(t), js, s); err != nil {
					t.Fatal(err)
				}
			}
			ctx := testCtx(t)
			var milestones uint64
			for seq := uint64(1); seq <= n.seq; seq += 50 {
				milestones++
			}
			for ctx.Err() == nil { // nothing is appended: the mirror finds it by itself
				in, ok, err := LastOf(ctx, nc, "c1", "d0")
				if err != nil {
					t.Fatal(err)
				}
				s, err := js.Stream(ctx, StreamAudit)
				if ok && in.LastSeq == n.seq && err == nil && s.CachedInfo().State.Msgs == milestones {
					break
				}
			}
			n.append(10)
			r.wait(t, n.seq)
			r.stop(t)
			checkEqual(t, nc, n)
		})
	}
}

// What a stream lost, or never got, and the log does not keep any more is
// reported, with its records, once; everything else is there. The stream of
// milestones tells its own losses.
func TestWhatNeitherStreamNorLogKeepsIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		lose       []string // streams deleted after both were whole
		away       bool     // the mirror is away while retention takes what it lacks
		log, audit bool     // a hole is said of the stream
	}{
		"both streams deleted":      {lose: []string{StreamLog, StreamAudit}, log: true, audit: true},
		"milestones deleted":        {lose: []string{StreamAudit}, audit: true},
		"frames deleted":            {lose: []string{StreamLog}, log: true},
		"retention past the mirror": {away: true, log: true},
	} {
		t.Run(name, func(t *testing.T) {
			srv := startServer(t, t.TempDir(), -1)
			nc := connect(t, srv)
			js, err := jetstream.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			n := openNode(t, "d0", t.TempDir(), 1)
			r := run(t, n, srv.ClientURL(), func(o *Options) { o.CheckEvery = 50 * time.Millisecond })
			n.append(500)
			r.wait(t, n.seq)
			whole := n.seq
			if c.away {
				r.stop(t)
			}
			n.roll(3)
			if !c.away {
				r.wait(t, n.seq)
				whole = 0
			}
			n.snapshot()
			n.append(10)
			n.snapshot()
			kept, err := n.log.Retain(n.seq, 0)
			if err != nil || kept.FirstSeq <= 501 {
				t.Fatalf("retention took too little: %+v, %v", kept, err)
			}
			for _, s := range c.lose {
				if err := js.DeleteStream(testCtx(t), s); err != nil {
					t.Fatal(err)
				}
			}
			if c.away {
				r = run(t, n, srv.ClientURL())
			}
			holes := map[string]bool{StreamLog: c.log, StreamAudit: c.audit}
			for s, want := range holes {
				if want {
					r.notes.await(t, NoticeHole, s)
				}
			}
			n.append(10)
			r.wait(t, n.seq)
			r.stop(t)
			for s, want := range holes {
				said := r.notes.of(NoticeHole, s)
				if (len(said) == 1) != want || len(said) > 1 {
					t.Errorf("holes of %s: %v", s, said)
				}
				if want && !strings.Contains(said[0], fmt.Sprintf("%d to %d ", whole+1, kept.FirstSeq-1)) {
					t.Errorf("the hole of %s is %q, want records %d to %d", s, said[0], whole+1, kept.FirstSeq-1)
				}
				if lost := len(r.notes.of(NoticeLost, s)) > 0; lost != slices.Contains(c.lose, s) {
					t.Errorf("%s: what was lost is said: %v", s, lost)
				}
			}
			next := uint64(1)
			findings, err := Read(testCtx(t), nc, Filter{Cluster: "c1", Node: "d0"}, func(it Item) error {
				if it.Event.Seq != next && it.Event.Seq != kept.FirstSeq {
					t.Errorf("event %d after %d", it.Event.Seq, next-1)
				}
				next = it.Event.Seq + 1
				return nil
			})
			if err != nil || next != n.seq+1 {
				t.Errorf("the stream ends before %d, the log at %d: %v", next, n.seq, err)
			}
			if gap := len(findings) == 1 && findings[0].Kind == FindingGap && findings[0].Have == kept.FirstSeq; gap != c.log {
				t.Errorf("findings %v", findings)
			}
			have := map[uint64]int{}
			for _, m := range auditMessages(t, nc, n) {
				have[(&headParser{h: m.Headers()}).uint(HeaderSeq, 10, 64)]++
			}
			for seq := uint64(1); seq <= n.seq; seq += 50 {
				want := 1
				if seq < kept.FirstSeq && (c.audit || c.away && seq > whole) {
					want = 0
				}
				if have[seq] != want {
					t.Errorf("the milestone of record %d is there %d times, want %d", seq, have[seq], want)
				}
			}
		})
	}
}

func TestMirrorAheadOfTheLogStopsLoudly(t *testing.T) {
	srv := startServer(t, t.TempDir(), -1)
	dir := t.TempDir()
	n := openNode(t, "d0", dir, 1)
	n.append(100)
	n.close()
	older := copyDir(t, dir)
	n = openNode(t, "d0", dir, 2)
	n.append(100)
	r := run(t, n, srv.ClientURL())
	r.wait(t, n.seq)
	r.stop(t)
	n.close()

	n = openNode(t, "d0", older, 3) // an old copy came back
	r = run(t, n, srv.ClientURL())
	err := <-r.done
	if !errors.Is(err, ErrMirrorAhead) || !r.Ahead() || !r.notes.has(NoticeAhead) || !errors.Is(r.Err(), ErrMirrorAhead) {
		t.Errorf("run: %v, ahead %v, notices %v", err, r.Ahead(), r.notes.all)
	}

	n.append(500) // and wrote other events over what was lost
	r = run(t, n, srv.ClientURL())
	if err := <-r.done; !errors.Is(err, ErrMirrorDiverged) || !r.notes.has(NoticeDiverged) {
		t.Errorf("run: %v, notices %v", err, r.notes.all)
	}
	var last uint64
	findings, err := Read(testCtx(t), connect(t, srv), Filter{}, func(it Item) error { last = it.Event.Seq; return nil })
	if err != nil || len(findings) != 0 || last != 200 {
		t.Errorf("the stream was touched: up to %d, %v, %v", last, findings, err)
	}
}

// A wiped node goes on under its name with another log; if the old log comes
// back it resumes where it was.
func TestAnotherLogOfTheSameNodeIsSaid(t *testing.T) {
	srv := startServer(t, t.TempDir(), -1)
	nc := connect(t, srv)
	a := openNode(t, "d0", t.TempDir(), 1)
	a.append(300)
	r := run(t, a, srv.ClientURL())
	r.wait(t, a.seq)
	r.stop(t)

	b := openNode(t, "d0", t.TempDir(), 2)
	b.salt = 1 << 30
	b.append(120)
	r = run(t, b, srv.ClientURL())
	r.wait(t, b.seq)
	r.stop(t)
	if !r.notes.has(NoticeOtherLog) {
		t.Errorf("notices: %v", r.notes.all)
	}
	checkEqual(t, nc, b)

	a.append(100)
	r = run(t, a, srv.ClientURL())
	r.wait(t, a.seq)
	r.stop(t)
	checkEqual(t, nc, a)
	checkEqual(t, nc, b)
}

func TestClosedLogEndsTheMirror(t *testing.T) {
	srv := startServer(t, t.TempDir(), -1)
	n := openNode(t, "d0", t.TempDir(), 1)
	n.append(10)
	r := run(t, n, srv.ClientURL())
	r.wait(t, n.seq)
	n.close()
	if err := <-r.done; !errors.Is(err, store.ErrClosed) {
		t.Errorf("run: %v", err)
	}
}

func TestMilestonesAreCloudEvents(t *testing.T) {
	srv := startServer(t, t.TempDir(), -1)
	nc := connect(t, srv)
	n := openNode(t, "d0", t.TempDir(), 0xb007)
	n.append(60)
	r := run(t, n, srv.ClientURL())
	r.wait(t, n.seq)
	r.stop(t)
	msgs := auditMessages(t, nc, n)
	if len(msgs) != 2 {
		t.Fatalf("%d messages, want those of 1 and 51", len(msgs))
	}
	m := msgs[1]
	if m.Subject() != "pdlog.audit.c1.d0.AbortArmed" {
		t.Errorf("subject %s", m.Subject())
	}
	for k, want := range map[string]string{
		"ce-specversion": "1.0", "ce-id": "d0/51", "ce-source": "/pdlog/c1/d0", "ce-type": "pdlog.events.v1.AbortArmed",
		"ce-time": "1970-01-01T00:00:00Z", "Content-Type": "application/json", "Nats-Msg-Id": "d0/51", HeaderSeq: "51",
	} {
		if have := m.Headers().Get(k); have != want {
			t.Errorf("%s is %q, want %q", k, have, want)
		}
	}
	var body struct {
		Seq        uint64 `json:"seq"`
		Room       string `json:"room"`
		RoomSeq    uint64 `json:"room_seq"`
		Type       string `json:"type"`
		Generation uint64 `json:"generation"`
		Cause      string `json:"cause"`
	}
	if err := json.Unmarshal(m.Data(), &body); err != nil {
		t.Fatalf("%s: %v", m.Data(), err)
	}
	if body.Seq != 51 || body.Room != strconv.FormatUint(1<<62+5, 10) || body.Type != "AbortArmed" || body.Generation != 51 || body.Cause != "client" {
		t.Errorf("body %s", m.Data())
	}
}
