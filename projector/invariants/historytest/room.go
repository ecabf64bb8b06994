package historytest

import (
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pdlog/pdlog/events"
)

func protoValue(m proto.Message) protoreflect.Value {
	return protoreflect.ValueOfMessage(m.ProtoReflect())
}

// Room tells one room's life between one decode rank and its prefill ranks.
type Room struct {
	h          *History
	Number     uint64
	Seq        uint64            // on the decode node
	Peer       map[string]uint64 // prefill node → its room_seq
	To         string            // decode rank
	Ranks      []string
	Pages      []uint32
	Generation uint64
	Aux        uint32
	last       map[string]*events.Event // newest event by node, for causes
	evidence   []*events.Evidence
}

// Open opens a room on the decode node of rank to and publishes it to all
// ranks, which receive their metadata at once.
func (h *History) Open(number uint64, to string, pages []uint32, ranks ...string) *Room {
	r := h.Reserve(number, to, pages, ranks...)
	for _, rank := range ranks {
		r.Publish(rank)
	}
	return r
}

// Reserve opens a room and publishes nothing.
func (h *History) Reserve(number uint64, to string, pages []uint32, ranks ...string) *Room {
	r := &Room{h: h, Number: number, Peer: map[string]uint64{}, To: to, Ranks: ranks, Pages: pages, Aux: uint32(number), last: map[string]*events.Event{}} //nolint:gosec // small
	open := &events.RoomOpened{Role: events.Role_ROLE_DECODE}
	for i, rank := range ranks {
		open.Pairs = append(open.Pairs, &events.Pair{Rank: rank, To: to, WireId: uint32(i)}) //nolint:gosec // small
	}
	r.Seq = r.D("", open).Seq
	r.D("", &events.PagesReserved{Pages: pages, Aux: r.Aux})
	return r
}

// D adds an event to the decode node's log.
func (r *Room) D(rank string, payload proto.Message) *events.Event {
	return r.DFrom(rank, nil, payload)
}

// DFrom is D with a cause.
func (r *Room) DFrom(rank string, cause *events.Event, payload proto.Message) *events.Event {
	e := r.h.Add(Node(r.To), r.Number, r.Seq, rank, cause, payload)
	r.last[e.Node] = e
	return e
}

// P adds an event to the log of the rank's node.
func (r *Room) P(rank string, payload proto.Message) *events.Event {
	return r.PFrom(rank, nil, payload)
}

// PFrom is P with a cause.
func (r *Room) PFrom(rank string, cause *events.Event, payload proto.Message) *events.Event {
	e := r.h.Add(Node(rank), r.Number, r.Peer[Node(rank)], rank, cause, payload)
	r.Peer[Node(rank)] = e.RoomSeq
	return e
}

// Publish publishes the room to one rank, and the rank takes the metadata.
func (r *Room) Publish(rank string) {
	lease := r.h.log(Node(r.To)).at.Seq + 1 // the tag is the event's own seq
	e := r.D(rank, &events.PublishStarted{To: r.To, Pages: r.Pages, Aux: r.Aux, Lease: lease, Fence: events.FenceKind_FENCE_KIND_HARD, Pdlog: true})
	r.D(rank, &events.MetadataPublished{To: r.To})
	r.PFrom(rank, e, &events.MetadataReceived{To: r.To, DecodeNode: Node(r.To), DecodeRoomSeq: r.Seq, Pages: r.Pages, Aux: &r.Aux})
}

// Post posts one chunk; the token is the event's seq.
func (r *Room) Post(rank string, chunk uint32, pages []uint32, last bool) *events.Event {
	r.P(rank, &events.ChunkQueued{Chunk: chunk, Pages: pages, Last: last, To: []string{r.To}})
	seq := r.h.log(Node(rank)).at.Seq + 1
	return r.P(rank, &events.ChunkPosted{Token: seq, Chunk: chunk, To: r.To, Pages: pages, Bytes: 4096 * uint64(len(pages)), Last: last})
}

// Land: the write of a post reaches the decode node's memory.
func (r *Room) Land(post *events.Event, after bool) *events.Event {
	p := post.GetChunkPosted()
	return r.DFrom(post.Rank, post, &events.WriteLanded{To: r.To, Pages: p.Pages, Aux: p.Last, Bytes: p.Bytes, Chunk: p.Chunk, AfterRelease: after})
}

// Complete: the writer knows that the write is done.
func (r *Room) Complete(post *events.Event) *events.Event {
	p := post.GetChunkPosted()
	return r.P(post.Rank, &events.ChunkCompleted{Token: p.Token, Chunk: p.Chunk, To: p.To, Bytes: p.Bytes})
}

// Write posts a chunk, lands and completes it.
func (r *Room) Write(rank string, chunk uint32, pages []uint32, last bool) {
	post := r.Post(rank, chunk, pages, last)
	r.Land(post, false)
	r.Complete(post)
}

// Succeed: every rank reports success, the room succeeds.
func (r *Room) Succeed() {
	var seqs []uint64
	for _, rank := range r.Ranks {
		sent := r.P(rank, &events.StatusSent{To: r.To, Status: events.TerminalStatus_TERMINAL_STATUS_SUCCESS, DecodeRoomSeq: r.Seq})
		seqs = append(seqs, r.DFrom(rank, sent, &events.StatusReceived{Status: events.TerminalStatus_TERMINAL_STATUS_SUCCESS, Counted: true, To: r.To}).Seq)
	}
	for _, node := range r.peers() {
		r.P(node+"/0", &events.RoomSucceeded{})
		r.P(node+"/0", &events.SourceReleased{Pages: r.Pages})
	}
	r.D("", &events.CoverageCompleted{Pages: uint64(len(r.Pages)), Writers: uint64(len(r.Ranks))})
	r.D("", &events.RoomSucceeded{})
	for i, rank := range r.Ranks {
		r.evidence = append(r.evidence, &events.Evidence{Rank: rank, To: r.To, Basis: events.Basis_BASIS_SUCCESS, Seq: seqs[i]})
	}
}

func (r *Room) peers() []string {
	var out []string
	for _, rank := range r.Ranks {
		if n := Node(rank); r.Peer[n] != 0 && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// Abort fails the room, arms the abort and sends it to every rank.
func (r *Room) Abort() {
	r.h.generation++
	r.Generation = r.h.generation
	var expected []*events.Pair
	for _, rank := range r.Ranks {
		expected = append(expected, &events.Pair{Rank: rank, To: r.To})
	}
	r.D("", &events.RoomFailed{Cause: events.AbortCause_ABORT_CAUSE_CLIENT, Who: "engine"})
	r.D("", &events.AbortArmed{Generation: r.Generation, Cause: events.AbortCause_ABORT_CAUSE_CLIENT, Expected: expected})
	for _, rank := range r.Ranks {
		r.D(rank, &events.AbortSent{Generation: r.Generation, To: r.To, Attempt: 1})
	}
}

// Hear: the rank receives the ABORT and holds its target while it drains.
func (r *Room) Hear(rank string) {
	first := r.P(rank, &events.AbortReceived{To: r.To, Generation: &r.Generation, DecodeRoomSeq: r.Seq})
	if !r.failedAt(Node(rank)) {
		r.PFrom(rank, first, &events.RoomFailed{Cause: events.AbortCause_ABORT_CAUSE_ABORTED})
	}
	r.P(rank, &events.AckTargetHeld{To: r.To, Generation: &r.Generation})
}

func (r *Room) failedAt(node string) bool {
	return slices.ContainsFunc(r.h.All, func(e *events.Event) bool {
		return e.Node == node && e.RoomSeq == r.Peer[node] && e.GetRoomFailed() != nil
	})
}

// Drain: the rank has no open write.
func (r *Room) Drain(rank string) { r.P(rank, &events.Drained{}) }

// Ack: the rank acknowledges and the decode node counts it.
func (r *Room) Ack(rank string) {
	sent := r.P(rank, &events.AckSent{To: r.To, Generation: &r.Generation, Proof: events.Proof_PROOF_DRAINED, DecodeRoomSeq: r.Seq})
	got := r.DFrom(rank, sent, &events.AckReceived{
		Generation: r.Generation, Form: events.AckForm_ACK_FORM_V3, Proof: events.Proof_PROOF_DRAINED, Counted: true, To: r.To,
	})
	r.evidence = append(r.evidence, &events.Evidence{Rank: rank, To: r.To, Basis: events.Basis_BASIS_ACKS, Proof: events.Proof_PROOF_DRAINED, Seq: got.Seq})
}

// Fence: the rank's access is revoked, and proven so.
func (r *Room) Fence(rank string) {
	r.D(rank, &events.FenceStarted{To: r.To, Why: "ack_timeout"})
	got := r.D(rank, &events.Fenced{To: r.To, Evidence: events.FenceKind_FENCE_KIND_HARD})
	r.evidence = append(r.evidence, &events.Evidence{Rank: rank, To: r.To, Basis: events.Basis_BASIS_FENCE, Fence: events.FenceKind_FENCE_KIND_HARD, Seq: got.Seq})
}

// Release frees the pages on the evidence told so far.
func (r *Room) Release(basis events.Basis) *events.Event {
	rel := &events.Released{Pages: r.Pages, Aux: r.Aux, Basis: basis, Evidence: r.evidence}
	if basis == events.Basis_BASIS_TIMEOUT || basis == events.Basis_BASIS_FORCED {
		rel.Unsafe = true
		for _, rank := range r.Ranks {
			if !slices.ContainsFunc(r.evidence, func(ev *events.Evidence) bool { return ev.Rank == rank }) {
				rel.Missing = append(rel.Missing, &events.Pair{Rank: rank, To: r.To})
			}
		}
	}
	return r.D("", rel)
}

// Clear: the rank's node frees its source pages and forgets the room.
func (r *Room) Clear(rank string) {
	r.P(rank, &events.SourceReleased{Pages: r.Pages})
	r.P(rank, &events.RoomCleared{})
}
