package cli

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/pdlog/pdlog/node"
)

// supervisor tells systemd (Type=notify) how the node does. Without
// NOTIFY_SOCKET it tells nobody.
type supervisor struct{ log *slog.Logger }

func (s supervisor) tell(states ...string) {
	for _, state := range states {
		if _, err := daemon.SdNotify(false, state); err != nil {
			s.log.Warn("systemd was not told", "state", state, "err", err)
			return
		}
	}
}

// watch feeds the watchdog (WatchdogSec=) while the decision loop answers, until
// ctx ends: a node whose loop hangs is restarted, and takes up every room.
func (s supervisor) watch(ctx context.Context, n *node.Node) {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		s.log.Warn("the watchdog's variables are not understood", "err", err)
		return
	}
	if limit == 0 {
		return
	}
	tick := time.NewTicker(limit / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.Done():
			return
		case <-tick.C:
		}
		asked, cancel := context.WithTimeout(ctx, limit/3)
		if err := n.Answers(asked); err != nil {
			s.log.Error("the decision loop does not answer: the watchdog is not fed", "err", err)
		} else {
			s.tell(daemon.SdNotifyWatchdog)
		}
		cancel()
	}
}
