package e2e

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node/demo"
	"github.com/pdlog/pdlog/projector/invariants"
	"github.com/pdlog/pdlog/store/mirror"
)

// The decode node dies at once (SIGKILL), twice, in the middle of the work, and
// comes back on its data directory. Nothing may be released without evidence,
// no generation comes twice, and the mirror has every event once.
func TestKilledDecodeNodeLosesNothing(t *testing.T) {
	o := demo.DefaultOptions()
	o.Requests, o.Seed, o.BytesPerToken, o.Pages = 60, 11, 256, 2048
	o.AckTimeout, o.TransferTimeout = 500*time.Millisecond, 2*time.Second
	dir := t.TempDir()
	plan := demo.MakePlan(o, demo.Generate(o.Seed, o.Requests))
	c := demo.NewCluster(o, pdnode, dir, &plan)
	defer c.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), demoLimit)
	defer cancel()
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.Begin(); err != nil {
		t.Fatal(err)
	}

	crashAt := []int{o.Requests / 6, o.Requests / 2} // requests that have ended by then
	type crash struct{ err error }
	crashes := make(chan crash, len(crashAt))
	var wg sync.WaitGroup
	defer wg.Wait()
	report, err := c.Wait(ctx, func(r demo.EngineReport) {
		if len(crashAt) == 0 || r.Ended() < crashAt[0] {
			return
		}
		crashAt = crashAt[1:]
		wg.Go(func() { // Wait must go on passing messages meanwhile
			c.KillNode(plan.DecodeNode)
			crashes <- crash{c.RestartNode(plan.DecodeNode)}
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	close(crashes)
	happened := 0
	for cr := range crashes {
		happened++
		if cr.err != nil {
			t.Fatal(cr.err)
		}
	}
	if happened != 2 {
		t.Fatalf("%d crashes happened, want 2: the run was over too soon", happened)
	}
	if report.Ended() != report.Total || report.PoolFault != "" {
		t.Errorf("stand-in: %+v", report)
	}
	if len(report.Corrupt) > 0 {
		t.Errorf("wrong bytes in %v", report.Corrupt)
	}
	status, err := c.Settle(ctx, time.Now().Add(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for node, s := range status {
		if s.GetMirrorLag() != 0 {
			t.Errorf("%s: mirror lag %d (%s)", node, s.GetMirrorLag(), s.GetMirrorError())
		}
	}
	mirrored := map[string][]*events.Event{}
	for _, node := range []string{plan.PrefillNode, plan.DecodeNode} {
		mirrored[node] = readMirror(ctx, t, c.NATSURL(), node)
	}
	c.Stop()

	logs := map[string][]*events.Event{}
	for _, node := range []string{plan.PrefillNode, plan.DecodeNode} {
		logs[node] = readLog(t, c.LogDir(node))
		sameBeginning(t, node, logs[node], mirrored[node])
	}
	lives := 0
	for _, e := range logs[plan.DecodeNode] {
		if e.GetNodeStarted() != nil {
			lives++
		}
	}
	if lives != 3 {
		t.Errorf("the decode log has %d lives, want 3", lives)
	}
	checkReleases(t, logs[plan.DecodeNode])
	checkInvariants(t, logs)
}

// checkInvariants feeds all logs, merged by their clocks, to the checker.
func checkInvariants(t *testing.T, logs map[string][]*events.Event) {
	t.Helper()
	var all []*events.Event
	for _, l := range logs {
		all = append(all, l...)
	}
	slices.SortStableFunc(all, func(a, b *events.Event) int {
		switch {
		case a.Hlc < b.Hlc:
			return -1
		case a.Hlc > b.Hlc:
			return 1
		}
		return 0
	})
	ch := invariants.New()
	ch.CheckChain()
	for _, e := range all {
		ch.Feed(e)
	}
	for _, v := range ch.Finish() {
		t.Errorf("violation: %s", v)
	}
}

// readMirror reads a node's mirrored log to its end. Each message must go on
// where the one before it ended: no gap, nothing twice (events.md I10).
func readMirror(ctx context.Context, t *testing.T, url, node string) []*events.Event {
	t.Helper()
	server, cluster, err := mirror.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(server)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(ctx, mirror.StreamLog)
	if err != nil {
		t.Fatal(err)
	}
	if cluster == "" {
		cluster = "default"
	}
	subject := mirror.SubjectLog(cluster, node)
	last, err := s.GetLastMsgForSubject(ctx, subject)
	if err != nil {
		t.Fatalf("last message of %s: %v", subject, err)
	}
	cons, err := js.OrderedConsumer(ctx, mirror.StreamLog, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
	if err != nil {
		t.Fatal(err)
	}
	var (
		evs []*events.Event
		at  events.Position
	)
	for seq := uint64(0); seq < last.Sequence; {
		m, err := cons.Next(jetstream.FetchContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		md, err := m.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		seq = md.Sequence.Stream
		first, end, err := events.DecodeFrames(m.Data(), node, func(e *events.Event) error { evs = append(evs, e); return nil })
		if err != nil {
			t.Fatal(err)
		}
		if first.FirstSeq != at.Seq+1 || first.PrevChain != at.Chain {
			t.Errorf("mirror of %s: a message begins with event %d after %d", node, first.FirstSeq, at.Seq)
		}
		at = events.Position{Seq: end.LastSeq, HLC: end.LastHLC, Chain: end.Chain}
	}
	return evs
}

// sameBeginning: the log has gone on since the mirror was read, but what was
// mirrored is what it says.
func sameBeginning(t *testing.T, node string, log, mirrored []*events.Event) {
	t.Helper()
	if len(mirrored) == 0 || len(mirrored) > len(log) {
		t.Errorf("%s: %d events mirrored of %d", node, len(mirrored), len(log))
		return
	}
	for i, m := range mirrored {
		if a, b := events.AppendJSON(nil, m), events.AppendJSON(nil, log[i]); string(a) != string(b) {
			t.Errorf("%s: event %d is %s in the mirror, %s in the log", node, i+1, a, b)
			return
		}
	}
}
