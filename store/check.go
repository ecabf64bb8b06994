package store

import (
	"encoding/binary"

	"github.com/cockroachdb/errors"
	"go.etcd.io/bbolt"

	"github.com/pdlog/pdlog/events"
)

// segmentView is a segment as the checker reads it: through bbolt or through
// pages.
type segmentView struct {
	meta   map[string][]byte // nil when a bucket is missing
	tip    []byte            // nil when there is none
	txid   uint64            // of the meta page
	frames func(visit func(k, v []byte) error) error
	last   func() ([]byte, error)
}

// viewOf reads through bbolt. Its bytes live as long as the transaction.
func viewOf(tx *bbolt.Tx) (segmentView, error) {
	m, f := tx.Bucket(bucketMeta), tx.Bucket(bucketFrames)
	if m == nil || f == nil {
		return segmentView{}, nil
	}
	v := segmentView{
		meta: map[string][]byte{},
		txid: uint64(tx.ID()), //nolint:gosec // counts up from 0
		frames: func(visit func(k, v []byte) error) error {
			cur := f.Cursor()
			for k, v := cur.First(); k != nil; k, v = cur.Next() {
				if err := visit(k, v); err != nil {
					return err
				}
			}
			return nil
		},
		last: func() ([]byte, error) {
			_, v := f.Cursor().Last()
			return v, nil
		},
	}
	if b := tx.Bucket(bucketTip); b != nil {
		v.tip = b.Get(keyTip)
	}
	return v, m.ForEach(func(k, val []byte) error {
		v.meta[string(k)] = val
		return nil
	})
}

// checker walks segments in order and verifies that they are one log.
type checker struct {
	meta        segmentMeta // of the segment visited last
	tip         tip         // of the segment visited last
	pos         events.Position
	boot        uint64 // of the last frame seen
	incarnation uint64 // highest seen

	head      head
	haveHead  bool
	headSeen  bool   // the record that the head names was passed
	headChain uint32 // and this is its chain

	torn error // why a commit was left out

	decode bool // keep the events of each frame while it is visited
	want   func(events.Head) bool
	events []*events.Event // of the frame that was verified last
}

func newChecker(h head, have bool) *checker { return &checker{head: h, haveHead: have} }

// enter reads the meta of a segment and checks that it continues the log.
func (c *checker) enter(s *segment, v segmentView, isFirst bool) error {
	m, err := getMeta(s.path, v.meta)
	if err != nil {
		return err
	}
	bad := func(err error) error { return &CorruptError{File: s.path, Seq: m.FirstSeq, Err: err} }
	if m.FirstSeq != s.first {
		return bad(errors.Wrapf(events.ErrSeqGap, "meta says the segment starts at %d", m.FirstSeq))
	}
	if isFirst {
		c.pos = events.Position{Seq: m.FirstSeq - 1, Chain: m.ChainStart}
	} else {
		switch {
		case m.Node != c.meta.Node || m.LogID != c.meta.LogID:
			return bad(errors.Newf("segment is of log %s of %q, the one before it of %s of %q", m.LogID, m.Node, c.meta.LogID, c.meta.Node))
		case m.FirstSeq != c.pos.Seq+1:
			return bad(errors.Wrapf(events.ErrSeqGap, "have %d, want %d", m.FirstSeq, c.pos.Seq+1))
		case m.ChainStart != c.pos.Chain:
			return bad(errors.Wrapf(events.ErrChain, "have %08x, want %08x", m.ChainStart, c.pos.Chain))
		}
	}
	c.incarnation = max(c.incarnation, m.Incarnation-1) // the start that created it may have recorded nothing
	c.meta, c.tip = m, tip{}
	return nil
}

// join checks a sealed segment without reading it: its last frame must be what
// the seal says.
func (c *checker) join(s *segment, v segmentView, isFirst bool) error {
	if err := c.enter(s, v, isFirst); err != nil {
		return err
	}
	if !c.meta.Sealed {
		return &CorruptError{File: s.path, Seq: s.first, Err: errors.New("segment is not sealed and not the last")}
	}
	b, err := v.last()
	if err != nil {
		return err
	}
	in, err := events.DecodeFrame(b, "", nil)
	if err != nil {
		return &CorruptError{File: s.path, Seq: c.meta.LastSeq, Err: err}
	}
	c.pos = events.Position{Seq: in.LastSeq, HLC: in.LastHLC, Chain: in.Chain}
	c.boot, c.incarnation = in.Boot, max(c.incarnation, in.Incarnation)
	c.passHead(in)
	if err := c.checkTip(s, v); err != nil {
		return err
	}
	return c.checkSeal(s)
}

// scan verifies every frame of a segment and hands each on.
func (c *checker) scan(s *segment, v segmentView, isFirst bool, visit func(b []byte) error) error {
	if err := c.enter(s, v, isFirst); err != nil {
		return err
	}
	err := v.frames(func(k, b []byte) error {
		if err := c.frame(s, k, b); err != nil {
			return err
		}
		if visit != nil {
			return visit(b)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := c.checkTip(s, v); err != nil {
		return err
	}
	if c.meta.Sealed {
		return c.checkSeal(s)
	}
	return nil
}

func (c *checker) frame(s *segment, k, v []byte) error {
	in, err := c.open(v)
	if err != nil {
		return &CorruptError{File: s.path, Seq: c.pos.Seq + 1, Err: err}
	}
	if len(k) != 8 || binary.BigEndian.Uint64(k) != in.FirstSeq || in.Size != len(v) {
		return &CorruptError{File: s.path, Seq: c.pos.Seq + 1, Err: errors.Newf("key %x holds a frame of record %d, %d of %d bytes", k, in.FirstSeq, in.Size, len(v))}
	}
	if err := c.pos.Advance(in); err != nil {
		return &CorruptError{File: s.path, Seq: c.pos.Seq + 1, Err: err}
	}
	if in.Incarnation < c.incarnation {
		return &CorruptError{File: s.path, Seq: in.FirstSeq, Err: errors.Newf("incarnation %d after %d", in.Incarnation, c.incarnation)}
	}
	c.boot, c.incarnation = in.Boot, in.Incarnation
	c.passHead(in)
	return nil
}

// open verifies a frame, and decodes it in the same pass if somebody asks for
// its events.
func (c *checker) open(v []byte) (events.FrameInfo, error) {
	if !c.decode {
		return events.DecodeFrame(v, "", nil)
	}
	c.events = c.events[:0]
	return events.DecodeFrameIf(v, c.meta.Node, c.want, func(e *events.Event) error {
		c.events = append(c.events, e)
		return nil
	})
}

// passHead notes the chain at the record the head names. Heads name ends of
// frames, since commits are whole frames.
func (c *checker) passHead(in events.FrameInfo) {
	if c.haveHead && in.LastSeq == c.head.seq {
		c.headSeen, c.headChain = true, in.Chain
	}
}

func (c *checker) checkSeal(s *segment) error {
	if c.pos.Seq != c.meta.LastSeq {
		return &CorruptError{File: s.path, Seq: c.pos.Seq, Err: errors.Wrapf(events.ErrSeqGap, "the seal says %d is the last", c.meta.LastSeq)}
	}
	if c.pos.Chain != c.meta.ChainHead {
		return &CorruptError{File: s.path, Seq: c.pos.Seq, Err: errors.Wrapf(events.ErrChain, "have %08x, the seal wants %08x", c.pos.Chain, c.meta.ChainHead)}
	}
	return nil
}
