package replay

import (
	"slices"

	"github.com/pdlog/pdlog/events"
)

func (h *History) addPrefill(r *Room, at Mark, e *events.Event) {
	switch p := e.Payload.(type) {
	case *events.Event_MetadataReceived:
		m := p.MetadataReceived
		r.Role = events.Role_ROLE_PREFILL
		dest := RoomKey{m.GetDecodeNode(), m.GetDecodeRoomSeq()}
		if r.Dests == nil {
			r.Dests = map[PairKey]RoomKey{}
		}
		r.Dests[PairKey{e.Rank, m.GetTo()}] = dest
		if d := h.rooms[dest]; d != nil && !slices.Contains(d.Peers, r) {
			d.Peers = append(d.Peers, r)
		}
	case *events.Event_ChunkPosted:
		c := p.ChunkPosted
		r.Role = events.Role_ROLE_PREFILL
		w := &Write{
			Room: r, Rank: e.Rank, To: c.GetTo(), Chunk: c.GetChunk(), Pages: c.GetPages(), Bytes: c.GetBytes(), Last: c.GetLast(),
			Posted: at, Dest: r.Dests[PairKey{e.Rank, c.GetTo()}],
			shape: h.memory.shape(e.Node, e.Rank, c.GetTo()),
		}
		r.Writes = append(r.Writes, w)
		h.tokens[RoomKey{e.Node, c.GetToken()}] = w
	case *events.Event_ChunkCompleted:
		h.close(e.Node, p.ChunkCompleted.GetToken(), at, "completed", true)
	case *events.Event_ChunkFailed:
		if p.ChunkFailed.GetProven() {
			h.close(e.Node, p.ChunkFailed.GetToken(), at, "failed", false)
		}
	case *events.Event_ChunkDrained:
		h.close(e.Node, p.ChunkDrained.GetToken(), at, "drained", p.ChunkDrained.GetLanded())
	case *events.Event_ChunkUncertain:
		if w := h.tokens[RoomKey{e.Node, p.ChunkUncertain.GetToken()}]; w != nil {
			w.Unsure = at
		}
	case *events.Event_AckSent:
		if p.AckSent.GetProof() != events.Proof_PROOF_CANNOT_TELL {
			r.vouch(e.Rank)
		}
	case *events.Event_StatusSent:
		if p.StatusSent.GetStatus() == events.TerminalStatus_TERMINAL_STATUS_SUCCESS {
			r.vouch(e.Rank)
		}
	}
}

func (h *History) close(node string, token uint64, at Mark, how string, landed bool) {
	k := RoomKey{node, token}
	w := h.tokens[k]
	if w == nil {
		return
	}
	delete(h.tokens, k)
	w.Ended, w.How, w.Landed = at, how, landed
}

// vouch marks the open writes of a rank: somebody was told that there are none.
func (r *Room) vouch(rank string) {
	for _, w := range r.Writes {
		if w.Rank == rank && !w.Ended.Is() {
			w.vouched = true
		}
	}
}
