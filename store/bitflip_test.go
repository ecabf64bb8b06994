package store

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/pdlog/pdlog/events"
)

// Whatever bit of a segment file flips, reading gives the true events or an
// error, never other events and never a crash (bbolt alone gave wrong data in
// most such cases: store.md 2.5).
func TestAnyFlippedBitGivesTruthOrAnError(t *testing.T) {
	dir := t.TempDir()
	l, rec := openLog(t, dir, Options{SegmentBytes: minSegmentBytes})
	mustAppend(t, l, newSource(l, rec, 1).next(1500), events.Sync)
	mustSync(t, l)
	mustClose(t, l)
	read := func(dir string) ([]byte, uint64, error) {
		var all []byte
		var n uint64
		_, err := ReadDir(dir, 0, func(e *events.Event) error {
			all = append(events.AppendJSON(all, e), '\n')
			n++
			return nil
		})
		return all, n, err
	}
	truth, _, err := read(dir)
	if err != nil {
		t.Fatal(err)
	}
	orig, err := os.ReadFile(segmentPath(dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	used := len(bytes.TrimRight(orig, "\x00"))
	rng := rand.New(rand.NewPCG(1, 2)) // fixed: a find can be run again
	found := 0
	for i := range 300 {
		bit := rng.IntN(used * 8)
		bad := bytes.Clone(orig)
		bad[bit/8] ^= 1 << (bit % 8)
		flipped := filepath.Join(t.TempDir(), "log") // a fresh file: a panic in bbolt's Open keeps its handle
		if err := os.MkdirAll(flipped, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile(segmentPath(flipped, 1), bad, 0o644),
			os.WriteFile(headPath(flipped), mustRead(t, headPath(dir)), 0o644)); err != nil {
			t.Fatal(err)
		}
		have, n, err := read(flipped)
		if !bytes.HasPrefix(truth, have) {
			t.Fatalf("flip %d, bit %d: other events were read, error %v", i, bit, err)
		}
		switch {
		case err != nil:
			found++
		case !bytes.Equal(have, truth):
			t.Fatalf("flip %d, bit %d: %d of 1500 events and no error", i, bit, n)
		}
	}
	if found == 0 {
		t.Error("no flip was found: the test damages nothing")
	}
	t.Logf("%d of 300 flips gave an error, the others hit unused bytes", found)
}

func TestTruncatedSegmentIsAnError(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, 2)
	path := segmentPath(dir, 1)
	b := mustRead(t, path)
	for _, size := range []int{0, 100, 4096, 3 * 4096, 20 * 4096} {
		cut := t.TempDir()
		if err := os.WriteFile(segmentPath(cut, 1), b[:size], 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadDir(cut, 0, nil); err == nil {
			t.Errorf("cut to %d bytes: no error", size)
		}
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
