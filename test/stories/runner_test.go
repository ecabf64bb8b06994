package stories

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pdlog/pdlog/node/demo"
	"github.com/pdlog/pdlog/store/mirror/mirrortest"
	"github.com/pdlog/pdlog/test/ladder"
)

const (
	patience  = 60 * time.Second // a deadline, never a delay
	storyTime = 5 * time.Minute  // for a story, on a machine with much else to do
)

// story is what happens to a fleet.
type story struct {
	name     string
	net      bool // in network namespaces
	servers  int  // NATS servers; 0 = 1
	requests int  // 0 = 40
	night    bool // in `make night` alone
	begin    func(*fleet)
	acts     []act
	end      func(*fleet) // behind the last act, before the nodes stop
}

// act is a part of a story: what happens when that share of the requests has
// ended, in percent. Acts come one after the other.
type act struct {
	at int
	do func(*fleet)
}

// fleet is a demo that a story happens to.
type fleet struct {
	*testing.T
	c       *demo.Cluster
	net     *network
	servers *mirrortest.Servers
	p, d    string // the nodes
	place   map[string]demo.Place
	dir     string
	ctx     context.Context //nolint:containedctx // of the story
	faults  uint64          // that have happened
	saved   string          // an old copy of a server's store
	over    atomic.Bool     // all requests have ended
}

func tell(t *testing.T, s story) {
	if s.night && os.Getenv("PDLOG_NIGHT") == "" {
		t.Skip("a story of make night (PDLOG_NIGHT=1)")
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), storyTime)
	defer cancel()
	o := demo.DefaultOptions()
	o.Requests, o.Seed, o.BytesPerToken, o.Pages = max(s.requests, 40), 11, 256, 2048
	o.Speed = 2.5 // a batch of some ten requests every 1.2 s: there are some before, in and after what happens
	o.AckTimeout, o.TransferTimeout = 500*time.Millisecond, 2*time.Second
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the fleet's logs stay in %s", dir)
		} else {
			_ = os.RemoveAll(dir)
		}
	})
	plan := demo.MakePlan(o, demo.Generate(o.Seed, o.Requests))
	f := &fleet{T: t, c: demo.NewCluster(o, pdnode, dir, &plan), p: plan.PrefillNode, d: plan.DecodeNode, dir: dir, ctx: ctx}
	f.place = map[string]demo.Place{f.p: {Port: freePort(t)}, f.d: {}}
	nats := mirrortest.Options{Count: max(s.servers, 1), Processes: true}
	if s.net {
		f.net = newNetwork(t)
		f.place[f.p] = demo.Place{Host: f.net.addr("p"), Port: 8998, Enter: f.net.enter("p")}
		f.place[f.d] = demo.Place{Host: f.net.addr("d"), Enter: f.net.enter("d")}
		nats.Host, nats.Enter = f.net.addr("n"), f.net.enter("n")
	}
	f.servers = mirrortest.Start(t, nats)
	f.c.Mirror(f.servers.URL(), nats.Count)
	if s.begin != nil {
		s.begin(f)
	}
	for node, p := range f.place {
		p.More = append(p.More, "heartbeat: 500ms", "waiting_timeout: 10s")
		f.place[node] = p
		f.c.Place(node, p)
	}
	defer f.c.Stop()
	if err := f.c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := f.c.Begin(); err != nil {
		t.Fatal(err)
	}
	report, took := f.live(s)
	if s.end != nil {
		s.end(f)
	}
	sum, err := f.c.Conclude(ctx, report, took) // and stops the nodes
	if err != nil {
		t.Fatal(err)
	}
	f.judge(sum)
	found := uint64(0)
	if t.Failed() {
		found = 1
	}
	ladder.Report(t, ladder.Row{Rung: "stories of real processes", What: s.name, Runs: 1, Faults: f.faults, Found: found, Took: time.Since(began)})
}

// live lets the requests come and the story happen.
func (f *fleet) live(s story) (demo.EngineReport, time.Duration) {
	f.Helper()
	began := time.Now()
	acts := make(chan act, len(s.acts))
	var wg sync.WaitGroup
	wg.Go(func() { // Wait must go on passing messages meanwhile
		for a := range acts {
			a.do(f)
		}
	})
	todo := s.acts
	report, err := f.c.Wait(f.ctx, func(r demo.EngineReport) {
		for len(todo) > 0 && 100*r.Ended() >= todo[0].at*r.Total {
			acts <- todo[0]
			todo = todo[1:]
		}
	})
	f.over.Store(true)
	close(acts)
	wg.Wait()
	if err != nil {
		f.Fatal(err)
	}
	if len(todo) > 0 {
		f.Errorf("the run was over before %d of the story's acts", len(todo))
	}
	for _, node := range []string{f.p, f.d} {
		f.must(f.c.Ready(f.ctx, node))
	}
	return report, time.Since(began)
}

// judge: every page held the right bytes and is free, every release has evidence,
// and logs and mirror say so.
func (f *fleet) judge(s *demo.Summary) {
	f.Helper()
	f.Logf("%d succeeded, %d aborted, %d failed %v; %d pages checked; released %+v; aborts took %+v ms; %.1f s",
		s.Succeeded, s.Aborted, s.Failed, s.Failures, s.PagesChecked, s.Released, s.AbortToRelease, s.Seconds)
	if !s.OK() {
		f.Errorf("problems: %q", s.Problems)
	}
	if s.CorruptPages != 0 || s.LostPages != 0 || s.HeldNow != 0 || s.Unsafe != 0 {
		f.Errorf("%d corrupt pages, %d lost; %d rooms held, %d released without evidence", s.CorruptPages, s.LostPages, s.HeldNow, s.Unsafe)
	}
	if s.Succeeded == 0 || s.PagesChecked == 0 {
		f.Error("nothing succeeded: the byte check has seen nothing")
	}
	url := f.servers.URL()
	f.replay("verify", f.dir)
	f.replay("verify", f.dir, url)
	for _, node := range []string{f.p, f.d} {
		f.replay("diff", "--node", node, f.c.LogDir(node), url)
	}
}

func (f *fleet) replay(args ...string) {
	f.Helper()
	out, err := exec.CommandContext(f.ctx, pdreplay, args...).CombinedOutput() //nolint:gosec // this test's binary
	if err != nil {
		f.Errorf("pdreplay %v: %v\n%s", args, err, out)
	}
}

// ---- what acts are made of

// lasts lets a fault go on for a while.
func (f *fleet) lasts(d time.Duration) {
	select {
	case <-time.After(d):
	case <-f.ctx.Done():
	}
}

// met is told how many packets a fault met: one that met none shows nothing.
func (f *fleet) met(what string, packets uint64) {
	f.Logf("%s: met %d packets", what, packets)
	f.faults += packets
	if packets == 0 {
		f.Errorf("%s met no packet", what)
	}
}

func (f *fleet) must(err error) {
	f.Helper()
	if err != nil {
		f.Error(err)
	}
}

// kill ends a node at once, and starts it again.
func (f *fleet) kill(node string) {
	f.faults++
	f.c.KillNode(node)
	f.must(f.c.RestartNode(node))
}

// replace stops a node in order and starts another build on its log.
func (f *fleet) replace(node, binary string) {
	f.faults++
	f.c.StopNode(node)
	p := f.place[node]
	p.Binary = binary
	f.c.Place(node, p)
	f.must(f.c.RestartNode(node))
}

// wipe takes a server's store away while it is down.
func (f *fleet) wipe(server int) {
	f.must(os.RemoveAll(f.servers.StoreDir(server)))
}

// save copies a server's store while it is down, restore puts the copy back.
func (f *fleet) save(server int) {
	f.saved = filepath.Join(f.TempDir(), "old")
	f.must(os.CopyFS(f.saved, os.DirFS(f.servers.StoreDir(server))))
}

func (f *fleet) restore(server int) {
	f.wipe(server)
	f.must(os.CopyFS(f.servers.StoreDir(server), os.DirFS(f.saved)))
}

func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // of a TCP listener
}

// previous builds pdnode as it was at a revision of this repository.
func previous(t *testing.T, rev string) string {
	t.Helper()
	root, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		t.Skip("needs git and a clone")
	}
	top := string(root[:len(root)-1])
	if err := exec.Command("git", "-C", top, "rev-parse", "--quiet", "--verify", rev+"^{commit}").Run(); err != nil { //nolint:gosec // a revision
		t.Skipf("needs a clone that has %s", rev)
	}
	dir := t.TempDir()
	tar := exec.Command("bash", "-c", fmt.Sprintf("git -C %q archive --format=tar %q | tar -x -C %q", top, rev, dir)) //nolint:gosec // paths of ours
	if out, err := tar.CombinedOutput(); err != nil {
		t.Fatalf("source of %s: %v: %s", rev, err, out)
	}
	if err := buildIn(dir, dir, "./cmd/pdnode"); err != nil {
		t.Fatalf("build %s: %v", rev, err)
	}
	return filepath.Join(dir, "pdnode")
}
