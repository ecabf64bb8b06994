package conformance

import (
	"bytes"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

//go:embed mooncake.jsonl nixl.jsonl mori.jsonl encode.jsonl
var files embed.FS

// Decode is a decode vector: what a dialect makes of frames it receives.
type Decode struct {
	ID      string   `json:"id"`
	Note    string   `json:"note"`
	Dialect string   `json:"dialect"`
	At      string   `json:"at"`
	Frames  HexBytes `json:"frames"`
	Expect  struct {
		Claimed bool            `json:"claimed"`
		Kind    string          `json:"kind"`
		Fields  json.RawMessage `json:"fields"`
	} `json:"expect"`

	Line []byte `json:"-"` // the vector as it stands in the file
}

// Encode is an encode vector: what a dialect sends for fields. Frames is nil
// where the encoder must refuse.
type Encode struct {
	ID      string          `json:"id"`
	Note    string          `json:"note"`
	Dialect string          `json:"dialect"`
	Kind    string          `json:"kind"`
	Fields  json.RawMessage `json:"fields"`
	Frames  HexBytes        `json:"frames"`
}

// HexBytes is a list of frames, in JSON an array of hex strings.
type HexBytes [][]byte

// UnmarshalJSON implements json.Unmarshaler.
func (f *HexBytes) UnmarshalJSON(b []byte) error {
	var texts []string
	if err := json.Unmarshal(b, &texts); err != nil {
		return err
	}
	if texts == nil {
		return nil
	}
	*f = make(HexBytes, len(texts))
	for i, text := range texts {
		var err error
		if (*f)[i], err = hex.DecodeString(text); err != nil {
			return err
		}
	}
	return nil
}

// DecodeVectors returns the decode vectors of a dialect; none if it has none.
func DecodeVectors(dialect string) ([]Decode, error) {
	all, err := read[Decode](dialect + ".jsonl")
	for i := range all {
		all[i].v.Line = all[i].line
	}
	return values(all), err
}

// EncodeVectors returns the encode vectors of a dialect; none if it has none.
func EncodeVectors(dialect string) ([]Encode, error) {
	all, err := read[Encode]("encode.jsonl")
	if err != nil {
		return nil, err
	}
	var own []Encode
	for _, e := range values(all) {
		if e.Dialect == dialect {
			own = append(own, e)
		}
	}
	return own, nil
}

type entry[T any] struct {
	v    T
	line []byte
}

func values[T any](all []entry[T]) []T {
	list := make([]T, len(all))
	for i := range all {
		list[i] = all[i].v
	}
	return list
}

func read[T any](name string) ([]entry[T], error) {
	b, err := files.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []entry[T]
	for n, line := range bytes.Split(bytes.TrimSpace(b), []byte{'\n'}) {
		e := entry[T]{line: line}
		if err := json.Unmarshal(line, &e.v); err != nil {
			return nil, fmt.Errorf("%s line %d: %w", name, n+1, err)
		}
		all = append(all, e)
	}
	return all, nil
}

// Contains reports whether the printed fields hold what is expected: every
// expected key with the same value, objects inside alike, arrays place by
// place, numbers as integers; an expected null means the key is absent. The
// error says where they differ.
func Contains(printed, expected []byte) error {
	have, err := parse(printed)
	if err != nil {
		return fmt.Errorf("printed: %w", err)
	}
	want, err := parse(expected)
	if err != nil {
		return fmt.Errorf("expected: %w", err)
	}
	return contains("fields", have, want)
}

func parse(b []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber() // not through floating point
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one value")
	}
	return v, nil
}

func contains(at string, have, want any) error {
	switch want := want.(type) {
	case map[string]any:
		have, ok := have.(map[string]any)
		if !ok {
			return fmt.Errorf("%s: no object", at)
		}
		for key, w := range want {
			h, ok := have[key]
			if w == nil {
				if ok && h != nil {
					return fmt.Errorf("%s.%s: have %v, want it absent", at, key, h)
				}
				continue
			}
			if !ok {
				return fmt.Errorf("%s.%s: absent, want %v", at, key, w)
			}
			if err := contains(at+"."+key, h, w); err != nil {
				return err
			}
		}
		return nil
	case []any:
		have, ok := have.([]any)
		if !ok || len(have) != len(want) {
			return fmt.Errorf("%s: have %v, want %v", at, have, want)
		}
		for i, w := range want {
			if err := contains(fmt.Sprintf("%s[%d]", at, i), have[i], w); err != nil {
				return err
			}
		}
		return nil
	}
	if have != want {
		return fmt.Errorf("%s: have %v, want %v", at, have, want)
	}
	return nil
}
