package node

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
)

// engineWrites are the writes that the engine makes with its own library, to
// destinations that gave no key of our providers: SGLang ranks. A write is open
// from the notice that asks for it until WriteDone ends it; the engine's word
// for how it ended is the proof that the library gives.
type engineWrites struct {
	mu   sync.Mutex
	open map[uint64]*enginepb.Notice // by token

	regs  map[string]backends.Frames // newest registration, by control address
	bytes int                        // of all regs
}

// maxRegistrations bounds what strangers can make us remember, in bytes. A NIXL
// agent's metadata is some KiB.
const maxRegistrations = 64 << 20

func newEngineWrites() *engineWrites {
	return &engineWrites{open: map[uint64]*enginepb.Notice{}, regs: map[string]backends.Frames{}}
}

var errNoEngine = errors.New("the destination gave no key, and no engine is connected to write to it")

// hand gives a write to the engine, with the notifications that go along with
// it. Unless it fails the write is open.
func (w *engineWrites) hand(h *hub, a *projector.PostWrite, seq uint64, told []string) error {
	n := &enginepb.Notice{
		Kind: enginepb.Notice_KIND_WRITE, Room: a.Room, RoomSeq: a.RoomSeq, Seq: seq,
		Write: &enginepb.EngineWrite{
			Token: a.Token, Rank: uint32(a.Rank.Index()), To: string(a.To), Address: a.Address, Session: a.Session, //nolint:gosec // ranks
			Chunk: a.Chunk, Pages: a.Pages, SourcePages: a.SourcePages, Last: a.Last, Aux: a.Aux, SourceAux: a.SourceAux,
			Notifications: told,
		},
	}
	w.mu.Lock()
	w.open[a.Token] = n
	w.mu.Unlock()
	if h.offer(n) { // in the table first: the answer may come at once
		return nil
	}
	w.end(a.Token)
	return errNoEngine
}

// end takes a write off the table; false: it is not open.
func (w *engineWrites) end(token uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.open[token]
	delete(w.open, token)
	return ok
}

func (w *engineWrites) has(token uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.open[token]
	return ok
}

// again lists the open writes for a stream that begins, in their order.
func (w *engineWrites) again() []*enginepb.Notice {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]*enginepb.Notice, 0, len(w.open))
	for _, n := range w.open {
		out = append(out, &enginepb.Notice{Kind: n.Kind, Room: n.Room, RoomSeq: n.RoomSeq, Seq: n.Seq, Write: n.Write, Resumed: true})
	}
	slices.SortFunc(out, func(a, b *enginepb.Notice) int { return cmp.Compare(a.Write.Token, b.Write.Token) })
	return out
}

// register keeps a destination's registration for the engine.
func (w *engineWrites) register(address string, f backends.Frames) {
	size := func(f backends.Frames) (n int) {
		for _, b := range f {
			n += len(b)
		}
		return n
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bytes += size(f) - size(w.regs[address])
	w.regs[address] = f
	for old := range maps.Keys(w.regs) { // any one: a live one registers again when it fails
		if w.bytes <= maxRegistrations {
			return
		}
		w.bytes -= size(w.regs[old])
		delete(w.regs, old)
	}
}

func (w *engineWrites) registration(address string) (backends.Frames, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f, ok := w.regs[address]
	return f, ok
}

// outcomes gives an engine's word the core's meaning: an error is no end of a
// write unless the library proves it (wire.md F1 to F3).
var outcomes = map[enginepb.WriteDoneRequest_Outcome]projector.WriteOutcome{
	enginepb.WriteDoneRequest_OUTCOME_COMPLETED: projector.WriteCompleted,
	enginepb.WriteDoneRequest_OUTCOME_FAILED:    projector.WriteFailed,
	enginepb.WriteDoneRequest_OUTCOME_UNCERTAIN: projector.WriteUncertain,
}
