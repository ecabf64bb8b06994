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
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
	"github.com/pdlog/pdlog/test/ladder"
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
func trace(t *testing.T, root, mode string, lives ...string) []*call {
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
		cmd.Env = append(os.Environ(), writerEnv+"="+life+" "+mode+" "+root, "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=1")
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
// the errors found by look. It stops at limit errors. disk makes what the calls
// begin on.
func images(t *testing.T, calls []*call, begin func() *disk, n, limit int, look func(job) error) (done int, found []error) {
	t.Helper()
	work := workDir(t)
	cache := filepath.Join(work, "settled")
	if err := os.Mkdir(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	cuts := 0
	count := begin()
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
				err := look(j)
				err = errors.Join(err, os.RemoveAll(j.dir))
				mu.Lock()
				done++
				if err != nil {
					found = append(found, fmt.Errorf("%s: %w", j.what, err))
				}
				mu.Unlock()
			}
		})
	}
	d, at, made := begin(), 0, 0
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
// rolls, seals, snapshots, retention and the recovery of a killed life; then
// again inside the recoveries of images that a power loss tore, and in the lives
// that follow them.
func TestPowerLossLosesNothingAcknowledged(t *testing.T) {
	root := filepath.Join(t.TempDir(), "log")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	n := imageCount(t)
	calls := trace(t, root, "one-sync", "killed", "closed", "killed")
	// With what retention took, three segments at least were written.
	for pattern, least := range map[string]int{"*.db": 2, "*.snap": 2} {
		if names, err := filepath.Glob(filepath.Join(root, pattern)); err != nil || len(names) < least {
			t.Fatalf("the lives left %d of %s, want %d at least: too little was rolled and kept", len(names), pattern, least)
		}
	}
	if info, err := store.StatDir(root); err != nil || info.FirstSeq == 1 {
		t.Fatalf("the log is %+v, %v: retention took nothing", info, err)
	}
	var torn tornImages
	first := n * 6 / 10
	expect(t, "three lives", calls, func() *disk { return newDisk(root, false) }, first, torn.check(t))
	if len(torn.kept) == 0 {
		t.Fatalf("no image of %d was read from the root before the newest: the fallback was not tried", first)
	}
	t.Logf("%d images were read from the root before the newest", torn.count.Load())
	for _, im := range torn.kept {
		calls := trace(t, im.dir, "one-sync", "short", "short")
		expect(t, "recovery", calls, func() *disk {
			d := newDisk(im.dir, false)
			if err := d.load(im.copy); err != nil {
				t.Fatal(err)
			}
			d.acked, d.begun = im.acked, im.begun
			return d
		}, n*3/10/len(torn.kept), check)
	}
	two := filepath.Join(t.TempDir(), "log")
	if err := os.Mkdir(two, 0o755); err != nil {
		t.Fatal(err)
	}
	expect(t, "two syncs", trace(t, two, "two-sync", "killed", "killed"), func() *disk { return newDisk(two, false) }, n/10, check)

	// The controls. A disk that ignores syncs must be caught.
	start := time.Now()
	done, found := images(t, calls, func() *disk { return newDisk(root, true) }, 200, 20, check)
	report(t, "crash controls", "a disk that ignores syncs", done, len(found), start)
	if len(found) < 10 {
		t.Errorf("a disk that ignores syncs: %d of %d images were found", len(found), done)
	}
	// A reader that takes whatever tree is whole in itself loses acknowledged
	// events, and one that takes only the newest root cannot read: the tip is what
	// makes one sync enough.
	done, found = images(t, calls, func() *disk { return newDisk(root, false) }, 2000, 2000, naive)
	lost, refused := 0, 0
	for _, err := range found {
		if errors.Is(err, errNaiveLoss) {
			lost++
		} else {
			refused++
		}
	}
	if lost == 0 || refused == 0 {
		t.Errorf("without the tip, of %d images %d lost acknowledged events and %d had a newest root that cannot be read: the test provokes nothing", done, lost, refused)
	}
	t.Logf("without the tip, of %d images %d lost acknowledged events, %d had a newest root that cannot be read", done, lost, refused)
}

// report counts images: each is a fault.
func report(t *testing.T, rung, what string, images, found int, start time.Time) {
	t.Helper()
	ladder.Report(t, ladder.Row{
		Rung: rung, What: what, Runs: uint64(images), Faults: uint64(images), Found: uint64(found), Took: time.Since(start), //nolint:gosec // counts
	})
}

func expect(t *testing.T, what string, calls []*call, begin func() *disk, n int, look func(job) error) {
	t.Helper()
	start := time.Now()
	done, found := images(t, calls, begin, n, 5, look)
	for _, err := range found {
		t.Errorf("%s: %v", what, err)
	}
	if len(found) == 0 && done != n {
		t.Errorf("%s: %d images, want %d", what, done, n)
	}
	report(t, "crash images", what, done, len(found), start)
}

// tornImages keeps a few of the images whose newest root is torn.
type tornImages struct {
	mu    sync.Mutex
	kept  []tornImage
	count atomic.Int64
}

type tornImage struct {
	dir, copy    string // a writer lives in dir; copy stays as it was
	acked, begun uint64
}

const keepTorn = 4

func (k *tornImages) check(t *testing.T) func(job) error {
	return func(j job) error {
		if err := check(j); err != nil || j.goOn || !isTorn(j.dir) {
			return err
		}
		if n := k.count.Add(1); n%20 != 1 || n/20 >= keepTorn {
			return nil
		}
		base := t.TempDir()
		im := tornImage{dir: filepath.Join(base, "log"), copy: filepath.Join(base, "copy"), acked: j.acked, begun: j.begun}
		if err := errors.Join(os.CopyFS(im.dir, os.DirFS(j.dir)), os.CopyFS(im.copy, os.DirFS(j.dir))); err != nil {
			return err
		}
		k.mu.Lock()
		k.kept = append(k.kept, im)
		k.mu.Unlock()
		return nil
	}
}

// isTorn: bbolt's own choice, the newest root, is not the one a reader takes.
func isTorn(dir string) bool {
	newest, err := newestWalk(dir)
	if err != nil {
		return true
	}
	info, err := store.StatDir(dir)
	return err == nil && newest != info.LastSeq
}
