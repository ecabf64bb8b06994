package mirror

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/errors"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

// Filter selects logs on the stream; "" matches any.
type Filter struct {
	Cluster string
	Node    string
}

// Item is one event read from the stream.
type Item struct {
	Cluster string
	LogID   store.LogID
	Event   *events.Event // Event.Node is the node
}

// FindingKind says what is wrong with a mirror.
type FindingKind string

// Kinds of findings (events.md I10).
const (
	FindingGap       FindingKind = "gap"       // sequences are missing
	FindingDuplicate FindingKind = "duplicate" // sequences came again; they are not handed on
	FindingChain     FindingKind = "chain"     // the chain does not continue: other events than the log had
	FindingMessage   FindingKind = "message"   // a message that does not decode or whose headers do not fit it
	FindingOtherLog  FindingKind = "other_log" // the node name goes on with another log
)

// Finding is one thing that keeps a mirror from being the log.
type Finding struct {
	Kind      FindingKind
	Cluster   string
	Node      string
	LogID     store.LogID
	StreamSeq uint64 // message it was found at
	Have      uint64 // first sequence of the message
	Want      uint64 // sequence that had to come next
	Detail    string
}

// String is one line.
func (f Finding) String() string {
	return fmt.Sprintf("%s: %s/%s log %s message %d: have %d, want %d%s", f.Kind, f.Cluster, f.Node, f.LogID, f.StreamSeq, f.Have, f.Want, f.Detail)
}

// findingsKept bounds the memory of a very broken stream.
const findingsKept = 1000

// Read hands every event of the matching logs to visit, those of one log in
// order and each once, up to where the stream ended when Read was called.
// Gaps, duplicates and damage come back as findings, never papered over; only
// the first 1000 are kept. An error is the connection's, the context's or
// visit's own.
func Read(ctx context.Context, nc *nats.Conn, f Filter, visit func(Item) error) ([]Finding, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, errors.Wrap(err, "read mirror")
	}
	s, err := ask(ctx, func(ctx context.Context) (jetstream.Stream, error) { return js.Stream(ctx, StreamLog) })
	if err != nil {
		return nil, errors.Wrapf(err, "read mirror: stream %s", StreamLog)
	}
	filter := filterLog(f.Cluster, f.Node)
	last, err := findLast(ctx, s, filter)
	if err != nil || last == nil {
		return nil, err
	}
	r := reader{visit: visit, at: map[logKey]events.Position{}, current: map[nodeKey]store.LogID{}}
	err = walk(ctx, js, StreamLog, filter, last.Sequence, false, r.message)
	return r.findings, err
}

type nodeKey struct{ cluster, node string }

type logKey struct {
	nodeKey
	id store.LogID
}

type reader struct {
	visit    func(Item) error
	at       map[logKey]events.Position
	current  map[nodeKey]store.LogID
	findings []Finding
}

func (r *reader) find(f Finding) {
	if len(r.findings) < findingsKept {
		r.findings = append(r.findings, f)
	}
}

func (r *reader) message(msg jetstream.Msg, streamSeq uint64) error {
	cluster, node, ok := SplitLog(msg.Subject())
	f := Finding{Kind: FindingMessage, Cluster: cluster, Node: node, StreamSeq: streamSeq}
	h, err := parseLogHead(msg.Headers())
	if !ok || err != nil {
		f.Detail = fmt.Sprintf(": subject %s: %v", msg.Subject(), err)
		r.find(f)
		return nil
	}
	nk := nodeKey{cluster, node}
	key := logKey{nk, h.logID}
	at, known := r.at[key]
	f.LogID, f.Have, f.Want = h.logID, h.first, at.Seq+1
	if old, had := r.current[nk]; had && old != h.logID {
		g := f
		g.Kind, g.Detail = FindingOtherLog, fmt.Sprintf(": log %s came before", old)
		r.find(g)
	}
	r.current[nk] = h.logID
	switch {
	case h.first > at.Seq+1: // from 1 on, for a log not seen yet
		g := f
		g.Kind = FindingGap
		r.find(g)
	case h.first <= at.Seq:
		g := f
		g.Kind, g.Detail = FindingDuplicate, fmt.Sprintf(": up to %d", h.last)
		r.find(g)
	case known && h.chainBefore != at.Chain:
		g := f
		g.Kind, g.Detail = FindingChain, fmt.Sprintf(": chain broken: have %08x, want %08x", h.chainBefore, at.Chain)
		r.find(g)
	}
	var own error
	first, last, err := events.DecodeFrames(msg.Data(), node, func(e *events.Event) error {
		if e.Seq <= at.Seq {
			return nil
		}
		own = r.visit(Item{Cluster: cluster, LogID: h.logID, Event: e})
		return own
	})
	if own != nil {
		return own
	}
	switch {
	case err != nil:
		f.Detail = fmt.Sprintf(": %v", err)
		r.find(f)
	case h.node != node || first.FirstSeq != h.first || last.LastSeq != h.last || first.PrevChain != h.chainBefore || last.Chain != h.chain ||
		first.Boot != h.boot || last.Boot != h.boot || first.Incarnation != h.incarnation || last.Incarnation != h.incarnation:
		f.Detail = fmt.Sprintf(": headers do not fit the frames %d to %d", first.FirstSeq, last.LastSeq)
		r.find(f)
	}
	if h.last > at.Seq {
		r.at[key] = events.Position{Seq: h.last, Chain: h.chain}
	}
	return nil
}

// NodeInfo is where the log of a node ends on the stream.
type NodeInfo struct {
	Cluster     string
	Node        string
	LogID       store.LogID
	LastSeq     uint64
	Chain       uint32 // after LastSeq
	Boot        uint64
	Incarnation uint64
	Messages    uint64
}

// Nodes lists the nodes on the stream, by cluster and name; cluster "" is all.
func Nodes(ctx context.Context, nc *nats.Conn, cluster string) ([]NodeInfo, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, errors.Wrap(err, "list mirrored nodes")
	}
	s, err := ask(ctx, func(ctx context.Context) (jetstream.Stream, error) { return js.Stream(ctx, StreamLog) })
	if err != nil {
		return nil, errors.Wrapf(err, "list mirrored nodes: stream %s", StreamLog)
	}
	info, err := ask(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) {
		return s.Info(ctx, jetstream.WithSubjectFilter(filterLog(cluster, "")))
	})
	if err != nil {
		return nil, errors.Wrap(err, "list mirrored nodes")
	}
	var out []NodeInfo
	for subject, n := range info.State.Subjects {
		c, node, ok := SplitLog(subject)
		if !ok {
			continue
		}
		in, ok, err := lastOf(ctx, s, c, node)
		if err != nil {
			return nil, err
		}
		if ok {
			in.Messages = n
			out = append(out, in)
		}
	}
	slices.SortFunc(out, func(a, b NodeInfo) int {
		if c := strings.Compare(a.Cluster, b.Cluster); c != 0 {
			return c
		}
		return strings.Compare(a.Node, b.Node)
	})
	return out, nil
}

// LastOf says what the mirror remembers of a node; ok is false if it knows
// none of that name. A node with an empty log asks this before it serves
// (events.md, unknown past).
func LastOf(ctx context.Context, nc *nats.Conn, cluster, node string) (in NodeInfo, ok bool, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return NodeInfo{}, false, errors.Wrap(err, "ask the mirror")
	}
	s, err := ask(ctx, func(ctx context.Context) (jetstream.Stream, error) { return js.Stream(ctx, StreamLog) })
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return NodeInfo{}, false, nil
	}
	if err != nil {
		return NodeInfo{}, false, errors.Wrapf(err, "ask the mirror: stream %s", StreamLog)
	}
	return lastOf(ctx, s, cluster, node)
}

func lastOf(ctx context.Context, s jetstream.Stream, cluster, node string) (NodeInfo, bool, error) {
	msg, err := findLast(ctx, s, SubjectLog(cluster, node))
	if err != nil || msg == nil {
		return NodeInfo{}, false, err
	}
	h, err := parseLogHead(msg.Header)
	if err != nil {
		return NodeInfo{}, false, errors.Wrapf(err, "message %d of %s", msg.Sequence, StreamLog)
	}
	return NodeInfo{
		Cluster: cluster, Node: node, LogID: h.logID, LastSeq: h.last, Chain: h.chain, Boot: h.boot, Incarnation: h.incarnation,
	}, true, nil
}
