package node

import (
	"fmt"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// perform does one effect, all but RevokeLease (see revoke). It runs on the
// outbox's goroutine, in order, with everything durable that the effect rests on.
// Nothing here waits for a peer.
func (n *Node) perform(act projector.Action, seq uint64) {
	n.effects.Add(1)
	switch a := act.(type) {
	case projector.SendMetadata:
		n.sendMetadata(a)
	case projector.SendAbort:
		n.sendAbort(&a)
	case projector.SendAck:
		n.sendAck(&a, act)
	case projector.SendStatus:
		n.sendStatus(&a, act)
	case projector.PostWrite:
		n.post.post(a, seq)
	case projector.SealRoom:
		n.post.seal(a.RoomSeq)
	case projector.Fence:
		n.background.Go(func() { n.receive.fence(a) })
	case projector.CopyAux:
		n.loop.tell(n.copyAux(a))
	case projector.CopyStaged:
		n.background.Go(func() { n.loop.tell(n.copyStaged(a)) })
	case projector.SendStagingReq, projector.SendStagingRsp, projector.SendWatermark, projector.SendChunkReady:
		n.sendStaging(a)
	case projector.CheckPages:
		n.background.Go(func() { n.receive.check(a) })
	case projector.Tell:
		if a.Kind == projector.TellFailed && n.post != nil {
			n.dropChunks(a.RoomSeq)
		}
		n.hub.tell(n.notices.of(&a, seq))
		if a.Kind == projector.TellReleased || a.Kind == projector.TellSourceReleased {
			n.roomLeft()
		}
	case projector.AskPast:
		n.background.Go(func() { n.askPast(a.Node) })
	case projector.FencePeer:
		// Leases of this life are known one by one. Of an earlier life, whose
		// log is not here, no provider can show anything: its keys live in the
		// process that granted them, which may still read (tcp, shm) or hold its
		// registrations (verbs), and the lock that this process holds is not
		// that log's. docs/reliability.md has the table.
		n.loop.tell(projector.PeerFenced{Node: a.Node, Evidence: events.FenceKind_FENCE_KIND_NONE})
	case projector.DropPublish: // done by the outbox when it was pushed
	case projector.Rediscover:
		n.peers.rediscover(a.Node)
	case projector.Stopped:
		n.end(nil)
	}
}

// revoke ends a key before its room's release is told: no key outlives its room.
// What it leaves to do, where there is something to wait for (a copy that is
// under way, a device), the outbox does apart. A revocation that fails is
// counted, and the release is told. Of a peer that is not pdlog there is no key
// to take back.
func (n *Node) revoke(act projector.Action) (rest func()) {
	a, ok := act.(projector.RevokeLease)
	if !ok || n.receive.takeNow(a.Lease) {
		return nil
	}
	return func() {
		if _, err := n.receive.take(a.Lease); err != nil {
			n.revokeFailed.Add(1)
			n.log.Warn("lease not revoked", "lease", a.Lease, "room_seq", a.RoomSeq, "err", err)
		}
	}
}

// copyAux copies an aux row that came as a message (AUX_DATA). The core has
// made sure that the room owns the row; the place and the length are checked
// here against what was registered (wire.md F28).
func (n *Node) copyAux(a projector.CopyAux) projector.CopyDone {
	done := projector.CopyDone{RoomSeq: a.RoomSeq, Token: a.Token}
	m := n.memory.rank(a.To.Index())
	if m == nil {
		done.Err = "no memory is registered"
		return done
	}
	row, ok := m.row(a.Row)
	switch {
	case a.Index != 0:
		done.Err = fmt.Sprintf("aux buffer %d, one is registered", a.Index)
	case !ok:
		done.Err = fmt.Sprintf("aux row %d of %d", a.Row, m.auxRows)
	case len(a.Data) > len(row):
		done.Err = fmt.Sprintf("%d bytes for a row of %d", len(a.Data), len(row))
	default:
		copy(row, a.Data)
	}
	return done
}
