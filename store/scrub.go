package store

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/cockroachdb/errors"
	"golang.org/x/sys/unix"
)

// Scrubbed is what one pass of Scrub did.
type Scrubbed struct {
	Segments int   // sealed segments that were read to their end
	Damaged  int   // and those that do not verify
	Bytes    int64 // of their frames
}

// Scrub reads every sealed segment once, from the disk and not from memory, and
// verifies it as Open does: each frame, the chain within and across segments,
// the tip, the seal. It reads rate bytes of frames a second, so that a pass is not
// felt. Bad is told of each segment that does not verify (a *CorruptError) and
// the pass goes on behind it; nothing is changed. The live state does not rest on
// sealed segments: what to do is for people (docs/operate.md), and the next Open
// that needs the segment sets the log aside. A segment that retention takes
// meanwhile is passed over. The error is the context's, or that of a file that
// cannot be read at all.
func (l *Log) Scrub(ctx context.Context, rate int64, bad func(error)) (done Scrubbed, err error) {
	l.segMu.RLock()
	segs := slices.Clone(l.segs[:len(l.segs)-1])
	l.segMu.RUnlock()
	pace := pacer{rate: rate, began: time.Now()}
	chk, fresh := newChecker(head{}, false), true
	for _, s := range segs {
		err := l.scrubSegment(ctx, s, chk, fresh, &pace)
		fresh = err != nil
		switch {
		case err == nil:
			done.Segments++
		case s.retired(), errors.Is(err, os.ErrNotExist):
		case errors.Is(err, ErrCorrupt):
			done.Damaged++
			chk = newChecker(head{}, false)
			bad(err)
		default:
			done.Bytes = pace.read
			return done, err
		}
	}
	done.Bytes = pace.read
	return done, nil
}

func (l *Log) scrubSegment(ctx context.Context, s *segment, chk *checker, fresh bool, pace *pacer) error {
	p, err := openPagesStream(s.path)
	for began := time.Now(); errors.Is(err, unix.EWOULDBLOCK) && time.Since(began) < lockTimeout; {
		if err := pause(ctx, 10*time.Millisecond); err != nil { // just sealed: the handle that wrote it is being closed
			return err
		}
		p, err = openPagesStream(s.path)
	}
	if err != nil {
		return err
	}
	defer p.close() //nolint:errcheck // read-only
	// What lies in memory says nothing about the disk. It is advice: a page that is
	// mapped stays.
	_ = unix.Fadvise(int(p.file.Fd()), 0, 0, unix.FADV_DONTNEED) //nolint:gosec // a descriptor
	v, err := p.view()
	if err != nil {
		return err
	}
	err = chk.scan(s, v, fresh, func(b []byte) error { return pace.took(ctx, int64(len(b))) })
	if err == nil && !chk.meta.Sealed {
		return &CorruptError{File: s.path, Seq: s.first, Err: errors.New("segment is not sealed and not the last")}
	}
	return err
}

func (s *segment) retired() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.gone
}

// pacer holds a reader to a rate.
type pacer struct {
	rate  int64 // bytes a second
	began time.Time
	read  int64
	since int64 // read since it last looked at the clock
}

const paceStep = 256 << 10

// took counts n bytes and waits when they came too fast.
func (p *pacer) took(ctx context.Context, n int64) error {
	p.read, p.since = p.read+n, p.since+n
	if p.since < paceStep {
		return nil
	}
	p.since = 0
	due := time.Duration(float64(p.read) / float64(p.rate) * float64(time.Second))
	return pause(ctx, due-time.Since(p.began))
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
