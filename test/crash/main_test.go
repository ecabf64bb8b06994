package crash

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

const writerEnv = "PDLOG_CRASH_WRITER" // "killed MODE DIR", "closed MODE DIR" or "short MODE DIR"

func TestMain(m *testing.M) {
	store.VerifyMain()
	if v := os.Getenv(writerEnv); v != "" {
		var life, mode, dir string
		if _, err := fmt.Sscan(v, &life, &mode, &dir); err != nil {
			log.Fatal(err)
		}
		if err := writer(dir, life, store.CommitMode(mode)); err != nil {
			log.Fatal(err)
		}
		os.Exit(0) // without Close, unless the life says so
	}
	goleak.VerifyTestMain(m)
}

const segmentBytes = 256 << 10

// event is what record seq must be, whoever reads it.
func event(seq uint64) *events.Event {
	return &events.Event{
		Seq: seq, Hlc: seq*10 + 1, Room: seq/10 + 1,
		Payload: &events.Event_ChunkPosted{ChunkPosted: &events.ChunkPosted{Token: seq, To: "d0/0", Pages: []uint32{uint32(seq), 8, 9}, Bytes: 1 << 20}},
	}
}

// writer lives one life of a log: commits of all sizes, segment rolls,
// snapshots, retention. It says what it appended and what it was told is
// durable, in single writes that the trace shows.
func writer(dir, life string, mode store.CommitMode) error {
	commits := 120
	if life == "short" {
		commits = 12
	}
	if n, err := strconv.Atoi(os.Getenv("PDLOG_CRASH_COMMITS")); err == nil {
		commits = n
	}
	ctx := context.Background()
	l, rec, err := store.Open(ctx, dir, store.Options{
		Node: "n", Boot: uint64(os.Getpid()), SegmentBytes: segmentBytes, Commit: mode,
		OnDurable: func(seq uint64) { _, _ = os.Stdout.WriteString("ack " + strconv.FormatUint(seq, 10) + "\n") },
	})
	if err != nil {
		return err
	}
	seq := rec.LastSeq
	for i := range commits {
		n := []int{1, 1, 7, 40, 130}[i%5]
		var evs []*events.Event
		for range n {
			seq++
			e := event(seq)
			e.Boot, e.Incarnation = uint64(os.Getpid()), rec.Incarnation
			evs = append(evs, e)
		}
		if _, err := os.Stdout.WriteString("app " + strconv.FormatUint(seq, 10) + "\n"); err != nil {
			return err
		}
		if err := l.Append(evs, events.Sync); err != nil {
			return err
		}
		if err := l.Sync(ctx); err != nil {
			return err
		}
		if i%40 == 39 {
			if err := snapshot(l, seq); err != nil {
				return err
			}
			if _, err := l.Retain(seq-1000, 0); err != nil {
				return err
			}
		}
	}
	if life == "closed" {
		return l.Close()
	}
	return nil
}

func snapshot(l *store.Log, seq uint64) error {
	frames, err := l.ReadFrames(seq, 1)
	if err != nil {
		return err
	}
	return l.WriteSnapshot(seq, frames[0].Info.Chain, []byte(fmt.Sprintf("state after %d", seq)))
}
