package soak

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// sample is a measurement of both nodes.
type sample struct {
	at    time.Duration
	rooms uint64
	p, d  map[string]float64
}

// quantity is something that must not grow.
type quantity struct {
	name, metric string
	slack        float64 // growth that may be noise
	share        float64 // and this share of what it was
	room         float64 // and so much for each room, until the receipts are full
	hour         float64 // and on decode for each room of the last hour: it remembers their numbers
}

// receipts is how many rooms a prefill node remembers at most (projector).
const receipts = 1 << 16

var quantities = []quantity{
	{name: "RSS, MiB", metric: "rss", slack: 32, share: 0.2, room: 3.0 / 1024, hour: 0.5 / 1024},
	{name: "heap in use, MiB", metric: "go_memstats_heap_inuse_bytes", slack: 32 << 20, share: 0.2, room: 3 << 10, hour: 512},
	{name: "goroutines", metric: "go_goroutines", slack: 32, share: 0.2},
	{name: "descriptors", metric: "process_open_fds", slack: 16, share: 0.1},
	{name: "rooms", metric: "pdnode_rooms", slack: 256, share: 0.5},
	{name: "open writes", metric: "pdnode_open_tokens", slack: 64, share: 0.5},
	{name: "effects that wait", metric: "pdnode_effects_pending", slack: 512, share: 1},
	{name: "commands that wait", metric: "pdnode_loop_queue_depth", slack: 512, share: 1},
	{name: "peers", metric: "pdnode_peers"},
}

// window is the median of a quantity in one of the windows: what collection and
// bursts do to single samples is not growth.
func window(samples []sample, i int, of func(sample) float64) float64 {
	part := samples[len(samples)*i/windows : len(samples)*(i+1)/windows]
	v := make([]float64, len(part))
	for k, s := range part {
		v[k] = of(s)
	}
	slices.Sort(v)
	if len(v) == 0 {
		return 0
	}
	return v[len(v)/2]
}

// judge prints the windows, and names what has grown from the second to the last.
func judge(samples []sample) (table string, grown []string) {
	var b strings.Builder
	fmt.Fprintf(&b, "%-4s %-20s", "node", "median of a window")
	for i := range windows {
		fmt.Fprintf(&b, " %8d", i+1)
	}
	b.WriteString("\n")
	rooms := func(i int) float64 { return window(samples, i, func(s sample) float64 { return float64(s.rooms) }) }
	for _, side := range []string{"p0", "d0"} {
		for _, q := range quantities {
			unit := 1.0
			if q.metric == "go_memstats_heap_inuse_bytes" {
				unit = 1 << 20
			}
			at := func(i int) float64 {
				return window(samples, i, func(s sample) float64 {
					if side == "p0" {
						return s.p[q.metric]
					}
					return s.d[q.metric]
				})
			}
			fmt.Fprintf(&b, "%-4s %-20s", side, q.name)
			for i := range windows {
				fmt.Fprintf(&b, " %8.0f", at(i)/unit)
			}
			b.WriteString("\n")
			first, last := at(1), at(windows-1)
			filled := min(rooms(windows-1), receipts) - min(rooms(1), receipts)
			bound := first*(1+q.share) + q.slack + q.room*filled
			if side == "d0" {
				bound += q.hour * (rooms(windows-1) - rooms(1))
			}
			if last > bound {
				grown = append(grown, fmt.Sprintf("%s: %s grew from %.0f to %.0f, above %.0f", side, q.name, first/unit, last/unit, bound/unit))
			}
		}
	}
	fmt.Fprintf(&b, "%-4s %-20s", "", "rooms so far")
	for i := range windows {
		fmt.Fprintf(&b, " %8.0f", rooms(i))
	}
	b.WriteString("\n")
	return b.String(), grown
}

// The control: a map that keeps an entry for every room is found.
func TestALeakIsFound(t *testing.T) {
	var samples []sample
	for i := range 80 {
		m := map[string]float64{"rss": 200, "go_memstats_heap_inuse_bytes": 100 << 20, "go_goroutines": 60, "process_open_fds": 40, "pdnode_peers": 1, "pdnode_rooms": 100}
		leak := map[string]float64{}
		for k, v := range m {
			leak[k] = v
		}
		leak["rss"] += float64(i) * 40                                                                                  // 40,000 rooms a sample, a kilobyte each
		leak["pdnode_rooms"] += float64(i) * 10                                                                         // one in 4,000 stays
		samples = append(samples, sample{at: time.Duration(i) * time.Second, rooms: uint64(i) * 40_000, p: m, d: leak}) //nolint:gosec // small
	}
	_, grown := judge(samples)
	if len(grown) != 2 || !strings.HasPrefix(grown[0], "d0: RSS") || !strings.HasPrefix(grown[1], "d0: rooms") {
		t.Errorf("found %q", grown)
	}
}
