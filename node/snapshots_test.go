package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/replay"
)

// logOf is a node that has opened and folded its log, and does no more.
func logOf(t *testing.T, cfg Config) (n *Node, said *bytes.Buffer) {
	t.Helper()
	said = &bytes.Buffer{}
	n = &Node{
		cfg: cfg, log: slog.New(slog.NewTextHandler(said, nil)), metrics: newMetrics(),
		rolled: make(chan struct{}, 1), addresses: []string{"127.0.0.1:7000"},
	}
	n.live.Store(liveOf(&cfg))
	n.out = newOutbox(0, n.perform)
	var err error
	if n.boot, err = randomBoot(); err == nil {
		err = n.openLog(testContext(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.store.Close() })
	return n, said
}

func openReserved(m *projector.Machine, page uint32) projector.OpenRoom {
	return projector.OpenRoom{Room: m.LastSeq() + 1000, Pages: []uint32{page}, Aux: -1, Reserve: true, Pairs: []projector.OpenPair{{Rank: "p0/0", To: "d0/0"}}}
}

// live begins a life on the log, with four open rooms, and steps others through
// it: they are aborted before anything of them was published.
func live(t *testing.T, n *Node, rooms int) {
	t.Helper()
	m := n.fold.m
	id := n.store.LogID()
	at := n.fold.clock + 1
	step := func(c projector.Command) projector.Result {
		at++
		r := m.Step(projector.At(at), c)
		if r.Refused != nil {
			t.Fatalf("%T: %s: %s", c, r.Refused.Word, r.Refused.Detail)
		}
		if err := n.store.Append(r.Events, events.Group); err != nil {
			t.Fatal(err)
		}
		return r
	}
	if n.fold.clock == 0 {
		at = uint64(time.Now().UnixMilli())
	}
	step(projector.Start{Boot: n.boot, Incarnation: n.store.Incarnation(), LogID: id[:], GenerationBase: 1 << 20})
	step(projector.PeerDiscovered{Node: "p0", PDLog: true, Boot: 9, Incarnation: 1, Fence: events.FenceKind_FENCE_KIND_READER_STOPPED,
		Form: events.AckForm_ACK_FORM_V3, PageSize: 64, Ranks: []projector.PeerRank{{Rank: "p0/0", Address: "10.0.0.1:5000"}}})
	for page := uint32(len(m.State().Rooms)); page < 4; page++ {
		step(openReserved(m, page))
	}
	for range rooms {
		open := openReserved(m, 5)
		step(open)
		step(projector.AbortRoom{Room: open.Room})
	}
	if err := n.store.Sync(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

func smallLog(t *testing.T) Config {
	cfg := testConfig(t, "decode", "d0")
	cfg.Log.SegmentBytes = 256 << 10
	return cfg
}

func segmentsOf(t *testing.T, cfg Config) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(cfg.LogDir(), "*.db"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no segments: %v", err)
	}
	return files
}

func closeLog(t *testing.T, n *Node) {
	t.Helper()
	if err := n.store.Close(); err != nil {
		t.Fatal(err)
	}
}

// snapshotOf is what a fold of the whole log, by whatever way, comes to.
func snapshotOf(t *testing.T, n *Node) []byte {
	t.Helper()
	b, err := n.fold.encode(0)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestStartGoesOnFromASnapshot(t *testing.T) {
	cfg := smallLog(t)
	n, _ := logOf(t, cfg)
	live(t, n, 1500)
	if err := n.writeSnapshot(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if n.store.Sealed() == 0 {
		t.Fatal("the log has not rolled")
	}
	closeLog(t, n)

	// With and without the snapshot a start comes to the same.
	n, said := logOf(t, cfg)
	from := snapshotOf(t, n)
	if said.Len() > 0 {
		t.Errorf("it said %s", said)
	}
	closeLog(t, n)
	snap := snapshotsOf(t, cfg)[0]
	aside := filepath.Join(t.TempDir(), "snap")
	move(t, snap, aside)
	n, _ = logOf(t, cfg)
	if whole := snapshotOf(t, n); !bytes.Equal(whole, from) {
		t.Errorf("the fold of the whole log has %d bytes, from the snapshot %d: they differ", len(whole), len(from))
	}
	if rooms := len(n.fold.m.State().Rooms); rooms != 4 {
		t.Errorf("%d rooms are open, want 4", rooms)
	}
	closeLog(t, n)

	// What the snapshot stands for is not read: damage there does no harm to a
	// start. Without the snapshot it does.
	move(t, aside, snap)
	flip(t, segmentsOf(t, cfg)[0])
	n, _ = logOf(t, cfg)
	if got := snapshotOf(t, n); n.lost || !bytes.Equal(got, from) {
		t.Errorf("lost %v, or another state: the start has read what the snapshot stands for", n.lost)
	}
	closeLog(t, n)
	move(t, snap, aside)
	if n, _ = logOf(t, cfg); !n.lost {
		t.Error("damage in the first segment was not found by a start without a snapshot")
	}
}

// flip damages every copy of a record's text in the file.
func flip(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	was := []byte("10.0.0.1:5000")
	if !bytes.Contains(b, was) {
		t.Fatal("nothing to damage")
	}
	if err := os.WriteFile(path, bytes.ReplaceAll(b, was, []byte("10.0.0.1:5001")), 0o600); err != nil {
		t.Fatal(err)
	}
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func snapshotsOf(t *testing.T, cfg Config) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(cfg.LogDir(), "*.snap"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no snapshots: %v", err)
	}
	return files
}

func TestDamagedSnapshotIsIgnoredAndSaid(t *testing.T) {
	cfg := smallLog(t)
	n, _ := logOf(t, cfg)
	live(t, n, 1500)
	if err := n.writeSnapshot(testContext(t)); err != nil {
		t.Fatal(err)
	}
	closeLog(t, n)
	snap := snapshotsOf(t, cfg)[0]
	good, err := os.ReadFile(snap)
	if err != nil {
		t.Fatal(err)
	}
	n, _ = logOf(t, cfg)
	want := snapshotOf(t, n)
	closeLog(t, n)
	for name, bad := range map[string][]byte{
		"flipped": flipped(good, len(good)/2),
		"cut":     good[:len(good)-9],
		"empty":   {},
		"chain":   rechecked(flipped(good, 13)), // well formed, of another history
		"version": rechecked(bytes.Replace(good, []byte(`{"version":1`), []byte(`{"version":7`), 1)),
		"garbage": rechecked(append(bytes.Clone(good[:40]), bytes.Repeat([]byte{0xff}, len(good)-40)...)),
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(snap, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			n, said := logOf(t, cfg)
			if got := snapshotOf(t, n); n.lost || !bytes.Equal(got, want) {
				t.Errorf("lost %v, or another state than the whole log's", n.lost)
			}
			if !strings.Contains(said.String(), "snapshot is ignored") {
				t.Errorf("it said only %q", said)
			}
			closeLog(t, n)
		})
	}
}

// rechecked gives a damaged snapshot file a checksum that fits.
func rechecked(b []byte) []byte {
	b = bytes.Clone(b)
	end := len(b) - 4
	binary.LittleEndian.PutUint32(b[end:], crc32.Checksum(b[:end], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func flipped(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 4
	return b
}

// Retention takes what is in both snapshots and keeps the cap; a start on what
// is left has the state of the whole log. With no snapshot left the past is
// unknown.
func TestRetentionAndStart(t *testing.T) {
	cfg := smallLog(t)
	cfg.Log.MaxBytes = 4 * cfg.Log.SegmentBytes
	n, _ := logOf(t, cfg)
	ctx := context.Background()
	for range 6 {
		live(t, n, 1100)
		if err := n.writeSnapshot(ctx); err != nil {
			t.Fatal(err)
		}
		if err := n.retain(); err != nil {
			t.Fatal(err)
		}
		closeLog(t, n)
		n, _ = logOf(t, cfg)
	}
	if n.store.First() == 1 || len(segmentsOf(t, cfg)) > 4 {
		t.Fatalf("the log begins at %d and has %d segments under a cap of four", n.store.First(), len(segmentsOf(t, cfg)))
	}
	rooms := n.fold.m.State().Rooms
	if len(rooms) != 4 || n.lost {
		t.Errorf("%d rooms are open (want 4), lost %v", len(rooms), n.lost)
	}
	for _, r := range rooms {
		if r.Seq >= n.store.First() {
			t.Errorf("room_seq %d began after %d: the test lets go of no open room's beginning", r.Seq, n.store.First())
		}
	}
	closeLog(t, n)

	files := snapshotsOf(t, cfg)
	if len(files) != 2 {
		t.Fatalf("%d snapshots", len(files))
	}
	slices.Sort(files)
	if err := os.Remove(files[1]); err != nil { // the older one has its tail
		t.Fatal(err)
	}
	n, _ = logOf(t, cfg)
	if len(n.fold.m.State().Rooms) != 4 || n.lost {
		t.Errorf("from the older snapshot: %d rooms, lost %v", len(n.fold.m.State().Rooms), n.lost)
	}
	closeLog(t, n)
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	n, said := logOf(t, cfg)
	if !n.lost || !strings.Contains(said.String(), "the past is unknown") {
		t.Errorf("without its beginning and without a snapshot: lost %v, said %q", n.lost, said)
	}
}

// Age takes nothing that an open room, or the mirror, still needs.
func TestMaxAgeKeepsOpenRooms(t *testing.T) {
	cfg := smallLog(t)
	n, _ := logOf(t, cfg)
	live(t, n, 1500) // four rooms open in the first segment
	for range 2 {
		if err := n.writeSnapshot(testContext(t)); err != nil {
			t.Fatal(err)
		}
		more(t, n, 1000)
	}
	n.cfg.Log.MaxAge = -time.Hour // the clock of these events runs ahead
	n.live.Store(liveOf(&n.cfg))
	if err := n.writeSnapshot(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := n.retain(); err != nil || n.store.First() != 1 {
		t.Errorf("begins at %d with four rooms open since the first segment: %v", n.store.First(), err)
	}
	for _, r := range n.fold.m.State().Rooms {
		res := n.fold.m.Step(projector.At(n.fold.clock+1), projector.AbortRoom{Room: r.Room})
		if err := n.store.Append(res.Events, events.Sync); err != nil {
			t.Fatal(err)
		}
	}
	more(t, n, 1500)
	if err := n.writeSnapshot(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := n.retain(); err != nil || n.store.First() == 1 {
		t.Errorf("begins at %d with no room open: %v", n.store.First(), err)
	}
	if need, err := n.needed(); err != nil || need <= n.store.First() {
		t.Errorf("needed from %d: %v", need, err)
	}
}

// more goes on in the life that live began.
func more(t *testing.T, n *Node, rooms int) {
	t.Helper()
	m := n.fold.m
	for range rooms {
		open := openReserved(m, 5)
		for _, c := range []projector.Command{open, projector.AbortRoom{Room: open.Room}} {
			r := m.Step(projector.At(uint64(time.Now().UnixMilli())), c)
			if r.Refused != nil {
				t.Fatalf("%s: %s", r.Refused.Word, r.Refused.Detail)
			}
			if err := n.store.Append(r.Events, events.Group); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := n.store.Sync(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

// heard closes done when a line of the log holds text.
type heard struct {
	text string
	once sync.Once
	done chan struct{}
}

func (h *heard) Write(b []byte) (int, error) {
	if strings.Contains(string(b), h.text) {
		h.once.Do(func() { close(h.done) })
	}
	return len(b), nil
}

// A running node writes its snapshots by itself, off its loop.
func TestNodeWritesSnapshots(t *testing.T) {
	cfg := smallLog(t)
	n, _ := logOf(t, cfg)
	live(t, n, 1500)
	closeLog(t, n)
	h := &heard{text: "snapshot written", done: make(chan struct{})}
	n, err := Start(testContext(t), cfg, slog.New(slog.NewTextHandler(h, nil)))
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-h.done:
	case <-testContext(t).Done():
		t.Error("no snapshot was written")
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n, said := logOf(t, cfg)
	if len(snapshotsOf(t, cfg)) != 1 || said.Len() > 0 || len(n.fold.m.State().Rooms) != 4 {
		t.Errorf("%d rooms, it said %q", len(n.fold.m.State().Rooms), said)
	}
}

// pdreplay folds a log whose beginning retention took from the snapshot beside
// it, to the state of the whole log, and says from where on it can.
func TestStateOfALogWithoutItsBeginning(t *testing.T) {
	cfg := smallLog(t)
	n, _ := logOf(t, cfg)
	live(t, n, 1500)
	if err := n.writeSnapshot(testContext(t)); err != nil {
		t.Fatal(err)
	}
	sealed, end := n.store.Sealed(), n.store.Durable()
	closeLog(t, n)
	state := func(at uint64) (string, error) {
		t.Helper()
		logs, err := replay.Open(t.Context(), []string{cfg.LogDir()})
		if err != nil {
			t.Fatal(err)
		}
		st, err := replay.StateAt(t.Context(), logs[0], replay.Instant{Seq: at})
		if err != nil {
			return "", err
		}
		if st.FreeUnknown {
			st.Pages["free"] = int(cfg.Pages) - st.Pages["owned"] - st.Pages["held"]
			st.FreeUnknown = false
		}
		b, err := json.Marshal(st)
		return string(b), err
	}
	want := map[uint64]string{}
	for _, at := range []uint64{sealed, sealed + 5, end} {
		var err error
		if want[at], err = state(at); err != nil {
			t.Fatal(err)
		}
	}
	files := segmentsOf(t, cfg)
	slices.Sort(files)
	for _, f := range files[:len(files)-1] {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	for at, want := range want {
		if have, err := state(at); err != nil || have != want {
			t.Errorf("after event %d, of what is kept: %v\n%s, want\n%s", at, err, have, want)
		}
	}
	if _, err := state(sealed - 1); !errors.Is(err, replay.ErrBadSource) || !strings.Contains(err.Error(), fmt.Sprintf("of event %d", sealed)) {
		t.Errorf("before the snapshot: %v", err)
	}
	if err := os.Remove(snapshotsOf(t, cfg)[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := state(end); !errors.Is(err, replay.ErrBadSource) || !strings.Contains(err.Error(), "no snapshot") {
		t.Errorf("without a snapshot: %v", err)
	}
}
