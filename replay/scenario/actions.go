package scenario

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// openPair is one prefill rank and one decode rank of an open.
type openPair struct {
	rank, to rankAt
	dummy    bool
}

func (s *stmt) has(word string) bool { return slices.Contains(s.words, word) }

func (s *stmt) num(k string, def int) int {
	if v, ok := s.keys[k]; ok {
		n, _ := strconv.Atoi(v)
		return n
	}
	return def
}

func (s *stmt) room() uint64 {
	n, _ := strconv.ParseUint(s.keys["room"], 10, 64)
	return n
}

func (s *stmt) dur(k string, def time.Duration) time.Duration {
	if v, ok := s.keys[k]; ok {
		d, _ := parseDur(v)
		return d
	}
	return def
}

func (s *stmt) millis(k string) uint64 { return uint64(s.dur(k, 0).Milliseconds()) } //nolint:gosec // not negative

// act carries out one action. An error fails the file at that line.
func (w *world) act(s *stmt) error {
	switch s.verb {
	case "open":
		return w.open(s)
	case "await":
		return w.command(s.keys["at"], projector.AwaitRoom{Room: s.room(), Timeout: s.millis("timeout")})
	case "send":
		return w.send(s)
	case "finish":
		return w.finish(s)
	case "abort":
		return w.abort(s)
	case "clear":
		return w.soft(s.keys["at"], projector.ClearRoom{Room: s.room()})
	case "force":
		return w.command(s.keys["at"], projector.ForceRelease{Room: s.room()})
	case "raw":
		return w.raw(s)
	case "drop", "delay", "dup":
		w.rule(s)
		return nil
	case "cut", "heal":
		w.net.setCut(s.words[0], s.words[1], s.verb == "cut")
		if s.verb == "heal" {
			w.mem.healed()
		}
		return nil
	}
	if old, ok := w.nodes[s.words[0]].(oldPeer); ok {
		return w.actOld(old, s)
	}
	n := w.nodes[s.words[0]].(*pdNode) //nolint:forcetypeassert // a node is old or ours
	switch s.verb {
	case "crash":
		n.die()
	case "restart":
		return w.restart(n, s.has("wiped"))
	case "stop":
		return w.command(n.d.name, projector.Stop{Grace: uint64(s.dur("grace", 30*time.Second).Milliseconds()), Reason: "stop"}) //nolint:gosec // positive
	case "disk":
		n.setDisk(s.words[1])
	case "clock":
		v, neg := strings.CutPrefix(s.keys["skew"], "-")
		n.skew, _ = parseDur(v)
		if neg {
			n.skew = -n.skew
		}
	case "corrupt":
		w.mem.corrupt(n, uint32(s.num("page", 0))) //nolint:gosec // parsed
	case "reregister":
		for _, l := range n.leases {
			l.revoked = true
		}
		n.step(projector.ReRegister{Memory: &events.MemoryRegistered{Name: "kv", Pages: uint64(n.d.pages)}}) //nolint:gosec // positive
		for _, p := range w.names {
			if w.sc.byName[p].prefill {
				w.register(n.d.name, p)
			}
		}
	}
	return nil
}

// oldPeer is a simulated SGLang process. It keeps no log: all that can happen
// to it is that it dies and is started again.
type oldPeer interface {
	node
	die()
	start()
}

func (w *world) actOld(p oldPeer, s *stmt) error {
	name := p.def().name
	switch s.verb {
	case "crash":
		p.die()
		return nil
	case "restart":
		if p.alive() {
			return fmt.Errorf("%s is running", name)
		}
		p.start()
		w.after(w.sc.latency, func() { w.greeted(name) })
		return nil
	}
	return fmt.Errorf("%s is an old peer: it cannot %s", name, s.verb)
}

// greeted lets the nodes that a restarted one reaches find each other again.
func (w *world) greeted(name string) {
	if !w.sc.byName[name].prefill {
		w.meet(name)
		return
	}
	for _, d := range w.names {
		if !w.sc.byName[d].prefill && !w.net.cut(d, name) {
			w.discover(d, name)
			if w.nodes[d].alive() {
				w.register(d, name)
			}
		}
	}
}

// command runs an engine's or operator's call; a refusal fails the file.
func (w *world) command(name string, c projector.Command) error {
	n, ok := w.nodes[name].(*pdNode)
	if !ok {
		return nil // an old peer has no engine of ours
	}
	if ref := n.step(c); ref != nil {
		return ref
	}
	return nil
}

// soft is a call whose refusal (the room is forgotten already) means nothing.
func (w *world) soft(name string, c projector.Command) error {
	if err := w.command(name, c); err != nil {
		var ref *projector.Refusal
		if errors.As(err, &ref) && ref.Word == "unknown_room" {
			return nil
		}
		return err
	}
	return nil
}

func (w *world) ranksOf(names string) []rankAt {
	var out []rankAt
	for _, n := range splitNames(names) {
		for r := range w.sc.byName[n].ranks {
			out = append(out, rankAt{n, r})
		}
	}
	return out
}

func (w *world) rankList(v string) []rankAt {
	var out []rankAt
	for _, r := range splitNames(v) {
		out = append(out, parseRank(r))
	}
	return out
}

// pairs pairs prefill and decode ranks in order, the longer list spread evenly
// over the shorter (wire.md 4.3).
func (w *world) pairs(s *stmt) []openPair {
	ranks, dranks := w.ranksOf(s.keys["prefill"]), w.ranksOf(s.keys["decode"])
	if v, ok := s.keys["ranks"]; ok {
		ranks = w.rankList(v)
	}
	if v, ok := s.keys["dranks"]; ok {
		dranks = w.rankList(v)
	}
	dummies := w.rankList(s.keys["dummies"])
	var out []openPair
	n := max(len(ranks), len(dranks))
	for i := range n {
		p := openPair{rank: ranks[i*len(ranks)/n], to: dranks[i*len(dranks)/n]}
		p.dummy = slices.Contains(dummies, p.rank)
		out = append(out, p)
	}
	return out
}

func (w *world) open(s *stmt) error {
	pages, err := parsePages(s.keys["pages"])
	if err != nil {
		return err
	}
	all := w.pairs(s)
	var refused *projector.Refusal
	for _, name := range splitNames(s.keys["decode"]) {
		var mine []openPair
		c := projector.OpenRoom{Room: s.room(), Pages: pages, Aux: s.num("aux", -1), Reserve: s.has("reserve"), Timeout: s.millis("timeout")}
		for _, p := range all {
			if p.to.node == name {
				mine = append(mine, p)
				c.Pairs = append(c.Pairs, projector.OpenPair{Rank: w.rankName(p.rank), To: w.rankName(p.to), Dummy: p.dummy, Required: required(all, p.rank)})
			}
		}
		if len(mine) == 0 {
			continue
		}
		switch n := w.nodes[name].(type) {
		case *oldDecode:
			if err := n.open(s.room(), mine, pages, s.num("aux", -1)); err != nil {
				return err
			}
		case *pdNode:
			next := n.m.LastSeq() + 1
			if k, ok := s.keys["fail_after"]; ok {
				n.failAfter[next], _ = strconv.Atoi(k)
			}
			if ref := n.step(c); ref != nil {
				delete(n.failAfter, next)
				refused = ref
			}
		}
	}
	want, ok := s.keys["refused"]
	switch {
	case !ok && refused != nil:
		return fmt.Errorf("the open was refused: %w", refused)
	case ok && refused == nil:
		return fmt.Errorf("the open was not refused (want %s)", want)
	case ok && want != "any" && refused.Word != want:
		return fmt.Errorf("the open was refused as %s, not as %s: %s", refused.Word, want, refused.Detail)
	}
	return nil
}

func (w *world) send(s *stmt) error {
	pages, err := parsePages(s.keys["pages"])
	if err != nil {
		return err
	}
	at := parseRank(s.keys["rank"])
	chunk := uint32(s.num("chunk", 0)) //nolint:gosec // parsed
	sp := &sendSpec{
		rank: w.rankName(at), room: s.room(), chunk: chunk, takes: s.dur("takes", 0), result: "ok", used: map[projector.RankID]bool{},
	}
	if v, ok := s.keys["result"]; ok {
		name, d, _ := strings.Cut(v, ":")
		sp.result = name
		if d != "" {
			sp.more, _ = parseDur(d)
		}
	}
	w.specs = append(w.specs, sp)
	if p, ok := w.nodes[at.node].(*oldPrefill); ok {
		p.ranks[at.rank].send(s.room(), oldSend{chunk: chunk, pages: pages, last: s.has("last"), to: splitNames(s.keys["to"])})
		return nil
	}
	c := projector.SendChunk{Room: s.room(), Rank: w.rankName(at), Chunk: chunk, Pages: pages, Bytes: uint64(len(pages)), Last: s.has("last")}
	for _, to := range splitNames(s.keys["to"]) {
		c.To = append(c.To, projector.RankID(to))
	}
	err = w.command(at.node, c)
	var ref *projector.Refusal
	if errors.As(err, &ref) && ref.Word == "not_ready" {
		return nil // a node that is down or drains takes no chunk: nothing is posted
	}
	return err
}

func (w *world) finish(s *stmt) error {
	done := false
	for _, name := range w.names {
		n, ok := w.nodes[name].(*pdNode)
		if !ok || n.d.prefill || n.m.RoomView(s.room()).State == "unknown" {
			continue
		}
		if ref := n.step(projector.FinishRoom{Room: s.room()}); ref != nil {
			return ref
		}
		done = true
	}
	if !done && !w.hasOldDecode() {
		return fmt.Errorf("no decode node knows room %d", s.room())
	}
	return nil
}

func (w *world) hasOldDecode() bool {
	for _, n := range w.nodes {
		if _, ok := n.(*oldDecode); ok {
			return true
		}
	}
	return false
}

func (w *world) abort(s *stmt) error {
	switch n := w.nodes[s.keys["by"]].(type) {
	case *oldDecode:
		return n.abort(s.room())
	case *oldPrefill:
		n.abortRoom(s.room())
		return nil
	default:
		return w.soft(s.keys["by"], projector.AbortRoom{Room: s.room(), Reason: s.keys["reason"]})
	}
}

func (w *world) raw(s *stmt) error {
	var f backends.Frames
	if v, ok := s.keys["frames"]; ok {
		raw, err := parseFrames(v)
		if err != nil {
			return err
		}
		f = raw
	} else {
		for _, p := range strings.Split(s.keys["text"], ",") {
			f = append(f, []byte(p))
		}
	}
	w.net.deliver(parseRank(s.keys["from"]), parseRank(s.keys["to"]), f, w.sc.latency)
	return nil
}

func (w *world) rule(s *stmt) {
	r := &netRule{verb: s.verb, kind: s.keys["kind"], from: s.keys["from"], to: s.keys["to"], left: 1}
	if v, ok := s.keys["count"]; ok {
		r.left = -1
		if v != "all" {
			r.left, _ = strconv.Atoi(v)
		}
	}
	r.by = s.dur("by", 0)
	if s.verb == "dup" {
		r.by = s.dur("after", 0)
	}
	w.net.rules = append(w.net.rules, r)
}

func (w *world) restart(n *pdNode, wiped bool) error {
	if n.up {
		return fmt.Errorf("%s is running", n.d.name)
	}
	if n.failSync != "" {
		return nil // its disk still fails: it does not come up
	}
	n.boot(wiped)
	life := n.life
	w.after(w.sc.latency, func() { // a restarted node greets its peers
		if n.life == life && n.up {
			w.greeted(n.d.name)
		}
	})
	return nil
}

func (n *pdNode) setDisk(state string) {
	n.slow, n.failSync = 0, ""
	wasFull := n.full
	n.full = false
	switch {
	case state == "full":
		n.full = true
	case state == "fsync_fail":
		n.failSync = "fail"
	case state == "fsync_fail:kept":
		n.failSync = "kept"
	case strings.HasPrefix(state, "slow:"):
		n.slow, _ = parseDur(strings.TrimPrefix(state, "slow:"))
	}
	if n.full != wasFull && n.up {
		n.step(projector.LogState{Full: n.full})
	}
}

// heartbeats probes every prefill node from every decode node.
func (w *world) heartbeats() {
	for _, d := range w.names {
		n, ok := w.nodes[d].(*pdNode)
		if !ok || n.d.prefill || !n.up {
			continue
		}
		for _, p := range w.names {
			if !w.sc.byName[p].prefill {
				continue
			}
			heard := w.nodes[p].alive() && !w.net.cut(d, p)
			if heard {
				w.discover(d, p)
			}
			n.step(projector.Heartbeat{Node: p, OK: heard})
		}
	}
	w.repeat(w.now+w.sc.policy.heartbeat, w.heartbeats)
}
