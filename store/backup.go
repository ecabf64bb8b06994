package store

import (
	"context"
	"os"
	"path/filepath"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
)

// CopyInfo says of which log a Copy is.
type CopyInfo struct {
	Node         string
	LogID        LogID
	SegmentBytes int64 // default 64 MiB
}

// Copy writes a log from its frames: a backup of a live one, or what came over
// a socket. NewCopy is the only way in; Close or Abort is the way out.
type Copy struct {
	dir        string
	info       CopyInfo
	descriptor []byte
	w          *segmentWriter
	used       int64
	out        DirInfo
	pos        events.Position
}

// NewCopy begins a log in dir, which must not exist or be empty.
func NewCopy(dir string, info CopyInfo) (*Copy, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, errors.Wrap(err, "copy log")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, errors.Wrap(err, "copy log")
	}
	if len(entries) > 0 {
		return nil, errors.Newf("copy log: %s is not empty", dir)
	}
	info.SegmentBytes = Options{SegmentBytes: info.SegmentBytes}.withDefaults().SegmentBytes
	c := &Copy{dir: dir, info: info, out: DirInfo{Node: info.Node, LogID: info.LogID}}
	c.descriptor, err = descriptorSet()
	return c, err
}

// Put verifies one frame and adds it. Each must continue the one before
// (events.ErrSeqGap, events.ErrChain, events.ErrClockOrder).
func (c *Copy) Put(frame []byte) error {
	in, err := events.DecodeFrame(frame, "", nil)
	if err != nil {
		return errors.Wrapf(err, "copy record %d", c.pos.Seq+1)
	}
	if c.w == nil && c.pos.Seq == 0 {
		c.pos = events.Position{Seq: in.FirstSeq - 1, Chain: in.PrevChain}
		c.out.FirstSeq = in.FirstSeq
	}
	if c.w != nil && c.used+int64(in.Size)*9/8+rollSlack > c.info.SegmentBytes {
		if err := c.w.finish(c.pos, true); err != nil {
			return err
		}
		c.w = nil
	}
	if c.w == nil {
		m := segmentMeta{
			Node: c.info.Node, LogID: c.info.LogID, FirstSeq: in.FirstSeq, ChainStart: c.pos.Chain,
			Boot: in.Boot, Incarnation: in.Incarnation,
		}
		if c.w, err = newSegmentWriter(segmentPath(c.dir, in.FirstSeq), c.info.SegmentBytes, m, c.descriptor); err != nil {
			return err
		}
		c.used = rollSlack
		c.out.Segments++
	}
	if err := c.pos.Advance(in); err != nil {
		return errors.Wrapf(err, "copy record %d", in.FirstSeq)
	}
	c.used += int64(in.Size) * 9 / 8 // with the share of page headers and slack
	return c.w.put(frame)
}

// Close makes the copy durable and describes it.
func (c *Copy) Close() (DirInfo, error) {
	if c.w != nil {
		w := c.w
		c.w = nil
		if err := w.finish(c.pos, false); err != nil {
			return c.out, err
		}
	}
	c.out.LastSeq, c.out.LastChain = c.pos.Seq, c.pos.Chain
	if err := writeSynced(headPath(c.dir), encodeHead(head{seq: c.pos.Seq, chain: c.pos.Chain})); err != nil {
		return c.out, err
	}
	return c.out, syncDir(c.dir)
}

// Abort gives up the segment that is being written; the directory stays.
func (c *Copy) Abort() error {
	if c.w == nil {
		return nil
	}
	w := c.w
	c.w = nil
	return w.drop()
}

// BackupTo copies everything that is durable now, with the snapshots, into
// dir, which must not exist or be empty. It reads in short transactions and
// holds nothing up (cases.md C-71). The copy is a log: ReadDir and Open read
// it. An Open of it in this log's place finds that it is older (Options.NotBelow).
func (l *Log) BackupTo(ctx context.Context, dir string) (DirInfo, error) {
	c, err := l.copyInto(ctx, dir, l.opts.SegmentBytes)
	if err != nil {
		return DirInfo{}, err
	}
	if err := copySnapshots(l.dir, dir, c.pos); err != nil {
		return c.out, errors.CombineErrors(err, c.Abort())
	}
	return c.Close()
}

// BackupFile copies everything that is durable now into one segment file, which
// replaces what is at path when it is whole. It reads as BackupTo does. The file
// is a log for readers; a node does not start on it.
func (l *Log) BackupFile(ctx context.Context, path string) (info DirInfo, size int64, err error) {
	room, err := l.segmentBytes()
	if err != nil {
		return DirInfo{}, 0, err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return DirInfo{}, 0, errors.Wrap(err, "back up log")
	}
	defer func() { err = errors.CombineErrors(err, os.RemoveAll(tmp)) }()
	c, err := l.copyInto(ctx, tmp, 2*room+l.opts.SegmentBytes)
	if err != nil {
		return DirInfo{}, 0, err
	}
	if info, err = c.Close(); err != nil {
		return info, 0, err
	}
	if info.Segments == 0 {
		return info, 0, errors.Newf("back up log: nothing is in it yet")
	}
	one := segmentPath(tmp, info.FirstSeq)
	st, err := os.Stat(one)
	if err == nil {
		err = os.Rename(one, path)
	}
	if err != nil {
		return info, 0, errors.Wrap(err, "back up log")
	}
	return info, st.Size(), syncDir(filepath.Dir(path))
}

// copyInto copies everything that is durable now, a page at a time.
func (l *Log) copyInto(ctx context.Context, dir string, segmentBytes int64) (*Copy, error) {
	c, err := NewCopy(dir, CopyInfo{Node: l.opts.Node, LogID: l.id, SegmentBytes: segmentBytes})
	if err != nil {
		return nil, err
	}
	to := l.Durable()
	for next := l.First(); next <= to; {
		err := ctx.Err()
		var frames []Frame
		if err == nil {
			frames, err = l.ReadFrames(next, 1<<20)
		}
		if err == nil && len(frames) == 0 {
			err = errors.Newf("record %d cannot be read", next)
		}
		for _, f := range frames {
			if err != nil || f.Info.FirstSeq > to {
				break
			}
			err = c.Put(f.Data)
		}
		if err != nil {
			return nil, errors.CombineErrors(errors.Wrap(err, "back up log"), c.Abort())
		}
		next = frames[len(frames)-1].Info.LastSeq + 1
	}
	return c, nil
}
