package logformat

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

func TestMain(m *testing.M) {
	store.VerifyMain()
	goleak.VerifyTestMain(m)
}

// python finds an interpreter that has protobuf.
func python(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(name, "-c", "import google.protobuf").Run() == nil {
			return name
		}
	}
	t.Skip("needs python3 with protobuf (apt-get install python3-protobuf)")
	return ""
}

// write makes a log of a few segments and two lives, with large records too.
func write(t *testing.T, dir string) {
	t.Helper()
	seq, hlc := uint64(0), uint64(1)<<60
	for life := uint64(1); life <= 2; life++ {
		boot := life<<56 | 1
		l, rec, err := store.Open(context.Background(), dir, store.Options{Node: "d0", Boot: boot, SegmentBytes: 256 << 10})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 40 {
			var evs []*events.Event
			for range 60 {
				seq, hlc = seq+1, hlc+1+seq%300
				e := &events.Event{Seq: seq, Hlc: hlc, Boot: boot, Incarnation: rec.Incarnation, Room: 1<<62 + seq, RoomSeq: seq, Rank: "p0/1", TimeOffsetMs: -int64(i)}
				switch seq % 3 {
				case 0:
					e.Payload = &events.Event_PagesReserved{PagesReserved: &events.PagesReserved{Pages: []uint32{1, uint32(seq), 70000}, Aux: 3}}
				case 1:
					e.Payload = &events.Event_ChunkPosted{ChunkPosted: &events.ChunkPosted{Token: seq, To: "d0/0", Pages: make([]uint32, seq%700), Bytes: 1 << 40}}
				default:
					e.Payload = &events.Event_RoomOpened{RoomOpened: &events.RoomOpened{}}
				}
				evs = append(evs, e)
			}
			if i == 20 {
				evs[59].Rank = strings.Repeat("x", 20000) // a record far above a frame
			}
			if err := l.Append(evs, events.Sync); err != nil {
				t.Fatal(err)
			}
			if err := l.Sync(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPythonReadsWhatGoReads(t *testing.T) {
	py := python(t)
	dir := filepath.Join(t.TempDir(), "log")
	write(t, dir)
	t.Run("whole", func(t *testing.T) {
		if info := same(t, py, dir); info.FirstSeq != 1 || info.LastSeq != 4800 || info.Segments < 3 {
			t.Errorf("the log is %+v: the test covers too little", info)
		}
	})
	t.Run("snapshots and no beginning", func(t *testing.T) {
		first := retain(t, dir)
		if info := same(t, py, dir); info.FirstSeq != first || info.LastSeq != 4800 {
			t.Errorf("the log is %+v, retention kept what begins at %d", info, first)
		}
	})
}

// retain leaves a log that begins behind its start, with two snapshots.
func retain(t *testing.T, dir string) (first uint64) {
	t.Helper()
	l, _, err := store.Open(context.Background(), dir, store.Options{Node: "d0", Boot: 9, SegmentBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, seq := range []uint64{4000, 4500} {
		evs, err := l.ReadFrom(seq+1, 1)
		if err != nil || len(evs) != 1 {
			t.Fatalf("read %d: %v", seq, err)
		}
		if err := l.WriteSnapshot(seq, evs[0].PrevHash, []byte("state")); err != nil {
			t.Fatal(err)
		}
	}
	r, err := l.Retain(4000, 0)
	if err != nil || r.FirstSeq == 1 {
		t.Fatalf("retention took nothing: %+v, %v", r, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return r.FirstSeq
}

// same reads a log by both readers, and says what Go found.
func same(t *testing.T, py, dir string) store.DirInfo {
	t.Helper()
	out, err := exec.Command(py, "reader.py", dir).Output()
	if err != nil {
		t.Fatalf("reader.py: %v", err)
	}
	type line struct {
		Seq, Hlc, Boot, Room uint64
		PrevHash             uint32 `json:"prev_hash"`
		Type, Bytes          string
		Node                 string
		LogID                string `json:"log_id"`
		FirstSeq             uint64 `json:"first_seq"`
		LastSeq              uint64 `json:"last_seq"`
		Chain                uint32
	}
	sc := bufio.NewScanner(bytes.NewReader(out))
	sc.Buffer(nil, 1<<20)
	next := func() (ln line) {
		if !sc.Scan() {
			t.Fatalf("the Python reader ends early: %v", sc.Err())
		}
		if err := json.Unmarshal(sc.Bytes(), &ln); err != nil {
			t.Fatal(err)
		}
		return ln
	}
	info, err := store.ReadDir(dir, 0, func(e *events.Event) error {
		have := next()
		b, err := hex.DecodeString(have.Bytes)
		if err != nil {
			return err
		}
		var other events.Event
		if err := proto.Unmarshal(b, &other); err != nil {
			return err
		}
		if !proto.Equal(&other, e) || have.Seq != e.Seq || have.Hlc != e.Hlc || have.Boot != e.Boot || have.Room != e.Room || have.PrevHash != e.PrevHash {
			t.Fatalf("record %d: Python has %v, Go %v", e.Seq, &other, e)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	end := next()
	if end.Node != info.Node || end.LogID != info.LogID.String() || end.FirstSeq != info.FirstSeq || end.LastSeq != info.LastSeq || end.Chain != info.LastChain {
		t.Errorf("Python: %+v, Go: %+v", end, info)
	}
	return info
}

// Both find the same damage: a flipped bit in a frame, a head that is ahead.
func TestPythonFindsDamage(t *testing.T) {
	py := python(t)
	dir := filepath.Join(t.TempDir(), "log")
	write(t, dir)
	path := filepath.Join(dir, strings.Repeat("0", 19)+"1.db")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	i := bytes.LastIndex(b, []byte("p0/1"))
	for ; i >= 0; i = bytes.LastIndex(b[:i], []byte("p0/1")) {
		b[i] ^= 4 // in every copy, the free pages' too
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(py, "reader.py", dir).CombinedOutput(); err == nil || !bytes.Contains(out, []byte("damaged: checksum of frame 1")) {
		t.Errorf("a flipped bit: %v, %.300s", err, out)
	}
	if _, err := store.StatDir(dir); err == nil {
		t.Error("the Go reader sees no damage")
	}
}

// Of a commit that a power loss tore both take the root before it.
func TestPythonTakesTheRootBeforeATornCommit(t *testing.T) {
	py := python(t)
	dir := filepath.Join(t.TempDir(), "log")
	l, rec, err := store.Open(context.Background(), dir, store.Options{Node: "d0", Boot: 1, SegmentBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	commit := func() {
		e := &events.Event{Seq: l.Appended() + 1, Hlc: l.Appended() + 10, Boot: 1, Incarnation: rec.Incarnation, Room: 1}
		e.Payload = &events.Event_RoomOpened{RoomOpened: &events.RoomOpened{}}
		if err := l.Append([]*events.Event{e}, events.Sync); err != nil {
			t.Fatal(err)
		}
		if err := l.Sync(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		commit()
	}
	frames, err := l.ReadFrames(3, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.WriteSnapshot(3, frames[0].Info.Chain, []byte("state")); err != nil {
		t.Fatal(err)
	}
	segment, head := filepath.Join(dir, strings.Repeat("0", 19)+"1.db"), filepath.Join(dir, "head")
	before, acked := read(t, segment), read(t, head)
	commit()
	torn := read(t, segment)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	copy(torn[2*4096:], before[2*4096:]) // the meta page of the last commit, and nothing else of it
	if err := errors.Join(os.WriteFile(segment, torn, 0o600), os.WriteFile(head, acked, 0o600)); err != nil {
		t.Fatal(err)
	}
	info, err := store.StatDir(dir)
	if err != nil || info.LastSeq != 5 {
		t.Fatalf("%+v, %v", info, err)
	}
	out, err := exec.Command(py, "reader.py", dir).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte(`"last_seq": 5`)) {
		t.Errorf("reader.py: %v: %s", err, out)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
