package scenario

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/pdlog/pdlog/events"
)

// story draws a random scenario: rooms that open, write, abort, finish and are
// used again, under loss, delay, copies, cuts, slow disks and crashes. Its only
// expectations are the ones that always hold: no corruption, no violation.
func story(seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test's dice
	pick := func(xs ...string) string { return xs[r.IntN(len(xs))] }
	var b strings.Builder
	pr, dr := 1+r.IntN(3), 1+r.IntN(2)
	two := r.IntN(3) == 0
	old := r.IntN(8) == 0
	fmt.Fprintf(&b, "prefill p ranks=%d\n", pr)
	if two {
		fmt.Fprintf(&b, "prefill q ranks=1\n")
	}
	if old {
		fmt.Fprintf(&b, "prefill o ranks=1 version=%s\n", pick("v1", "v2"))
	}
	fmt.Fprintf(&b, "decode d ranks=%d pages=64\n", dr)
	fmt.Fprintf(&b, "backend %s\n", pick("mooncake", "nixl", "mori"))
	fmt.Fprintf(&b, "policy release=%s ack_timeout=2s abort_retry=300ms waiting_timeout=8s transfer_timeout=3s bootstrap_timeout=8s heartbeat=5s weak_peers=allow\n", pick("fence", "fence", "hold"))
	fmt.Fprintf(&b, "net fence=%s\n", pick("hard", "reader_stopped", "none"))

	type line struct {
		at   int
		text string
	}
	var ls []line
	add := func(at int, format string, args ...any) { ls = append(ls, line{at, fmt.Sprintf(format, args...)}) }
	for i := range 2 + r.IntN(6) {
		room, at := 1+r.IntN(5), 10*i+r.IntN(3000)
		lo := r.IntN(50)
		hi := lo + r.IntN(8)
		node := "p"
		ranks := pr
		if two && r.IntN(2) == 0 {
			node, ranks = "q", 1
		}
		results := []string{"ok", "ok", "ok", "ok", "error", "hang", "late:" + strconv.Itoa(1+r.IntN(5)) + "s", "partial:1s"}
		if old && r.IntN(2) == 0 { // it takes any return of a transfer call for its end: what lands later is its fault, not ours
			node, ranks, results = "o", 1, results[:6]
		}
		if r.IntN(4) == 0 {
			add(max(0, at-r.IntN(20)), "await room=%d at=%s", room, node)
		}
		add(at, "open room=%d prefill=%s decode=d pages=%d-%d", room, node, lo, hi)
		for k := range ranks {
			for c := range 1 + r.IntN(3) {
				res := pick(results...)
				last := ""
				if r.IntN(2) == 0 {
					last = " last"
				}
				add(at+r.IntN(1500), "send room=%d rank=%s/%d chunk=%d pages=%d-%d takes=%dms%s result=%s", room, node, k, c, lo, hi, r.IntN(4000), last, res)
			}
		}
		if r.IntN(2) == 0 {
			add(at+r.IntN(2500), "abort room=%d by=%s", room, pick("d", "d", node))
		}
		if r.IntN(4) == 0 {
			add(at+r.IntN(4000), "clear room=%d at=%s", room, node)
		}
	}
	for range r.IntN(5) {
		at := r.IntN(5000)
		kind := pick("abort", "abort_ack", "status", "metadata")
		from, to := "d", "p"
		if kind == "abort_ack" || kind == "status" {
			from, to = "p", "d"
		}
		switch r.IntN(3) {
		case 0:
			add(at, "drop kind=%s from=%s to=%s count=%d", kind, from, to, 1+r.IntN(3))
		case 1:
			add(at, "delay kind=%s from=%s to=%s by=%dms count=%d", kind, from, to, r.IntN(4000), 1+r.IntN(3))
		default:
			add(at, "dup kind=%s from=%s to=%s after=%dms", kind, from, to, r.IntN(4000))
		}
	}
	if r.IntN(3) == 0 {
		at := r.IntN(4000)
		add(at, "cut p d")
		add(at+r.IntN(15000), "heal p d")
	}
	for _, n := range []string{"p", "d"} {
		if r.IntN(3) == 0 {
			at := 500 + r.IntN(4000)
			add(at, "crash %s", n)
			wiped := ""
			if r.IntN(3) == 0 {
				wiped = " wiped"
			}
			add(at+1+r.IntN(3000), "restart %s%s", n, wiped)
		}
		if r.IntN(8) == 0 {
			at := 500 + r.IntN(4000)
			add(at, "stop %s grace=%dms", n, r.IntN(3000))
			add(at+3500+r.IntN(3000), "restart %s", n)
		}
		if n == "d" && r.IntN(8) == 0 {
			add(r.IntN(4000), "reregister d")
		}
		if r.IntN(8) == 0 {
			add(r.IntN(4000), "clock %s skew=%s%dms", n, pick("", "-"), r.IntN(9000))
		}
		if r.IntN(5) == 0 {
			at := r.IntN(4000)
			add(at, "disk %s slow:%dms", n, 1+r.IntN(400))
			add(at+r.IntN(2000), "disk %s ok", n)
		}
	}
	sort.SliceStable(ls, func(i, j int) bool { return ls[i].at < ls[j].at })
	opened := map[string]bool{}
	for _, l := range ls {
		f := strings.Fields(l.text)
		if f[0] == "open" || f[0] == "await" {
			opened[f[1]] = true
		} else if strings.HasPrefix(f[1], "room=") && !opened[f[1]] {
			continue
		}
		fmt.Fprintf(&b, "%dms %s\n", l.at, l.text)
	}
	b.WriteString("end expect corruption none\n")
	return b.String()
}

// runStory runs a drawn scenario; refused calls are part of the story.
func runStory(name, text string) (Report, error) {
	sc, err := parse(name, text)
	if err != nil {
		return Report{}, err
	}
	w, err := newWorld(sc)
	if err != nil {
		return Report{}, err
	}
	w.repeat(sc.policy.heartbeat, w.heartbeats)
	for _, s := range sc.stmts {
		if s.at == atEnd {
			break
		}
		w.runUntil(s.at)
		_ = w.act(s) // an open of busy pages, a finish too early: refused, and nothing is left behind
		if s.verb == "open" {
			w.finishAll()
		}
	}
	for range 20 {
		w.runUntil(w.now + 500_000_000)
		w.finishAll()
	}
	w.runOut()
	w.finishAll()
	rep := Report{File: name, OK: true, Logs: w.logs()}
	for _, s := range sc.stmts {
		if s.at == atEnd {
			if err := w.expect(s); err != nil && rep.OK {
				rep.OK, rep.FailedLine, rep.Detail = false, s.line, err.Error()
			}
		}
	}
	rep.Violations = w.violations(rep.Logs)
	if rep.OK && len(rep.Violations) > 0 {
		rep.OK, rep.Detail = false, fmt.Sprint(rep.Violations[0])
	}
	return rep, nil
}

// finishAll lets every engine be done with rooms that have succeeded.
func (w *world) finishAll() {
	for _, name := range w.names {
		if n, ok := w.nodes[name].(*pdNode); ok && n.up && !n.d.prefill {
			for _, v := range n.m.RoomViews() {
				if v.State == "succeeded" {
					_ = w.command(name, finishCmd(v.Room))
				}
			}
		}
	}
}

// TestRandomStories: whatever happens, no page is written by a room that does
// not own it, and every invariant that logs can show holds.
func TestRandomStories(t *testing.T) {
	n := uint64(400)
	if testing.Short() {
		n = 50
	}
	if v := os.Getenv("PDLOG_STORIES"); v != "" {
		n, _ = strconv.ParseUint(v, 10, 64)
	}
	for seed := range n {
		text := story(seed)
		name := fmt.Sprintf("story-%d", seed)
		rep, err := runStory(name, text)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		if !rep.OK {
			if dir := os.Getenv("PDLOG_STORY_DIR"); dir != "" {
				_ = os.WriteFile(filepath.Join(dir, name+".txt"), []byte(text), 0o600)
				var log []byte
				for _, e := range rep.Logs {
					log = append(events.AppendJSON(log, e), '\n')
				}
				_ = os.WriteFile(filepath.Join(dir, name+".jsonl"), log, 0o600)
			}
			t.Errorf("%s:%d: %s", name, rep.FailedLine, rep.Detail)
		}
	}
}
