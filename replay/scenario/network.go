package scenario

import (
	"slices"
	"strings"
	"time"

	"github.com/pdlog/pdlog/backends"
)

// network carries frames between ranks: latency, loss, delay, copies, cuts.
type network struct {
	w     *world
	rules []*netRule
	cuts  [][2]string
}

type netRule struct {
	verb     string // drop, delay, dup
	kind     string
	from, to string // node or rank
	left     int    // -1 = all
	by       time.Duration
}

func (n *network) cut(a, b string) bool {
	return slices.Contains(n.cuts, [2]string{a, b}) || slices.Contains(n.cuts, [2]string{b, a})
}

func (n *network) setCut(a, b string, cut bool) {
	n.cuts = slices.DeleteFunc(n.cuts, func(c [2]string) bool { return c == [2]string{a, b} || c == [2]string{b, a} })
	if cut {
		n.cuts = append(n.cuts, [2]string{a, b})
	}
}

func (r *netRule) matches(kind string, from, to rankAt) bool {
	if r.left == 0 || kind != r.kind && (r.kind != "staging" || !strings.HasPrefix(kind, "staging")) {
		return false
	}
	at := func(place string, a rankAt) bool {
		if strings.Contains(place, "/") {
			node, idx, _ := strings.Cut(place, "/")
			i, _ := parseInt(idx, 0, 1<<20)
			return node == a.node && i == a.rank
		}
		return place == a.node
	}
	return at(r.from, from) && at(r.to, to)
}

// send puts one message on the wire. Rules of drop, delay and dup apply in the
// order they stand in the file.
func (n *network) send(kind string, from, to rankAt, f backends.Frames) {
	d := n.w.sc.latency
	var copies []time.Duration
	lost := false
	for _, r := range n.rules {
		if !r.matches(kind, from, to) {
			continue
		}
		if r.left > 0 {
			r.left--
		}
		switch r.verb {
		case "drop":
			lost = true
		case "delay":
			d += r.by
		case "dup":
			copies = append(copies, r.by)
		}
	}
	if lost {
		return
	}
	n.deliver(from, to, f, d)
	for _, c := range copies {
		n.deliver(from, to, f, d+c)
	}
}

// deliver is past drop, delay and dup; in a cut, messages are lost.
func (n *network) deliver(from, to rankAt, f backends.Frames, d time.Duration) {
	if n.cut(from.node, to.node) {
		return
	}
	n.w.after(d, func() {
		if dst := n.w.nodes[to.node]; dst.alive() && !n.cut(from.node, to.node) {
			dst.receive(to.rank, f)
		}
	})
}
