package replay_test

import (
	"bytes"
	"context"
	"iter"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector/invariants/historytest"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var pages = []uint32{10, 11, 12, 13}

func begin() *historytest.History {
	h := historytest.New()
	h.Start("d", events.Role_ROLE_DECODE, 64)
	h.Start("p", events.Role_ROLE_PREFILL, 64)
	return h
}

// lateWrite is what engines do today: pages freed by a timer, given to room 8,
// and the write of room 7 lands there.
func lateWrite() *historytest.History {
	h := begin()
	a := h.At(100).Open(7, "d/0", pages, "p/0")
	post := a.Post("p/0", 2, pages, false)
	h.At(120)
	a.Abort()
	h.At(121)
	a.Hear("p/0")
	h.At(1120)
	a.D("", &events.AckTimedOut{Generation: a.Generation, Missing: []*events.Pair{{Rank: "p/0", To: "d/0"}}})
	a.Release(events.Basis_BASIS_TIMEOUT)
	h.At(1300)
	b := h.Open(8, "d/0", []uint32{12, 13, 14}, "p/0")
	b.Write("p/0", 0, b.Pages, true)
	b.Succeed()
	h.At(4000)
	a.Land(post, true)
	a.Complete(post)
	a.Drain("p/0")
	return h
}

// writeFile is one JSONL file with the events.
func writeFile(t *testing.T, evs []*events.Event) string {
	t.Helper()
	var b []byte
	for _, e := range evs {
		b = append(events.AppendJSON(b, e), '\n')
	}
	path := filepath.Join(t.TempDir(), "export.jsonl")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// writeLog is a closed log folder of one node.
func writeLog(t *testing.T, dir string, evs []*events.Event) string {
	t.Helper()
	path := filepath.Join(dir, evs[0].Node, "log")
	log := openLog(t, path, evs[0])
	if err := log.Append(evs, events.Group); err != nil {
		t.Fatal(err)
	}
	if err := log.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func openLog(t *testing.T, path string, first *events.Event) *store.Log {
	t.Helper()
	log, _, err := store.Open(t.Context(), path, store.Options{Node: first.Node, Boot: first.Boot, SegmentBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func open(t *testing.T, sources ...string) []*replay.Log {
	t.Helper()
	logs, err := replay.Open(t.Context(), sources)
	if err != nil {
		t.Fatal(err)
	}
	return logs
}

func collect(t *testing.T, seq iter.Seq2[*events.Event, error]) []*events.Event {
	t.Helper()
	var out []*events.Event
	for e, err := range seq {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

func jsonl(evs []*events.Event) string {
	var b bytes.Buffer
	if _, err := replay.WriteJSONL(&b, of(evs)); err != nil {
		panic(err)
	}
	return b.String()
}

// of streams a slice.
func of(evs []*events.Event) iter.Seq2[*events.Event, error] {
	return func(yield func(*events.Event, error) bool) {
		for _, e := range evs {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func gather(t *testing.T, evs []*events.Event) *replay.History {
	t.Helper()
	h, err := replay.Gather(of(evs))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func verify(t *testing.T, sources ...string) *replay.Verdict {
	t.Helper()
	v, err := replay.Verify(context.Background(), open(t, sources...))
	if err != nil {
		t.Fatal(err)
	}
	return v
}
