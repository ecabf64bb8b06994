package soak

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/store/mirror/mirrortest"
	"github.com/pdlog/pdlog/test/built"
	"github.com/pdlog/pdlog/test/ladder"
)

func TestMain(m *testing.M) {
	mirrortest.Main() // this binary is the NATS server too
	goleak.VerifyTestMain(m)
}

// windows of a soak: the first is for warming up, the others are compared.
const windows = 8

// TestSoak takes PDLOG_SOAK (20 s) at PDLOG_SOAK_RATE rooms a second (100): `make
// soak` is 20 minutes at 1,000, or as near as the machine comes.
func TestSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("runs two nodes under load for 20 s")
	}
	length, rate := 20*time.Second, 100.0
	if s := os.Getenv("PDLOG_SOAK"); s != "" {
		var err error
		if length, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	if s := os.Getenv("PDLOG_SOAK_RATE"); s != "" {
		if _, err := fmt.Sscan(s, &rate); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	bin := filepath.Join(dir, "pdnode")
	if err := built.Into(t.Context(), dir, "pdnode"); err != nil {
		t.Fatal(err)
	}
	servers := mirrortest.Start(t, mirrortest.Options{Processes: true, Lazy: true})
	p := startNode(t, bin, dir, "p0", "prefill", servers.URL(), "bootstrap: \"127.0.0.1:0\"", "rdma: {fault: \"late:200ms:2%,error:1%\", fault_seed: 1}")
	st := p.status(t)
	d := startNode(t, bin, dir, "d0", "decode", servers.URL(), fmt.Sprintf("peers: [%q]", st.GetBootstrap()), "pages: 4096", "rdma: {fault: \"slowfence:20ms:1%\", fault_seed: 1}")
	e := newEngines(t, p, d)
	began := time.Now()
	e.start(rate)
	var samples []sample
	tick := time.NewTicker(length / (windows * 5))
	for time.Since(began) < length {
		<-tick.C
		samples = append(samples, sample{at: time.Since(began), rooms: e.ended.Load(), p: p.measure(t), d: d.measure(t)})
	}
	tick.Stop()
	took := time.Since(began)
	e.stop(t)
	faults := e.aborted.Load() + e.failed.Load()
	table, grown := judge(samples)
	t.Logf("%d rooms in %.0f s: %.0f a second of %.0f asked for, on %d workers; %d succeeded, %d aborted by their engine, %d failed, %d refused\n%s",
		e.ended.Load(), took.Seconds(), float64(e.ended.Load())/took.Seconds(), rate, workers, e.succeeded.Load(), e.aborted.Load(), e.failed.Load(), e.refused.Load(), table)
	for _, g := range grown {
		t.Error(g)
	}
	for name, v := range map[string]uint64{"succeeded": e.succeeded.Load(), "aborted": e.aborted.Load(), "failed": e.failed.Load()} {
		if v == 0 {
			t.Errorf("no room %s: the load is not what it should be", name)
		}
	}
	found := uint64(len(grown))
	for _, n := range []*node{p, d} {
		m := n.measureIdle(t)
		for _, zero := range []string{"pdnode_rooms", "pdnode_open_tokens", "pdnode_effects_pending", "pdnode_invariant_violations_total", "pdnode_unsafe_releases_total"} {
			if m[zero] != 0 {
				t.Errorf("%s: %s is %v after the load has ended", n.name, zero, m[zero])
				found++
			}
		}
	}
	ladder.Report(t, ladder.Row{Rung: "soak", What: fmt.Sprintf("%.0f rooms a second", float64(e.ended.Load())/took.Seconds()), Runs: e.ended.Load(), Faults: faults, Found: found, Took: took})
}
