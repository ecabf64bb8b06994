package node

import (
	"context"
	"os"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

const (
	foldBytes   = 1 << 20     // of the log that are read at once for a fold
	retainEvery = time.Minute // age and the mirror's progress are looked at as often
)

// usableSnapshot is the newest snapshot in the log's directory that this node
// and this build can go on from; nil if there is none. One that cannot be used
// is named and left alone.
func (n *Node) usableSnapshot() (*fold, *store.Snapshot) {
	for s, err := range store.DirSnapshots(n.cfg.LogDir()) {
		if err == nil {
			var f *fold
			if f, err = decodeFold(n.projectorConfig(), s.Data); err == nil {
				return f, s
			}
			err = errors.Wrapf(err, "after record %d", s.Seq)
		}
		if !errors.Is(err, os.ErrNotExist) { // there is no log yet
			n.log.Error("snapshot is ignored: the start reads more of the log", "dir", n.cfg.LogDir(), "err", err)
		}
	}
	return nil, nil
}

// foldRange folds the records behind after up to to, and gives the chain after
// the last of them.
func (n *Node) foldRange(ctx context.Context, f *fold, after, to uint64) (chain uint32, err error) {
	for from := after + 1; from <= to; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		frames, err := n.store.ReadFrames(from, foldBytes)
		if err != nil {
			return 0, errors.Wrapf(err, "read log from record %d", from)
		}
		if len(frames) == 0 {
			return 0, errors.Newf("read log from record %d: nothing there, the log ends at %d", from, n.store.Durable())
		}
		for _, fr := range frames {
			if fr.Info.FirstSeq > to {
				break
			}
			if _, err := events.DecodeFrame(fr.Data, n.cfg.Node, func(e *events.Event) error {
				if e.Seq > after {
					f.apply(e)
				}
				return nil
			}); err != nil {
				return 0, errors.Wrapf(err, "read log from record %d", fr.Info.FirstSeq)
			}
			chain, from = fr.Info.Chain, fr.Info.LastSeq+1
		}
	}
	return chain, nil
}

// keepSnapshots writes a snapshot at each roll and lets go of what the log
// needs no more, off the loop: a snapshot is a fold of the log's sealed part,
// so nothing of the live state is touched, or waited for.
func (n *Node) keepSnapshots(ctx context.Context) {
	tick := time.NewTicker(retainEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.rolled:
			if err := n.writeSnapshot(ctx); err != nil && ctx.Err() == nil {
				n.log.Error("no snapshot was written: the next start reads more of the log", "err", err)
			}
		case <-tick.C:
		}
		if err := n.retain(); err != nil {
			n.log.Error("the log cannot let go of old segments", "err", err)
		}
	}
}

func (n *Node) onRoll() {
	select {
	case n.rolled <- struct{}{}:
	default: // one that covers this roll too is on its way
	}
}

// writeSnapshot folds the sealed segments behind the newest snapshot.
func (n *Node) writeSnapshot(ctx context.Context) error {
	began, to := time.Now(), n.store.Sealed()
	f, after := newFold(n.projectorConfig()), n.store.First()-1
	s, err := n.store.LatestSnapshot()
	if err != nil {
		return err
	}
	if s != nil {
		if old, err := decodeFold(n.projectorConfig(), s.Data); err == nil {
			f, after = old, s.Seq
		}
	}
	defer func() { n.oldestRoom = f.m.OldestRoom() }()
	if to <= after {
		return nil
	}
	chain, err := n.foldRange(ctx, f, after, to)
	if err != nil {
		return err
	}
	b, err := f.encode()
	if err != nil {
		return err
	}
	if err := n.store.WriteSnapshot(to, chain, b); err != nil {
		return err
	}
	n.log.Info("snapshot written", "seq", to, "bytes", len(b), "events", to-after, "took", time.Since(began))
	return nil
}

// retain drops the oldest sealed segments that nobody needs: older than
// log.max_age, mirrored, in the snapshots, and without the beginning of an open
// room. Above log.max_bytes the snapshots alone count (store.md 6.8).
func (n *Node) retain() error {
	need, err := n.needed()
	if err != nil {
		return err
	}
	r, err := n.store.Retain(need, n.live.Load().maxBytes)
	if err != nil {
		return err
	}
	if r.Removed > 0 {
		n.log.Info("old log segments are gone", "segments", r.Removed, "first_seq", r.FirstSeq, "bytes", r.Bytes)
	}
	if n.mirror != nil && r.HoleTo > n.mirror.m.LastMirrored() {
		n.log.Error("events left the log before they were mirrored: log.max_bytes is reached and the mirror is behind",
			"from", max(r.HoleFrom, n.mirror.m.LastMirrored()+1), "to", r.HoleTo, "max_bytes", n.live.Load().maxBytes)
	}
	if r.Over != n.logOver {
		n.logOver = r.Over
		if r.Over {
			n.log.Warn("the log is above log.max_bytes and nothing more may go: what is left is in no snapshot", "bytes", r.Bytes, "max_bytes", n.live.Load().maxBytes)
		}
	}
	return nil
}

// needed is the first sequence that age, the mirror or an open room still asks
// for.
func (n *Node) needed() (uint64, error) {
	if n.live.Load().maxAge == 0 {
		return 0, nil // all of it
	}
	since := time.Now().Add(-n.live.Load().maxAge).UnixMilli()
	need, err := n.store.OlderThan(uint64(events.MakeHLC(uint64(since), 0))) //nolint:gosec // after 1970
	if n.mirror != nil {
		need = min(need, n.mirror.m.LastMirrored()+1)
	}
	return min(need, n.oldestRoom), err
}
