package replay

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pdlog/pdlog/events"
)

// Gap is a part of a node's log that a verdict would need and that no source has.
type Gap struct {
	Node  string `json:"node"`
	First uint64 `json:"first_seq"`
	Last  uint64 `json:"last_seq"` // 0: to its end, wherever that is
	// Kind: inside (between events that are here), tail (other nodes' events
	// name later ones), start (before what the log keeps), absent (no log of the
	// node is here).
	Kind string `json:"kind"`
}

// Text is the gap as part of a sentence.
func (g Gap) Text() string {
	switch {
	case g.Kind == "absent":
		return fmt.Sprintf("no log of node %s is here", g.Node)
	case g.Last == 0:
		return fmt.Sprintf("node %s's events from %d on are missing", g.Node, g.First)
	case g.First == g.Last:
		return fmt.Sprintf("node %s's event %d is missing", g.Node, g.First)
	}
	return fmt.Sprintf("node %s's events %s are missing", g.Node, Span{g.First, g.Last})
}

// open says that what is in the gap could have changed any verdict of its time.
// What lies before a log's beginning has ended long ago, and the word of a node
// whose log was not asked for stands on its peers' logs.
func (g Gap) open() bool { return g.Kind == "inside" || g.Kind == "tail" }

func gapsText(gaps []Gap) string {
	parts := make([]string, len(gaps))
	for i, g := range gaps {
		parts[i] = g.Text()
	}
	return strings.Join(parts, ", ")
}

// named is what events tell of other nodes' logs: which nodes keep one, and the
// highest sequence of each that an event names.
type named struct {
	refs  map[string]*uint64
	pdlog map[string]bool // nodes that keep a log
	last  string          // of pdlog, the newest: mostly the next event's too
}

func (n *named) name(node string, seq uint64) {
	if node == "" {
		return
	}
	ref := n.refs[node]
	if ref == nil {
		n.keeps(node)
		ref = new(uint64)
		n.refs[node] = ref
	}
	*ref = max(*ref, seq)
}

func (n *named) keeps(node string) {
	if node == n.last || node == "" {
		return
	}
	if n.refs == nil {
		n.refs, n.pdlog = map[string]*uint64{}, map[string]bool{}
	}
	n.last, n.pdlog[node] = node, true
}

// add takes an event in.
func (n *named) add(e *events.Event) {
	n.keeps(e.Node)
	if c := e.Cause; c.GetNode() != "" {
		n.name(c.Node, c.Seq)
	}
	switch p := e.Payload.(type) {
	case *events.Event_PublishStarted:
		if p.PublishStarted.GetPdlog() {
			n.name(rankNode(e.Rank), 0)
		}
	case *events.Event_MetadataReceived:
		if m := p.MetadataReceived; m.GetDecodeRoomSeq() != 0 {
			n.name(m.GetDecodeNode(), m.GetDecodeRoomSeq())
		}
	}
}

// Missing lists what the history names or stands next to, and no source has. It
// is called once the logs were read.
func (h *History) Missing(logs []*Log) []Gap { return h.named.missing(logs) }

func (n *named) missing(logs []*Log) []Gap {
	ends := map[string]uint64{}
	out := []Gap{}
	for _, ln := range lanes(logs) {
		var got Spans
		for _, c := range ln.copies {
			got = got.Union(c.log.got)
		}
		if len(got) == 0 {
			continue
		}
		for _, hole := range got.Holes(0) {
			kind := "inside"
			if hole.First == 1 {
				kind = "start"
			}
			out = append(out, Gap{Node: ln.node, First: hole.First, Last: hole.Last, Kind: kind})
		}
		ends[ln.node] = max(ends[ln.node], got[len(got)-1].Last)
	}
	for _, node := range slices.Sorted(maps.Keys(n.refs)) {
		end, here := ends[node]
		switch {
		case !here && n.pdlog[node]:
			out = append(out, Gap{Node: node, First: 1, Kind: "absent"})
		case here && *n.refs[node] > end:
			out = append(out, Gap{Node: node, First: end + 1, Last: *n.refs[node], Kind: "tail"})
		}
	}
	slices.SortStableFunc(out, func(a, b Gap) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// The verdicts of blame, page and verify.
const (
	Clean        = "clean"        // nothing bad happened, and the evidence is whole
	Corrupted    = "corrupted"    // at least one page was
	Violated     = "violated"     // at least one rule was broken
	Undetermined = "undetermined" // nothing bad is known, and evidence is missing
)

// Judgement is the answer of blame.
type Judgement struct {
	Incidents []*Incident `json:"incidents"`
	Verdict   string      `json:"verdict"`
	// Doubts are the gaps for which nothing more can be said.
	Doubts []Gap `json:"missing"`
	// Clocks are nodes whose clocks are notably off.
	Clocks []ClockOff `json:"clocks"`
}

// Judge is the verdict on incidents, given what is missing. Where a node's log is
// absent, only a release that lacks the word of its ranks is in doubt.
func (h *History) Judge(incidents []*Incident, gaps []Gap) Judgement {
	j := Judgement{Verdict: Clean, Incidents: incidents, Doubts: []Gap{}, Clocks: h.Clocks.Off()}
	for _, g := range gaps {
		if g.open() || g.Kind == "start" || h.unproven(g.Node) {
			j.Doubts = append(j.Doubts, g)
		}
	}
	for _, in := range incidents {
		if in.Certainty != "landed" {
			in.Doubts = slices.DeleteFunc(slices.Clone(j.Doubts), func(g Gap) bool { return g.Kind == "start" })
		}
	}
	switch {
	case len(incidents) > 0:
		j.Verdict = Corrupted
	case slices.ContainsFunc(j.Doubts, func(g Gap) bool { return g.Kind != "start" }):
		j.Verdict = Undetermined
	}
	return j
}

// unproven: a room was released without evidence of a rank of the node.
func (h *History) unproven(node string) bool {
	return slices.ContainsFunc(h.Rooms, func(r *Room) bool {
		return r.Released != nil && slices.ContainsFunc(r.Released.Missing, func(rank string) bool { return rankNode(rank) == node })
	})
}
