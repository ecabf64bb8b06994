package sim

import (
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// note looks at an event as it is decided, long before it is durable.
func (n *node) note(e *events.Event) {
	switch p := e.Payload.(type) {
	case *events.Event_RoomFailed, *events.Event_RoomSucceeded:
		n.noteUse(e.RoomSeq, e.Seq, false)
	case *events.Event_Released:
		n.noteUse(e.RoomSeq, e.Seq, true)
	case *events.Event_AbortArmed:
		if u := n.uses[e.RoomSeq]; u != nil {
			for i := range u.pairs {
				u.pairs[i].armed = true
			}
		}
	case *events.Event_MetadataReceived:
		n.engine.metas[metaKey{e.RoomSeq, projector.RankID(e.Rank), projector.RankID(p.MetadataReceived.To)}] = e.Seq
	}
}

// probeEvent counts the rare branches that an event shows.
func (w *world) probeEvent(n *node, e *events.Event) {
	switch p := e.Payload.(type) {
	case *events.Event_AckReceived:
		switch a := p.AckReceived; {
		case a.Why == events.NotCounted_NOT_COUNTED_STALE_GENERATION, a.Why == events.NotCounted_NOT_COUNTED_RELEASED:
			w.probe("stale ack ignored")
		case a.Why != 0:
			w.probe("ack not counted: " + events.EnumWord(a.Why.Descriptor(), a.Why.Number()))
		case a.Proof == events.Proof_PROOF_NEVER_SEEN:
			w.probe("never_seen counted")
		}
	case *events.Event_AbortReceived:
		if p.AbortReceived.Stale {
			w.probe("lower generation changes nothing")
		}
		if e.RoomSeq == 0 {
			w.probe("abort overtook grant")
		}
	case *events.Event_StatusSent:
		if e.RoomSeq == 0 || p.StatusSent.Reason == "this incarnation has ended" {
			w.probe("tombstone refused a grant")
		}
	case *events.Event_AckWithheld:
		w.probe("ack withheld: cannot tell")
	case *events.Event_Released:
		w.probe("released by " + events.EnumWord(p.Released.Basis.Descriptor(), p.Released.Basis.Number()))
		if b := p.Released.Basis; b == events.Basis_BASIS_FENCE || b == events.Basis_BASIS_MIXED {
			w.probe("release without ack")
		}
	case *events.Event_Quarantined:
		w.probe("pages quarantined")
	case *events.Event_FenceFailed:
		w.probe("fence failed")
	case *events.Event_AckTimedOut:
		if len(p.AckTimedOut.Missing) == 1 && len(n.uses) > 0 {
			if u := n.uses[e.RoomSeq]; u != nil && len(u.pairs) > 1 {
				w.probe("ack fan-out with one rank missing")
			}
		}
	case *events.Event_AbortArmed:
		if n.armed++; n.m != nil && aborting(n.m.State()) > 1 {
			w.probe("two generations in flight at once")
		}
	case *events.Event_NodeDraining:
		for _, q := range w.nodes {
			if q.prefill != n.prefill && (w.isCut(n, q) || w.isCut(q, n)) {
				w.probe("drain while partitioned")
				return
			}
		}
	case *events.Event_ReceiptDropped:
		w.probe("receipt dropped, watermark raised")
	case *events.Event_RoomFailed:
		w.probe("failed: " + events.EnumWord(p.RoomFailed.Cause.Descriptor(), p.RoomFailed.Cause.Number()))
	case *events.Event_ChunkSkipped:
		w.probe("chunk skipped")
	case *events.Event_ChunkDrained:
		w.probe("uncertain write drained")
	case *events.Event_AckTargetHeld:
		w.probe("ack held until the drain")
	case *events.Event_PastSettled:
		w.probe("unknown past settled")
	case *events.Event_ConfigChanged:
		w.probe("told by a peer that the log is an older copy")
	}
}

func aborting(st *projector.State) int {
	n := 0
	for _, r := range st.Rooms {
		if r.Gen != 0 {
			n++
		}
	}
	return n
}
