package store

import (
	"encoding/binary"
	"slices"

	"github.com/cockroachdb/errors"
	"go.etcd.io/bbolt"

	"github.com/pdlog/pdlog/events"
)

// Frame is a verified frame, copied out of the log.
type Frame struct {
	Info events.FrameInfo
	Data []byte
}

// errEnough ends a page.
var errEnough = errors.New("page is full")

// First is the oldest sequence that is kept; Durable()+1 for an empty log.
func (l *Log) First() uint64 {
	l.segMu.RLock()
	defer l.segMu.RUnlock()
	return l.segs[0].first
}

// ReadFrames gives durable frames in order, beginning with the one that holds
// sequence from, until maxBytes are exceeded; at least one if there is one. An
// empty result means that from is not durable yet. Each call is a few short
// transactions: nothing is pinned between calls (store.md 2.4). ErrBelow if
// from is no longer kept, ErrClosed on a closed log.
func (l *Log) ReadFrames(from uint64, maxBytes int) ([]Frame, error) {
	out, err := l.rawFrames(from, maxBytes)
	if err != nil {
		return nil, err
	}
	return out, l.verifyPage(out)
}

// rawFrames are the frames as they lie there, their Info not filled in.
func (l *Log) rawFrames(from uint64, maxBytes int) ([]Frame, error) {
	select {
	case <-l.ended:
		return nil, ErrClosed
	default:
	}
	durable := l.durable.Load()
	var out []Frame
	size := 0
	for next := max(from, 1); next <= durable; {
		s, err := l.segmentOf(next)
		if err != nil {
			return nil, err
		}
		if err := l.touch(s); err != nil {
			return nil, err
		}
		before := next
		err = s.view(func(tx *bbolt.Tx) error {
			return walkFrames(tx, next, func(v []byte) error {
				in, err := events.FramePeek(v)
				if err != nil {
					return &CorruptError{File: s.path, Seq: next, Err: err}
				}
				if in.LastSeq > durable || (size > 0 && size+len(v) > maxBytes) {
					return errEnough
				}
				size += len(v)
				out = append(out, Frame{Data: slices.Clone(v)})
				next = in.LastSeq + 1
				return nil
			})
		})
		if errors.Is(err, errEnough) {
			break
		}
		if err != nil {
			return nil, err
		}
		if next == before {
			return nil, &CorruptError{File: s.path, Seq: next, Err: events.ErrSeqGap}
		}
	}
	return out, nil
}

// verifyPage checks the copies, outside of the transaction.
func (l *Log) verifyPage(page []Frame) error {
	var at events.Position
	for i := range page {
		in, err := events.DecodeFrame(page[i].Data, "", nil)
		if err == nil {
			if i == 0 {
				at = events.Position{Seq: in.FirstSeq - 1, Chain: in.PrevChain}
			}
			err = at.Advance(in)
		}
		if err != nil {
			return &CorruptError{File: l.dir, Seq: at.Seq + 1, Err: err}
		}
		page[i].Info = in
	}
	return nil
}

// ReadEvents visits the durable events from sequence from to sequence to, as far
// as maxBytes of frames reach, and gives the chain after the frame of the last
// one. It is ReadFrames for who wants the events alone.
func (l *Log) ReadEvents(from, to uint64, maxBytes int, visit func(*events.Event)) (chain uint32, err error) {
	frames, err := l.rawFrames(from, maxBytes)
	if err != nil {
		return 0, err
	}
	var at events.Position
	for i := range frames {
		peek, err := events.FramePeek(frames[i].Data)
		if err == nil && peek.FirstSeq > to {
			break
		}
		if err == nil && i == 0 {
			at = events.Position{Seq: peek.FirstSeq - 1, Chain: peek.PrevChain}
		}
		var in events.FrameInfo
		if err == nil {
			in, err = events.DecodeFrame(frames[i].Data, l.opts.Node, func(e *events.Event) error {
				if e.Seq >= from && e.Seq <= to {
					visit(e)
				}
				return nil
			})
		}
		if err == nil {
			err = at.Advance(in)
		}
		if err != nil {
			return 0, &CorruptError{File: l.dir, Seq: at.Seq + 1, Err: err}
		}
	}
	return at.Chain, nil
}

// ReadFrom gives up to maxEvents durable events from sequence from on, all
// envelope fields filled in. An empty result means that from is not durable
// yet.
func (l *Log) ReadFrom(from uint64, maxEvents int) ([]*events.Event, error) {
	const pageBytes = 256 << 10
	var out []*events.Event
	for len(out) < maxEvents {
		page, err := l.ReadFrames(from, pageBytes)
		if err != nil || len(page) == 0 {
			return out, err
		}
		for _, f := range page {
			_, err := events.DecodeFrame(f.Data, l.opts.Node, func(e *events.Event) error {
				if e.Seq >= from && len(out) < maxEvents {
					out = append(out, e)
				}
				return nil
			})
			if err != nil {
				return nil, &CorruptError{File: l.dir, Seq: f.Info.FirstSeq, Err: err}
			}
		}
		from = page[len(page)-1].Info.LastSeq + 1
	}
	return out, nil
}

// segmentOf finds the segment that holds seq.
func (l *Log) segmentOf(seq uint64) (*segment, error) {
	l.segMu.RLock()
	defer l.segMu.RUnlock()
	i, found := slices.BinarySearchFunc(l.segs, seq, func(s *segment, seq uint64) int {
		switch {
		case s.first < seq:
			return -1
		case s.first > seq:
			return 1
		}
		return 0
	})
	if !found {
		i--
	}
	if i < 0 {
		return nil, errors.Wrapf(ErrBelow, "read record %d: the log starts at %d", seq, l.segs[0].first)
	}
	return l.segs[i], nil
}

// openSealed bounds the handles of sealed segments that readers keep open.
const openSealed = 4

// touch notes that a reader uses s and closes the handle that was used longest
// ago once there are too many. Whoever still reads it opens it again.
func (l *Log) touch(s *segment) error {
	l.segMu.RLock()
	isActive := s == l.segs[len(l.segs)-1]
	l.segMu.RUnlock()
	if isActive {
		return nil
	}
	l.readMu.Lock()
	if i := slices.Index(l.reading, s); i >= 0 {
		l.reading = slices.Delete(l.reading, i, i+1)
	}
	l.reading = append(l.reading, s)
	var old *segment
	if len(l.reading) > openSealed {
		old, l.reading = l.reading[0], l.reading[1:]
	}
	l.readMu.Unlock()
	if old == nil {
		return nil
	}
	return old.close()
}

// walkFrames calls visit with each frame from the one that holds seq on.
func walkFrames(tx *bbolt.Tx, seq uint64, visit func(v []byte) error) error {
	b := tx.Bucket(bucketFrames)
	if b == nil {
		return errors.New("bucket of frames is missing")
	}
	cur := b.Cursor()
	k, v := cur.Seek(be64(seq))
	if k == nil || binary.BigEndian.Uint64(k) > seq {
		if k == nil {
			k, v = cur.Last()
		} else if pk, pv := cur.Prev(); pk != nil {
			k, v = pk, pv
		} else {
			k, v = cur.First()
		}
	}
	for ; k != nil; k, v = cur.Next() {
		if err := visit(v); err != nil {
			return err
		}
	}
	return nil
}
