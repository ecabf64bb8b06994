package mirror_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/store/mirror"
	"github.com/pdlog/pdlog/store/mirror/mirrortest"
	"github.com/pdlog/pdlog/test/ladder"
)

func TestMain(m *testing.M) {
	mirrortest.Main()
	publisherMain()
	goleak.VerifyTestMain(m)
}

// publisherEnv makes the test binary a node: the log's folder and the servers.
const publisherEnv = "PDLOG_TEST_PUBLISHER"

// publisherMain appends to a log and mirrors it, and prints a line for every
// step that the mirror makes, until it is killed.
func publisherMain() {
	dir, url, ok := strings.Cut(os.Getenv(publisherEnv), " ")
	if !ok {
		return
	}
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, "publisher:", err)
		os.Exit(1)
	}
	logger := slog.New(slog.DiscardHandler)
	if os.Getenv("PDLOG_MIRROR_KILLS_LOG") != "" { // what the nodes say
		logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	w, err := mirrortest.OpenWriter(context.Background(), dir, "d0", uint64(os.Getpid())) //nolint:gosec // positive
	if err != nil {
		fail(err)
	}
	m, err := mirror.New(mirror.Options{URL: url, Cluster: mirrortest.Cluster, Node: w.Node, Log: w.Log, Replicas: replicasOf(url), PublishTimeout: 2 * time.Second, Logger: logger})
	if err != nil {
		fail(err)
	}
	go func() { fail(m.Run(context.Background())) }()
	go func() {
		for seq := uint64(1); m.WaitMirrored(context.Background(), seq) == nil; seq = m.LastMirrored() + 1 {
			fmt.Println(m.LastMirrored())
		}
	}()
	pace := time.NewTicker(10 * time.Millisecond) // the disk is for the servers of this test: each syncs every message
	for range pace.C {
		if err := w.Append(1 + rand.IntN(30)); err != nil {
			fail(err)
		}
	}
}

func replicasOf(url string) int { return len(strings.Split(url, ",")) }

// publisher is such a process.
type publisher struct {
	cmd   *exec.Cmd
	lines chan string
	steps int // that were seen
}

func startPublisher(t *testing.T, dir, url string) *publisher {
	t.Helper()
	p := &publisher{cmd: exec.Command("/proc/self/exe"), lines: make(chan string, 100_000)}
	p.cmd.Env = append(os.Environ(), publisherEnv+"="+dir+" "+url)
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	return p
}

// killAfter kills the node once it has mirrored n steps, or after a while in
// which the servers may be away. It says how many it made.
func (p *publisher) killAfter(t *testing.T, n int, most time.Duration) (steps int) {
	t.Helper()
	timer := time.NewTimer(most)
	defer timer.Stop()
	for n > 0 {
		select {
		case _, ok := <-p.lines:
			if !ok {
				t.Fatal("the node ended by itself")
			}
			n--
			p.steps++
			continue
		case <-timer.C:
		}
		break
	}
	_ = p.cmd.Process.Kill()
	for range p.lines {
		p.steps++
	}
	_ = p.cmd.Wait()
	return p.steps
}

// kills is how many nodes to kill; a fifth of it is servers. PDLOG_MIRROR_KILLS
// says another number.
func kills(t *testing.T) int {
	if n, err := strconv.Atoi(os.Getenv("PDLOG_MIRROR_KILLS")); err == nil {
		return n
	}
	return 5
}

// killed is what became of one node that was killed again and again.
type killed struct {
	nodes, servers, leaders, steps int
	mirrortest.Count
}

func (k *killed) add(o killed) {
	k.nodes, k.servers, k.leaders, k.steps = k.nodes+o.nodes, k.servers+o.servers, k.leaders+o.leaders, k.steps+o.steps
	k.Events, k.Duplicates, k.Gaps, k.Other = k.Events+o.Events, k.Duplicates+o.Duplicates, k.Gaps+o.Gaps, k.Other+o.Other
	k.AuditMissing, k.AuditDuplicates = k.AuditMissing+o.AuditMissing, k.AuditDuplicates+o.AuditDuplicates
}

// Nodes and servers, all of them processes, are killed at any moment, and the
// mirror holds the log exactly: nothing twice, nothing missing. Most of it is
// waiting for elections, so many kills are shared by several clusters.
func TestKillsOfNodesAndServersLeaveTheMirrorExact(t *testing.T) {
	const perCluster = 100
	n := kills(t)
	clusters := max(1, n/perCluster)
	for name, count := range map[string]int{"one server": 1, "three servers": 3} {
		t.Run(name, func(t *testing.T) {
			if clusters == 1 {
				t.Parallel()
			}
			start := time.Now()
			var mu sync.Mutex
			var all killed
			t.Run("clusters", func(t *testing.T) {
				for i := range clusters {
					t.Run(strconv.Itoa(i), func(t *testing.T) {
						t.Parallel()
						k := killAgain(t, count, n*(i+1)/clusters-n*i/clusters)
						mu.Lock()
						defer mu.Unlock()
						all.add(k)
					})
				}
			})
			ladder.Report(t, ladder.Row{
				Rung: "mirror", What: "kills, " + name, Runs: uint64(all.nodes), Faults: uint64(all.nodes + all.servers), //nolint:gosec // counts
				Found: uint64(all.Duplicates + all.Gaps + all.Other + all.AuditMissing + all.AuditDuplicates), Took: time.Since(start), //nolint:gosec // counts
			})
			t.Logf("%d nodes and %d servers killed (%d of them leaders), in %d clusters: %d events in %d steps, %d duplicates, %d gaps, %d other findings; milestones: %d missing, %d twice",
				all.nodes, all.servers, all.leaders, clusters, all.Events, all.steps, all.Duplicates, all.Gaps, all.Other, all.AuditMissing, all.AuditDuplicates)
		})
	}
}

// killAgain kills a node n times, and a server at every fifth, and compares the
// mirror with the log.
func killAgain(t *testing.T, servers, n int) (k killed) {
	t.Helper()
	s := mirrortest.Start(t, mirrortest.Options{Count: servers, Processes: true})
	dir := filepath.Join(t.TempDir(), "log")
	js := s.JetStream(s.Connect())
	down := -1
	for k.nodes < n {
		p := startPublisher(t, dir, s.URL())
		if servers > 1 || down < 0 {
			p.await(t) // then it is always in the middle of a publish
		}
		if k.nodes%5 == 4 { // while the node runs
			victim := rand.IntN(servers)
			if servers > 1 && k.servers%2 == 0 { // a leader change, for sure
				if down >= 0 {
					s.Run(down)
				}
				victim, down = s.Leader(js, mirror.StreamLog), -1
				k.leaders++
			}
			if victim == down {
				s.Run(down)
				p.await(t)
			}
			s.Kill(victim)
			k.servers++
			if down >= 0 && down != victim {
				s.Run(down)
			}
			down = victim
		}
		k.steps += p.killAfter(t, 1+rand.IntN(40), time.Duration(rand.IntN(500))*time.Millisecond)
		k.nodes++
		if down >= 0 && (servers == 1 || rand.IntN(2) == 0) {
			s.Run(down)
			down = -1
		}
	}
	if down >= 0 {
		s.Run(down)
	}
	w := mirrortest.OpenNode(t, dir, "d0", 1)
	w.MustAppend(t, 1)
	r := mirrortest.Run(t, w, mirror.Options{URL: s.URL(), Replicas: servers})
	r.Wait(t, w.Seq)
	r.Stop(t)
	k.Count = mirrortest.Compare(t, s.Connect(), w)
	if !k.Exact() {
		t.Errorf("the mirror is not the log: %+v", k.Count)
	}
	return k
}

// await returns when the node has mirrored a step more.
func (p *publisher) await(t *testing.T) {
	t.Helper()
	select {
	case _, ok := <-p.lines:
		p.steps++
		if !ok {
			t.Fatal("the node ended by itself")
		}
	case <-time.After(3 * time.Minute): // on a machine with much else to do
		t.Fatal("the node mirrors nothing")
	}
}

// A leader change in a cluster, on demand and by the loss of the leader's
// server, while the node writes.
func TestLeaderChangesLeaveTheMirrorExact(t *testing.T) {
	t.Parallel()
	s := mirrortest.Start(t, mirrortest.Options{Count: 3, Lazy: true})
	nc := s.Connect()
	js := s.JetStream(nc)
	w := mirrortest.OpenNode(t, t.TempDir(), "d0", 1)
	r := mirrortest.Run(t, w, mirror.Options{URL: s.URL(), Replicas: 3, PublishTimeout: 2 * time.Second})
	w.MustAppend(t, 100)
	r.Wait(t, w.Seq)
	for i := range 2 {
		before := s.Leader(js, mirror.StreamLog)
		writing, stop := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(writing)
			for {
				select {
				case <-stop:
					return
				default:
					if err := w.Append(20); err != nil {
						t.Error(err)
						return
					}
				}
			}
		}()
		if i%2 == 0 {
			for _, stream := range []string{mirror.StreamLog, mirror.StreamAudit} {
				if _, err := nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+stream, nil, 10*time.Second); err != nil {
					t.Log("step down:", err)
				}
			}
		} else {
			s.Kill(before)
			s.Leader(js, mirror.StreamLog)
			s.Run(before)
		}
		close(stop)
		<-writing
		r.Wait(t, w.Seq)
	}
	r.Stop(t)
	if c := mirrortest.Compare(t, nc, w); !c.Exact() || c.Events != w.Seq {
		t.Errorf("the mirror is not the log: %+v", c)
	}
}

// A link that is slow, and one that breaks again and again.
func TestBadLinksLeaveTheMirrorExact(t *testing.T) {
	t.Parallel()
	s := mirrortest.Start(t, mirrortest.Options{Lazy: true})
	t.Run("slow", func(t *testing.T) {
		w := mirrortest.OpenNode(t, t.TempDir(), "slow", 1)
		link := mirrortest.NewLink(t, s.Addr(0), 300<<10)
		r := mirrortest.Run(t, w, mirror.Options{URL: link.URL(), LagAlarm: 500 * time.Millisecond})
		w.MustAppend(t, 15_000) // about a second and a half of that link
		r.WaitNotice(t, mirror.NoticeBehind)
		if lag, age := r.Behind(time.Now()); lag == 0 || age < 500*time.Millisecond {
			t.Errorf("behind by %d events, %v", lag, age)
		}
		r.Wait(t, w.Seq)
		r.WaitNotice(t, mirror.NoticeCaughtUp)
		if lag, age := r.Behind(time.Now()); lag != 0 || age != 0 {
			t.Errorf("at rest: behind by %d events, %v", lag, age)
		}
		r.Stop(t)
		if c := mirrortest.Compare(t, s.Connect(), w); !c.Exact() || c.Events != w.Seq {
			t.Errorf("the mirror is not the log: %+v", c)
		}
	})
	t.Run("cut", func(t *testing.T) {
		w := mirrortest.OpenNode(t, t.TempDir(), "cut", 1)
		link := mirrortest.NewLink(t, s.Addr(0), 4<<20)
		r := mirrortest.Run(t, w, mirror.Options{URL: link.URL(), PublishTimeout: time.Second})
		for range 10 {
			for range 5 {
				w.MustAppend(t, 200)
			}
			link.Cut() // with the answer to a publish under way, more often than not
			w.MustAppend(t, 50)
			link.Mend()
			r.Wait(t, w.Seq)
		}
		r.Stop(t)
		if c := mirrortest.Compare(t, s.Connect(), w); !c.Exact() || c.Events != w.Seq {
			t.Errorf("the mirror is not the log: %+v", c)
		}
	})
}

// A stream that is full says so once, loses nothing, and goes on when there is
// room. The log does not wait for it.
func TestFullStreamIsLoudAndLosesNothing(t *testing.T) {
	for _, stream := range []string{mirror.StreamLog, mirror.StreamAudit} {
		t.Run(stream, func(t *testing.T) {
			s := mirrortest.Start(t, mirrortest.Options{Lazy: true})
			js := s.JetStream(s.Connect())
			w := mirrortest.OpenNode(t, t.TempDir(), "d0", 1)
			r := mirrortest.Run(t, w, mirror.Options{URL: s.URL()})
			w.MustAppend(t, 1000)
			r.Wait(t, w.Seq)
			limit(t, js, stream, 64<<10)
			for range 20 {
				w.MustAppend(t, 1000) // is durable, whatever the mirror does
			}
			n := r.WaitNotice(t, mirror.NoticeFull)
			if !strings.Contains(n.Detail, stream) || !strings.Contains(n.Detail, "maximum bytes") {
				t.Errorf("notice %q", n.Detail)
			}
			look := time.NewTicker(time.Millisecond)
			defer look.Stop()
			for r.Err() == nil { // it comes behind the notice
				<-look.C
			}
			if err := r.Err(); !strings.Contains(err.Error(), "maximum bytes") {
				t.Errorf("trouble: %v", err)
			}
			limit(t, js, stream, -1)
			r.Wait(t, w.Seq)
			if n := r.WaitNotice(t, mirror.NoticeCaughtUp); !strings.Contains(n.Detail, stream) {
				t.Errorf("notice %q", n.Detail)
			}
			if r.Err() != nil {
				t.Errorf("trouble after all is well: %v", r.Err())
			}
			r.Stop(t)
			if c := mirrortest.Compare(t, s.Connect(), w); !c.Exact() || c.Events != w.Seq {
				t.Errorf("the mirror is not the log: %+v", c)
			}
		})
	}
}

func limit(t *testing.T, js jetstream.JetStream, stream string, bytes int64) {
	t.Helper()
	st, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	c := st.CachedInfo().Config
	c.MaxBytes = bytes
	if _, err := js.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// The server comes back from an older copy of its store: what it had
// acknowledged is missed, said, and published again.
func TestStreamFromAnOlderCopyIsFedAgain(t *testing.T) {
	s := mirrortest.Start(t, mirrortest.Options{})
	w := mirrortest.OpenNode(t, t.TempDir(), "d0", 1)
	r := mirrortest.Run(t, w, mirror.Options{URL: s.URL(), CheckEvery: 100 * time.Millisecond})
	w.MustAppend(t, 500)
	r.Wait(t, w.Seq)
	s.Kill(0)
	older := t.TempDir()
	if err := os.CopyFS(older, os.DirFS(s.StoreDir(0))); err != nil {
		t.Fatal(err)
	}
	s.Run(0)
	w.MustAppend(t, 700)
	r.Wait(t, w.Seq)
	s.Kill(0)
	if err := os.RemoveAll(s.StoreDir(0)); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(s.StoreDir(0), os.DirFS(older)); err != nil {
		t.Fatal(err)
	}
	s.Run(0)
	said := r.WaitNotice(t, mirror.NoticeLost).Detail + "; " + r.WaitNotice(t, mirror.NoticeLost).Detail // of each stream, in either order
	for _, words := range []string{
		"PDLOG ends at record 500 of this log, it had acknowledged 1200",
		"PDLOG_AUDIT ends at the milestone of record 451 of this log, it had acknowledged that of 1151",
	} {
		if !strings.Contains(said, words) {
			t.Errorf("notices %q, want %q", said, words)
		}
	}
	w.MustAppend(t, 10)
	r.Wait(t, w.Seq)
	r.Stop(t)
	if c := mirrortest.Compare(t, s.Connect(), w); !c.Exact() || c.Events != w.Seq {
		t.Errorf("the mirror is not the log: %+v", c)
	}
}

// What keeps the mirror from its server is said, the password is not.
func TestErrorsNameWhyTheServerIsNotReached(t *testing.T) {
	s := mirrortest.Start(t, mirrortest.Options{Auth: mirrortest.Password})
	w := mirrortest.OpenNode(t, t.TempDir(), "d0", 1)
	w.MustAppend(t, 100)
	r := mirrortest.Run(t, w, mirror.Options{URL: strings.Replace(s.URL(), "secret", "wrong", 1), PublishTimeout: time.Second})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for r.Err() == nil || !strings.Contains(r.Err().Error(), "Authorization Violation") {
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatalf("trouble: %v", r.Err())
		}
	}
	if strings.Contains(r.Err().Error(), "wrong") {
		t.Errorf("the error tells the password: %v", r.Err())
	}
	for seen := 0; seen < 3; { // nats.go would give up after two
		if why := r.Err(); why != nil && strings.Contains(why.Error(), "Authorization Violation") {
			seen++
		}
		<-look.C
	}
	s.Kill(0)
	s.Edit(0, "secret", "wrong") // the password is put right
	s.Run(0)
	r.Wait(t, w.Seq)
	r.Stop(t)
}
