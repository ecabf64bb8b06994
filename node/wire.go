package node

import (
	"errors"
	"fmt"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/rdma"
)

// listener receives for one local rank: it decodes what comes to the rank's
// PULL socket and submits it. A message that cannot be read becomes a command
// too, one that changes nothing; nothing that comes ends the listener.
type listener struct {
	n    *Node
	rank projector.RankID
	recv receiver
	side backends.Side
	cmds backends.Commands
}

func (l *listener) run() {
	for {
		f, key, err := l.recv.Recv()
		if err == nil {
			l.take(f, key)
		}
		select {
		case <-l.n.halt:
			if err := l.recv.Close(); err != nil {
				l.n.log.Debug("close PULL socket", "rank", l.rank, "err", err)
			}
			return
		default:
		}
		if err != nil && !errors.Is(err, errAgain) {
			l.n.log.Warn("receive", "rank", l.rank, "err", err)
			if !l.n.pause(pollEvery) {
				continue
			}
		}
	}
}

func (l *listener) take(f backends.Frames, key string) {
	m := l.n.dialect.Decode(l.side, f)
	if c := l.n.curve; c != nil {
		if why := c.misfit(m, key); why != "" {
			c.refused(string(l.rank), why)
			return
		}
		if r, ok := m.(*backends.Registration); ok && !r.Peer.IsZero() {
			c.learn(r.Peer.Key(), key)
		}
	}
	if !l.n.cfg.Extension {
		withoutExtension(m)
	}
	if a, ok := m.(*backends.AbortAck); ok {
		l.n.acks[a.Form()].Add(1)
		if a.Ext == nil && l.n.peers != nil {
			l.n.observeAck(a, l.rank)
		}
	}
	if r, ok := m.(*backends.Registration); ok && !r.Peer.IsZero() {
		l.n.shapes.put(r.Peer.Key(), shape{pageBytes: r.KVItemLen, ranks: int(r.AttnTPSize), rank: int(r.Rank())})
		if l.n.engineWrites != nil && r.Ext == nil {
			l.n.engineWrites.register(r.Peer.Key(), f)
		}
	}
	cmd := l.cmds.Of(m, l.rank, f)
	if a, ok := cmd.(projector.AuxArrived); ok {
		if why := l.n.auxMisfit(a); why != "" {
			cmd = projector.Rejected{Kind: m.Kind().String(), Reason: why, From: string(l.rank)}
		}
	}
	l.n.loop.tell(cmd)
}

// auxMisfit says why an aux row that came as a message cannot be meant for the
// memory registered here, whatever room it names: nobody fails a room by it
// (wire.md F28).
func (n *Node) auxMisfit(a projector.AuxArrived) string {
	m := n.memory.rank(a.At.Index())
	switch {
	case m == nil || m.auxRows == 0:
		return "no aux memory is registered"
	case a.Index != 0:
		return fmt.Sprintf("aux buffer %d, one is registered", a.Index)
	case uint64(a.Row) >= m.auxRows:
		return fmt.Sprintf("aux row %d of %d", a.Row, m.auxRows)
	case a.Bytes > m.auxBytes:
		return fmt.Sprintf("%d bytes for a row of %d", a.Bytes, m.auxBytes)
	}
	return ""
}

// withoutExtension: a node whose extension is off does not read it either.
func withoutExtension(m backends.Message) {
	switch m := m.(type) {
	case *backends.Registration:
		m.Ext = nil
	case *backends.Metadata:
		m.Ext = nil
	case *backends.Abort:
		m.Ext = nil
	case *backends.AbortAck:
		m.Ext = nil
	case *backends.Status:
		m.Ext = nil
	}
}

// encode writes an effect's message; plain is the same without the extension.
func (n *Node) encode(m backends.Message, err error) (backends.Frames, error) {
	if err != nil {
		return nil, err
	}
	return n.dialect.Encode(m)
}

func (n *Node) self(rank projector.RankID) backends.Self {
	at := n.rankAddress(rank.Index())
	return backends.Self{Endpoint: at, PeerKey: at}
}

var errRoomEnded = errors.New("the room ended before its metadata left")

// sendMetadata grants the pair's lease and sends. The outcome comes back as a
// command, from the sender when the message has left.
func (n *Node) sendMetadata(a projector.SendMetadata) {
	a.WithExt = a.WithExt && n.cfg.Extension
	done := func(err error) {
		r := projector.PublishResult{RoomSeq: a.RoomSeq, Rank: a.Rank, To: a.To}
		if err != nil {
			r.Err = err.Error()
		}
		n.loop.tell(r)
	}
	ended := func() bool { return n.dropped.has(rdma.Tag(a.RoomSeq)) }
	switch {
	case ended():
		done(errRoomEnded)
		return
	case a.Dummy:
	case !a.WithExt:
		n.receive.foreign(a.Lease, a.Room, a.RoomSeq)
	default:
		keys, err := n.receive.grant(n.life, &a, peerName(a.Rank.Node(), n.peers.boot(a.Rank.Node())))
		if err != nil {
			done(err)
			return
		}
		a.Ext.Keys = keys
	}
	m, err := backends.FromMetadata(a, n.self(a.To))
	f, err := n.encode(m, err)
	if err != nil {
		done(err)
		return
	}
	n.senders.send(a.Address, outgoing{frames: f, sent: done, stale: ended})
}

func (n *Node) sendAbort(a *projector.SendAbort) {
	a.WithExt = a.WithExt && n.cfg.Extension
	m, err := n.builder.Abort(a, n.self(a.To))
	f, err := n.encode(m, err)
	n.sendOrLog(a.Address, outgoing{frames: f}, err)
}

// sendAck sends what act is.
func (n *Node) sendAck(a *projector.SendAck, act projector.Action) {
	a.WithExt = a.WithExt && n.cfg.Extension
	f, err := n.encode(n.builder.Ack(a), nil)
	n.sendOrLog(a.Address, outgoing{frames: f, of: act}, err)
}

// sendStatus sends what act is.
func (n *Node) sendStatus(a *projector.SendStatus, act projector.Action) {
	if !backends.SendsStatus(n.dialect, *a) {
		return
	}
	a.WithExt = a.WithExt && n.cfg.Extension
	f, err := n.encode(n.builder.Status(a), nil)
	n.sendOrLog(a.Address, outgoing{frames: f, of: act}, err)
}

// plain is the message of an effect without the extension; nil for one that cannot
// be said without it. Any goroutine may ask.
func (n *Node) plain(act projector.Action) backends.Frames {
	var f backends.Frames
	var err error
	switch a := act.(type) {
	case projector.SendAck:
		a.WithExt = false
		f, err = n.dialect.Encode(backends.FromAck(a))
	case projector.SendStatus:
		a.WithExt = false
		f, err = n.dialect.Encode(backends.FromStatus(a))
	}
	if err != nil {
		return nil
	}
	return f
}

// sendOrLog: a message that could not be built is one that was lost; the core
// repeats what must arrive.
func (n *Node) sendOrLog(address string, m outgoing, err error) {
	if err != nil {
		n.senders.lost.Add(1)
		n.log.Warn("message not built", "to", address, "err", err)
		return
	}
	n.senders.send(address, m)
}

// greet queues the registration of every local rank for one prefill rank.
func (n *Node) greet(address string, ext bool) {
	for i := range n.cfg.Ranks {
		m, err := n.registration(i, ext)
		f, err := n.encode(m, err)
		n.sendOrLog(address, outgoing{frames: f}, err)
	}
}

// registration says where a local rank keeps its buffers: one entry for all
// layers, since our pages are opaque (wire.md 1.2).
func (n *Node) registration(rank int, ext bool) (*backends.Registration, error) {
	m := n.memory.rank(rank)
	if m == nil {
		return nil, errors.New("no memory yet")
	}
	at := n.rankAddress(rank)
	ep, err := backends.ParseEndpoint(at)
	if err != nil {
		return nil, err
	}
	r := &backends.Registration{
		Peer: ep, SessionID: at, AgentName: at, AgentMetadata: []byte(at),
		KVDataPtrs: []uint64{0}, KVItemLen: m.pageBytes, KVItemLens: []uint64{m.pageBytes},
		DstTPRank: backends.Some(int32(rank)), EngineRank: backends.Some(int32(rank)), //nolint:gosec // ranks
		GPUID: backends.Some(int32(-1)), AttnTPSize: int32(n.cfg.Ranks), //nolint:gosec // ranks
		DCPSize: backends.Some(int32(1)), DCPRank: backends.Some(int32(0)),
		NumKVSlots: backends.Some(m.pages), KVMemoryKinds: []string{"DRAM"},
		Engine:     &backends.Engine{Key: at, NodeID: n.cfg.Node, Hostname: ep.IP, Host: ep.IP, Port: ep.Port},
		KVMemDescs: []backends.MemDesc{{EngineKey: at, DeviceID: -1, Size: m.pages * m.pageBytes, Loc: 1}},
	}
	if m.auxRows > 0 {
		r.AuxDataPtrs = []uint64{0}
		r.AuxMemDescs = []backends.MemDesc{{EngineKey: at, ID: 1, DeviceID: -1, Size: m.auxRows * m.auxBytes, Loc: 1}}
	}
	if ext {
		if m.stagingBytes > 0 { // how an SGLang prefill lays its bytes down there we do not know
			r.StagingBase, r.StagingSize = backends.Some(uint64(0)), backends.Some(m.stagingBytes)
		}
		id := n.store.LogID()
		r.Ext = &backends.Extension{
			Node: n.cfg.Node, Boot: n.boot, Incarnation: n.store.Incarnation(), LogID: id[:],
			HLC: n.hlcNow(),
		}
	}
	return r, nil
}
