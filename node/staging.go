package node

import (
	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/projector"
)

// sendStaging sends a message of the staging ring (wire.md 1.7).
func (n *Node) sendStaging(a projector.Action) {
	var m backends.Message
	var to string
	switch a := a.(type) {
	case projector.SendStagingReq:
		m, to = backends.FromStagingReq(a), a.Address
	case projector.SendStagingRsp:
		m, to = backends.FromStagingRsp(a, n.self(a.To)), a.Address
	case projector.SendWatermark:
		m, to = backends.FromWatermark(a, n.self(a.To)), a.Address
	case projector.SendChunkReady:
		m, to = backends.FromChunkReady(a), a.Address
	default:
		return
	}
	f, err := n.encode(m, nil)
	n.sendOrLog(to, outgoing{frames: f}, err)
}

// copyStaged copies a chunk out of the staging ring. It is a write into the
// room's pages, and the core holds them until it has ended (wire.md F22).
func (n *Node) copyStaged(a projector.CopyStaged) projector.CopyDone {
	done := projector.CopyDone{RoomSeq: a.RoomSeq, Token: a.Token}
	m := n.memory.rank(a.To.Index())
	if m == nil {
		done.Err = "no memory is registered"
		return done
	}
	if err := m.scatter(a.Offset, a.Pages); err != nil {
		done.Err = err.Error()
	}
	return done
}
