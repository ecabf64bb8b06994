package store

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/test/ladder"
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
	flips := 80
	if v := os.Getenv("PDLOG_FLIPS"); v != "" {
		if flips, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	scratch := t.TempDir()
	closed := mustRead(t, headPath(dir))
	h, _, err := readHead(dir)
	if err != nil {
		t.Fatal(err)
	}
	h.clean = false
	killed := encodeHead(h) // as a process leaves it that was killed
	start := time.Now()
	for i := range flips {
		bit := rng.IntN(used * 8)
		bad := bytes.Clone(orig)
		bad[bit/8] ^= 1 << (bit % 8)
		flipped := filepath.Join(scratch, strconv.Itoa(i), "log")
		if err := os.MkdirAll(flipped, 0o755); err != nil {
			t.Fatal(err)
		}
		headBytes := closed
		if i%2 == 1 {
			headBytes = killed
		}
		if err := errors.Join(os.WriteFile(segmentPath(flipped, 1), bad, 0o644),
			os.WriteFile(headPath(flipped), headBytes, 0o644)); err != nil {
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
		if i%20 < 2 { // and a node starts on it, knowing what it lost
			l, rec := openLog(t, flipped, Options{SegmentBytes: minSegmentBytes, Salvage: true})
			if (err != nil && rec.LostFrom == 0) || (rec.LostFrom == 0 && rec.LastSeq != 1500) || (rec.LostFrom != 0 && rec.LostFrom != rec.LastSeq+1) {
				t.Fatalf("flip %d, bit %d: %+v, a reader said %v", i, bit, rec, err)
			}
			mustClose(t, l)
			if have, _, err = read(flipped); err != nil || !bytes.HasPrefix(truth, have) {
				t.Fatalf("flip %d, bit %d: salvaged log: %v", i, bit, err)
			}
		}
		if err := os.RemoveAll(filepath.Dir(flipped)); err != nil {
			t.Fatal(err)
		}
	}
	if found == 0 {
		t.Error("no flip was found: the test damages nothing")
	}
	ladder.Report(t, ladder.Row{Rung: "flipped bits", What: "a segment", Runs: uint64(flips), Faults: uint64(flips), Took: time.Since(start)}) //nolint:gosec // a count
	t.Logf("%d of %d flips gave an error, the others hit unused bytes", found, flips)
}

// Cut at any 512 bytes, a segment gives all its events (only zeroes behind
// them are gone), or an error after a true beginning.
func TestTruncatedSegmentGivesTruthOrAnError(t *testing.T) {
	dir := t.TempDir()
	last := fill(t, dir, 2)
	path := segmentPath(dir, 1)
	whole := 0
	for size := int64(minSegmentBytes) - 512; size >= 0; size -= 512 {
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		seen := uint64(0)
		_, err := ReadDir(dir, 0, func(e *events.Event) error {
			if seen++; e.Seq != seen || e.Room != seen/10+1<<40 {
				t.Fatalf("cut to %d bytes: event %d is %v", size, seen, e)
			}
			return nil
		})
		switch {
		case err == nil && seen != last:
			t.Fatalf("cut to %d bytes: %d of %d events and no error", size, seen, last)
		case err == nil:
			whole++
		}
	}
	if whole == 0 || whole > minSegmentBytes/512/2+200 {
		t.Errorf("%d cuts did no harm", whole)
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

// A node's name is part of every event and stands where bbolt has no checksum.
func TestFlippedNodeNameIsFound(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, 1)
	path := segmentPath(dir, 1)
	b := mustRead(t, path)
	was := append(append([]byte{}, keyNode...), 'n')
	if !bytes.Contains(b, was) {
		t.Fatal("the name is not where it was thought to be")
	}
	if err := os.WriteFile(path, bytes.ReplaceAll(b, was, append(append([]byte{}, keyNode...), 'm')), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := StatDir(dir); !errors.Is(err, ErrCorrupt) {
		t.Errorf("read: %v", err)
	}
	if _, _, err := Open(t.Context(), dir, Options{Node: "m", Boot: 1}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("open: %v", err)
	}
}
