// Command pdscale runs the same load per node on fleets of growing size, and
// says what a room costs in events, bytes and CPU time in each: the figures
// behind docs/scale.md.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store/mirror"
	"github.com/pdlog/pdlog/test/sim"
)

func main() {
	sizes := flag.String("nodes", "10,100,1000", "sizes of the fleets")
	virtual := flag.Duration("virtual", 60*time.Second, "virtual length of each run's safety phase")
	rate := flag.Float64("rate", 2, "rooms a second on each decode node")
	seed := flag.Uint64("seed", 3, "decides everything that is random")
	each := flag.Float64("fleet-rate", 10, "rooms a second on each decode node of the fleet that is computed")
	flag.Parse()
	if err := run(*sizes, *virtual, *rate, *seed, *each); err != nil {
		fmt.Fprintln(os.Stderr, "pdscale:", err)
		os.Exit(1)
	}
}

// cost is what one run came to.
type cost struct {
	nodes                            int
	rooms, events, bytes, milestones uint64
	cpu                              time.Duration
}

func run(sizes string, virtual time.Duration, rate float64, seed uint64, each float64) error {
	fmt.Println("| nodes | rooms | events a room | log bytes an event | milestones a room | CPU µs an event |")
	fmt.Println("| --- | --- | --- | --- | --- | --- |")
	var last cost
	for s := range strings.SplitSeq(sizes, ",") {
		n, err := strconv.Atoi(s)
		if err != nil {
			return fmt.Errorf("size of a fleet: %w", err)
		}
		// Small fleets run until they have seen as many rooms as a hundred nodes.
		c := cost{nodes: n}
		for more := range uint64(max(1, 100/n)) {
			if err := c.add(sim.Config{Seed: seed + more, Nodes: n, Safety: virtual, Rate: rate}); err != nil {
				return err
			}
		}
		fmt.Printf("| %d | %d | %.1f | %.1f | %.2f | %.1f |\n", n, c.rooms, per(c.events, c.rooms), per(c.bytes, c.events),
			per(c.milestones, c.rooms), float64(c.cpu.Microseconds())/float64(c.events))
		last = c
	}
	decode := float64(last.nodes) / 2
	rooms := decode * each
	fmt.Printf("\n%d nodes, half of them decode, %g rooms a second on each: %.0f rooms/s, %.0f events/s, %.1f MB/s of log, %.0f milestones/s, on %d log subjects.\n",
		last.nodes, each, rooms, rooms*per(last.events, last.rooms), rooms*per(last.bytes, last.rooms)/1e6, rooms*per(last.milestones, last.rooms), last.nodes)
	return nil
}

func per(a, b uint64) float64 { return float64(a) / float64(max(b, 1)) }

func (c *cost) add(cfg sim.Config) error {
	before := cpuTime()
	r := sim.Run(cfg)
	c.cpu += cpuTime() - before
	if r.Failure != nil {
		return fmt.Errorf("%d nodes, seed %d: %s", cfg.Nodes, cfg.Seed, r.Line(""))
	}
	c.rooms, c.events = c.rooms+r.Rooms, c.events+r.Events
	writers := map[string]*events.FrameWriter{}
	for e, err := range r.Log() {
		if err != nil {
			return err
		}
		w := writers[e.Node]
		if w == nil || w.Position().Seq+1 != e.Seq { // a log that begins, or a new one after a wiped disk
			if w != nil {
				c.bytes += uint64(w.Bytes()) //nolint:gosec // a size
			}
			w = events.NewFrameWriter(events.Position{Seq: e.Seq - 1})
			writers[e.Node] = w
		}
		if err := w.Append(e); err != nil {
			return err
		}
		if mirror.IsMilestone(e) {
			c.milestones++
		}
	}
	for _, w := range writers {
		c.bytes += uint64(w.Bytes()) //nolint:gosec // a size
	}
	return nil
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
