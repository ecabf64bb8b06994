package node

import (
	"context"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/backends/bootstrap"
	"github.com/pdlog/pdlog/projector"
)

// outstanding answers a decode node with an unknown past (wire.md 9.2): whether
// this log holds another life of it, and how many writes to those lives are
// open or uncertain.
func (n *Node) outstanding(a bootstrap.Asker) (known bool, open uint64, err error) {
	ctx, cancel := context.WithTimeout(n.life, closeTime)
	defer cancel()
	r, err := n.loop.ask(ctx, task{cmd: projector.PastQuestion{Node: a.Node, Boot: a.Boot, LogID: a.LogID}, durable: true})
	switch {
	case err != nil:
		return false, 0, err
	case r.Past == nil || !r.Past.Answered:
		return false, 0, errors.New("this node does not know its own past")
	}
	return r.Past.Known, r.Past.Open, nil
}
