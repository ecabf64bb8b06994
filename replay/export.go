package replay

import (
	"bufio"
	"context"
	"io"
	"iter"
	"os"
	"path/filepath"

	"github.com/cockroachdb/errors"
	"github.com/google/renameio/v2"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

// WriteJSONL writes a stream as JSON lines, the form of `events -o json`.
func WriteJSONL(w io.Writer, stream iter.Seq2[*events.Event, error]) (n uint64, err error) {
	bw := bufio.NewWriterSize(w, 256<<10)
	var buf []byte
	for e, err := range stream {
		if err != nil {
			return n, errors.CombineErrors(err, bw.Flush())
		}
		buf = append(events.AppendJSON(buf[:0], e), '\n')
		if _, err := bw.Write(buf); err != nil {
			return n, errors.Wrap(err, "write events")
		}
		n++
	}
	return n, errors.Wrap(bw.Flush(), "write events")
}

// Export writes a stream to a JSONL file: all of it, synced, or nothing.
func Export(path string, stream iter.Seq2[*events.Event, error]) (n uint64, err error) {
	f, err := renameio.NewPendingFile(path, renameio.WithPermissions(0o644))
	if err != nil {
		return 0, mark(errors.Wrap(err, "create export"), ErrUnavailable)
	}
	defer func() { err = errors.CombineErrors(err, f.Cleanup()) }()
	if n, err = WriteJSONL(f, stream); err != nil {
		return n, err
	}
	return n, errors.Wrap(f.CloseAtomicallyReplace(), "finish export")
}

// maxSegment is the size of a node's own segments (store.md 5). A segment takes
// its whole size at once, so an import of little makes small ones.
const maxSegment = 64 << 20

// Import makes logs of an export: dir/<node>/log for each node in it. It
// refuses logs that do not begin at sequence 1 (a log has no place for what came
// before), that exist already, or that do not verify (ErrBadSource).
func Import(ctx context.Context, path, dir string) (n uint64, err error) {
	logs, err := jsonlLogs(path)
	if err != nil {
		return 0, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, mark(err, ErrUnavailable)
	}
	segmentBytes := min(max(info.Size(), 1<<20), maxSegment)
	for _, l := range logs {
		if err := l.peek(ctx); err != nil {
			return n, err
		}
		to := filepath.Join(dir, l.Node, "log")
		if l.First != 1 {
			return n, errors.Wrapf(ErrBadSource, "the log of %s begins at event %d: only a whole log can be imported", l.Node, l.First)
		}
		if !filepath.IsLocal(l.Node) {
			return n, errors.Wrapf(ErrBadSource, "node name %q is no folder name", l.Node)
		}
		if _, err := os.Stat(to); err == nil {
			return n, errors.Wrapf(ErrBadSource, "%s exists already", to)
		}
		more, err := importLog(ctx, l, to, segmentBytes)
		n += more
		if err != nil {
			return n, errors.Wrapf(err, "import the log of %s", l.Node)
		}
	}
	return n, nil
}

// importLog appends life by life: a log is opened anew for each start it
// records (events.md, identity).
func importLog(ctx context.Context, l *Log, to string, segmentBytes int64) (n uint64, err error) {
	var log *store.Log
	var boot, incarnation uint64
	closeLog := func() error {
		if log == nil {
			return nil
		}
		err := errors.CombineErrors(log.Sync(ctx), log.Close())
		log = nil
		return err
	}
	defer func() { err = errors.CombineErrors(err, closeLog()) }()
	var chain events.Position
	for e, err := range l.Events(ctx) {
		if err != nil {
			return n, err
		}
		if log == nil || e.Boot != boot || e.Incarnation != incarnation {
			if err := closeLog(); err != nil {
				return n, err
			}
			boot, incarnation = e.Boot, e.Incarnation
			if log, _, err = store.Open(ctx, to, store.Options{Node: l.Node, Boot: boot, SegmentBytes: segmentBytes}); err != nil {
				return n, err
			}
		}
		if chain.Seq != 0 && e.PrevHash != 0 && e.PrevHash != chain.Chain {
			return n, errors.Wrapf(ErrBadSource, "event %d: chain is %08x, its place has %08x: an event before it was changed", e.Seq, e.PrevHash, chain.Chain)
		}
		w := events.NewFrameWriter(events.Position{Seq: e.Seq - 1, HLC: chain.HLC, Chain: chain.Chain})
		if err := w.Append(e); err != nil {
			return n, mark(err, ErrBadSource)
		}
		chain = w.Position()
		if err := log.Append([]*events.Event{e}, events.Group); err != nil {
			return n, mark(err, ErrBadSource)
		}
		n++
		if log.Full() {
			if err := log.Sync(ctx); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}
