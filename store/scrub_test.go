package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pdlog/pdlog/events"
)

const quick = 1 << 40 // bytes a second

// A sealed segment that rots while the node runs is named, once a pass, with its
// file; the others are read all the same, and the log goes on.
func TestScrubNamesTheRottenSegment(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l, rec := openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
	src := newSource(l, rec, 1)
	for len(l.segments()) < 5 {
		mustAppend(t, l, src.next(500), events.Group)
		mustSync(t, l)
	}
	sealed := l.segments()[:len(l.segments())-1]
	scrub := func() (Scrubbed, []error) {
		t.Helper()
		var bad []error
		done, err := l.Scrub(context.Background(), quick, func(err error) { bad = append(bad, err) })
		if err != nil {
			t.Fatal(err)
		}
		return done, bad
	}
	if done, bad := scrub(); len(bad) > 0 || done.Segments != len(sealed) || done.Bytes == 0 {
		t.Fatalf("a whole log: %+v, %v; want %d segments", done, bad, len(sealed))
	}
	path := sealed[1].path
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := openPages(path)
	if err != nil {
		t.Fatal(err)
	}
	at := int64(0) // inside the first frame
	if _, err := p.bucket(bucketFrames, false, func(_, v []byte) error {
		if at == 0 {
			for i := range b {
				if &p.data[i] == &v[0] {
					at = int64(i) + 60
				}
			}
		}
		return nil
	}); err != nil || at == 0 {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{b[at] ^ 1}, at); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	done, bad := scrub()
	var c *CorruptError
	if len(bad) != 1 || !errors.As(bad[0], &c) || c.File != path || c.Seq != sealed[1].first || !errors.Is(bad[0], events.ErrFrameCRC) {
		t.Errorf("bad is %v, want record %d of %s", bad, sealed[1].first, path)
	}
	if done.Damaged != 1 || done.Segments != len(sealed)-1 {
		t.Errorf("%+v, want one damaged and %d whole", done, len(sealed)-1)
	}
	mustAppend(t, l, src.next(10), events.Sync)
	mustSync(t, l)
	mustClose(t, l)
	if _, _, err := Open(context.Background(), dir, Options{Node: "n", Boot: 1, SegmentBytes: minSegmentBytes}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("the next start: %v, want ErrCorrupt", err)
	}
}

func TestScrubKeepsToItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pacer{rate: 1 << 20, began: time.Now()}
		for range 8 << 10 {
			if err := p.took(t.Context(), 1<<10); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(p.began); took != 8*time.Second {
			t.Errorf("8 MiB at 1 MiB/s took %v", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.took(ctx, paceStep); !errors.Is(err, context.Canceled) {
			t.Errorf("a pass that is called off: %v", err)
		}
	})
}

func (l *Log) segments() []*segment {
	l.segMu.RLock()
	defer l.segMu.RUnlock()
	return l.segs
}
