package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

// batches is one committer that is given a number of events at a time and waits
// for them: durable events a second.
func batches(dir string, rounds int, slice time.Duration) ([]row, error) {
	var rows []row
	bars := map[int]map[string]float64{ // store.md, targets
		16:   {pebbleDB: 0.45},
		128:  {pebbleDB: 0.45},
		1024: {raw: 0.28, etcdWAL: 0.6}, // pebble: fresh
	}
	for _, n := range []int{16, 128, 1024} {
		order := []string{ownOne, ownTwo, raw, etcdWAL, pebbleDB}
		all, stop, err := startAll(dir, order...)
		if err != nil {
			return nil, err
		}
		got, err := turns(all, order, rounds, func(e engine) (float64, error) { return rate(1, slice, batch(e.(batcher), n)) })
		if err != nil {
			return nil, err
		}
		for _, against := range order[1:] {
			rows = append(rows, row{
				what: fmt.Sprintf("durable events/s, batches of %d", n), own: perSecond(median(got[ownOne])), against: against,
				ratios: over(got[ownOne], got[against]), bar: bars[n][against],
			})
		}
		if err := stop(); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// batch gives an engine n events at once, as a node's loop does, and waits for
// them. They are made before: what is measured is the log.
func batch(e batcher, n int) func(room uint64) (int, error) {
	evs := make([]*events.Event, n)
	for i := range evs {
		evs[i] = event(uint64(i)) //nolint:gosec // small
	}
	return func(uint64) (int, error) {
		last, err := e.putAll(evs)
		if err == nil {
			err = e.wait(last)
		}
		return n, err
	}
}

// fresh is batches of 1,024 with every engine begun anew in each round, and no
// other's work in its background: pebble writes its log into new files then, as
// it did where store.md set the bar, and into used ones later on, which is faster.
func fresh(dir string, rounds int, slice time.Duration) ([]row, error) {
	const n, warm = 1024, 20
	order := []string{ownOne, raw, etcdWAL, pebbleDB}
	got := map[string][]float64{}
	for r := range rounds {
		for i := range order {
			name := order[(i+r)%len(order)]
			v, err := freshRound(dir, name, slice, n, warm)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			got[name] = append(got[name], v)
		}
	}
	var rows []row
	for _, against := range order[1:] {
		rows = append(rows, row{
			what: fmt.Sprintf("durable events/s, batches of %d, begun anew", n), own: perSecond(median(got[ownOne])), against: against,
			ratios: over(got[ownOne], got[against]), bar: map[string]float64{pebbleDB: 1.1}[against], // store.md, targets
		})
	}
	return rows, nil
}

func freshRound(dir, name string, slice time.Duration, n, warm int) (v float64, err error) {
	at, err := os.MkdirTemp(dir, "fresh-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(at)) }()
	e, err := start(name, at)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if name == ownOne {
		if err := spareIsThere(at); err != nil {
			return 0, err
		}
	}
	op := batch(e.(batcher), n)
	for range warm {
		if _, err := op(0); err != nil {
			return 0, err
		}
	}
	return rate(1, slice, op)
}

// spareIsThere waits for the segment that a log below dir prepares.
func spareIsThere(dir string) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-tick.C {
		found, err := filepath.Glob(filepath.Join(dir, "*", "log", "next.tmp"))
		if err != nil {
			return err
		}
		for _, f := range append(found, filepath.Join(dir, "next.tmp")) {
			if st, err := os.Stat(f); err == nil && st.Size() >= 64<<20 {
				return nil
			}
		}
	}
	return errors.New("no segment was prepared ahead")
}

// sectors that were written to the disk that holds dir, by everybody; ok = false
// where that is not known.
func sectors(dir string) (n int64, ok bool) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, false
	}
	b, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return 0, false
	}
	const written = 6
	f := strings.Fields(string(b))
	if len(f) <= written {
		return 0, false
	}
	n, err = strconv.ParseInt(f[written], 10, 64)
	return n, err == nil
}

// written is what this process has given to write and pwrite, in bytes.
func written() (int64, error) {
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "wchar:"); ok {
			return strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		}
	}
	return 0, errors.New("/proc/self/io has no wchar")
}

// device is what is written for a byte of frames, in batches of 1,024: by this
// process, and on the device, which others write to as well. The segments' space
// is written ahead, once, and not counted.
func device(dir string, rounds int) ([]row, error) {
	const what, against = ", batches of 1024", "bytes of frames"
	out := []row{{what: "bytes written" + what, against: against, bar: 1.6, atMost: true}}
	if _, ok := sectors(dir); ok {
		out = append(out, row{what: "bytes on the device, of the whole machine" + what, against: against})
	}
	for r := range rounds {
		at := filepath.Join(dir, fmt.Sprint("device-", r))
		l, rec, err := store.Open(context.Background(), at, store.Options{Node: "n", Boot: 1})
		if err != nil {
			return nil, err
		}
		amp, err := deviceRound(l, at, rec.Incarnation)
		if err := errors.Join(err, l.Close()); err != nil {
			return nil, err
		}
		for i := range out {
			out[i].ratios = append(out[i].ratios, amp[i])
		}
	}
	for i := range out {
		out[i].own = fmt.Sprintf("%.2f", median(out[i].ratios))
	}
	return out, nil
}

func deviceRound(l *store.Log, dir string, incarnation uint64) (amp [2]float64, err error) {
	if err := spareIsThere(dir); err != nil {
		return amp, err
	}
	unix.Sync()
	onDevice, _ := sectors(dir)
	own, err := written()
	if err != nil {
		return amp, err
	}
	n := numbered{}
	evs := make([]*events.Event, 1024)
	for range 300 { // some 20 MiB, less than a segment
		for i := range evs {
			evs[i] = event(n.seq / 20)
			n.stamp(evs[i], 1, incarnation)
		}
		if err := l.Append(evs, events.Sync); err != nil {
			return amp, err
		}
		if err := l.Sync(context.Background()); err != nil {
			return amp, err
		}
	}
	ownAfter, err := written()
	if err != nil {
		return amp, err
	}
	after, _ := sectors(dir)
	var payload float64
	for from := uint64(1); from <= l.Durable(); {
		frames, err := l.ReadFrames(from, 1<<20)
		if err != nil {
			return amp, err
		}
		for _, f := range frames {
			payload += float64(len(f.Data))
			from = f.Info.LastSeq + 1
		}
	}
	const sector = 512
	return [2]float64{float64(ownAfter-own) / payload, float64((after-onDevice)*sector) / payload}, nil
}

// cold is a verified replay of a log that is not in memory, read ahead as the
// store does, and as bbolt maps it.
func cold(dir string, rounds, total int) ([]row, error) {
	at := filepath.Join(dir, "cold")
	if err := os.Mkdir(at, 0o755); err != nil {
		return nil, err
	}
	log, _, err := fill(at, total)
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(log, "*.db"))
	if err != nil {
		return nil, err
	}
	timed := func(read func() error) (float64, error) {
		unix.Sync()
		for _, f := range files {
			if err := forget(f); err != nil {
				return 0, err
			}
		}
		began := time.Now()
		err := read()
		return float64(total) / time.Since(began).Seconds(), err
	}
	var own, mapped []float64
	for range rounds {
		a, err := timed(func() error { _, err := store.StatDir(log); return err })
		if err != nil {
			return nil, err
		}
		b, err := timed(func() error { return walkMapped(files) })
		if err != nil {
			return nil, err
		}
		own, mapped = append(own, a), append(mapped, b)
	}
	return []row{{
		what: "replay with verification, not in memory", own: perSecond(median(own)), against: "through bbolt's mapping, " + perSecond(median(mapped)),
		ratios: over(own, mapped), bar: 5,
	}}, nil
}

// forget drops a file from the page cache.
func forget(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
}

func walkMapped(files []string) error {
	for _, path := range files {
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
		if err != nil {
			return err
		}
		err = db.View(func(tx *bbolt.Tx) error {
			return tx.Bucket(frames).ForEach(func(_, v []byte) error {
				_, err := events.DecodeFrame(v, "", nil)
				return err
			})
		})
		if err := errors.Join(err, db.Close()); err != nil {
			return err
		}
	}
	return nil
}
