package demo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// Request is one request of a trace.
type Request struct {
	AtMS   int64 // arrival, milliseconds from the start of the trace
	Input  int   // prompt, tokens
	Output int   // answer, tokens
}

// maxInput bounds input_length: no context window is that long, and a typo
// must not become a page count.
const maxInput = 1 << 26

// LineError is a line of an input file that could not be read. Its text names
// file and line, so that it can be shown as it is.
type LineError struct {
	File string
	Line int
	What string
}

// Error implements error.
func (e *LineError) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.What) }

// ReadTrace reads at most limit requests from a trace file (cli.md: JSONL of
// timestamp, input_length, output_length, hash_ids). A bad line is a
// *LineError; lines behind the limit are not looked at.
func ReadTrace(path string, limit int) ([]Request, error) {
	f, err := os.Open(path) //nolint:gosec // the user's own file
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return ParseTrace(f, path, limit)
}

// ParseTrace is ReadTrace on an open reader; name stands in errors.
func ParseTrace(r io.Reader, name string, limit int) ([]Request, error) {
	var out []Request
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 1<<16), 1<<24) // a line lists a hash per 512 tokens
	for line := 1; len(out) < limit && sc.Scan(); line++ {
		b := bytes.TrimSpace(sc.Bytes())
		if len(b) == 0 {
			continue
		}
		req, what := parseRequest(b)
		if what == "" && len(out) > 0 && req.AtMS < out[len(out)-1].AtMS {
			what = "timestamp goes back"
		}
		if what != "" {
			return nil, &LineError{File: name, Line: line, What: what}
		}
		out = append(out, req)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(out) == 0 {
		return nil, &LineError{File: name, Line: 1, What: "no requests in this trace"}
	}
	return out, nil
}

func parseRequest(b []byte) (Request, string) {
	var v struct {
		Timestamp *int64 `json:"timestamp"`
		Input     *int   `json:"input_length"`
		Output    *int   `json:"output_length"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return Request{}, "not a trace line: " + err.Error()
	}
	switch {
	case v.Timestamp == nil:
		return Request{}, "timestamp is missing"
	case *v.Timestamp < 0:
		return Request{}, "timestamp is negative"
	case v.Input == nil:
		return Request{}, "input_length is missing"
	case *v.Input < 1 || *v.Input > maxInput:
		return Request{}, fmt.Sprintf("input_length %d is not between 1 and %d", *v.Input, maxInput)
	}
	req := Request{AtMS: *v.Timestamp, Input: *v.Input}
	if v.Output != nil {
		req.Output = max(*v.Output, 0)
	}
	return req, ""
}
