package reduce

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pdlog/pdlog/replay"
)

// script is a scenario that is being reduced.
type script struct {
	about  string
	nodes  []nodeLine
	policy []kv
	steps  []step
	expect []string
	landed int64 // when the incident's write did; 0: not known
}

type nodeLine struct {
	verb, name string
	keys       []kv
}

type kv struct{ key, value string }

// step is one action. Times are ms; the sort of steps is stable.
type step struct {
	at    int64
	verb  string
	words []string
	keys  []kv
}

func (s *script) clone() *script {
	c := *s
	c.nodes = slices.Clone(s.nodes)
	c.policy = slices.Clone(s.policy)
	c.steps = slices.Clone(s.steps)
	for i := range c.steps {
		c.steps[i].keys = slices.Clone(s.steps[i].keys)
		c.steps[i].words = slices.Clone(s.steps[i].words)
	}
	for i := range c.nodes {
		c.nodes[i].keys = slices.Clone(s.nodes[i].keys)
	}
	return &c
}

// prompt makes up for nodes that were slower than simulated ones are: a write
// that was posted before the abort had arrived is posted before the abort, and the
// victim has its pages until the incident's write lands, whatever of its own goes
// wrong meanwhile. false: the incident is not about two rooms, or not about a write.
func (s *script) prompt(in *replay.Incident) bool {
	if in.WriterRoom == nil || s.landed == 0 || same(in.WriterRoom, in.VictimRoom) {
		return false
	}
	writer, victim := strconv.FormatUint(*in.WriterRoom, 10), ""
	if in.VictimRoom != nil {
		victim = strconv.FormatUint(*in.VictimRoom, 10)
	}
	s.steps = slices.DeleteFunc(s.steps, func(st step) bool { return st.verb == "send" && st.get("room") == victim })
	var opened int64
	var end *step
	for i := range s.steps {
		switch st := &s.steps[i]; {
		case st.verb == "open" && st.get("room") == writer:
			opened = st.at
		case st.verb == "abort" && st.get("room") == writer:
			end = st
		case st.verb != "open" && st.get("room") == victim:
			st.at, st.verb = max(st.at, s.landed+1), "abort"
			st.keys = []kv{{"room", victim}, {"by", s.decode()}}
		}
	}
	if end == nil {
		return true
	}
	end.at = max(end.at, opened+arrival+1)
	for i := range s.steps {
		if st := &s.steps[i]; st.verb == "send" && st.get("room") == writer && st.at >= end.at {
			takes, _ := strconv.ParseInt(strings.TrimSuffix(st.get("takes"), "ms"), 10, 64) // as send wrote it
			st.set("takes", dur(takes+st.at-end.at+1))
			st.at = end.at - 1
		}
	}
	return true
}

func (s *script) decode() string {
	for _, n := range s.nodes {
		if n.verb == "decode" {
			return n.name
		}
	}
	return ""
}

// text is the file. Nodes that no step names are left out.
func (s *script) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n", s.about)
	for _, n := range s.nodes {
		fmt.Fprintf(&b, "%-7s %s%s\n", n.verb, n.name, pairs(n.keys))
	}
	if len(s.policy) > 0 {
		fmt.Fprintf(&b, "policy %s\n", pairs(s.policy))
	}
	steps := slices.Clone(s.steps)
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	for _, st := range steps {
		fmt.Fprintf(&b, "%-8s %-7s", fmt.Sprintf("%dms", st.at), st.verb)
		if st.verb == "corrupt" { // its node stands before its page
			fmt.Fprintf(&b, "%s%s\n", words(st.words), pairs(st.keys))
			continue
		}
		fmt.Fprintf(&b, "%s%s\n", pairs(st.keys), words(st.words))
	}
	for _, e := range s.expect {
		fmt.Fprintf(&b, "%-8s expect %s\n", "end", e)
	}
	return b.String()
}

func pairs(keys []kv) string {
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, " %s=%s", k.key, k.value)
	}
	return b.String()
}

func words(ws []string) string {
	var b strings.Builder
	for _, w := range ws {
		b.WriteString(" " + w)
	}
	return b.String()
}

func (st *step) get(key string) string {
	for _, k := range st.keys {
		if k.key == key {
			return k.value
		}
	}
	return ""
}

func (st *step) set(key, value string) {
	for i := range st.keys {
		if st.keys[i].key == key {
			st.keys[i].value = value
			return
		}
	}
	st.keys = append(st.keys, kv{key, value})
}

// names gives nodes names that the scenario grammar takes.
type names struct{ of, taken map[string]string }

func newNames() *names { return &names{of: map[string]string{}, taken: map[string]string{}} }

func (n *names) node(name string) string {
	if s, ok := n.of[name]; ok {
		return s
	}
	s := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(name))
	if s == "" || s[0] < 'a' {
		s = "n" + s
	}
	switch s { // words of the grammar
	case "order", "corruption", "violations":
		s += "_"
	}
	for base, i := s, 2; n.taken[s] != ""; i++ {
		s = fmt.Sprintf("%s_%d", base, i)
	}
	n.of[name], n.taken[s] = s, name
	return s
}

func (n *names) rank(rank string) string {
	i := strings.LastIndexByte(rank, '/')
	return n.node(rank[:max(i, 0)]) + rank[max(i, 0):]
}

func pagesValue(pages []uint32) string {
	if len(pages) == 0 {
		return "none"
	}
	return replay.Ranges(pages)
}
