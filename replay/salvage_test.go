package replay_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
)

// longLog is a decode node's log of some 3,000 events in several frames and
// pages.
func longLog(t *testing.T) (path, segment string, want []*events.Event) {
	t.Helper()
	h := begin()
	for i := range 1000 {
		h.At(uint64(10+i)).Reserve(uint64(100+i), "d/0", []uint32{uint32(i)}, "p/0")
	}
	want = h.Of("d")
	path = writeLog(t, t.TempDir(), want)
	names, err := filepath.Glob(filepath.Join(path, "*.db"))
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	return path, names[0], want
}

// readAll gives what a source still yields, and its last error.
func readAll(t *testing.T, src string) (got []*events.Event, err error) {
	t.Helper()
	logs, err := replay.Open(t.Context(), []string{src})
	if err != nil {
		return nil, err
	}
	for e, err := range replay.Merge(t.Context(), logs) {
		if err != nil {
			return got, err
		}
		got = append(got, e)
	}
	return got, nil
}

// subset checks that every event that was read is one of the log, in order and
// each once.
func subset(t *testing.T, got, want []*events.Event) {
	t.Helper()
	last := uint64(0)
	for _, e := range got {
		if e.Seq <= last || e.Seq > uint64(len(want)) {
			t.Fatalf("event %d after %d of %d", e.Seq, last, len(want))
		}
		last = e.Seq
		if w := want[e.Seq-1]; string(events.AppendJSON(nil, e)) != string(events.AppendJSON(nil, w)) {
			t.Fatalf("event %d is %s, was %s", e.Seq, events.AppendJSON(nil, e), events.AppendJSON(nil, w))
		}
	}
}

func TestADamagedLogYieldsWhatIsReadable(t *testing.T) {
	cases := map[string]struct {
		harm func(b []byte) []byte
		most int // events that may be lost
	}{
		"bits of one frame are flipped": {func(b []byte) []byte {
			i := strings.Index(string(b), "p/0") // inside a record of the first frames
			b[i] ^= 0x10
			return b
		}, 100},
		"a page in the middle is zero": {func(b []byte) []byte {
			i := len(b) / 4 / 4096 * 4096
			clear(b[i : i+4096])
			return b
		}, 200},
		"both meta pages are gone": {func(b []byte) []byte {
			clear(b[:8192])
			return b
		}, 0},
		"the copy broke off": {func(b []byte) []byte { return b[:len(b)/3/4096*4096+1000] }, 2500},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			dir, seg, want := longLog(t)
			b, err := os.ReadFile(seg)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(seg, tc.harm(b), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, src := range []string{dir, seg} {
				got, err := readAll(t, src)
				subset(t, got, want)
				if len(got) < len(want)-tc.most {
					t.Errorf("%s: %d of %d events were read", filepath.Base(src), len(got), len(want))
				}
				if !errors.Is(err, replay.ErrDamaged) {
					t.Errorf("%s: have %v, want ErrDamaged", filepath.Base(src), err)
				}
				lost := gaps(got)
				for _, l := range lost {
					if err == nil || !strings.Contains(err.Error(), l) {
						t.Errorf("%s: %s are lost, the error does not say so: %v", filepath.Base(src), l, err)
					}
				}
			}
		})
	}
}

// gaps are the events between others that are missing.
func gaps(got []*events.Event) []string {
	var out []string
	last := uint64(0)
	for _, e := range got {
		if e.Seq == last+2 {
			out = append(out, fmt.Sprintf("event %d", last+1))
		} else if e.Seq > last+2 {
			out = append(out, fmt.Sprintf("events %d to %d", last+1, e.Seq-1))
		}
		last = e.Seq
	}
	return out
}

func TestViewsGoOnOverDamage(t *testing.T) {
	dir, seg, want := longLog(t)
	b, err := os.ReadFile(seg)
	if err != nil {
		t.Fatal(err)
	}
	clear(b[len(b)/4/4096*4096 : len(b)/4/4096*4096+4096])
	if err := os.WriteFile(seg, b, 0o600); err != nil {
		t.Fatal(err)
	}
	var damage error
	h, err := replay.Gather(replay.Readable(replay.Merge(t.Context(), open(t, dir)), &damage))
	if err != nil || !errors.Is(damage, replay.ErrDamaged) {
		t.Fatal(err, damage)
	}
	if len(h.Rooms) < 900 || h.Events > len(want) {
		t.Errorf("%d rooms in %d events", len(h.Rooms), h.Events)
	}
	if v := verify(t, dir); v.OK || v.Logs[0].ChainOK {
		t.Errorf("a damaged log verifies: %+v", v)
	}
}
