package store

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/pdlog/pdlog/events"
)

// Whatever is asked for, in whatever order, the bytes are those of the file.
func TestWindowsGiveTheBytesOfTheFile(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // reproducible
	want := make([]byte, 5*windowBytes+777)
	for i := range want {
		want[i] = byte(rng.Uint32())
	}
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, size := &windows{}, int64(len(want))
	for range 5000 {
		n := rng.Int64N(9000)
		if rng.IntN(50) == 0 {
			n = rng.Int64N(3 * windowBytes)
		}
		off := rng.Int64N(size - n + 1)
		got, err := w.read(f, size, off, n)
		if err != nil || !bytes.Equal(got, want[off:off+n]) {
			t.Fatalf("%d bytes at %d: wrong, %v", n, off, err)
		}
	}
}

// A log of many small commits has its pages in order only on the whole; it is
// still read about once, not a window for each page.
func TestSmallCommitsAreReadOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l, rec := openLog(t, dir, Options{SegmentBytes: 4 << 20})
	src := newSource(l, rec, 1)
	for range 3000 {
		mustAppend(t, l, src.next(20), events.Sync)
		mustSync(t, l)
	}
	mustClose(t, l)
	segs, err := listSegments(dir)
	if err != nil {
		t.Fatal(err)
	}
	p, err := openPagesStream(segs[0].path)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close() //nolint:errcheck // read-only
	v, err := p.view()
	if err != nil {
		t.Fatal(err)
	}
	frames := 0
	if err := v.frames(func(_, _ []byte) error { frames++; return nil }); err != nil {
		t.Fatal(err)
	}
	used := int64(p.high) * p.pageSize //nolint:gosec // small
	if frames < 3000/2 || p.windows.filled > 2*used {
		t.Errorf("%d frames in %d bytes of pages: %d bytes were read", frames, used, p.windows.filled)
	}
}
