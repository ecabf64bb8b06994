package store

import (
	"time"

	"github.com/cockroachdb/errors"
	"go.etcd.io/bbolt"

	"github.com/pdlog/pdlog/events"
)

const (
	// lingerBytes pending make a commit start without waiting for company.
	lingerBytes = 256 << 10
	// maxTxBytes bounds one transaction, so that acknowledgements keep coming
	// while a large backlog is written.
	maxTxBytes = 4 << 20
	// rollSlack is left free in a segment for pages that bbolt rewrites beside
	// the frames of a transaction: tree path, freelist, and the seal in
	// the meta bucket with the schema beside it.
	rollSlack = 48 << 10
	// slowCommit is when a commit that the disk has not answered is complained of.
	slowCommit = time.Second
)

// commitLoop is the committer: everything pending becomes one batch.
func (l *Log) commitLoop() {
	defer close(l.committerDone)
	linger := time.NewTimer(time.Hour)
	defer linger.Stop()
	slow := time.AfterFunc(time.Hour, l.diskIsSlow)
	defer slow.Stop()
	var batch events.FrameBatch
	for {
		<-l.wake
		for {
			wait, more := l.take(&batch)
			if !more {
				return
			}
			if wait > 0 {
				linger.Reset(wait)
				select {
				case <-l.wake:
				case <-linger.C:
				}
				continue
			}
			if batch.Len() == 0 {
				break // back to sleep
			}
			began, before := time.Now(), l.pos.Seq
			slow.Reset(slowCommit)
			err := l.commit(&batch)
			if !slow.Stop() && err == nil {
				l.log.Warn("the log's disk has answered", "took", time.Since(began), "durable", l.durable.Load())
			}
			if err != nil {
				l.fail(err)
				return
			}
			if l.opts.OnCommit != nil {
				l.opts.OnCommit(int(l.pos.Seq-before), time.Since(began)) //nolint:gosec // a commit's events
			}
		}
	}
}

// diskIsSlow says so while a commit is still waiting: nobody else can tell a
// disk that takes seconds from a node that hangs.
func (l *Log) diskIsSlow() {
	l.log.Error("a commit has been waiting for the log's disk; what needs it is not done meanwhile, and no room is opened once the queue is full",
		"for", slowCommit, "dir", l.dir, "durable", l.durable.Load(), "queued_bytes", l.queued.Load(), "queue_limit", l.opts.QueueBytes)
}

// take moves what is pending into batch, or says how long to linger, or that
// there will be nothing more.
func (l *Log) take(batch *events.FrameBatch) (wait time.Duration, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return 0, false
	}
	pending := l.w.Bytes()
	if pending == 0 {
		if l.closed {
			return 0, false
		}
		l.w.Swap(batch)
		return 0, true
	}
	if !l.urgent && !l.closed && pending < lingerBytes {
		if wait := l.opts.Linger - time.Since(l.since); wait > 0 {
			return wait, true
		}
	}
	if l.urgent && !l.closed && pending < lingerBytes {
		if wait := l.crowd.wait(time.Now()); wait > 0 {
			return wait, true
		}
	}
	l.urgent = false
	l.crowd.leave(time.Now())
	l.w.Swap(batch)
	l.queued.Add(int64(batch.Bytes() - pending)) // checksum of the frame that was open
	return 0, true
}

// commit writes the batch in one transaction, or a few when it is very large
// or crosses into the next segment. An error means poison.
func (l *Log) commit(batch *events.FrameBatch) error {
	limit := min(int64(maxTxBytes), l.opts.SegmentBytes/4)
	for from := 0; from < batch.Len(); {
		to, size := from, int64(0)
		for to < batch.Len() {
			_, b := batch.Frame(to)
			if to > from && size+int64(len(b)) > limit {
				break
			}
			size += int64(len(b))
			to++
		}
		if l.activeAny && l.activeUsed+size+size/8+rollSlack > l.opts.SegmentBytes {
			if err := l.roll(); err != nil {
				return err
			}
		}
		last, err := l.commitFrames(batch, from, to)
		if err != nil {
			return err
		}
		l.pos = events.Position{Seq: last.Last, HLC: last.HLC, Chain: last.Chain}
		l.queued.Add(-size)
		if err := l.advance(last.Last); err != nil {
			return err
		}
		from = to
	}
	return nil
}

func (l *Log) commitFrames(batch *events.FrameBatch, from, to int) (last events.FrameStart, err error) {
	db := l.active.db // the committer alone changes the active segment's handle
	err = guard(l.active.path, func() error {
		tx, err := db.Begin(true)
		if err != nil {
			return errors.Wrap(err, "begin commit")
		}
		b := tx.Bucket(bucketFrames)
		b.FillPercent = 1 // keys only ever grow
		for i := from; i < to; i++ {
			start, frame := batch.Frame(i)
			if err := b.Put(be64(start.Seq), frame); err != nil {
				return errors.CombineErrors(errors.Wrapf(err, "put frame %d", start.Seq), tx.Rollback())
			}
			last = start
		}
		if err := putTip(tx, tip{seq: last.Last, chain: last.Chain, incarnation: l.incarnation, oneSync: l.oneSync()}); err != nil {
			return errors.CombineErrors(errors.Wrapf(err, "put tip %d", last.Last), tx.Rollback())
		}
		if h := l.opts.hooks.beforeCommit; h != nil {
			if err := h(to - from); err != nil {
				return errors.CombineErrors(err, tx.Rollback())
			}
		}
		// onesync.md: the first commit of a start takes bbolt's own two syncs, so
		// that no transaction of an earlier life can come back in its place.
		db.NoSync = l.oneSync() && l.pos.Seq > l.startSeq
		if err := tx.Commit(); err != nil {
			return errors.Wrapf(err, "commit up to record %d in %s", last.Last, l.active.path)
		}
		if db.NoSync {
			db.NoSync = false
			if err := db.Sync(); err != nil {
				return errors.Wrapf(err, "sync record %d in %s", last.Last, l.active.path)
			}
		}
		if h := l.opts.hooks.afterCommit; h != nil {
			if err := h(); err != nil {
				return err
			}
		}
		return db.View(func(tx *bbolt.Tx) error {
			l.activeUsed = tx.Size()
			return nil
		})
	})
	if err != nil {
		return last, err
	}
	l.activeAny = true
	return last, writeHead(l.head, head{seq: last.Last, chain: last.Chain})
}

// roll seals the active segment and goes on in the one prepared ahead. With no
// room on the disk for a next one it stays: the active file may grow, and if
// that fails too the commit fails closed (store.md 5, disk full).
func (l *Log) roll() error {
	spare := l.takeSpare()
	if spare == nil {
		return nil
	}
	old := l.active
	if err := guard(old.path, func() error {
		return old.db.Update(func(tx *bbolt.Tx) error { return putSeal(tx, l.pos.Seq, l.pos.Chain, l.incarnation) })
	}); err != nil {
		return errors.Wrapf(err, "seal %s", old.path)
	}
	if err := l.startSegment(spare, l.pos); err != nil {
		return err
	}
	l.segMu.Lock()
	l.segs = append(l.segs, spare)
	l.segMu.Unlock()
	l.active, l.activeAny = spare, false
	select {
	case l.demote <- old: // closed there; readers open it again read-only
	case <-l.preparerDone:
	}
	select {
	case l.needSpare <- struct{}{}:
	default:
	}
	if l.opts.OnRoll != nil {
		l.opts.OnRoll()
	}
	return nil
}
