package store

import (
	"context"
	"crypto/rand"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/errors"
	"go.etcd.io/bbolt"

	"github.com/pdlog/pdlog/events"
)

// Recovered says what Open found.
type Recovered struct {
	LogID           LogID
	Empty           bool   // no event is in the log
	Created         bool   // the log did not exist
	FirstSeq        uint64 // oldest event kept; 0 when empty
	LastSeq         uint64
	LastHLC         uint64
	LastChain       uint32
	LastBoot        uint64
	LastIncarnation uint64
	Incarnation     uint64 // of this start: LastIncarnation + 1
	Segments        int
	HeadAhead       bool   // the head file knows more than the segments
	HeadSeq         uint64 // what the head file says; 0 when it says nothing
	Unclean         bool   // it was not closed: its tail was copied into a new file
	// Root says which root of the last segment was read, and why: "newest", or
	// that the newest is a commit which a power loss tore.
	Root string

	// LostFrom is not 0 when acknowledged events from this sequence on may be
	// lost: the past is unknown (events.md), generations must not go on from
	// what the log says. Every Open says so again until Log.LossRecorded.
	LostFrom uint64
	Salvaged bool   // this Open set the damaged log aside
	Reason   string // why events are lost
	Damaged  string // the directory that was set aside, "" when there is none

	Took time.Duration
}

const (
	defaultSegmentBytes = 64 << 20  // verified and replayed in well under a second (store.md 2.4)
	minSegmentBytes     = 256 << 10 // the schema and bbolt's own pages take some 50 KiB
	defaultQueueBytes   = 64 << 20
	defaultLinger       = 2 * time.Millisecond
)

func (o Options) withDefaults() Options {
	if o.SegmentBytes == 0 {
		o.SegmentBytes = defaultSegmentBytes
	}
	o.SegmentBytes = max(o.SegmentBytes, minSegmentBytes)
	if o.QueueBytes == 0 {
		o.QueueBytes = defaultQueueBytes
	}
	if o.Linger == 0 {
		o.Linger = defaultLinger
	}
	if o.Commit == "" {
		o.Commit = OneSync
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Open opens the log in dir for writing, creating it if there is none, and
// verifies it: every frame from TrustBelow on by checksum, chain and sequence;
// the active segment also by bbolt, in a child process (VerifyMain). It never
// waits for another process: ErrLocked comes at once.
//
// It refuses a log that is damaged (ErrCorrupt), behind its head file
// (ErrHeadAhead, ErrHeadMismatch) or older than what others remember
// (ErrBehind), unless Options.Salvage says to go on with what verifies; and one of
// another node (ErrWrongNode) or of a newer format (ErrFormat). Recovered is
// not nil when the log could be read that far.
func Open(ctx context.Context, dir string, opts Options) (*Log, *Recovered, error) {
	began := time.Now()
	if opts.Node == "" || opts.Boot == 0 {
		return nil, nil, errors.New("open log: node name and boot number are required")
	}
	opts = opts.withDefaults()
	if opts.Commit != OneSync && opts.Commit != TwoSync {
		return nil, nil, errors.Newf("open log: commit mode is %q, want %s or %s", opts.Commit, OneSync, TwoSync)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, errors.Wrapf(err, "open log %s", dir)
	}
	lock, err := takeLock(dir, LockInfo{PID: os.Getpid(), Since: began, Node: opts.Node, Socket: opts.Socket})
	if err != nil {
		return nil, nil, errors.Wrapf(err, "open log %s", dir)
	}
	l := &Log{
		opts: opts, dir: dir, lock: lock, log: opts.Logger,
		failed: make(chan struct{}), ended: make(chan struct{}), wake: make(chan struct{}, 1),
		spare: make(chan *segment, 1), spareTried: make(chan struct{}, 1),
		needSpare: make(chan struct{}, 1), demote: make(chan *segment, 1),
		stopPrepare: make(chan struct{}), committerDone: make(chan struct{}), preparerDone: make(chan struct{}),
	}
	rec, err := l.recover(ctx)
	if err != nil {
		return nil, rec, errors.CombineErrors(errors.Wrapf(l.undo(err), "open log %s", dir), l.closeFiles())
	}
	rec.Took = time.Since(began)
	l.startSeq, l.startChain = l.pos.Seq, l.pos.Chain
	l.w = events.NewFrameWriter(l.pos)
	l.durable.Store(l.pos.Seq)
	l.needSpare <- struct{}{}
	go l.commitLoop()
	go l.prepareLoop()
	return l, rec, nil
}

// undo closes the segments after an Open that failed.
func (l *Log) undo(err error) error {
	for _, s := range l.segs {
		err = errors.CombineErrors(err, s.close())
	}
	l.segs, l.active = nil, nil
	return err
}

func (l *Log) recover(ctx context.Context) (*Recovered, error) {
	var err error
	if l.descriptor, err = descriptorSet(); err != nil {
		return nil, err
	}
	if err := settleSalvage(l.dir); err != nil {
		return nil, err
	}
	rec, err := l.verify(ctx)
	salvaged := false
	if err != nil && l.opts.Salvage && isLoss(err) {
		if errors.Is(err, ErrBehind) && rec.Segments == 0 {
			err = writeLoss(l.dir, loss{LostFrom: 1, Reason: err.Error()}) // wiped: there is nothing to set aside
		} else {
			salvaged = true
			err = l.salvage(l.undo(err))
		}
		if err != nil {
			return rec, err
		}
		l.opts.NotBelow = 0 // answered
		rec, err = l.verify(ctx)
	}
	if err != nil {
		return rec, err
	}
	lost, ok, err := readLoss(l.dir)
	if err != nil {
		return rec, err
	}
	if ok {
		rec.Salvaged, rec.LostFrom, rec.Reason = salvaged, max(lost.LostFrom, 1), lost.Reason
		if lost.Damaged != "" {
			rec.Damaged = filepath.Join(filepath.Dir(l.dir), lost.Damaged)
		}
		rec.LastIncarnation = max(rec.LastIncarnation, lost.Incarnation)
	}
	return rec, l.start(rec)
}

// verify reads the log and says what it holds. Nothing is open after it.
func (l *Log) verify(ctx context.Context) (*Recovered, error) {
	if err := removeIfThere(filepath.Join(l.dir, spareName)); err != nil {
		return nil, err
	}
	h, haveHead, err := readHead(l.dir)
	if err != nil {
		return nil, err
	}
	segs, err := listSegments(l.dir)
	if err != nil {
		return nil, err
	}
	rec := &Recovered{HeadSeq: h.seq, Segments: len(segs)}
	l.segs = segs
	chk := newChecker(h, haveHead)
	for i, s := range segs {
		if err := ctx.Err(); err != nil {
			return rec, err
		}
		if i == len(segs)-1 {
			if l.torn, err = checkLast(l.dir, s, chk, i == 0); err != nil {
				return rec, err
			}
			continue
		}
		whole := segs[i+1].first > l.opts.TrustBelow
		if err := checkSegment(s, chk, i == 0, whole); err != nil {
			return rec, err
		}
	}
	l.pos = chk.pos
	l.tail = chk.meta
	rec.Empty = l.pos.Seq == 0
	if len(segs) > 0 {
		if chk.meta.Node != l.opts.Node {
			return rec, errors.Wrapf(ErrWrongNode, "it is of %q, this node is %q", chk.meta.Node, l.opts.Node)
		}
		l.id = chk.meta.LogID
		rec.LogID, rec.LastSeq, rec.LastHLC, rec.LastChain = l.id, l.pos.Seq, l.pos.HLC, l.pos.Chain
		rec.LastIncarnation, rec.LastBoot = chk.incarnation, chk.boot
		if !rec.Empty {
			rec.FirstSeq = segs[0].first
		}
		rec.Unclean = !haveHead || !h.clean || h.seq != l.pos.Seq || h.chain != l.pos.Chain
		if rec.Root = "newest"; l.torn != nil {
			rec.Root = "the one before: the newest commit was torn: " + l.torn.Error()
			l.log.Warn("the last commit was torn by a power loss: nobody was told that it is durable", "dir", l.dir, "last_seq", l.pos.Seq, "why", l.torn)
		}
		// A segment that was not closed is copied frame by frame before it is
		// written to: bbolt need not like every page of it.
		if !rec.Unclean {
			if err := verifySegment(ctx, segs[len(segs)-1].path); err != nil {
				return rec, err
			}
		}
	}
	switch {
	case haveHead && h.seq > l.pos.Seq:
		rec.HeadAhead = true
		return rec, errors.Wrapf(ErrHeadAhead, "head says record %d, the %d segments end at %d: acknowledged events are missing",
			h.seq, len(segs), l.pos.Seq)
	case chk.headSeen && chk.headChain != h.chain:
		return rec, errors.Wrapf(ErrHeadMismatch, "record %d: head has chain %08x, segments have %08x",
			h.seq, h.chain, chk.headChain)
	case l.opts.NotBelow > l.pos.Seq && (len(segs) == 0 || l.opts.NotBelowID == LogID{} || l.opts.NotBelowID == l.id):
		return rec, errors.Wrapf(ErrBehind, "it ends at record %d, others remember %d: an old copy, or its end was lost",
			l.pos.Seq, l.opts.NotBelow)
	}
	return rec, nil
}

// checkSegment verifies one segment, wholly or by its ends.
func checkSegment(s *segment, chk *checker, isFirst, whole bool) error {
	open, check := openPagesPart, chk.join
	if whole {
		open = openPages
		check = func(s *segment, v segmentView, isFirst bool) error { return chk.scan(s, v, isFirst, nil) }
	}
	p, err := open(s.path)
	if err != nil {
		return err
	}
	v, err := p.view()
	if err == nil {
		err = check(s, v, isFirst)
	}
	return errors.CombineErrors(err, p.close())
}

// checkLast verifies the last segment of the log in dir, whose last commit a
// power loss may have torn; then torn says how.
func checkLast(dir string, s *segment, chk *checker, isFirst bool) (torn, err error) {
	p, err := openPages(s.path)
	if err != nil {
		return nil, err
	}
	return chk.scanNewest(p, s, isFirst, func() uint64 { return newestSnapshot(dir) })
}

// start opens what was verified for writing.
func (l *Log) start(rec *Recovered) error {
	if len(l.segs) == 0 {
		return l.create(rec)
	}
	l.incarnation = rec.LastIncarnation + 1
	rec.Incarnation = l.incarnation
	s := l.segs[len(l.segs)-1]
	if rec.Unclean || l.tail.Format < formatVersion {
		if err := l.renew(s); err != nil {
			return err
		}
	}
	if err := l.beginHead(); err != nil {
		return err
	}
	l.activeAny = l.pos.Seq >= s.first
	if l.tail.Sealed { // a crash came between seal and next segment
		return l.addSegment()
	}
	db, err := openWritable(s.path, l.opts.SegmentBytes)
	if err != nil {
		return err
	}
	s.db = db
	l.active = s
	return s.view(func(tx *bbolt.Tx) error {
		l.activeUsed = tx.Size()
		return nil
	})
}

// renew copies the last segment of a log that was not closed, or that an older
// build wrote, into a new file.
func (l *Log) renew(s *segment) error {
	p, err := openPages(s.path)
	if err != nil {
		return err
	}
	if l.torn != nil {
		p.older()
	}
	v, err := p.view()
	if err != nil {
		return err
	}
	return errors.Wrapf(l.rewrite(s, v, l.tail),
		"its tail is copied before it is written to, which takes %d MiB in %s", l.opts.SegmentBytes>>20+1, l.dir)
}

// beginHead makes the head file say that the log is open, durably, before
// anything is written: a head that still said "closed" would hide a crash.
func (l *Log) beginHead() error {
	var err error
	if l.head, err = openHead(l.dir); err != nil {
		return err
	}
	if err := writeHead(l.head, head{seq: l.pos.Seq, chain: l.pos.Chain}); err != nil {
		return err
	}
	return errors.Wrap(l.head.Sync(), "sync head file")
}

// create makes a new, empty log.
func (l *Log) create(rec *Recovered) error {
	if _, err := rand.Read(l.id[:]); err != nil {
		return errors.Wrap(err, "draw log id")
	}
	l.incarnation = rec.LastIncarnation + 1 // 0 unless a loss knows better
	rec.LogID, rec.Empty, rec.Created, rec.Incarnation, rec.Segments = l.id, true, true, l.incarnation, 1
	if err := l.beginHead(); err != nil {
		return err
	}
	if err := l.addSegment(); err != nil {
		return err
	}
	return syncDir(filepath.Dir(l.dir))
}

// addSegment creates the active segment behind l.pos.
func (l *Log) addSegment() error {
	s, err := l.prepare()
	if err != nil {
		return err
	}
	l.segs = append(l.segs, s)
	if err := l.startSegment(s, l.pos); err != nil {
		return err
	}
	l.active, l.activeAny = s, false
	return nil
}
