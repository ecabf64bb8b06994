package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

// fill writes a log of total events, and the same frames one behind the other
// into a plain file.
func fill(dir string, total int) (log, plain string, err error) {
	log, plain = filepath.Join(dir, "filled"), filepath.Join(dir, "frames")
	l, rec, err := store.Open(context.Background(), log, store.Options{Node: "n", Boot: 1})
	if err != nil {
		return "", "", err
	}
	n := numbered{}
	evs := make([]*events.Event, 1000)
	for n.seq < uint64(total) {
		for i := range evs {
			evs[i] = event(n.seq / 20)
			n.stamp(evs[i], 1, rec.Incarnation)
		}
		if err := l.Append(evs, events.Group); err != nil {
			return "", "", errors.Join(err, l.Close())
		}
		if l.Pressure() > 0.5 {
			if err := l.Sync(context.Background()); err != nil {
				return "", "", errors.Join(err, l.Close())
			}
		}
	}
	err = l.Sync(context.Background())
	if err == nil {
		err = copyFrames(l, plain)
	}
	return log, plain, errors.Join(err, l.Close())
}

func copyFrames(l *store.Log, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	for from := uint64(1); from <= l.Durable(); {
		frames, err := l.ReadFrames(from, 1<<20)
		if err != nil {
			return errors.Join(err, f.Close())
		}
		for _, fr := range frames {
			if _, err := w.Write(fr.Data); err != nil {
				return errors.Join(err, f.Close())
			}
			from = fr.Info.LastSeq + 1
		}
	}
	return errors.Join(w.Flush(), f.Close())
}

// bareRead reads a file of frames record by record, each into memory, and looks
// at nothing: no checksum, no chain, no sequence, no event.
func bareRead(path string) (n int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<20)
	var head [44]byte
	var rec []byte
	for {
		if _, err := io.ReadFull(r, head[:]); err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
		count := int(binary.LittleEndian.Uint16(head[2:]))
		for range count {
			size, err := binary.ReadUvarint(r)
			if err == nil {
				_, err = binary.ReadUvarint(r) // clock
			}
			if err == nil {
				rec = slices.Grow(rec[:0], int(size))[:size] //nolint:gosec // a record
				_, err = io.ReadFull(r, rec)
			}
			if err != nil {
				return n, err
			}
			n++
		}
		if _, err := r.Discard(4); err != nil {
			return n, err
		}
	}
}

// replay reads a log back on one core: checksums, sequence and chain verified,
// with and without decoding every event. Rates are by CPU time. What has to be
// decoded is not compared with a bare read but with the bar itself: reading a
// record takes a few ns, and an event is five pieces of memory.
func replay(dir string, rounds, total int) ([]row, error) {
	log, plain, err := fill(dir, total)
	if err != nil {
		return nil, err
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // as pdreplay verify has it
	ways := []struct {
		name string
		read func() (int, error)
	}{
		{"verified", func() (int, error) { in, err := store.StatDir(log); return int(in.LastSeq), err }}, //nolint:gosec // a count
		{"decoded", func() (n int, err error) {
			_, err = store.ReadDir(log, 0, func(*events.Event) error { n++; return nil })
			return n, err
		}},
		{"bare", func() (int, error) { return bareRead(plain) }},
	}
	got := map[string][]float64{}
	for r := -1; r < rounds; r++ {
		for i := range ways {
			w := ways[(i+max(r, 0))%len(ways)]
			runtime.GC()
			began := processTime()
			n, err := w.read()
			if err != nil || n < total {
				return nil, fmt.Errorf("%s: %d of %d events: %w", w.name, n, total, err)
			}
			if r >= 0 {
				got[w.name] = append(got[w.name], float64(n)*1e9/float64(processTime()-began))
			}
		}
	}
	bare := "bare read of the same frames, " + perSecond(median(got["bare"]))
	line := func(what, way, against string, ratios []float64, bar float64) row {
		return row{what: what, own: perSecond(median(got[way])), against: against, ratios: ratios, bar: bar}
	}
	const wanted = 3e6 // events a second and core
	absolute := make([]float64, rounds)
	for i, v := range got["decoded"] {
		absolute[i] = v / wanted
	}
	return []row{
		line("replay with verification, a second of CPU", "verified", bare, over(got["verified"], got["bare"]), 0.5),
		line("the same, every event decoded", "decoded", perSecond(wanted), absolute, 1),
		line("the same, every event decoded", "decoded", bare, over(got["decoded"], got["bare"]), 0),
	}, nil
}

// appends is what a Group event costs its caller, in time of its thread: what
// the committer does meanwhile is not the caller's. The bar is absolute
// (store.md, targets).
func appends(dir string, rounds int) ([]row, error) {
	cost := row{what: "append of a Group event, CPU of the caller", against: "600 ns", bar: 1, atMost: true}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var ns []float64
	for range rounds {
		l, rec, err := store.Open(context.Background(), filepath.Join(dir, fmt.Sprint("append-", len(ns))), store.Options{Node: "n", Boot: 1})
		if err != nil {
			return nil, err
		}
		n, one := numbered{}, []*events.Event{event(1)}
		const parts, each = 40, 5000
		var took int64
		for i := range parts {
			began := threadTime()
			for range each {
				n.stamp(one[0], 1, rec.Incarnation)
				if err := l.Append(one, 0); err != nil {
					return nil, errors.Join(err, l.Close())
				}
			}
			if i > 0 { // the first one grows the buffers
				took += threadTime() - began
			}
			if err := l.Sync(context.Background()); err != nil {
				return nil, errors.Join(err, l.Close())
			}
		}
		if err := l.Close(); err != nil {
			return nil, err
		}
		v := float64(took) / float64((parts-1)*each)
		ns = append(ns, v)
		cost.ratios = append(cost.ratios, v/600)
	}
	cost.own = fmt.Sprintf("%.0f ns", median(ns))
	return []row{cost}, nil
}

// processTime is the CPU time of all threads, in ns: what other processes of the
// machine do is not in it.
func processTime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// threadTime is the CPU time of this thread, in ns.
func threadTime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}
