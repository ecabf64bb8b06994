package replay_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/test/built"
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
	t.Logf("read and decode: %s", bare)
	pdreplay := buildPdreplay(t)
	ver := run(t, bare.events, pdreplay, "verify", f.Dir)
	share := ver.perCore() / bare.perCore()
	t.Logf("verify: %s, %.0f MiB, %.0f %% of a bare read", ver, ver.mib, 100*share)
	if share < 0.5 && ver.perCore() < 1e6 {
		t.Errorf("verify is below both 50 %% of a bare read and 1,000,000 events/s per core")
	}
	if ver.mib >= 512 {
		t.Errorf("verify took %.0f MiB, the limit is 512", ver.mib)
	}
	one := run(t, bare.events, pdreplay, "blame", "--node", "d0", "--page", "20", f.Dir)
	t.Logf("blame of one page: %v (%v of a core), %.0f MiB", one.wall.Round(time.Millisecond), one.cpu.Round(time.Millisecond), one.mib)
}

// buildPdreplay is the binary as it is installed.
func buildPdreplay(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := built.Into(t.Context(), dir, "pdreplay"); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "pdreplay")
}

// run measures a process; an answer that is bad is an answer.
func run(t *testing.T, n int, name string, args ...string) measure {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	start := time.Now()
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() > 1 {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
	m := measure{events: n, wall: time.Since(start), cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
	if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		m.mib = float64(u.Maxrss) / 1024
	}
	return m
}

type measure struct {
	events    int
	wall, cpu time.Duration
	mib       float64 // the most it had in memory
}

func (m measure) String() string {
	return fmt.Sprintf("%d events in %v, %.0f events/s per core", m.events, m.wall.Round(time.Millisecond), m.perCore())
}

func (m measure) perCore() float64 { return float64(m.events) / m.cpu.Seconds() }

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
