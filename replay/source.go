package replay

import (
	"context"
	"encoding/hex"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store/mirror"
)

// Kind says what a log is read from.
type Kind uint8

// The kinds of sources.
const (
	FromDir    Kind = iota + 1 // a log folder of a node that is not running
	FromFile                   // one segment file
	FromJSONL                  // an export
	FromLive                   // a running node, by its socket
	FromMirror                 // JetStream
)

// Log is the history of one node from one source.
type Log struct {
	Node   string
	ID     string // log_id in hex, "" if what is read does not tell
	Source string // as a person would name it
	Kind   Kind
	First  uint64 // first sequence; 0 = the log is empty

	problems []problem // found while the mirror was looked through
	read     reader
	got      Spans // what the last read has seen
	progress progress
}

// Want selects events by their heads; nil selects all.
type Want func(events.Head) bool

// reader reads a log from its beginning, in order of sequence, and notes in got
// every sequence that it has seen, wanted or not.
type reader func(ctx context.Context, want Want, got *Spans) iter.Seq2[*events.Event, error]

// Events reads the log from its beginning, in order of sequence. The last pair
// has a nil event and the error, if there is one: ErrDamaged, ErrUnavailable or
// ErrBadSource.
func (l *Log) Events(ctx context.Context) iter.Seq2[*events.Event, error] { return l.Select(ctx, nil) }

// Select is Events without those that nobody wants, which a log's own files need
// not even be decoded for.
func (l *Log) Select(ctx context.Context, want Want) iter.Seq2[*events.Event, error] {
	l.got = nil
	return l.progress.watch(l.read, want)(ctx, want, &l.got)
}

// selecting is a reader of a source that has to decode events to know them.
func selecting(all func(context.Context) iter.Seq2[*events.Event, error]) reader {
	return func(ctx context.Context, want Want, got *Spans) iter.Seq2[*events.Event, error] {
		return func(yield func(*events.Event, error) bool) {
			for e, err := range all(ctx) {
				if err == nil {
					got.Add(e.Seq, e.Seq)
					if want != nil && !want(events.HeadOf(e)) {
						continue
					}
				}
				if !yield(e, err) {
					return
				}
			}
		}
	}
}

// framed says that the source's own checksums and chain were verified on the
// way here. An export carries none but prev_hash.
func (l *Log) framed() bool { return l.Kind != FromJSONL }

// Open finds every log behind the sources of a command line (cli.md, SRC). The
// error is an ErrBadSource or ErrUnavailable that names the source. Logs that
// are empty are left out.
func Open(ctx context.Context, sources []string) ([]*Log, error) {
	var out []*Log
	for _, src := range sources {
		logs, err := openOne(ctx, src)
		if err != nil {
			return nil, errors.Wrapf(err, "%s", mirror.Redact(src))
		}
		out = append(out, logs...)
	}
	for _, l := range out {
		if err := l.peek(ctx); err != nil {
			return nil, errors.Wrapf(err, "%s", l.Source)
		}
	}
	for _, l := range out {
		l.progress.reset()
	}
	out = slices.DeleteFunc(out, func(l *Log) bool { return l.First == 0 })
	if len(out) == 0 {
		return nil, errors.Wrapf(ErrBadSource, "%s: no events", strings.Join(sources, " "))
	}
	return out, nil
}

func openOne(ctx context.Context, src string) ([]*Log, error) {
	switch {
	case strings.HasPrefix(src, "unix:"), strings.HasPrefix(src, "http://"), strings.HasPrefix(src, "https://"):
		return []*Log{liveLog(src, src)}, nil
	case strings.HasPrefix(src, "nats://"), strings.HasPrefix(src, "tls://"):
		return mirrorLogs(ctx, src)
	}
	info, err := os.Stat(src)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, mark(errors.New("no such file or directory"), ErrBadSource)
	case err != nil:
		return nil, mark(err, ErrUnavailable)
	case info.IsDir():
		return dirLogs(src)
	case info.Mode()&os.ModeSocket != 0:
		return []*Log{liveLog("unix:"+src, src)}, nil
	case strings.HasSuffix(src, ".db"), isSegment(src):
		return []*Log{fileLog(src)}, nil
	default:
		return jsonlLogs(src)
	}
}

// dirLogs are the logs in or below a directory: the directory itself if it
// holds segments, else every folder named log below it.
func dirLogs(root string) ([]*Log, error) {
	var out []*Log
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() || (path != root && d.Name() != "log") {
			return err
		}
		if hasSegments(path) {
			out = append(out, dirLog(path))
			return filepath.SkipDir
		}
		return nil
	})
	if err != nil {
		return nil, mark(err, ErrUnavailable)
	}
	if len(out) == 0 {
		return nil, errors.Wrap(ErrBadSource, "no log in or below this directory")
	}
	return out, nil
}

// peek reads the first event for the log's identity.
func (l *Log) peek(ctx context.Context) error {
	if l.First != 0 {
		return nil // its source told
	}
	for e, err := range l.Events(ctx) {
		if err != nil {
			if errors.Is(err, ErrDamaged) && l.Node == "" {
				// Damaged before the first event: the view that reads it says so.
				l.Node, l.First = filepath.Base(filepath.Dir(l.Source)), 1
				return nil
			}
			return err
		}
		l.Node, l.First, l.ID = e.Node, e.Seq, recordedID(e)
		return nil
	}
	return nil
}

// recordedID is the log id that a log's first event records; "" of any other
// event. It outlives an export and an import, which the files' own id does not.
func recordedID(e *events.Event) string {
	if e.Seq != 1 {
		return ""
	}
	return hex.EncodeToString(e.GetNodeStarted().GetLogId())
}
