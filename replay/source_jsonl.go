package replay

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"iter"
	"os"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
)

// lockWait is how long a read waits for a file lock: a writer holds it for its
// life, a roll for a moment.
const lockWait = 250 * time.Millisecond

// maxLine bounds a line of an export: a record of events.RecordLimit, its bytes
// in hex, and its page lists in digits.
const maxLine = 16 << 20

// jsonlLogs are the logs in an export, one per node and in the file's order.
// The file is read once per node and pass, so that it may be larger than
// memory.
func jsonlLogs(path string) ([]*Log, error) {
	var out []*Log
	seen := map[string]bool{}
	err := scanLines(path, func(n int, line []byte) error {
		node, ok := quickNode(line)
		if !ok {
			e, err := ParseJSON(line)
			if err != nil {
				return mark(errors.Wrapf(err, "line %d", n), ErrBadSource)
			}
			node = e.Node
		}
		if !seen[node] {
			seen[node] = true
			out = append(out, jsonlLog(path, node))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, errors.Wrap(ErrBadSource, "no events in this file")
	}
	return out, nil
}

func jsonlLog(path, node string) *Log {
	return &Log{Source: path, Kind: FromJSONL, read: selecting(func(context.Context) iter.Seq2[*events.Event, error] {
		return func(yield func(*events.Event, error) bool) {
			err := scanLines(path, func(n int, line []byte) error {
				if quick, ok := quickNode(line); ok && quick != node {
					return nil
				}
				e, err := ParseJSON(line)
				if err != nil {
					return mark(errors.Wrapf(err, "line %d", n), ErrBadSource)
				}
				if e.Node == node && !yield(e, nil) {
					return io.EOF
				}
				return nil
			})
			if err != nil && !errors.Is(err, io.EOF) {
				yield(nil, err)
			}
		}
	})}
}

// quickNode finds the node without parsing the line; not ok if the name has an
// escape or the key stands somewhere unusual.
func quickNode(line []byte) (string, bool) {
	const key = `"node":"`
	i := bytes.Index(line, []byte(key))
	if i < 0 || i > 200 { // it is the fourth key
		return "", false
	}
	rest := line[i+len(key):]
	end := bytes.IndexByte(rest, '"')
	if end <= 0 || bytes.IndexByte(rest[:end], '\\') >= 0 {
		return "", false
	}
	return string(rest[:end]), true
}

func scanLines(path string, visit func(n int, line []byte) error) error {
	f, err := os.Open(path)
	if err != nil {
		return mark(err, ErrUnavailable)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(make([]byte, 64<<10), maxLine)
	n := 0
	for sc.Scan() {
		n++
		if line := bytes.TrimSpace(sc.Bytes()); len(line) > 0 {
			if err := visit(n, line); err != nil {
				return err
			}
		}
	}
	if err := sc.Err(); err != nil {
		return mark(errors.Wrapf(err, "line %d", n+1), ErrBadSource)
	}
	return nil
}
