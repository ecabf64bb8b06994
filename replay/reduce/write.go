package reduce

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
)

// facts are what a history does not keep and a scenario needs.
type facts struct {
	h      *replay.History
	starts map[string]*events.NodeStarted // newest of each node
	fences map[string]events.FenceKind    // by prefill node
}

func newFacts() *facts {
	return &facts{h: replay.NewHistory(), starts: map[string]*events.NodeStarted{}, fences: map[string]events.FenceKind{}}
}

func (f *facts) add(e *events.Event) {
	f.h.Add(e)
	if s := e.GetNodeStarted(); s != nil {
		f.starts[e.Node] = s
	}
	if p := e.GetPublishStarted(); p != nil {
		f.fences[nodeOf(e.Rank)] = p.GetFence()
	}
}

func nodeOf(rank string) string {
	if i := strings.LastIndexByte(rank, '/'); i >= 0 {
		return rank[:i]
	}
	return rank
}

// writer writes rooms down as statements.
type writer struct {
	f     *facts
	names *names
	s     *script
	zero  int64            // ms of the first statement
	ranks map[string]int   // ranks that a node needs
	pages map[string]int64 // highest page of a decode node
}

// compose is the scenario of the rooms that an incident names, whole.
func compose(f *facts, in *replay.Incident) (*script, error) {
	w := &writer{f: f, names: newNames(), s: &script{}, ranks: map[string]int{}, pages: map[string]int64{}}
	var rooms []*replay.Room
	for _, seq := range []*uint64{in.WriterRoomSeq, in.VictimRoomSeq} {
		if seq == nil {
			continue
		}
		if r := f.h.Room(replay.RoomKey{Node: in.Node, Seq: *seq}); r != nil && r.Reserved.Is() && !slices.Contains(rooms, r) {
			rooms = append(rooms, r)
		}
	}
	if len(rooms) == 0 {
		return nil, fmt.Errorf("the logs do not hold the beginning of the rooms that page %d of %s is about", in.Page, in.Node)
	}
	slices.SortFunc(rooms, func(a, b *replay.Room) int { return cmp.Compare(a.Seq, b.Seq) })
	w.zero = ms(rooms[0].Opened)
	decode := w.names.node(in.Node)
	for _, r := range rooms {
		w.room(r, decode)
	}
	w.page(in, decode)
	w.setup(in, decode)
	w.expectation(in)
	if t := in.WriteLandedAt; t != nil {
		w.s.landed = t.UnixMilli() - w.zero
	}
	return w.s, nil
}

func ms(m replay.Mark) int64 { return m.Time().UnixMilli() }

func (w *writer) at(m replay.Mark) int64 { return max(0, ms(m)-w.zero) }

func (w *writer) step(at int64, verb string, keys ...kv) *step {
	w.s.steps = append(w.s.steps, step{at: at, verb: verb, keys: keys})
	return &w.s.steps[len(w.s.steps)-1]
}

func (w *writer) need(rank string) string {
	i := strings.LastIndexByte(rank, '/')
	if n, err := strconv.Atoi(rank[i+1:]); err == nil && i > 0 {
		w.ranks[rank[:i]] = max(w.ranks[rank[:i]], n+1)
	}
	return w.names.rank(rank)
}

func (w *writer) room(r *replay.Room, decode string) {
	number := kv{"room", strconv.FormatUint(r.Number, 10)}
	var keys []replay.PairKey
	for k, p := range r.Pairs {
		if p.Published.Is() {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b replay.PairKey) int { return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.To, b.To)) })
	var prefills, ranks, to, dummies []string
	for _, k := range keys {
		rank := w.need(k.Rank)
		ranks, to = append(ranks, rank), append(to, w.need(k.To))
		prefills = append(prefills, w.names.node(nodeOf(k.Rank)))
		if r.Pairs[k].Dummy {
			dummies = append(dummies, rank)
		}
	}
	slices.Sort(prefills)
	for _, pg := range r.Pages {
		w.pages[r.Node] = max(w.pages[r.Node], int64(pg))
	}
	open := w.step(w.at(r.Opened), "open", number, kv{"prefill", strings.Join(slices.Compact(prefills), ",")}, kv{"decode", decode},
		kv{"pages", pagesValue(r.Pages)}, kv{"ranks", strings.Join(ranks, ",")}, kv{"dranks", strings.Join(to, ",")})
	if len(dummies) > 0 {
		open.set("dummies", strings.Join(slices.Compact(dummies), ","))
	}
	w.writes(r, number)
	switch {
	case r.Outcome == "failed" && r.Cause != "page_check": // that one comes by itself
		w.step(w.at(r.Ended), "abort", number, kv{"by", decode})
	case r.Released != nil && r.Released.Basis == "success":
		w.step(w.at(r.Released.Mark), "finish", number)
	}
	if r.Released != nil && r.Released.Basis == "forced" {
		w.step(w.at(r.Released.Mark), "force", number, kv{"at", decode})
	}
}

// arrival is when a room's metadata has surely arrived, ms after its opening.
const arrival = 5

// writes are the room's sends. Where the writer's log is not among the sources,
// what landed says that they were posted.
func (w *writer) writes(r *replay.Room, number kv) {
	type key struct {
		replay.PairKey
		chunk uint32
	}
	landed := map[key]*replay.Landing{}
	for _, l := range w.f.h.Landings {
		if l.Room == r {
			landed[key{replay.PairKey{Rank: l.Rank, To: l.To}, l.Chunk}] = l
		}
	}
	known := map[key]bool{}
	for _, p := range r.Peers {
		for _, x := range p.Writes {
			if x.Dest != r.RoomKey {
				continue
			}
			k := key{replay.PairKey{Rank: x.Rank, To: x.To}, x.Chunk}
			known[k] = true
			w.send(number, x, landed[k])
		}
	}
	for _, l := range w.f.h.Landings {
		k := key{replay.PairKey{Rank: l.Rank, To: l.To}, l.Chunk}
		if l.Room != r || known[k] {
			continue
		}
		posted := w.at(r.Opened) + arrival
		w.step(posted, "send", number, kv{"rank", w.need(l.Rank)}, kv{"chunk", strconv.FormatUint(uint64(l.Chunk), 10)}, kv{"pages", pagesValue(l.Pages)},
			kv{"takes", dur(max(1, w.at(l.Mark)-posted))}, kv{"to", w.need(l.To)})
	}
}

func (w *writer) send(number kv, x *replay.Write, landed *replay.Landing) {
	posted := w.at(x.Posted)
	end := posted + 1
	switch {
	case landed != nil:
		end = w.at(landed.Mark)
	case x.Ended.Is():
		end = w.at(x.Ended)
	}
	takes, result := max(1, end-posted), ""
	switch {
	case x.Unsure.Is() && x.Landed:
		takes = max(1, w.at(x.Unsure)-posted)
		result = "late:" + dur(max(1, end-w.at(x.Unsure)))
	case !x.Ended.Is() && landed == nil:
		result = "hang"
	case x.Ended.Is() && !x.Landed && landed == nil:
		result = "error"
	}
	st := w.step(posted, "send", number, kv{"rank", w.need(x.Rank)}, kv{"chunk", strconv.FormatUint(uint64(x.Chunk), 10)}, kv{"pages", pagesValue(x.Pages)},
		kv{"takes", dur(takes)}, kv{"to", w.need(x.To)})
	if result != "" {
		st.set("result", result)
	}
	if x.Last {
		st.words = append(st.words, "last")
	}
}

func dur(ms int64) string { return fmt.Sprintf("%dms", ms) }

// page: bytes that no transfer changed were changed by something else.
func (w *writer) page(in *replay.Incident, decode string) {
	w.pages[in.Node] = max(w.pages[in.Node], int64(in.Page))
	if in.Writer != nil {
		return
	}
	for _, c := range w.f.h.Checks {
		if c.Node == in.Node && c.Seq == in.CheckFailedSeq {
			st := w.step(max(0, w.at(c.Mark)-1), "corrupt", kv{"page", strconv.FormatUint(uint64(in.Page), 10)})
			st.words = []string{decode}
		}
	}
}

func (w *writer) setup(in *replay.Incident, decode string) {
	var prefills []string
	for node := range w.ranks {
		if node != in.Node {
			prefills = append(prefills, node)
		}
	}
	slices.Sort(prefills)
	for _, node := range prefills {
		n := nodeLine{verb: "prefill", name: w.names.node(node), keys: []kv{{"ranks", strconv.Itoa(w.ranks[node])}}}
		switch w.f.fences[node] {
		case events.FenceKind_FENCE_KIND_READER_STOPPED:
			n.keys = append(n.keys, kv{"fence", "reader_stopped"})
		case events.FenceKind_FENCE_KIND_NONE, events.FenceKind_FENCE_KIND_UNSPECIFIED:
			n.keys = append(n.keys, kv{"fence", "none"})
		}
		w.s.nodes = append(w.s.nodes, n)
	}
	w.s.nodes = append(w.s.nodes, nodeLine{verb: "decode", name: decode, keys: []kv{
		{"ranks", strconv.Itoa(max(1, w.ranks[in.Node]))}, {"pages", strconv.FormatInt(w.pages[in.Node]+1, 10)},
	}})
	s := w.f.starts[in.Node]
	if s == nil {
		return
	}
	w.s.policy = []kv{{"release", events.EnumWord(s.GetPolicy().Descriptor(), s.GetPolicy().Number())}}
	for _, d := range []struct {
		key string
		ms  uint64
	}{{"ack_timeout", s.GetAckTimeoutMs()}, {"transfer_timeout", s.GetTransferTimeoutMs()}, {"waiting_timeout", s.GetWaitingTimeoutMs()}} {
		if d.ms > 0 {
			w.s.policy = append(w.s.policy, kv{d.key, dur(int64(d.ms))})
		}
	}
	if in.ReleaseBasis != nil && *in.ReleaseBasis == "timeout" {
		// The release says what was set then, whatever the newest life is set to.
		w.s.policy[0].value = "timeout"
		if r := w.f.h.Room(replay.RoomKey{Node: in.Node, Seq: *in.WriterRoomSeq}); r.Armed.Is() {
			w.s.policy = slices.DeleteFunc(w.s.policy, func(k kv) bool { return k.key == "ack_timeout" })
			w.s.policy = append(w.s.policy, kv{"ack_timeout", dur(max(1, ms(r.Released.Mark)-ms(r.Armed)))})
		}
	}
}

func (w *writer) expectation(in *replay.Incident) {
	e := fmt.Sprintf("corruption page=%d victim=", in.Page)
	if in.VictimRoom != nil {
		e += strconv.FormatUint(*in.VictimRoom, 10)
	} else {
		e += "none"
	}
	if in.Writer != nil {
		e += fmt.Sprintf(" writer=%s room=%d", w.names.rank(*in.Writer), *in.WriterRoom)
	}
	w.s.expect = []string{e}
	w.s.about = fmt.Sprintf("Page %d of %s: %s", in.Page, in.Node, in.Story())
}
