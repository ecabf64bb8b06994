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
	Took            time.Duration
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
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Open opens the log in dir for writing, creating it if there is none, and
// verifies the active segment (checksums, chain, gapless) and how the sealed
// ones join. It never waits for another process: ErrLocked comes at once.
//
// It refuses a log that is damaged (ErrCorrupt), behind its head file
// (ErrHeadAhead, ErrHeadMismatch), of another node (ErrWrongNode) or of a newer
// format (ErrFormat). Recovered is not nil when the log could be read that far.
func Open(ctx context.Context, dir string, opts Options) (*Log, *Recovered, error) {
	began := time.Now()
	if opts.Node == "" || opts.Boot == 0 {
		return nil, nil, errors.New("open log: node name and boot number are required")
	}
	opts = opts.withDefaults()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, errors.Wrap(err, "create log directory")
	}
	lock, err := takeLock(dir, LockInfo{PID: os.Getpid(), Since: began, Node: opts.Node, Socket: opts.Socket})
	if err != nil {
		return nil, nil, err
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
		for _, s := range l.segs {
			err = errors.CombineErrors(err, s.close())
		}
		return nil, rec, errors.CombineErrors(err, l.closeFiles())
	}
	rec.Took = time.Since(began)
	l.w = events.NewFrameWriter(l.pos)
	l.durable.Store(l.pos.Seq)
	l.needSpare <- struct{}{}
	go l.commitLoop()
	go l.prepareLoop()
	return l, rec, nil
}

func (l *Log) recover(ctx context.Context) (*Recovered, error) {
	var err error
	if l.descriptor, err = descriptorSet(); err != nil {
		return nil, err
	}
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
	if len(segs) == 0 {
		if haveHead && h.seq > 0 {
			rec.HeadAhead = true
			return rec, errors.Wrapf(ErrHeadAhead, "open log %s: head says record %d, there is no segment", l.dir, h.seq)
		}
		return rec, l.create(rec)
	}
	l.segs = segs
	chk := newChecker(h, haveHead)
	for i, s := range segs {
		if err := ctx.Err(); err != nil {
			return rec, err
		}
		if err := l.recoverSegment(s, chk, i == 0, i == len(segs)-1); err != nil {
			return rec, err
		}
	}
	if chk.meta.Node != l.opts.Node {
		return rec, errors.Wrapf(ErrWrongNode, "open log %s: it is of %q, this node is %q", l.dir, chk.meta.Node, l.opts.Node)
	}
	l.id, l.pos = chk.meta.LogID, chk.pos
	rec.LogID, rec.LastSeq, rec.LastHLC, rec.LastChain = l.id, l.pos.Seq, l.pos.HLC, l.pos.Chain
	rec.LastIncarnation, rec.LastBoot = chk.incarnation, chk.boot
	rec.Empty = l.pos.Seq == 0
	if !rec.Empty {
		rec.FirstSeq = segs[0].first
	}
	if haveHead && h.seq > l.pos.Seq {
		rec.HeadAhead = true
		return rec, errors.Wrapf(ErrHeadAhead, "open log %s: head says record %d, the segments end at %d: acknowledged events are missing",
			l.dir, h.seq, l.pos.Seq)
	}
	if chk.headSeen && chk.headChain != h.chain {
		return rec, errors.Wrapf(ErrHeadMismatch, "open log %s: record %d: head has chain %08x, segments have %08x",
			l.dir, h.seq, h.chain, chk.headChain)
	}
	l.incarnation = rec.LastIncarnation + 1
	rec.Incarnation = l.incarnation
	if l.head, err = openHead(l.dir); err != nil {
		return rec, err
	}
	l.active = segs[len(segs)-1]
	l.activeAny = l.pos.Seq >= l.active.first
	if chk.meta.Sealed { // a crash came between seal and next segment
		if err := l.active.close(); err != nil {
			return rec, err
		}
		return rec, l.addSegment()
	}
	return rec, nil
}

// create makes a new, empty log.
func (l *Log) create(rec *Recovered) error {
	if _, err := rand.Read(l.id[:]); err != nil {
		return errors.Wrap(err, "draw log id")
	}
	l.incarnation = 1
	*rec = Recovered{LogID: l.id, Empty: true, Created: true, Incarnation: 1, Segments: 1}
	var err error
	if l.head, err = openHead(l.dir); err != nil {
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

// recoverSegment checks one segment: the last one wholly and opened for
// writing, the others by their meta and last frame.
func (l *Log) recoverSegment(s *segment, chk *checker, isFirst, isLast bool) error {
	if !isLast {
		if err := s.view(func(tx *bbolt.Tx) error { return chk.join(s, tx, isFirst) }); err != nil {
			return err
		}
		return s.close()
	}
	if err := prefetch(s.path); err != nil {
		return err
	}
	db, err := openWritable(s.path, l.opts.SegmentBytes)
	if err != nil {
		return err
	}
	s.db = db
	return s.view(func(tx *bbolt.Tx) error {
		l.activeUsed = tx.Size()
		return chk.scan(s, tx, isFirst, nil)
	})
}
