package backends

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// LineError is an input line of WireDecode that is not a captured message.
// `pdnode wire decode` exits 2 on it.
type LineError struct {
	Line int // 1 for the first line; blank lines count
	Err  error
}

// Error implements error.
func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns what was wrong with the line.
func (e *LineError) Unwrap() error { return e.Err }

// WireDecode reads captured messages, one JSON object a line, and writes what a
// node would make of each, one JSON object a line in the same order
// (conformance rules, section 1). No frame content makes it fail. A line that
// is no captured message ends it with a *LineError; the lines before it have
// been answered. Other errors are those of r and w. Output is flushed whenever
// no more input is waiting, so it can be used interactively.
func WireDecode(r io.Reader, w io.Writer) error {
	in := bufio.NewReaderSize(r, 1<<16)
	out := bufio.NewWriterSize(w, 1<<16)
	err := wireDecode(in, out)
	return errors.Join(err, out.Flush())
}

func wireDecode(in *bufio.Reader, out *bufio.Writer) error {
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		last := errors.Is(err, io.EOF)
		if err != nil && !last {
			return fmt.Errorf("read line %d: %w", n, err)
		}
		if len(bytes.Trim(line, " \t\r\n")) > 0 {
			answer, bad := DecodeLine(line)
			if bad != nil {
				return &LineError{Line: n, Err: bad}
			}
			if _, err := out.Write(append(answer, '\n')); err != nil {
				return fmt.Errorf("write answer to line %d: %w", n, err)
			}
		}
		if last {
			return nil
		}
		if in.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return fmt.Errorf("write answer to line %d: %w", n, err)
			}
		}
	}
}

// DecodeLine decodes one captured message, {"dialect","at","frames":[hex…]},
// and returns {"claimed","kind","fields","error"} without a line end. The error
// says that the line is not such an object or names an unknown dialect.
func DecodeLine(line []byte) ([]byte, error) {
	d, at, f, err := parseCapture(line)
	if err != nil {
		return nil, err
	}
	return AppendResult(nil, d.Decode(at, f)), nil
}

// AppendResult appends the JSON object that DecodeLine returns for m.
func AppendResult(b []byte, m Message) []byte {
	o := object{b: append(b, '{')}
	o.bool("claimed", m.Kind() != KindForeign)
	o.str("kind", m.Kind().String())
	o.key("fields")
	o.b = append(o.b, FieldsJSON(m)...)
	switch m := m.(type) {
	case *Malformed:
		o.str("error", m.Reason)
	case *Foreign:
		o.str("error", m.Reason)
	}
	return append(o.b, '}')
}

func parseCapture(line []byte) (Dialect, Side, Frames, error) {
	c, err := parseObject(line)
	if err != nil {
		return nil, 0, nil, err
	}
	name, atName := c.str("dialect"), c.str("at")
	texts := list(c, "frames", strictText)
	if c.err != nil {
		return nil, 0, nil, c.err
	}
	if texts == nil {
		return nil, 0, nil, errors.New("frames: missing")
	}
	d, err := Lookup(name)
	if err != nil {
		return nil, 0, nil, fmt.Errorf("dialect: %w", err)
	}
	at, ok := ParseSide(atName)
	if !ok {
		return nil, 0, nil, fmt.Errorf("at: %q is neither %s nor %s", atName, AtPrefill, AtDecode)
	}
	f := make(Frames, len(texts))
	for i, text := range texts {
		if f[i], err = hex.DecodeString(text); err != nil {
			return nil, 0, nil, fmt.Errorf("frame %d: %w", i, err)
		}
	}
	return d, at, f, nil
}

// strictText is textValue without null, which is no frame.
func strictText(raw json.RawMessage) (string, error) {
	if string(raw) == "null" {
		return "", errors.New("null is no string")
	}
	return textValue(raw)
}
