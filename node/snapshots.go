package node

import (
	"context"
	"iter"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
)

const (
	foldBytes   = 1 << 20     // of the log that are read at once for a fold
	retainEvery = time.Minute // age and the mirror's progress are looked at as often
)

// page is some records of the log, one after the other.
type page struct {
	events []*events.Event
	chain  uint32 // after the last of them
}

// records reads the log behind after up to to.
func (n *Node) records(ctx context.Context, after, to uint64) iter.Seq2[page, error] {
	return func(yield func(page, error) bool) {
		for from := after + 1; from <= to; {
			var p page
			err := ctx.Err()
			if err == nil {
				p.events = make([]*events.Event, 0, foldBytes/32)
				p.chain, err = n.store.ReadEvents(from, to, foldBytes, func(e *events.Event) { p.events = append(p.events, e) })
			}
			if err == nil && len(p.events) == 0 {
				err = errors.Newf("nothing there, the log ends at %d", n.store.Durable())
			}
			if err != nil {
				yield(page{}, errors.Wrapf(err, "read log from record %d", from))
				return
			}
			from = p.events[len(p.events)-1].Seq + 1
			if !yield(p, nil) {
				return
			}
		}
	}
}

// ahead reads one element further than its caller has come, on a goroutine of
// its own: a start has nothing else to do meanwhile.
func ahead[T any](seq iter.Seq2[T, error]) iter.Seq2[T, error] {
	type element struct {
		v   T
		err error
	}
	return func(yield func(T, error) bool) {
		next, stop := make(chan element, 1), make(chan struct{})
		go func() {
			defer close(next)
			for v, err := range seq {
				select {
				case next <- element{v, err}:
				case <-stop:
					return
				}
			}
		}()
		defer func() {
			close(stop)
			for range next { //nolint:revive // until it has ended
			}
		}()
		for e := range next {
			if !yield(e.v, e.err) {
				return
			}
		}
	}
}

// foldAll folds records, and gives the chain after the last of them.
func foldAll(f *fold, records iter.Seq2[page, error]) (chain uint32, err error) {
	for p, err := range records {
		if err != nil {
			return 0, err
		}
		for _, e := range p.events {
			f.apply(e)
		}
		chain = p.chain
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
	if to == n.snapshotAt {
		return nil
	}
	f, after := newFold(n.projectorConfig()), n.store.First()-1
	s, err := n.store.LatestSnapshot()
	if err != nil {
		return err
	}
	size := 0
	if s != nil {
		if old, err := decodeFold(n.projectorConfig(), s.Data); err == nil {
			f, after = old, s.Seq
		}
		size = len(s.Data) + len(s.Data)/8 + 4096
	}
	if to <= after {
		n.snapshotAt, n.oldestRoom = after, f.m.OldestRoom()
		return nil
	}
	chain, err := foldAll(f, n.records(ctx, after, to))
	if err != nil {
		return err
	}
	b, err := f.encode(size)
	if err != nil {
		return err
	}
	if err := n.store.WriteSnapshot(to, chain, b); err != nil {
		return err
	}
	n.snapshotAt, n.oldestRoom = to, f.m.OldestRoom()
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
