package replay

import (
	"cmp"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

// salvage reads a log, and goes on where its proper read ends in damage: the
// frames that lie in its files are found by their own checksums, whatever has
// become of the database around them. Every readable event is handed out, in
// order and each once; the last pair says what is lost (ErrDamaged).
//
// Frames that the log itself does not lead to any more may be found as well
// (bbolt keeps pages that were freed): where two differ, the one that continues
// the chain counts.
type salvage struct {
	node string // of the log; what its folder says until it is read
	want Want
	got  *Spans
	// headed: the log is read with its head, which tells what was acknowledged.
	headed bool
	at     events.Position
	// yield takes what is found behind the first damage.
	yield func(*events.Event, error) bool

	lost  []string
	more  int // events behind the first damage
	file  string
	bytes []byte
}

// proper reads the log in dir as the store does.
func (s *salvage) proper(dir string) iter.Seq2[*events.Event, error] {
	return func(yield func(*events.Event, error) bool) {
		info, err := store.ReadDirIf(dir, 0, s.want, func(e *events.Event) error {
			if !yield(e, nil) {
				return errEnough
			}
			return nil
		})
		if info.LastSeq > 0 && info.LastSeq >= info.FirstSeq {
			s.node, s.at = info.Node, events.Position{Seq: info.LastSeq, Chain: info.LastChain}
			s.got.Add(info.FirstSeq, info.LastSeq)
		}
		switch {
		case errors.Is(err, errEnough):
		case err != nil:
			yield(nil, storeError(err))
		case info.Torn != nil && !s.headed:
			// A whole log knows what was acknowledged. A file alone does not: what
			// its newest commit held counts as damaged, not as never written.
			yield(nil, mark(info.Torn, ErrDamaged))
		}
	}
}

func (s *salvage) events(files func() []string, proper func() iter.Seq2[*events.Event, error]) iter.Seq2[*events.Event, error] {
	return func(yield func(*events.Event, error) bool) {
		var damage error
		for e, err := range proper() {
			if err != nil {
				damage = err
				break
			}
			if !yield(e, nil) {
				return
			}
		}
		if damage == nil {
			return
		}
		if !errors.IsAny(damage, ErrDamaged, ErrBadSource) {
			yield(nil, damage)
			return
		}
		found := findFrames(files())
		if len(found) == 0 {
			yield(nil, damage)
			return
		}
		if s.yield = yield; s.frames(found) {
			yield(nil, mark(errors.Wrap(damage, s.story()), ErrDamaged))
		}
	}
}

// place is a frame in a file.
type place struct {
	events.FrameInfo
	file   string
	offset int
}

// findFrames looks through the bytes of files for frames that verify. A file
// that cannot be read holds none.
func findFrames(files []string) []place {
	var out []place
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for i := 0; i+1 < len(b); {
			if in, err := events.FramePeek(b[i:]); err == nil && in.Count > 0 && in.FirstSeq > 0 {
				if in, err := events.DecodeFrame(b[i:], "", nil); err == nil {
					out = append(out, place{in, file, i})
					i += in.Size
					continue
				}
			}
			i++
		}
	}
	slices.SortStableFunc(out, func(a, b place) int { return cmp.Compare(a.FirstSeq, b.FirstSeq) })
	return out
}

// frames hands out what lies behind the position; false ends the read.
func (s *salvage) frames(found []place) bool {
	for i := 0; i < len(found); {
		j := i
		for j < len(found) && found[j].FirstSeq == found[i].FirstSeq {
			j++
		}
		same := found[i:j]
		i = j
		p := same[0]
		for _, q := range same {
			if q.FirstSeq == s.at.Seq+1 && q.PrevChain == s.at.Chain {
				p = q
				break
			}
		}
		if p.LastSeq <= s.at.Seq {
			continue
		}
		if !s.frame(p) {
			return false
		}
	}
	return true
}

func (s *salvage) frame(p place) bool {
	if s.file != p.file {
		b, err := os.ReadFile(p.file)
		if err != nil || len(b) < p.offset {
			return true // gone since it was looked through: its events count as lost
		}
		s.file, s.bytes = p.file, b
	}
	if p.FirstSeq > s.at.Seq+1 {
		s.lose(s.at.Seq+1, p.FirstSeq-1)
	}
	goOn := true
	fresh := func(h events.Head) bool { return h.Seq > s.at.Seq && (s.want == nil || s.want(h)) }
	_, err := events.DecodeFrameIf(s.bytes[p.offset:], s.node, fresh, func(e *events.Event) error {
		if goOn = s.yield(e, nil); !goOn {
			return errEnough
		}
		return nil
	})
	if err != nil {
		return goOn
	}
	s.more += int(p.LastSeq - max(s.at.Seq, p.FirstSeq-1)) //nolint:gosec // a frame's count
	s.got.Add(max(s.at.Seq+1, p.FirstSeq), p.LastSeq)
	s.at = events.Position{Seq: p.LastSeq, HLC: p.LastHLC, Chain: p.Chain}
	return goOn
}

func (s *salvage) lose(from, to uint64) {
	if from == to {
		s.lost = append(s.lost, fmt.Sprintf("event %d", from))
		return
	}
	s.lost = append(s.lost, fmt.Sprintf("events %d to %d", from, to))
}

func (s *salvage) story() string {
	lost := "nothing before it is lost, what came behind is unknown"
	if len(s.lost) > 0 {
		lost = strings.Join(s.lost, ", ") + " of it are lost, and what came behind is unknown"
	}
	return fmt.Sprintf("log of %s: the last readable event is %d, %d were found behind the first damage; %s", s.node, s.at.Seq, s.more, lost)
}

// segmentsIn are the segment files of a folder.
func segmentsIn(dir string) []string {
	names, err := filepath.Glob(filepath.Join(dir, "*"+segmentExt))
	if err != nil {
		return nil
	}
	return names
}

// Readable is a stream without the errors of logs that are damaged or differ:
// they are noted, and the rest goes on. Damage is complete when the stream has
// ended.
func Readable(stream iter.Seq2[*events.Event, error], damage *error) iter.Seq2[*events.Event, error] {
	return func(yield func(*events.Event, error) bool) {
		for e, err := range stream {
			if isDamage(err) {
				*damage = errors.CombineErrors(*damage, err)
				continue
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

func isDamage(err error) bool { return err != nil && errors.IsAny(err, ErrDamaged, ErrConflict) }
