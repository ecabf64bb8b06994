package replay

import (
	"bytes"
	"context"
	"iter"
	"maps"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pdlog/pdlog/events"
)

// Focus is a set of room incarnations, by node: all that a question about one
// page needs to know of logs of any length.
type Focus map[string]map[uint64]bool

func (f Focus) add(node string, seq uint64) {
	if f[node] == nil {
		f[node] = map[uint64]bool{}
	}
	f[node][seq] = true
}

// wants selects the events of the focus in one node's logs, what they say of the
// memory that they write to, and writes that no incarnation is known of.
func (f Focus) wants(node string) Want {
	mine := f[node]
	return func(h events.Head) bool {
		if h.RoomSeq == 0 {
			return h.Type == typeNodeStarted || h.Type == typeMemoryRegistered || h.Type == typePeerRegistered || h.Type == typeWriteLanded
		}
		return mine[h.RoomSeq]
	}
}

// The payloads that name destination pages, and the one that says which decode
// room a prefill room serves.
var (
	typePagesReserved    = typeOf(&events.Event{Payload: &events.Event_PagesReserved{}})
	typeWriteLanded      = typeOf(&events.Event{Payload: &events.Event_WriteLanded{}})
	typeLateWrite        = typeOf(&events.Event{Payload: &events.Event_LateWriteRejected{}})
	typePageCheckFailed  = typeOf(&events.Event{Payload: &events.Event_PageCheckFailed{}})
	typeMetadataReceived = typeOf(&events.Event{Payload: &events.Event_MetadataReceived{}})
	typeChunkPosted      = typeOf(&events.Event{Payload: &events.Event_ChunkPosted{}})
	typeNodeStarted      = typeOf(&events.Event{Payload: &events.Event_NodeStarted{}})
	typeMemoryRegistered = typeOf(&events.Event{Payload: &events.Event_MemoryRegistered{}})
	typePeerRegistered   = typeOf(&events.Event{Payload: &events.Event_PeerRegistered{}})
	typeRoomOpened       = typeOf(&events.Event{Payload: &events.Event_RoomOpened{}})
)

func typeOf(e *events.Event) events.Type { return events.HeadOf(e).Type }

func namesPages(h events.Head) bool {
	switch h.Type {
	case typePagesReserved, typeWriteLanded, typeLateWrite, typePageCheckFailed, typeMetadataReceived, typeChunkPosted:
		return h.RoomSeq != 0
	}
	return false
}

// FocusOn finds the room incarnations that ever owned a page of a decode node (""
// = of any) or wrote to it, on all nodes. Logs are read side by side, and of
// each only what names pages is decoded. Damage is passed over: whoever reads
// the focus meets it again.
func FocusOn(ctx context.Context, logs []*Log, node string, page uint32) (Focus, error) {
	// A page stands in a record as a varint: one that lacks those bytes need not be
	// decoded.
	varint := protowire.AppendVarint(nil, uint64(page))
	wanted := func(h events.Head) bool {
		return namesPages(h) && (h.Record == nil || h.Type == typeMetadataReceived || bytes.Contains(h.Record, varint))
	}
	return find(ctx, logs, wanted, func(e *events.Event) bool {
		owner := e.Node
		var pages []uint32
		switch p := e.Payload.(type) {
		case *events.Event_PagesReserved:
			pages = p.PagesReserved.GetPages()
		case *events.Event_WriteLanded:
			pages = p.WriteLanded.GetPages()
		case *events.Event_LateWriteRejected:
			pages = p.LateWriteRejected.GetPages()
		case *events.Event_PageCheckFailed:
			pages = []uint32{p.PageCheckFailed.GetPage()}
		case *events.Event_ChunkPosted:
			owner, pages = rankNode(p.ChunkPosted.GetTo()), p.ChunkPosted.GetPages()
		}
		return (node == "" || node == owner) && slices.Contains(pages, page)
	})
}

// FocusOnRequests finds the room incarnations of requests, by the engine's ids.
func FocusOnRequests(ctx context.Context, logs []*Log, ids []string) (Focus, error) {
	wanted := func(h events.Head) bool { return h.Type == typeRoomOpened || h.Type == typeMetadataReceived }
	return find(ctx, logs, wanted, func(e *events.Event) bool {
		id := e.GetRoomOpened().GetRequestId()
		return id != "" && slices.Contains(ids, id)
	})
}

func find(ctx context.Context, logs []*Log, want Want, names func(*events.Event) bool) (Focus, error) {
	s := &search{want: want, names: names, focus: Focus{}, dests: map[RoomKey][]RoomKey{}}
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, l := range logs {
		g.Go(func() error { return s.log(ctx, l) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	s.pair()
	return s.focus, nil
}

// search collects, over all logs, the rooms that are looked for and who serves
// whom.
type search struct {
	want  Want
	names func(*events.Event) bool

	mu    sync.Mutex
	focus Focus
	dests map[RoomKey][]RoomKey // prefill incarnation to decode incarnations
}

func (s *search) log(ctx context.Context, l *Log) error {
	focus, dests := Focus{}, map[RoomKey][]RoomKey{}
	for e, err := range l.Select(ctx, s.want) {
		if isDamage(err) {
			continue
		}
		if err != nil {
			return err
		}
		k := RoomKey{e.Node, e.RoomSeq}
		if m := e.GetMetadataReceived(); m != nil {
			if d := (RoomKey{m.GetDecodeNode(), m.GetDecodeRoomSeq()}); !slices.Contains(dests[k], d) {
				dests[k] = append(dests[k], d)
			}
		}
		if s.names(e) {
			focus.add(k.Node, k.Seq)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for node, seqs := range focus {
		for seq := range seqs {
			s.focus.add(node, seq)
		}
	}
	maps.Copy(s.dests, dests)
	return nil
}

// pair takes in the other side of each room: the prefill rooms that serve a
// decode room of the focus, and the decode rooms that a prefill room of it serves.
func (s *search) pair() {
	for k, dests := range s.dests {
		for _, d := range dests {
			if s.focus[d.Node][d.Seq] {
				s.focus.add(k.Node, k.Seq)
			}
		}
	}
	for k, dests := range s.dests {
		for _, d := range dests {
			if s.focus[k.Node][k.Seq] {
				s.focus.add(d.Node, d.Seq)
			}
		}
	}
}

// MergeFocus is Merge of the focus alone.
func MergeFocus(ctx context.Context, logs []*Log, f Focus) iter.Seq2[*events.Event, error] {
	return mergeWanted(ctx, logs, f.wants)
}

// MergeRoom is Merge of the events of one room number.
func MergeRoom(ctx context.Context, logs []*Log, room uint64) iter.Seq2[*events.Event, error] {
	return mergeWanted(ctx, logs, func(string) Want { return func(h events.Head) bool { return h.Room == room } })
}
