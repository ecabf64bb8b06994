package store

import (
	"context"
	"encoding/hex"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
)

// LogID is the random 128-bit identity of a log, drawn when it is created
// empty and kept for its life (events.md, identity).
type LogID [16]byte

// String is 32 hex digits.
func (id LogID) String() string { return hex.EncodeToString(id[:]) }

// ParseLogID reads what LogID.String writes.
func ParseLogID(s string) (LogID, error) {
	var id LogID
	b, err := hex.DecodeString(s)
	if err != nil || copy(id[:], b) != len(id) || len(b) != len(id) {
		return LogID{}, errors.Newf("log id %q: want 32 hex digits", s)
	}
	return id, nil
}

// Options of Open. Node and Boot are required.
type Options struct {
	Node string
	Boot uint64 // random number of this start, not 0

	// SegmentBytes is the size at which a segment is sealed and the next one
	// begun; default 64 MiB, at least 256 KiB.
	SegmentBytes int64
	// QueueBytes is the amount of events accepted and not yet durable at which
	// Full says so; default 64 MiB.
	QueueBytes int64
	// Linger is how long a commit of Group events may wait for company;
	// default 2 ms. Nobody who waits is made to linger.
	Linger time.Duration
	// OnDurable is called on the committer with each new durable sequence. It
	// must not block and must not call Wait, Sync or Close.
	OnDurable func(seq uint64)
	// OnCommit is called on the committer with the events of each commit and how
	// long the disk took for them. It must not block.
	OnCommit func(events int, took time.Duration)
	// OnRoll is called on the committer when a segment has been sealed and the
	// next one begun (Sealed). It must not block.
	OnRoll func()
	// Commit is how a commit reaches the disk; default OneSync.
	Commit CommitMode
	// Socket is written into the lock file, for whoever finds the log in use.
	Socket string
	Logger *slog.Logger

	// Salvage lets Open go on when the log is damaged or lost acknowledged
	// events (ErrCorrupt, ErrHeadAhead, ErrHeadMismatch, ErrBehind): it is set
	// aside as <dir>.damaged-<time>, what verifies is copied into a log with a
	// new id, and Recovered.LostFrom is set, which means an unknown past. Without it
	// Open returns the error and touches nothing.
	Salvage bool
	// NotBelow is the last sequence that the mirror or peers remember of this
	// node's log: one that ends below it is an old copy, or lost its end
	// (ErrBehind). NotBelowID limits that to the log with this id; zero = any.
	NotBelow   uint64
	NotBelowID LogID
	// TrustBelow: sealed segments wholly below this sequence are checked by
	// their ends alone, because a snapshot stands for them; default 0, all
	// are verified.
	TrustBelow uint64

	hooks hooks
}

// CommitMode is how many syncs a commit takes.
type CommitMode string

// The commit modes. OneSync writes a transaction's pages and its meta page and
// then syncs once; an Open after a power loss tells a torn commit by its tip and
// goes one step back. TwoSync is bbolt's own way: it takes some 1.5 times as
// long, and a root that does not verify is never taken for a torn commit.
const (
	OneSync CommitMode = "one-sync"
	TwoSync CommitMode = "two-sync"
)

func (l *Log) oneSync() bool { return l.opts.Commit == OneSync }

// hooks are for tests: fault injection and counting.
type hooks struct {
	beforeCommit func(batch int) error // before the transaction commits
	afterCommit  func() error          // an error here stands for a failed meta sync
	prepare      func() error          // before the next segment is prepared
}

// Log is an open log. Open is the only way in.
type Log struct {
	opts        Options
	dir         string
	id          LogID
	incarnation uint64
	descriptor  []byte
	lock, head  *os.File
	log         *slog.Logger

	mu      sync.Mutex // appenders and waiters
	w       *events.FrameWriter
	since   time.Time // when the oldest pending event came
	urgent  bool      // somebody waits for what is pending
	crowd   crowd     // how many do
	closed  bool
	err     error // poison
	waiters []waiter
	changed chan struct{} // made on demand, closed at the next durable advance

	queued  atomic.Int64 // bytes accepted and not yet durable
	durable atomic.Uint64
	noSpace atomic.Bool
	failed  chan struct{}
	ended   chan struct{} // closed by Close

	wake chan struct{} // to the committer

	snapMu     sync.Mutex // the snapshot files
	snaps      []uint64   // of those that fit, once they are known
	snapsKnown bool

	retainMu sync.Mutex // one Retain at a time
	segMu    sync.RWMutex
	segs     []*segment // the last one is the active one

	readMu  sync.Mutex
	reading []*segment // sealed segments with an open handle, last used last

	active     *segment // committer alone from here on
	activeUsed int64    // bytes of the active segment in use
	activeAny  bool     // it has a frame
	pos        events.Position
	startSeq   uint64 // where this start found the log
	startChain uint32
	torn       error       // why the last segment is read from the root before its newest
	tail       segmentMeta // of the last segment, at Open

	spare      chan *segment
	spareTried chan struct{} // an attempt to prepare failed
	needSpare  chan struct{}
	demote     chan *segment

	stopPrepare   chan struct{}
	committerDone chan struct{}
	preparerDone  chan struct{}
	closeOnce     sync.Once
	closeErr      error
}

type waiter struct {
	seq uint64
	ch  chan error
}

// LogID is the identity of the log.
func (l *Log) LogID() LogID { return l.id }

// Node is the name of the log's node.
func (l *Log) Node() string { return l.opts.Node }

// Incarnation is the number of this start: the highest one recorded before,
// plus one. The caller records it with NodeStarted.
func (l *Log) Incarnation() uint64 { return l.incarnation }

// Append takes events in order: seq gapless, hlc growing (events.md I9), boot
// and incarnation those of this start. They are copied; the caller may reuse
// them. It does no I/O and never waits for any; the events are durable when
// Durable, Wait or OnDurable say so. Sync makes the commit start at once,
// Group lets it linger.
//
// On an error nothing was taken: ErrPoisoned, ErrClosed, ErrEnvelope,
// events.ErrSeqGap, events.ErrClockOrder or events.ErrRecordTooBig. A full
// queue is no error (Full): what the node has decided must reach the log.
func (l *Log) Append(evs []*events.Event, class events.Class) error {
	if len(evs) == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.refusal(); err != nil {
		return err
	}
	before := l.w.Bytes()
	mark := l.w.Mark()
	for _, e := range evs {
		err := l.checkEnvelope(e)
		if err == nil {
			err = l.w.Append(e)
		}
		if err != nil {
			l.w.Rollback(mark)
			return errors.Wrap(err, "append to log")
		}
	}
	if before == 0 {
		l.since = time.Now()
	}
	l.queued.Add(int64(l.w.Bytes() - before))
	first := before == 0 || class == events.Sync && !l.urgent
	if class == events.Sync {
		l.urgent = true
		l.crowd.pending++
	}
	if first || l.urgent && l.crowd.here() || l.w.Bytes() >= lingerBytes {
		l.poke()
	}
	return nil
}

func (l *Log) checkEnvelope(e *events.Event) error {
	if e.Boot != l.opts.Boot || e.Incarnation != l.incarnation || (e.Node != "" && e.Node != l.opts.Node) {
		return errors.Wrapf(ErrEnvelope, "event %d of node %q boot %016x incarnation %d, log of %q %016x %d",
			e.Seq, e.Node, e.Boot, e.Incarnation, l.opts.Node, l.opts.Boot, l.incarnation)
	}
	return nil
}

// refusal is why nothing can be appended, under mu.
func (l *Log) refusal() error {
	if l.err != nil {
		return l.err
	}
	if l.closed {
		return ErrClosed
	}
	return nil
}

func (l *Log) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Hurry ends the linger of what is pending: an effect waits for it.
func (l *Log) Hurry() {
	l.mu.Lock()
	if l.w.Bytes() > 0 {
		l.urgent = true
		l.poke()
	}
	l.mu.Unlock()
}

// Durable is the last sequence that is on disk with everything before it.
func (l *Log) Durable() uint64 { return l.durable.Load() }

// Appended is the last sequence that Append took.
func (l *Log) Appended() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Position().Seq
}

// Wait returns when seq is durable, or with ErrPoisoned, ErrClosed or the
// context's error. It makes a pending commit start at once.
func (l *Log) Wait(ctx context.Context, seq uint64) error {
	if l.durable.Load() >= seq {
		return nil
	}
	l.mu.Lock()
	if l.durable.Load() >= seq {
		l.mu.Unlock()
		return nil
	}
	if err := l.refusal(); err != nil {
		l.mu.Unlock()
		return err
	}
	w := waiter{seq: seq, ch: make(chan error, 1)}
	l.waiters = append(l.waiters, w)
	if l.w.Bytes() > 0 && !l.urgent { // else the committer knows
		l.urgent = true
		l.poke()
	}
	l.mu.Unlock()
	select {
	case err := <-w.ch:
		return err
	case <-ctx.Done():
		l.mu.Lock()
		l.waiters = slices.DeleteFunc(l.waiters, func(o waiter) bool { return o.ch == w.ch })
		l.mu.Unlock()
		return ctx.Err()
	}
}

// Sync returns when everything appended before the call is durable.
func (l *Log) Sync(ctx context.Context) error { return l.Wait(ctx, l.Appended()) }

// Changed gives a channel that is closed at the next durable advance, and when
// the log is poisoned or closed. On a poisoned log nothing advances any more,
// the channel is then closed by Close alone. It hurries nothing: it is for
// those who read behind the committer. Take the channel, then read, then wait.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refusal() != nil {
		return l.ended
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

// Pressure is the share of QueueBytes that is accepted and not yet durable;
// it may go above 1.
func (l *Log) Pressure() float64 {
	return float64(l.queued.Load()) / float64(l.opts.QueueBytes)
}

// Full says that no new room should be opened: the queue is full, or the disk
// had no room for the next segment. What is open may still be ended.
func (l *Log) Full() bool {
	return l.noSpace.Load() || l.queued.Load() >= l.opts.QueueBytes
}

// Failed is closed when the log is poisoned.
func (l *Log) Failed() <-chan struct{} { return l.failed }

// Err is nil, or the ErrPoisoned that ended the log.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// fail poisons the log for good: waiters fail, nothing more is committed.
func (l *Log) fail(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = &poisonError{after: l.durable.Load(), cause: cause}
	close(l.failed)
	l.release(l.err)
	l.poke()
	l.log.Error("log is poisoned: nothing more is durable, this process must end", "durable", l.durable.Load(), "err", cause)
}

// release ends all waiters, under mu.
func (l *Log) release(err error) {
	for _, w := range l.waiters {
		w.ch <- err
	}
	l.waiters = nil
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// advance makes seq durable and tells those who wait. A log that was poisoned
// meanwhile acknowledges nothing more.
func (l *Log) advance(seq uint64) error {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return l.err
	}
	l.durable.Store(seq)
	l.crowd.acknowledge(time.Now())
	l.waiters = slices.DeleteFunc(l.waiters, func(w waiter) bool {
		if w.seq <= seq {
			w.ch <- nil
			return true
		}
		return false
	})
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
	l.mu.Unlock()
	if l.opts.OnDurable != nil {
		l.opts.OnDurable(seq)
	}
	return nil
}

// Close commits what is pending, ends the goroutines, closes the files and
// gives up the lock. It returns ErrPoisoned if the log was; later calls return
// the same.
func (l *Log) Close() error {
	l.closeOnce.Do(func() {
		l.mu.Lock()
		l.closed = true
		l.poke() // the committer writes what is pending and ends
		l.mu.Unlock()
		<-l.committerDone
		close(l.stopPrepare)
		<-l.preparerDone
		l.mu.Lock()
		err := l.err
		l.release(ErrClosed)
		l.mu.Unlock()
		close(l.ended)
		l.segMu.RLock()
		for _, s := range l.segs {
			err = errors.CombineErrors(err, s.shut())
		}
		l.segMu.RUnlock()
		l.closeErr = errors.CombineErrors(err, l.closeFiles())
	})
	return l.closeErr
}

func (l *Log) closeFiles() error {
	var err error
	if l.head != nil {
		if l.err == nil && l.w != nil { // closed in order: the next Open need not doubt the tail
			err = writeHead(l.head, head{seq: l.pos.Seq, chain: l.pos.Chain, clean: true})
		}
		err = errors.CombineErrors(err, errors.CombineErrors(errors.Wrap(l.head.Sync(), "sync head file"), l.head.Close()))
	}
	return errors.CombineErrors(err, l.lock.Close())
}
