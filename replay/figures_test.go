package replay_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/test/fleetlog"
)

// TestFigures measures what reading a large fleet takes, beside a bare read and
// decode of the same files in the same run (make bench-replay).
// PDLOG_FIGURES is the number of events.
func TestFigures(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("PDLOG_FIGURES"))
	if err != nil {
		t.Skip("set PDLOG_FIGURES to a number of events (make bench-replay)")
	}
	f := bigFleet(t, n)
	bare := timed(func() int { return bareRead(t, f.Dir) })
	t.Logf("read and decode: %d events, %.0f events/s, %.0f events/s per core", bare.events, bare.perSecond(), bare.perCore())
	ver := timed(func() int {
		v, err := replay.Verify(t.Context(), open(t, f.Dir))
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, l := range v.Logs {
			sum += int(l.Events) //nolint:gosec // a count
		}
		return sum
	})
	t.Logf("verify: %d events, %.0f events/s, %.0f events/s per core, %.0f %% of a bare read", ver.events, ver.perSecond(), ver.perCore(), 100*ver.perCore()/bare.perCore())
}

type measure struct {
	events    int
	wall, cpu time.Duration
}

func (m measure) perSecond() float64 { return float64(m.events) / m.wall.Seconds() }
func (m measure) perCore() float64   { return float64(m.events) / m.cpu.Seconds() }

// timed measures wall and processor time, the collector's included.
func timed(do func() int) measure {
	start, cpu := time.Now(), cpuTime()
	n := do()
	return measure{events: n, wall: time.Since(start), cpu: cpuTime() - cpu}
}

func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// bigFleet writes the fleet, or takes the one in PDLOG_FIGURES_DIR.
func bigFleet(t *testing.T, n int) *fleetlog.Fleet {
	t.Helper()
	o := fleetlog.Options{Seed: 1, Events: n, Prefill: 2, Decode: 2, Incidents: 5}
	dir := os.Getenv("PDLOG_FIGURES_DIR")
	if dir == "" {
		dir = t.TempDir()
	}
	if _, err := os.Stat(filepath.Join(dir, "d0")); err == nil {
		return &fleetlog.Fleet{Dir: dir}
	}
	f, err := fleetlog.Write(t.Context(), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// bareRead walks the frames with bbolt itself and decodes every event: the
// least that a reader of these files can do.
func bareRead(t *testing.T, dir string) (n int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "log", "*.db"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		db, err := bbolt.Open(file, 0o400, &bbolt.Options{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		err = db.View(func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte("frames")).ForEach(func(k, v []byte) error {
				_ = binary.BigEndian.Uint64(k)
				_, err := events.DecodeFrame(v, "n", func(*events.Event) error {
					n++
					return nil
				})
				return err
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return n
}
