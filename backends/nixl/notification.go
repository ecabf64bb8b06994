package nixl

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pdlog/pdlog/backends"
)

var _ backends.Notifier = Dialect{}

const (
	// fieldsMost: SGLang splits at most 8 times, so that what stands last, the
	// agent name, keeps its own underscores.
	fieldsMost = 9

	// partsMost bounds what one chunk can make decode remember. SGLang splits a
	// chunk by its handles, of which there are a few.
	partsMost = 256
)

// ParseNotification implements backends.Notifier:
//
//	{room}_kv_{chunk}_{last}_{src}[_part_{i}_{n}]
//	{room}_stg_{chunk}_{last}_{src}_{chunk_idx}_{page_start}_{num_pages}_{agent}
//	{room}_aux  {room}_aux_nokv_{src}_{expected}  {room}_state_{src}
//
// SGLang's parser raises on what is not of these forms (F29); here it is an
// error, and nothing follows from it.
func (Dialect) ParseNotification(text []byte) (backends.Notification, error) {
	p := fields{parts: strings.SplitN(string(text), "_", fieldsMost)}
	n := backends.Notification{Room: p.room()}
	if len(p.parts) < 2 {
		return backends.Notification{}, errors.New("notification: no tag")
	}
	tag := p.parts[1]
	switch {
	case tag == "kv":
		n.What, n.Parts = backends.NotifyKV, 1
		n.Chunk, n.Last, n.Source = p.num(2), p.flag(3), p.num(4)
		if len(p.parts) > 5 {
			p.word(5, "part")
			n.Part, n.Parts = p.num(6), p.num(7)
			if n.Parts < 1 || n.Parts > partsMost || n.Part >= n.Parts {
				p.fail("part %d of %d", n.Part, n.Parts)
			}
			p.end(8)
		} else {
			p.end(5)
		}
	case tag == "stg":
		n.What = backends.NotifyStaging
		n.Chunk, n.Last, n.Source = p.num(2), p.flag(3), p.num(4)
		n.ChunkIdx, n.PageStart, n.NumPages = p.num(5), p.num(6), p.num(7)
		n.Agent = p.name(8)
	case tag == "aux" && len(p.parts) == 2:
		n.What = backends.NotifyAux
	case tag == "aux":
		n.What = backends.NotifyAuxNoKV
		p.word(2, "nokv")
		n.Source, n.Expected = p.num(3), p.num(4)
		p.end(5)
	case tag == "state":
		n.What, n.Source = backends.NotifyState, p.num(2)
		p.end(3)
	default:
		p.fail("unknown tag %.32q", tag)
	}
	if p.err != nil {
		return backends.Notification{}, p.err
	}
	return n, nil
}

// FormatNotification implements backends.Notifier.
func (d Dialect) FormatNotification(n backends.Notification) (string, error) {
	flag := 0
	if n.Last {
		flag = 1
	}
	var s string
	switch n.What {
	case backends.NotifyKV:
		s = fmt.Sprintf("%d_kv_%d_%d_%d", n.Room, n.Chunk, flag, n.Source)
		if n.Parts != 1 {
			s += fmt.Sprintf("_part_%d_%d", n.Part, n.Parts)
		}
	case backends.NotifyStaging:
		s = fmt.Sprintf("%d_stg_%d_%d_%d_%d_%d_%d_%s", n.Room, n.Chunk, flag, n.Source, n.ChunkIdx, n.PageStart, n.NumPages, n.Agent)
	case backends.NotifyAux:
		s = fmt.Sprintf("%d_aux", n.Room)
	case backends.NotifyAuxNoKV:
		s = fmt.Sprintf("%d_aux_nokv_%d_%d", n.Room, n.Source, n.Expected)
	case backends.NotifyState:
		s = fmt.Sprintf("%d_state_%d", n.Room, n.Source)
	default:
		return "", fmt.Errorf("notification: %w", backends.ErrKind)
	}
	if _, err := d.ParseNotification([]byte(s)); err != nil { // what no receiver could read is not sent
		return "", err
	}
	return s, nil
}

// fields reads the parts of a notification by position; the first bad one is
// the error.
type fields struct {
	parts []string
	err   error
}

func (p *fields) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("notification: "+format, args...)
	}
}

func (p *fields) at(i int) string {
	if i < len(p.parts) {
		return p.parts[i]
	}
	p.fail("%d fields are too few", len(p.parts))
	return ""
}

// dec reads the strict decimal form (wire.md 0).
func (p *fields) dec(i, bits int) uint64 {
	s := p.at(i)
	v, err := strconv.ParseUint(s, 10, bits)
	if err != nil || len(s) > 1 && s[0] == '0' {
		p.fail("field %d: %.32q is no number from 0 to 2^%d-1", i, s, bits)
	}
	return v
}

func (p *fields) room() uint64    { return p.dec(0, 63) }
func (p *fields) num(i int) int32 { return int32(p.dec(i, 31)) } //nolint:gosec // 31 bits

func (p *fields) flag(i int) bool {
	s := p.at(i)
	if s != "0" && s != "1" {
		p.fail("field %d: %.32q is neither 0 nor 1", i, s)
	}
	return s == "1"
}

func (p *fields) word(i int, want string) {
	if s := p.at(i); s != want {
		p.fail("field %d: %.32q is not %q", i, s, want)
	}
}

func (p *fields) name(i int) string {
	s := p.at(i)
	if s == "" {
		p.fail("field %d: no name", i)
	}
	for _, c := range []byte(s) {
		if c < 0x21 || c > 0x7e {
			p.fail("field %d: %.32q is no name", i, s)
		}
	}
	return s
}

func (p *fields) end(n int) {
	if len(p.parts) != n {
		p.fail("%d fields, want %d", len(p.parts), n)
	}
}
