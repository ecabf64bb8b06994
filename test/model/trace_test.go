package model_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/test/ladder"
	"github.com/pdlog/pdlog/test/sim"
)

// The visible actions of abort.pml.
const (
	actOpen = iota + 1
	actGrant
	actAbort
	actAcked
	actFenced
	actSuccess
	actRelease
	actMeta
	actPost
	actStop
	actAck
	actOK
	actRestart
	actions
)

var actionName = [actions]string{
	"", "RoomOpened", "PublishStarted", "AbortArmed", "AckReceived", "Fenced", "RoomSucceeded", "Released",
	"MetadataReceived", "ChunkPosted", "AbortReceived", "AckSent", "StatusSent", "NodeStarted",
}

// action is one visible step: use counts from 1, for actOpen, rank
// is a bit set: who serves the use, and, times 4, who owes it bytes.
type action struct{ kind, use, rank int }

// usesOfTrace is how many uses of one page a trace follows (USES of the model).
const usesOfTrace = 3

// pairID names what the model calls a rank.
type pairID struct{ rank, to string }

// useID is one room incarnation of a decode node.
type useID struct {
	node string
	seq  uint64
}

// window is a few successive uses of one page that two pairs serve.
type window struct {
	page  uint32
	uses  []useID
	pairs []pairID
}

func node(rank string) string {
	name, _, _ := bytes.Cut([]byte(rank), []byte("/"))
	return string(name)
}

// windows finds in a run's history the pages whose successive uses the model can
// follow: at most two pairs, and logs that have lost nothing.
func windows(history []*events.Event) []window {
	logs, unfit := map[string]string{}, map[string]bool{}
	pairs := map[useID][]pairID{}
	type slot struct {
		node string
		page uint32
	}
	users := map[slot][]useID{}
	var slots []slot
	for _, e := range history {
		switch p := e.Payload.(type) {
		case *events.Event_NodeStarted:
			id := string(p.NodeStarted.LogId)
			if had, ok := logs[e.Node]; ok && had != id || p.NodeStarted.UnknownPast {
				unfit[e.Node] = true
			}
			logs[e.Node] = id
		case *events.Event_ConfigChanged: // told that its log is an older copy
			unfit[e.Node] = true
		case *events.Event_RoomOpened:
			if p.RoomOpened.Role != events.Role_ROLE_DECODE {
				continue
			}
			u := useID{e.Node, e.RoomSeq}
			for _, q := range p.RoomOpened.Pairs {
				pairs[u] = append(pairs[u], pairID{q.Rank, q.To})
			}
		case *events.Event_PagesReserved:
			for _, pg := range p.PagesReserved.Pages {
				s := slot{e.Node, pg}
				if users[s] == nil {
					slots = append(slots, s)
				}
				users[s] = append(users[s], useID{e.Node, e.RoomSeq})
			}
		}
	}
	var out []window
	seen := map[useID]bool{} // one window for each first use
	for _, s := range slots {
		list := users[s]
		for i := 0; i+usesOfTrace <= len(list); i++ {
			w := window{page: s.page, uses: list[i : i+usesOfTrace]}
			fit := !unfit[s.node] && !seen[w.uses[0]]
			for _, u := range w.uses {
				for _, p := range pairs[u] {
					if logs[node(p.rank)] == "" || unfit[node(p.rank)] {
						fit = false
					}
					if !slices.Contains(w.pairs, p) {
						w.pairs = append(w.pairs, p)
					}
				}
			}
			if fit && len(w.pairs) <= 2 {
				seen[w.uses[0]] = true
				out = append(out, w)
			}
		}
	}
	return out
}

// trace is what the core's log says of a window, in the order in which it
// became durable.
func (w *window) trace(history []*events.Event) []action {
	type peerRoom struct {
		node string
		seq  uint64
		p    pairID
	}
	here := map[peerRoom]int{} // prefill incarnation -> use
	use := func(n string, seq uint64) int { return slices.Index(w.uses, useID{n, seq}) + 1 }
	pair := func(rank, to string) int { return slices.Index(w.pairs, pairID{rank, to}) }
	d := w.uses[0].node
	var out []action
	for _, e := range history {
		add := func(kind, u int, to string) {
			if r := pair(e.Rank, to); u > 0 && r >= 0 {
				out = append(out, action{kind, u, r})
			}
		}
		if e.Node == d {
			u := use(d, e.RoomSeq)
			if u == 0 {
				continue
			}
			switch p := e.Payload.(type) {
			case *events.Event_RoomOpened:
				mask := 0
				for _, q := range p.RoomOpened.Pairs {
					mask |= 1 << pair(q.Rank, q.To)
					if !q.Dummy {
						mask |= 4 << pair(q.Rank, q.To)
					}
				}
				out = append(out, action{actOpen, u, mask})
			case *events.Event_PublishStarted:
				add(actGrant, u, p.PublishStarted.To)
			case *events.Event_AbortArmed:
				out = append(out, action{actAbort, u, 0})
			case *events.Event_AckReceived:
				if p.AckReceived.Counted {
					add(actAcked, u, p.AckReceived.To)
				}
			case *events.Event_Fenced:
				add(actFenced, u, p.Fenced.To)
			case *events.Event_PeerRestartProven: // by the provider: a fence under another name
				add(actFenced, u, p.PeerRestartProven.To)
			case *events.Event_RoomSucceeded:
				out = append(out, action{actSuccess, u, 0})
			case *events.Event_Released:
				out = append(out, action{actRelease, u, 0})
			}
			continue
		}
		switch p := e.Payload.(type) {
		case *events.Event_MetadataReceived:
			m := p.MetadataReceived
			if u := use(m.DecodeNode, m.DecodeRoomSeq); u > 0 {
				here[peerRoom{e.Node, e.RoomSeq, pairID{e.Rank, m.To}}] = u
				add(actMeta, u, m.To)
			}
		case *events.Event_ChunkPosted:
			to := p.ChunkPosted.To
			add(actPost, here[peerRoom{e.Node, e.RoomSeq, pairID{e.Rank, to}}], to)
		case *events.Event_AbortReceived:
			if a := p.AbortReceived; !a.Stale {
				add(actStop, use(node(a.To), a.DecodeRoomSeq), a.To)
			}
		case *events.Event_AckSent:
			a := p.AckSent
			add(actAck, use(node(a.To), a.DecodeRoomSeq), a.To)
		case *events.Event_StatusSent:
			if s := p.StatusSent; s.Status == events.TerminalStatus_TERMINAL_STATUS_SUCCESS && !s.Repeat {
				add(actOK, use(node(s.To), s.DecodeRoomSeq), s.To)
			}
		case *events.Event_NodeStarted:
			for r, q := range w.pairs {
				if node(q.rank) == e.Node && p.NodeStarted.CleanStop == 0 && len(out) > 0 {
					out = append(out, action{actRestart, 0, r})
				}
			}
		}
	}
	return out
}

// follower is the model as it follows traces.
func follower(t *testing.T) verifier {
	return compile(t, []string{"TRACE", "USES=3", "WRITES=200", "RESTARTS=200", "DEATHS=0"}, []string{"-O2", "-DSAFETY", "-DNOCLAIM"})
}

// accepts says whether the model can do all that the trace says, and how far it
// came otherwise.
func (v verifier) accepts(t *testing.T, trace []action) bool {
	t.Helper()
	var b bytes.Buffer
	for _, a := range trace {
		fmt.Fprintln(&b, a.kind, a.use, a.rank)
	}
	path := filepath.Join(v.dir, "trace.txt")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	o := v.run(t, []string{"PDLOG_TRACE=" + path}, "-m100000", "-w18", "-E")
	if o.truncated {
		t.Fatalf("the search did not end:\n%s", o.text)
	}
	if o.errors > 0 && !strings.Contains(o.text, "assertion violated 0") { // Watch asserts 0 when all has been done
		t.Fatalf("the model breaks its own rule on the way:\n%s", o.text)
	}
	return o.errors > 0
}

// furthest is how much of a refused trace the model can follow.
func (v verifier) furthest(t *testing.T, trace []action) int {
	n := 0
	for n < len(trace) && v.accepts(t, trace[:n+1]) {
		n++
	}
	return n
}

func collect(t *testing.T, seeds int) (traces [][]action, runs uint64, faults uint64) {
	t.Helper()
	for seed := 1; seed <= seeds; seed++ {
		r := sim.Run(sim.Config{Seed: uint64(seed), Safety: 20 * time.Second}) //nolint:gosec // positive
		if r.Failure != nil {
			t.Fatal(r.Line("here"))
		}
		runs++
		for _, n := range r.Injected {
			faults += n
		}
		history := slices.Collect(r.Durable())
		for _, w := range windows(history) {
			traces = append(traces, w.trace(history))
		}
	}
	return traces, runs, faults
}

// TestCoreFollowsTheModel: what fleets of the real core did, under faults, is a
// run of the model. So what the model shows holds of what the core does.
func TestCoreFollowsTheModel(t *testing.T) {
	needSpin(t)
	start := time.Now()
	seeds, most := 15, 60
	if n, err := strconv.Atoi(os.Getenv("PDLOG_MODEL_SEEDS")); err == nil {
		seeds, most = n, n*10
	}
	traces, runs, faults := collect(t, seeds)
	step := max(1, len(traces)/most)
	v := follower(t)
	var seen [actions]int
	checked, refused := uint64(0), uint64(0)
	for i := 0; i < len(traces); i += step {
		checked++
		for _, a := range traces[i] {
			seen[a.kind]++
		}
		if !v.accepts(t, traces[i]) {
			n := v.furthest(t, traces[i])
			refused++
			t.Errorf("trace %d: the model follows %d of %d actions; then the core did %s of use %d by rank %d\n%v",
				i, n, len(traces[i]), actionName[traces[i][n].kind], traces[i][n].use, traces[i][n].rank, traces[i])
			if refused == 5 {
				break
			}
		}
	}
	for k := 1; k < actions; k++ {
		if seen[k] == 0 {
			t.Errorf("no trace holds a %s", actionName[k])
		}
	}
	t.Logf("%d traces of %d, from %d runs", checked, len(traces), runs)
	ladder.Report(t, ladder.Row{Rung: "model traces", What: "fleets", Runs: checked, Faults: faults, Found: refused, Took: time.Since(start)})
}

// TestModelRefusesOtherTraces: a trace in which one thing is wrong is no run of
// the model, so that following it means something.
func TestModelRefusesOtherTraces(t *testing.T) {
	needSpin(t)
	v := follower(t)
	good := []action{
		{actOpen, 1, 15}, {actGrant, 1, 0}, {actGrant, 1, 1}, {actMeta, 1, 0}, {actPost, 1, 0}, {actMeta, 1, 1}, {actPost, 1, 1},
		{actAbort, 1, 0}, {actStop, 1, 0}, {actAck, 1, 0}, {actAcked, 1, 0}, {actFenced, 1, 1}, {actRelease, 1, 0},
		{actOpen, 2, 5}, {actGrant, 2, 0}, {actMeta, 2, 0}, {actPost, 2, 0}, {actOK, 2, 0}, {actSuccess, 2, 0}, {actRelease, 2, 0},
	}
	if !v.accepts(t, good) {
		t.Fatalf("the model follows %d actions of %v", v.furthest(t, good), good)
	}
	without := func(a action) []action {
		i := slices.Index(good, a)
		return slices.Delete(slices.Clone(good), i, i+1)
	}
	with := func(before, a action) []action {
		return slices.Insert(slices.Clone(good), slices.Index(good, before), a)
	}
	for name, bad := range map[string][]action{
		"released with one rank's evidence":     without(action{actFenced, 1, 1}),
		"ack counted that nobody sent":          without(action{actAck, 1, 0}),
		"released without an ack":               without(action{actAcked, 1, 0}),
		"posted after the abort":                with(action{actAck, 1, 0}, action{actPost, 1, 0}),
		"posted without metadata":               without(action{actMeta, 1, 1}),
		"acknowledged by a rank that restarted": with(action{actStop, 1, 0}, action{actRestart, 0, 0}),
		"metadata after the end":                with(action{actRelease, 1, 0}, action{actMeta, 1, 0}),
		"published after the arming":            append(slices.Clone(good[:2]), append([]action{{actAbort, 1, 0}}, good[2:7]...)...),
		"succeeded without a rank's report":     without(action{actOK, 2, 0}),
		"page given out twice":                  without(action{actRelease, 1, 0}),
		"two outcomes":                          with(action{actRelease, 2, 0}, action{actAbort, 2, 0}),
	} {
		if v.accepts(t, bad) {
			t.Errorf("%s: the model follows it: %v", name, bad)
		}
	}
}
