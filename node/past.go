package node

import (
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pdlog/pdlog/backends/bootstrap"
	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/store/mirror"
)

// pastTime bounds the question to the mirror at a start. A broker that does not
// answer does not hold the node up: the mirror itself notices later that it is
// ahead (mirror.ErrMirrorAhead).
const pastTime = 2 * time.Second

// remembered is what the mirror said of this node when it started.
type remembered struct {
	last  mirror.NodeInfo
	known bool
	err   error // it could not be asked
}

// askMirror asks the mirror what it remembers of this node.
func (n *Node) askMirror(ctx context.Context) (mem remembered) {
	if n.mirror == nil {
		return mem
	}
	ctx, cancel := context.WithTimeout(ctx, pastTime)
	defer cancel()
	nc, err := mirror.Dial(n.mirror.address, n.cfg.NATS.access(), nats.Name("pdlog start "+n.cfg.Node), nats.Timeout(pastTime), nats.NoReconnect())
	if err == nil {
		defer nc.Close()
		mem.last, mem.known, err = mirror.LastOf(ctx, nc, n.cfg.NATS.Cluster, n.cfg.Node)
	}
	if mem.err = err; err != nil {
		n.log.Warn("the mirror cannot be asked for this node's past", "err", err)
	}
	return mem
}

// leaveOlderCopy: a log that ends below what the mirror holds of it is an older
// copy, or lost its end; one that was followed by another log of this node may
// be. It is set aside, and what it has goes on as a log with a new id: peers
// know the sequences that were lost as other rooms of that log (events.md,
// identity), and a room_seq must not come twice under one id.
func (n *Node) leaveOlderCopy(ctx context.Context, mem remembered) error {
	end := n.store.Durable()
	switch {
	case !mem.known,
		mem.last.LogID == n.store.LogID() && mem.last.LastSeq <= end,
		mem.last.LogID != n.store.LogID() && end == 0: // it is new already
		return nil
	case mem.last.LogID == n.store.LogID():
		n.notBelow = mem.last
	default: // where it ended before the other log began, nobody here can say
		n.notBelow = mirror.NodeInfo{LogID: n.store.LogID(), LastSeq: end + 1}
	}
	l := n.store
	n.store = nil
	if err := l.Close(); err != nil {
		return err
	}
	return n.openLog(ctx)
}

// pastUnknown: the mirror remembers another log of this node, or more of this one
// than is here, or the log is empty and the mirror cannot say whether it always
// was: then the log's past was lost (events.md, unknown past). nil: the past is
// known; else the prefill nodes to be asked.
func (n *Node) pastUnknown(ctx context.Context, mem remembered) []string {
	switch {
	case n.lost:
	case mem.err != nil && n.store.Appended() == 0:
		n.log.Error("the log is empty and the mirror cannot be asked whether it always was: this node is new or was wiped, no pages are offered until its peers have answered",
			"peers", n.cfg.Peers, "err", mem.err)
	case mem.known && (mem.last.LogID != n.store.LogID() || mem.last.LastSeq > n.store.Appended()):
		n.log.Error("the mirror remembers more of this node than its log: its past is unknown",
			"mirror_log", mem.last.LogID.String(), "mirror_seq", mem.last.LastSeq, "log", n.store.LogID().String(), "log_seq", n.store.Appended())
	default:
		return nil
	}
	return n.askable(ctx)
}

// askable names the configured prefill nodes, by their bootstrap address while
// they do not answer. It is not nil.
func (n *Node) askable(ctx context.Context) []string {
	names := []string{}
	for _, addr := range n.cfg.Peers {
		name := addr
		if !n.cfg.Extension {
			names = append(names, name)
			continue
		}
		if info, ok, err := n.client.Discover(ctx, addr); err == nil && ok {
			name = info.Node
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// askPast asks a prefill node what is outstanding to earlier lives of this one,
// until it says nothing, or ack_timeout has passed since its first answer: what
// is open then may end by itself no more (wire.md 9.2).
func (n *Node) askPast(name string) {
	if !n.cfg.Extension { // nobody is asked, so nobody answers for the past
		n.loop.tell(projector.PastAnswer{Node: name})
		return
	}
	id := n.store.LogID()
	wait := discoverFirst
	var first time.Time
	for {
		addr := n.peers.addressOf(name)
		if addr == "" && slices.Contains(n.cfg.Peers, name) {
			addr = name
		}
		if addr != "" {
			a, err := n.client.Outstanding(n.life, addr, bootstrap.Asker{Node: n.cfg.Node, Boot: n.boot, LogID: id[:]})
			switch {
			case err == nil && first.IsZero():
				first = time.Now()
			case err != nil && n.life.Err() == nil:
				n.log.Debug("the past is not settled yet", "peer", name, "err", err)
			}
			if err == nil && (a.Open == 0 || time.Since(first) > n.cfg.AckTimeout) {
				n.loop.tell(projector.PastAnswer{Node: name, Answered: true, Known: a.Known, Open: a.Open})
				return
			}
		}
		if !n.pause(wait) {
			return
		}
		wait = min(2*wait, discoverMax)
	}
}
