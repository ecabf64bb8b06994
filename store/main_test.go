package store

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/events"
)

// The test binary plays the other process when this is set: "hold DIR" opens
// the log, says so and waits; "write DIR" appends for ever and prints what was
// acknowledged.
const childEnv = "PDLOG_STORE_TEST_CHILD"

func TestMain(m *testing.M) {
	VerifyMain()
	if mode, dir, ok := strings.Cut(os.Getenv(childEnv), " "); ok {
		if err := child(mode, dir); err != nil {
			log.Fatal(err)
		}
		return
	}
	useMemory()
	goleak.VerifyTestMain(m)
}

// useMemory puts the logs of tests where a sync costs nothing: what syncs are
// worth is measured by benchmarks and tested in test/crash, on a disk.
func useMemory() {
	var fs unix.Statfs_t
	bench := slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "-test.bench=") })
	if err := unix.Statfs("/dev/shm", &fs); bench || err != nil || fs.Bavail*uint64(fs.Bsize) < 1<<30 {
		return
	}
	if err := os.Setenv("TMPDIR", "/dev/shm"); err != nil {
		log.Fatal(err)
	}
}

func child(mode, dir string) error {
	out := bufio.NewWriter(os.Stdout)
	acked := make(chan uint64, 1<<16)
	opts := Options{Node: "n", Boot: uint64(time.Now().UnixNano()), SegmentBytes: minSegmentBytes}
	opts.OnDurable = func(seq uint64) { acked <- seq }
	l, rec, err := Open(context.Background(), dir, opts)
	if err != nil {
		return err
	}
	if mode == "hold" {
		fmt.Println("ready")
		_, err := bufio.NewReader(os.Stdin).ReadString('\n') // until the parent lets go
		return err
	}
	src := newSource(l, rec, 1)
	go func() {
		for seq := range acked {
			fmt.Fprintln(out, seq)
			if out.Flush() != nil {
				return
			}
		}
	}()
	for i := 0; ; i++ {
		class := events.Group
		if i%5 == 0 {
			class = events.Sync
		}
		if err := l.Append(src.next(1+i%23), class); err != nil {
			return err
		}
		if i%7 == 0 {
			if err := l.Sync(context.Background()); err != nil {
				return err
			}
		}
	}
}

func childCmd(mode, dir string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+mode+" "+dir)
	cmd.Stderr = os.Stderr
	return cmd
}

// source makes events that fit a log.
type source struct {
	node      string
	boot, inc uint64
	seq, hlc  uint64
	salt      uint64
}

func newSource(l *Log, rec *Recovered, salt uint64) *source {
	return &source{node: l.Node(), boot: l.opts.Boot, inc: rec.Incarnation, seq: rec.LastSeq, hlc: rec.LastHLC, salt: salt}
}

func (s *source) next(n int) []*events.Event {
	evs := make([]*events.Event, n)
	for i := range evs {
		s.seq++
		s.hlc += 1 + s.seq%3
		e := &events.Event{Seq: s.seq, Hlc: s.hlc, Node: s.node, Boot: s.boot, Incarnation: s.inc, Room: s.seq/10 + s.salt<<40}
		if s.seq%4 == 0 {
			e.Payload = &events.Event_PagesReserved{PagesReserved: &events.PagesReserved{Pages: []uint32{uint32(s.seq), 2, 3}, Aux: 1}}
		} else {
			e.Payload = &events.Event_ChunkPosted{ChunkPosted: &events.ChunkPosted{Token: s.seq, To: "d0/0", Pages: []uint32{7, 8, 9}, Bytes: 1 << 20}}
		}
		evs[i] = e
	}
	return evs
}

func openLog(t testing.TB, dir string, opts Options) (*Log, *Recovered) {
	t.Helper()
	if opts.Node == "" {
		opts.Node = "n"
	}
	if opts.Boot == 0 {
		opts.Boot = 0xb007
	}
	if opts.SegmentBytes == 0 {
		opts.SegmentBytes = 1 << 20
	}
	l, rec, err := Open(context.Background(), dir, opts)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, rec
}

func mustAppend(t testing.TB, l *Log, evs []*events.Event, class events.Class) {
	t.Helper()
	if err := l.Append(evs, class); err != nil {
		t.Fatalf("append: %v", err)
	}
}

func mustSync(t testing.TB, l *Log) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := l.Sync(ctx); err != nil {
		t.Fatalf("sync: %v", err)
	}
}

func mustClose(t testing.TB, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

// seqs reads a closed log and checks that it is gapless from 1 on.
func mustReadDir(t testing.TB, dir string, want uint64) {
	t.Helper()
	next := uint64(1)
	info, err := ReadDir(dir, 0, func(e *events.Event) error {
		if e.Seq != next {
			return fmt.Errorf("have %d, want %d", e.Seq, next)
		}
		next++
		return nil
	})
	if err != nil {
		t.Fatalf("read %s: %v", dir, err)
	}
	if next-1 != want || info.LastSeq != want {
		t.Fatalf("log ends at %d (%+v), want %s", next-1, info, strconv.FormatUint(want, 10))
	}
}
