package stories

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

var stories = []story{
	{name: "cut both ways", net: true, acts: []act{{20, func(f *fleet) {
		f.net.cut("p", "d")
		f.net.cut("d", "p")
		f.lasts(3 * time.Second)
		f.met("the cut", f.net.mend())
	}}}},
	{name: "cut one way, then the other", net: true, acts: []act{{20, func(f *fleet) {
		f.net.cut("p", "d")
		f.lasts(2 * time.Second)
		f.met("the cut from prefill", f.net.mend())
	}}, {50, func(f *fleet) {
		f.net.cut("d", "p")
		f.lasts(2 * time.Second)
		f.met("the cut from decode", f.net.mend())
	}}}},
	{name: "one packet in ten lost", net: true, acts: []act{{10, func(f *fleet) {
		f.net.lose("p", "d", 10)
		f.net.lose("d", "p", 10)
	}}}, end: func(f *fleet) { f.met("the loss", f.net.mend()) }},
	{name: "connections reset", net: true, night: true, acts: []act{{15, resets}, {40, resets}, {65, resets}}},
	{name: "a network that flaps", net: true, night: true, requests: 80, acts: []act{{10, flaps}, {40, flaps}, {70, flaps}}},
	{name: "delays and jams", net: true, requests: 30, begin: func(f *fleet) {
		f.net.startProxy(f.ctx, "p", "d", 1)
	}, end: func(f *fleet) {
		f.met("the proxy", f.net.redirected())
	}},
	{name: "cut off from NATS", net: true, night: true, acts: []act{{20, func(f *fleet) {
		f.net.cut("p", "n")
		f.net.cut("n", "d")
		f.lasts(4 * time.Second)
		f.met("the cut", f.net.mend())
	}}}},
	{name: "a NATS server killed", acts: []act{{20, func(f *fleet) {
		f.faults++
		f.servers.Kill(0)
	}}, {60, func(f *fleet) { f.servers.Run(0) }}}},
	{name: "a NATS server wiped", acts: []act{{40, func(f *fleet) {
		f.faults++
		f.servers.Kill(0)
		f.wipe(0)
		f.servers.Run(0)
	}}}},
	{name: "a NATS server restored from an old copy", acts: []act{{20, func(f *fleet) {
		f.servers.Kill(0)
		f.save(0)
		f.servers.Run(0)
	}}, {60, func(f *fleet) {
		f.faults++
		f.servers.Kill(0)
		f.restore(0)
		f.servers.Run(0)
	}}}},
	{name: "three NATS servers, one down", servers: 3, acts: []act{{20, func(f *fleet) {
		f.faults++
		f.servers.Kill(1)
	}}}},
	{name: "three NATS servers, one wiped, one down", servers: 3, night: true, acts: []act{{20, func(f *fleet) {
		f.faults++
		f.servers.Kill(1)
		f.wipe(1)
		f.servers.Run(1)
	}}, {60, func(f *fleet) {
		f.faults++
		f.servers.Kill(2)
		f.lasts(2 * time.Second)
		f.servers.Run(2)
	}}}},
	{name: "nodes stopped for a while", acts: []act{{20, func(f *fleet) { f.stop(f.d, 3*time.Second) }}, {50, func(f *fleet) { f.stop(f.p, 3*time.Second) }}}},
	{name: "nodes killed", requests: 150, acts: []act{{15, killDecode}, {30, killPrefill}, {50, killDecode}, {70, killPrefill}}},
	{name: "nodes killed again and again", night: true, requests: 400, acts: []act{{5, killing}}},
	{name: "prefill killed while it is cut off", net: true, night: true, acts: []act{{20, func(f *fleet) {
		f.net.cut("d", "p")
		f.lasts(time.Second)
		f.kill(f.p)
		f.lasts(2 * time.Second)
		f.met("the cut", f.net.mend())
	}}}},
}

func killDecode(f *fleet)  { f.kill(f.d) }
func killPrefill(f *fleet) { f.kill(f.p) }

// killing kills the nodes in turns, as soon as they are back.
func killing(f *fleet) {
	for i := range 60 {
		if f.over.Load() {
			break
		}
		node := []string{f.d, f.p}[i%2]
		f.kill(node)
		f.must(f.c.Ready(f.ctx, node))
		f.lasts(200 * time.Millisecond)
	}
	if f.Logf("%d kills", f.faults); f.faults < 10 {
		f.Errorf("%d kills: the run was over too soon", f.faults)
	}
}

func resets(f *fleet) {
	f.net.reset("p", "d")
	f.net.reset("d", "p")
	for end := time.Now().Add(patience); f.net.met() < 10 && time.Now().Before(end); {
		f.lasts(50 * time.Millisecond)
	}
	f.met("the resets", f.net.mend())
}

func flaps(f *fleet) {
	met := uint64(0)
	for i := range 10 {
		from, to := "p", "d"
		if i%2 == 1 {
			from, to = to, from
		}
		f.net.cut(from, to)
		f.lasts(300 * time.Millisecond)
		met += f.net.mend()
		f.lasts(100 * time.Millisecond)
	}
	f.met("the cuts", met)
}

// stop lets a process stand still (SIGSTOP) for a while.
func (f *fleet) stop(node string, d time.Duration) {
	f.faults++
	f.must(f.c.Signal(node, syscall.SIGSTOP))
	f.lasts(d)
	f.must(f.c.Signal(node, syscall.SIGCONT))
}

func TestStories(t *testing.T) {
	if testing.Short() {
		t.Skip("runs fleets of real processes for a minute")
	}
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel() // much of it is waiting
			tell(t, s)
		})
	}
}

// The build of an earlier revision beside this one, in both roles: both speak to
// the other on the wire, both engines speak to both, and in the middle of the work
// the older node is replaced by this build, which goes on with its log.
// PDLOG_OLD_REVS names revisions, with blanks; HEAD~1 without it.
func TestEarlierBuilds(t *testing.T) {
	if testing.Short() {
		t.Skip("builds pdnode of an earlier revision")
	}
	revs := strings.Fields(os.Getenv("PDLOG_OLD_REVS"))
	if len(revs) == 0 {
		revs = []string{"HEAD~1"}
	}
	for _, rev := range revs {
		t.Run(rev, func(t *testing.T) {
			old := previous(t, rev)
			for _, node := range []string{"p0", "d0"} {
				one := story{name: rev + " as " + node, requests: 60, begin: func(f *fleet) {
					p := f.place[node]
					p.Binary = old
					f.place[node] = p
				}, acts: []act{{50, func(f *fleet) { f.replace(node, pdnode) }}}}
				t.Run(node, func(t *testing.T) {
					t.Parallel()
					tell(t, one)
				})
			}
		})
	}
}
