package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

func imageCount(t *testing.T) int {
	v := os.Getenv("PDLOG_CRASH_IMAGES")
	if v == "" {
		return 2000
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("PDLOG_CRASH_IMAGES=%s: not a number of images", v)
	}
	return n
}

// trace runs the writer's lives under strace and gives the calls of all.
func trace(t *testing.T, root string, lives ...string) []*call {
	t.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("needs strace (apt-get install strace)")
	}
	var all []*call
	for _, life := range lives {
		out := filepath.Join(t.TempDir(), "trace")
		cmd := exec.Command("strace", "-f", "-y", "-xx", "-s", "1048576", "-o", out,
			"-e", "trace=pwrite64,write,ftruncate,fdatasync,fsync,?rename,?renameat,?renameat2,openat,?unlink,?unlinkat,?mkdirat",
			os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), writerEnv+"="+life+" "+root, "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=1")
		if b, err := cmd.CombinedOutput(); err != nil {
			if len(b) < 300 && cmd.ProcessState.ExitCode() == 1 {
				t.Skipf("strace cannot trace here: %v: %s", err, b)
			}
			t.Fatalf("%s: %v: %.2000s", life, err, b)
		}
		f, err := os.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		calls, err := parse(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		all = append(all, calls...)
	}
	return all
}

// workDir is in memory where there is room: images are written and read once.
func workDir(t *testing.T) string {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < 64<<20 {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp("/dev/shm", "pdlog-crash-") //nolint:usetesting // not where t.TempDir is
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// job is one image to check.
type job struct {
	dir          string
	acked, begun uint64
	goOn         bool // open it and go on writing
	decode       bool // look into every event, not only at checksums and chain
	what         string
}

// images cuts the power at every call in turn, several times over, and gives
// the errors found. It stops at limit errors.
func images(t *testing.T, calls []*call, root string, n, limit int, lazy bool) (done int, found []error) {
	t.Helper()
	work := workDir(t)
	cache := filepath.Join(work, "settled")
	if err := os.Mkdir(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	cuts := 0
	count := newDisk(root, lazy)
	for _, c := range calls {
		changed, err := count.step(c)
		if err != nil {
			t.Fatal(err)
		}
		if changed {
			cuts++
		}
	}
	if cuts == 0 {
		t.Fatal("the trace has no write")
	}
	jobs := make(chan job)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for j := range jobs {
				err := check(j)
				if err == nil {
					err = os.RemoveAll(j.dir)
				}
				mu.Lock()
				done++
				if err != nil {
					found = append(found, fmt.Errorf("%s: %w", j.what, err))
				}
				mu.Unlock()
			}
		})
	}
	d, at, made := newDisk(root, lazy), 0, 0
	for _, c := range calls {
		changed, err := d.step(c)
		if err != nil {
			t.Fatal(err)
		}
		if !changed {
			continue
		}
		at++
		for ; made < n*at/cuts; made++ { // spread over the cuts, more than one each if there are more
			seed := uint64(made)
			dir := filepath.Join(work, strconv.Itoa(made))
			goOn, links := made%100 == 0, cache
			if goOn {
				links = ""
			}
			if err := d.image(rand.New(rand.NewPCG(seed, 6)), dir, links); err != nil {
				t.Fatal(err)
			}
			jobs <- job{dir: dir, acked: d.acked, begun: d.begun, goOn: goOn, decode: made%10 == 0, what: fmt.Sprintf("image %d, cut %d of %d in %s", made, at, cuts, c.name)}
		}
		mu.Lock()
		enough := len(found) >= limit
		mu.Unlock()
		if enough {
			break
		}
	}
	close(jobs)
	wg.Wait()
	return done, found
}

// check opens an image: every acknowledged event is there, nothing is missing
// in between, each is what it must be, and what retention took is in a snapshot.
func check(j job) error {
	last, err := readAll(j.dir, j.decode)
	if errors.Is(err, store.ErrNotALog) && j.acked == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if last < j.acked {
		return fmt.Errorf("record %d was acknowledged, the log ends at %d", j.acked, last)
	}
	if last > j.begun {
		return fmt.Errorf("the log ends at %d, only %d was ever appended", last, j.begun)
	}
	if !j.goOn {
		return nil
	}
	l, rec, err := store.Open(context.Background(), j.dir, store.Options{Node: "n", Boot: 77, SegmentBytes: segmentBytes})
	if err != nil {
		return err
	}
	if rec.LastSeq != last || rec.LostFrom != 0 {
		return errors.Join(fmt.Errorf("open: %+v, a reader saw %d", rec, last), l.Close())
	}
	snap, err := l.LatestSnapshot()
	if err == nil && rec.FirstSeq > 1 && (snap == nil || snap.Seq+1 < rec.FirstSeq) {
		err = fmt.Errorf("the log begins at %d, the snapshot is %+v", rec.FirstSeq, snap)
	}
	for range 3 {
		if err == nil {
			last++
			e := event(last)
			e.Boot, e.Incarnation = 77, rec.Incarnation
			err = l.Append([]*events.Event{e}, events.Sync)
		}
	}
	if err := errors.Join(err, l.Close()); err != nil {
		return err
	}
	after, err := readAll(j.dir, j.decode)
	if err == nil && after != last {
		err = fmt.Errorf("went on to %d, the log ends at %d", last, after)
	}
	return err
}

func readAll(dir string, decode bool) (last uint64, err error) {
	next := uint64(0)
	visit := func(e *events.Event) error {
		if next != 0 && e.Seq != next {
			return fmt.Errorf("record %d, want %d", e.Seq, next)
		}
		next = e.Seq + 1
		want := event(e.Seq)
		want.Node, want.Boot, want.Incarnation, want.PrevHash = "n", e.Boot, e.Incarnation, e.PrevHash
		if e.Seq%16 == 0 && !proto.Equal(e, want) || e.Room != want.Room {
			return fmt.Errorf("record %d is %v", e.Seq, e)
		}
		return nil
	}
	if !decode {
		visit = nil
	}
	info, err := store.ReadDir(dir, 0, visit)
	if err != nil {
		return 0, err
	}
	if info.FirstSeq > 1 {
		held := 0
		for s, err := range store.DirSnapshots(dir) {
			if err != nil {
				return 0, err
			}
			if s.Seq+1 >= info.FirstSeq && string(s.Data) == fmt.Sprintf("state after %d", s.Seq) {
				held++
			}
		}
		if held == 0 {
			return 0, fmt.Errorf("the log begins at %d, no snapshot holds what was before", info.FirstSeq)
		}
	}
	return info.LastSeq, nil
}

// Power fails at every write and sync of three lives of a log, with segment
// rolls, seals, snapshots, retention and the recovery of a killed life.
func TestPowerLossLosesNothingAcknowledged(t *testing.T) {
	root := filepath.Join(t.TempDir(), "log")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	calls := trace(t, root, "killed", "closed", "killed")
	n := imageCount(t)
	done, found := images(t, calls, root, n, 5, false)
	for _, err := range found {
		t.Error(err)
	}
	if len(found) == 0 && done != n {
		t.Errorf("%d images, want %d", done, n)
	}
	t.Logf("%d images, %d wrong", done, len(found))

	// The control: a disk that ignores syncs must be caught.
	done, found = images(t, calls, root, 200, 20, true)
	if len(found) < 10 {
		t.Errorf("a disk that ignores syncs: %d of %d images were found", len(found), done)
	}
}
