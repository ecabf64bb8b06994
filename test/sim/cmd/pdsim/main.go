// Command pdsim runs seeds of the fleet simulation.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"iter"
	"os"
	"runtime/debug"
	"time"

	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/test/sim"
)

func main() { os.Exit(run()) }

func run() int {
	var (
		first   = flag.Uint64("seed", 1, "first seed")
		count   = flag.Uint64("seeds", 1, "how many seeds")
		nodes   = flag.Int("nodes", 0, "nodes of a fleet (0: drawn, 3 to 5)")
		most    = flag.Int("most-nodes", 0, "draw the fleet's size from 5 to this")
		virtual = flag.Duration("virtual", 0, "virtual length of the safety phase (0: two minutes)")
		rate    = flag.Float64("rate", 0, "rooms a second on each decode node (0: drawn)")
		out     = flag.String("out", "", "write the log of a failing run there, as JSON lines")
		all     = flag.Bool("all", false, "go on after a failure")
		verbose = flag.Bool("v", false, "print each run, its faults and its probes")
	)
	jobs := flag.Int("j", 1, "runs at once")
	asJSON := flag.Bool("json", false, "end with the summary as one JSON object")
	flag.Parse()
	if os.Getenv("GOGC") == "" { // a run keeps all it has seen, and is over soon
		debug.SetGCPercent(1000)
		debug.SetMemoryLimit(3 << 30)
	}
	var total sim.Total
	start := time.Now()
	one := func(seed uint64) sim.Result {
		cfg := sim.Config{Seed: seed, Nodes: *nodes, Safety: *virtual, Rate: *rate}
		if *most > 0 {
			cfg.Nodes = 5 + int(seed*2654435761%uint64(max(*most-4, 1))) //nolint:gosec // small
		}
		began := time.Now()
		r := sim.Run(cfg)
		r.Took = time.Since(began)
		return r
	}
	for r := range runs(*first, *count, *jobs, one) {
		total.Add(&r)
		if *verbose || r.Failure != nil {
			fmt.Println(r.Line(commit()))
		}
		if r.Failure != nil && *out != "" {
			if n, err := replay.Export(*out, r.Log()); err != nil {
				fmt.Fprintln(os.Stderr, err)
			} else {
				fmt.Printf("%d events in %s\n", n, *out)
			}
		}
		if r.Failure != nil && !*all {
			break
		}
	}
	fmt.Print(total.Text(time.Since(start), *verbose))
	if *asJSON {
		b, err := json.Marshal(total)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(string(b))
	}
	if total.Failed > 0 {
		return 1
	}
	return 0
}

// runs gives the results of seeds in their order, some of them run at once.
func runs(first, count uint64, jobs int, one func(uint64) sim.Result) iter.Seq[sim.Result] {
	return func(yield func(sim.Result) bool) {
		line := make(chan chan sim.Result, max(jobs, 1)-1) // its room bounds those under way
		stop := make(chan struct{})
		go func() {
			defer close(line)
			for seed := first; seed < first+count; seed++ {
				c := make(chan sim.Result, 1)
				select {
				case line <- c:
				case <-stop:
					return
				}
				go func() { c <- one(seed) }()
			}
		}()
		defer close(stop)
		for c := range line {
			if !yield(<-c) {
				return
			}
		}
	}
}

func commit() string {
	if bi, ok := debug.ReadBuildInfo(); ok {
		for _, s := range bi.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return s.Value[:12]
			}
		}
	}
	return "unknown"
}
