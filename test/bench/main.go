// Command bench measures the log beside what else could hold it, and beside the
// disk itself: the store rows of the README's table. Every ratio is of one run
// and one framing, the median of rounds in which all engines take turns;
// absolute figures say little on a shared machine. It is a module of its own so
// that pebble and etcd stay out of the product's go.mod.
//
//	make bench-store
package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/pdlog/pdlog/store"
)

// row is one line of the table.
type row struct {
	what, against string
	ratios        []float64 // one per round
	bar           float64   // 0: for information
	atMost        bool      // the ratio may be at most bar, else at least
	own           string
}

func main() {
	store.VerifyMain()
	rounds := flag.Int("rounds", 7, "rounds in which the engines take turns")
	slice := flag.Duration("slice", 300*time.Millisecond, "how long an engine runs in a round")
	total := flag.Int("events", 1_000_000, "events of the log that is read back")
	dir := flag.String("dir", "", "where the logs are written; default the directory for temporary files")
	only := flag.String("only", "", "commit, producers, rooms, batches, fresh, device, replay, cold, append or reopen; default all but reopen")
	profile := flag.String("cpuprofile", "", "write a CPU profile of the whole run to this file")
	others := flag.String("rows", "", "a file with rows of pdnode bench -o json, which are printed first")
	flag.Parse()
	before, err := readRows(*others)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(3)
		}
	}
	rows, err := run(*dir, *only, *rounds, *slice, *total)
	pprof.StopCPUProfile()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(3)
	}
	if !print(before, rows, *rounds) {
		os.Exit(1)
	}
}

func run(dir, only string, rounds int, slice time.Duration, total int) ([]row, error) {
	work, err := os.MkdirTemp(dir, "pdlog-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	var rows []row
	for _, part := range []struct {
		name string
		run  func() ([]row, error)
	}{
		{"commit", func() ([]row, error) { return commits(work, rounds) }},
		{"producers", func() ([]row, error) { return producers(work, rounds, slice) }},
		{"rooms", func() ([]row, error) { return rooms(work, rounds, slice) }},
		{"batches", func() ([]row, error) { return batches(work, rounds, slice) }},
		{"fresh", func() ([]row, error) { return fresh(work, rounds, slice) }},
		{"device", func() ([]row, error) { return device(work, rounds) }},
		{"replay", func() ([]row, error) { return replay(work, rounds, total) }},
		{"cold", func() ([]row, error) { return cold(work, min(rounds, 5), total) }},
		{"append", func() ([]row, error) { return appends(work, rounds) }},
		{"reopen", func() ([]row, error) { return reopen(work, rounds, total) }},
	} {
		if only != part.name && (only != "" || part.name == "reopen") {
			continue
		}
		fmt.Fprintln(os.Stderr, "bench:", part.name)
		out, err := part.run()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part.name, err)
		}
		rows = append(rows, out...)
	}
	return rows, nil
}

func median[T cmp.Ordered](v []T) T {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// print writes the table; false when a row is short of its bar.
func print(before []said, rows []row, rounds int) bool {
	fmt.Printf("%s/%s, %d cores, %s, %d rounds\n\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), rounds)
	fmt.Println("| what | measured | against | ratio, median (min to max) | bar | |")
	fmt.Println("| --- | --- | --- | --- | --- | --- |")
	ok := printSaid(before)
	for _, r := range rows {
		m := median(r.ratios)
		bar, verdict := "", ""
		if r.bar != 0 {
			bar, verdict = fmt.Sprintf("at least %.2f", r.bar), "pass"
			if r.atMost {
				bar = fmt.Sprintf("at most %.2f", r.bar)
			}
			if r.atMost == (m > r.bar) && m != r.bar {
				verdict, ok = "**short**", false
			}
		}
		fmt.Printf("| %s | %s | %s | %.2f (%.2f to %.2f) | %s | %s |\n",
			r.what, r.own, r.against, m, slices.Min(r.ratios), slices.Max(r.ratios), bar, verdict)
	}
	return ok
}
