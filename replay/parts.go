package replay

import (
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/pdlog/pdlog/backends/geometry"
	"github.com/pdlog/pdlog/events"
)

// Part is which bytes of one page a write wrote in one buffer of a decode rank:
// Times pieces of Len bytes, Stride behind one another. A page of a pdlog node is
// one run of bytes in one buffer; an SGLang decode has a buffer or two a layer, of
// whose every token a prefill rank writes its heads (wire.md 5).
type Part struct {
	To     string `json:"to"`           // decode rank
	Entry  int    `json:"entry"`        // place in its list of buffers
	Start  uint64 `json:"start"`        // address of the first byte, as the rank registered it; of a pdlog rank it counts from the start of its pages
	End    uint64 `json:"end"`          // behind the last byte of the last piece
	Off    uint64 `json:"off_bytes"`    // of the first piece, in the page
	Len    uint64 `json:"len_bytes"`    // of a piece
	Page   uint64 `json:"page_bytes"`   // of the page in this buffer
	Stride uint64 `json:"stride_bytes"` // 0: one piece
	Times  int    `json:"times"`
}

// pieces are the offsets [from, to) in the page.
func (p Part) pieces() iter.Seq2[uint64, uint64] {
	return func(yield func(uint64, uint64) bool) {
		for i := range uint64(max(p.Times, 1)) { //nolint:gosec // not negative
			if from := p.Off + i*p.Stride; !yield(from, from+p.Len) {
				return
			}
		}
	}
}

// touch says whether a write can have made n bytes of a page wrong, from off on, on
// the decode rank to. What is not known, or lies in several buffers, can.
func touch(parts []Part, to string, off, n uint64) bool {
	if len(parts) != 1 || n == 0 {
		return len(parts) == 0 || to == "" || parts[0].To == to
	}
	if to != "" && parts[0].To != to {
		return false
	}
	for from, end := range parts[0].pieces() {
		if from < off+n && off < end {
			return true
		}
	}
	return false
}

// layouts is what one history knows of how memory is laid out, by node.
type layouts map[string]*layout

type layout struct {
	started *events.NodeStarted
	memory  map[int]*events.MemoryRegistered   // by local rank
	peers   map[PairKey]*events.PeerRegistered // local rank and decode rank
	shapes  map[PairKey]*geometry.Logged       // of the pairs that wrote
}

func (l layouts) of(node string) *layout {
	if l[node] == nil {
		l[node] = &layout{memory: map[int]*events.MemoryRegistered{}, peers: map[PairKey]*events.PeerRegistered{}}
	}
	return l[node]
}

// add takes in what a node says of memory; the newest of each kind counts.
func (l layouts) add(e *events.Event) {
	switch p := e.Payload.(type) {
	case *events.Event_NodeStarted:
		l.of(e.Node).started = p.NodeStarted
	case *events.Event_MemoryRegistered:
		l.of(e.Node).memory[int(p.MemoryRegistered.GetLocalRank())] = p.MemoryRegistered
	case *events.Event_PeerRegistered:
		if p.PeerRegistered.GetMemory() == nil {
			return
		}
		l.of(e.Node).peers[PairKey{p.PeerRegistered.GetAt(), p.PeerRegistered.GetPeer()}] = p.PeerRegistered
	default:
		return
	}
	l.of(e.Node).shapes = nil
}

// shape is the geometry of a pair as of now; nil if the log does not tell it.
func (l layouts) shape(node, rank, to string) *geometry.Logged {
	at := l[node]
	if at == nil {
		return nil
	}
	k := PairKey{rank, to}
	if s, ok := at.shapes[k]; ok {
		return s
	}
	if at.shapes == nil {
		at.shapes = map[PairKey]*geometry.Logged{}
	}
	var s *geometry.Logged
	local, err := strconv.Atoi(rank[strings.LastIndexByte(rank, '/')+1:])
	if peer := at.peers[k]; err == nil && peer != nil && at.memory[local] != nil {
		s = &geometry.Logged{Started: at.started, Source: at.memory[local], Peer: peer, Rank: local}
	}
	at.shapes[k] = s
	return s
}

// pageBytes is how large a page of a decode rank is, 0 if its log does not tell.
func (l layouts) pageBytes(to string) uint64 {
	local, err := strconv.Atoi(to[strings.LastIndexByte(to, '/')+1:])
	if at := l[rankNode(to)]; err == nil && at != nil {
		return at.memory[local].GetItemBytes()
	}
	return 0
}

// Parts are the bytes of a page that the write wrote, or would have; none if the
// logs do not tell how memory is laid out.
func (w *Write) Parts(page uint32) []Part {
	if w.shape == nil || !slices.Contains(w.Pages, page) {
		return nil
	}
	writes, err := w.shape.Writes(&events.ChunkPosted{Pages: []uint32{page}}, nil)
	if err != nil {
		return nil
	}
	m := w.shape.Peer.GetMemory()
	out := make([]Part, 0, len(writes))
	for _, x := range writes {
		if x.Kind != geometry.KV {
			continue
		}
		item := m.GetKvItemBytes()[x.Entry]
		p := Part{
			To: w.To, Entry: x.Entry, Start: x.First.Start, End: x.Span().End,
			Off: x.First.Start - m.GetKvPtrs()[x.Entry] - uint64(page)*item, Len: x.First.Len(), Page: item, Times: max(x.Times, 1),
		}
		if p.Times > 1 {
			p.Stride = x.Stride
		}
		out = append(out, p)
	}
	return out
}

// Parts are the bytes of a page that landed, as the decode node saw it; none if
// its log does not tell.
func (l *Landing) Parts(page uint32) []Part {
	if l.pageBytes == 0 || l.len == 0 || !slices.Contains(l.Pages, page) {
		return nil
	}
	start := uint64(page)*l.pageBytes + l.off
	return []Part{{To: l.To, Start: start, End: start + l.len, Off: l.off, Len: l.len, Page: l.pageBytes, Times: 1}}
}

// partsOf is what a write that landed wrote: its writer's log tells of several
// buffers, the decode node's of one.
func (h *History) partsOf(l *Landing, page uint32) []Part {
	if w := h.writeOf(l.Room, l.Rank, l.To, l.Chunk); w != nil {
		if parts := w.Parts(page); parts != nil {
			return parts
		}
	}
	return l.Parts(page)
}

// writeOf finds a chunk in its writer's log; nil if that is not here.
func (h *History) writeOf(r *Room, rank, to string, chunk uint32) *Write {
	for _, p := range r.Peers {
		for _, w := range p.Writes {
			if w.Rank == rank && w.To == to && w.Chunk == chunk && w.Dest == r.RoomKey {
				return w
			}
		}
	}
	return nil
}

// PartsText says it for people: "bytes 0–32767 of 65536". Buffers that are cut
// alike are told together. Empty: not known.
func PartsText(parts []Part) string {
	type cut struct {
		off, len, page, stride uint64
		times                  int
	}
	var order []cut
	buffers := map[cut]int{}
	for _, p := range parts {
		c := cut{p.Off, p.Len, p.Page, p.Stride, p.Times}
		if buffers[c] == 0 {
			order = append(order, c)
		}
		buffers[c]++
	}
	var out []string
	for _, c := range order {
		s := "all bytes"
		switch {
		case c.times > 1:
			s = fmt.Sprintf("bytes %d–%d of each of %d times %d", c.off, c.off+c.len-1, c.times, c.stride)
		case c.len != c.page:
			s = fmt.Sprintf("bytes %d–%d of %d", c.off, c.off+c.len-1, c.page)
		}
		if n := buffers[c]; n > 1 {
			s += fmt.Sprintf(" in each of %d buffers", n)
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}
