package fleetlog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

// epoch is the wall time of millisecond 0: 2026-01-01T00:00:00Z, in unix ms.
const epoch = 1_767_225_600_000

const (
	roomPages  = 16
	chunkPages = 4
	batchSize  = 1024 // events handed to a log at a time

	// A segment takes its whole size at once (store.md 5): a small fleet gets small ones.
	maxSegment = 64 << 20
)

// Options is what a fleet looks like. A zero field takes its default.
type Options struct {
	Seed    uint64
	Events  int // at least so many over all nodes, every room told to its end
	Prefill int // prefill nodes (2), each with Ranks ranks
	Decode  int // decode nodes (1)
	Ranks   int // prefill ranks a node (2)
	Open    int // rooms under way at a time on each decode node (32)
	// Incidents are spread over the history.
	Incidents int
	// AbortPercent of the rooms are aborted and acknowledged (20).
	AbortPercent int
}

func (o Options) withDefaults() Options {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.Prefill, 2)
	def(&o.Decode, 1)
	def(&o.Ranks, 2)
	def(&o.Open, 32)
	def(&o.AbortPercent, 20)
	return o
}

// Incident is the truth about one late write: it hit Pages of the victim.
type Incident struct {
	Node       string // decode node
	Pages      []uint32
	Victim     uint64 // room numbers
	WriterRoom uint64
	Writer     string // prefill rank
	Chunk      uint32
}

// Fleet is what was written.
type Fleet struct {
	Dir       string // DIR/<node>/log
	Nodes     []string
	Events    int
	Rooms     int
	Incidents []Incident
}

// Write makes the logs of a fleet below dir. The same options give the same
// events.
func Write(ctx context.Context, dir string, o Options) (f *Fleet, err error) {
	g := newGenerator(o.withDefaults())
	g.fleet.Dir = dir
	defer func() {
		for _, n := range g.nodes {
			if n.log != nil {
				err = errors.CombineErrors(err, n.log.Close())
			}
		}
	}()
	g.emit = func(n *node, evs []*events.Event) error { return n.append(ctx, dir, evs) }
	if err := g.run(); err != nil {
		return nil, err
	}
	for _, n := range g.nodes {
		if err := n.log.Sync(ctx); err != nil {
			return nil, err
		}
	}
	return &g.fleet, nil
}

// Stream tells the events of a fleet in causal order, without a log.
func Stream(o Options, visit func(*events.Event) error) (*Fleet, error) {
	g := newGenerator(o.withDefaults())
	g.emit = func(_ *node, evs []*events.Event) error {
		for _, e := range evs {
			if err := visit(e); err != nil {
				return err
			}
		}
		return nil
	}
	g.batch = 1
	if err := g.run(); err != nil {
		return nil, err
	}
	return &g.fleet, nil
}

// node is one log that grows.
type node struct {
	name string
	boot uint64
	at   events.Position
	log  *store.Log
	wait []*events.Event

	segment int64
}

func (n *node) append(ctx context.Context, dir string, evs []*events.Event) error {
	if n.log == nil {
		path := filepath.Join(dir, n.name, "log")
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return errors.Wrap(err, "make data directory")
		}
		log, _, err := store.Open(ctx, path, store.Options{Node: n.name, Boot: n.boot, SegmentBytes: n.segment})
		if err != nil {
			return errors.Wrapf(err, "open the log of %s", n.name)
		}
		n.log = log
	}
	if n.log.Full() {
		if err := n.log.Sync(ctx); err != nil {
			return err
		}
	}
	return n.log.Append(evs, events.Group)
}

type generator struct {
	o     Options
	dice  *rand.Rand
	nodes []*node
	emit  func(*node, []*events.Event) error
	batch int
	err   error
	fleet Fleet

	micros     uint64 // virtual time
	room       uint64
	generation uint64
	decodes    []*decode
}

// decode is a decode node with its free pages.
type decode struct {
	*node
	free    []uint32
	prefill []*node
	rank    string
}

func newGenerator(o Options) *generator {
	g := &generator{o: o, batch: batchSize, dice: rand.New(rand.NewPCG(o.Seed, 7))} //nolint:gosec // a test's dice
	var prefill []*node
	add := func(name string) *node {
		n := &node{name: name, boot: uint64(len(g.nodes) + 1), segment: min(max(int64(o.Events)*100, 1<<20), maxSegment)} //nolint:gosec // small
		g.nodes = append(g.nodes, n)
		g.fleet.Nodes = append(g.fleet.Nodes, name)
		return n
	}
	for i := range o.Prefill {
		prefill = append(prefill, add(fmt.Sprintf("p%d", i)))
	}
	for i := range o.Decode {
		d := &decode{node: add(fmt.Sprintf("d%d", i)), prefill: prefill}
		d.rank = d.name + "/0"
		for p := range 2 * roomPages * (o.Open + 1) {
			d.free = append(d.free, uint32(p)) //nolint:gosec // small
		}
		g.decodes = append(g.decodes, d)
	}
	return g
}

// run starts every node and tells rooms until there are events enough.
func (g *generator) run() error {
	for i, n := range g.nodes {
		role := events.Role_ROLE_PREFILL
		if i >= g.o.Prefill {
			role = events.Role_ROLE_DECODE
		}
		id := make([]byte, 16)
		copy(id, n.name)
		g.put(n, &events.Event{Payload: &events.Event_NodeStarted{NodeStarted: &events.NodeStarted{
			Role: role, LogId: id, Ranks: uint64(g.o.Ranks), Pages: uint64(2 * roomPages * (g.o.Open + 1)), Policy: events.Policy_POLICY_TIMEOUT, Version: "test", //nolint:gosec // small
		}}})
	}
	every := g.o.Events
	if g.o.Incidents > 0 {
		every = g.o.Events / g.o.Incidents
	}
	next := every / 2
	type life struct {
		steps []func()
		d     *decode
	}
	open := make([]life, 0, g.o.Open*len(g.decodes))
	for g.err == nil && (g.fleet.Events < g.o.Events || len(open) > 0) {
		for len(open) < cap(open) && g.fleet.Events < g.o.Events {
			d := g.decodes[len(open)%len(g.decodes)]
			steps := g.healthy(d)
			if g.o.Incidents > len(g.fleet.Incidents) && g.fleet.Events >= next {
				next += every
				steps = g.incident(d)
			}
			open = append(open, life{steps, d})
		}
		i := g.dice.IntN(len(open))
		g.micros += uint64(g.dice.IntN(200))
		open[i].steps[0]()
		if open[i].steps = open[i].steps[1:]; len(open[i].steps) == 0 {
			open[i] = open[len(open)-1]
			open = open[:len(open)-1]
		}
	}
	for _, n := range g.nodes {
		g.flush(n)
	}
	return g.err
}

// put appends one event to a node's log.
func (g *generator) put(n *node, e *events.Event) *events.Event {
	e.Node, e.Boot, e.Incarnation = n.name, n.boot, 1
	e.Seq = n.at.Seq + 1
	if e.Room != 0 && e.RoomSeq == 0 {
		e.RoomSeq = e.Seq
	}
	e.Hlc = uint64(events.HLC(n.at.HLC).Next(epoch + g.micros/1000))
	n.at.Seq, n.at.HLC = e.Seq, e.Hlc
	g.fleet.Events++
	n.wait = append(n.wait, e)
	if len(n.wait) >= g.batch {
		g.flush(n)
	}
	return e
}

func (g *generator) flush(n *node) {
	if g.err == nil && len(n.wait) > 0 {
		g.err = g.emit(n, n.wait)
	}
	n.wait = n.wait[:0]
}
