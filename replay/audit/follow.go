package audit

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/errors"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector/invariants"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/store/mirror"
)

// Defaults of Options.
const (
	Settle = time.Second // some group commits and publishes, and a reconnect
	Window = 1 << 16     // events; a few hundred bytes each
	Lease  = 10 * time.Second
)

const (
	// connectTimeout bounds the wait for a server at the start; later ones are
	// waited for as long as it takes.
	connectTimeout = 5 * time.Second
	// endedRooms are kept over all nodes, for what comes after their end: about a
	// megabyte a node.
	endedRooms = 1 << 15
	// maxMarks bounds what is remembered of where a node's messages are: one that
	// has an older room open is read again from there on.
	maxMarks = 1 << 16
	// peerBack is how many messages before a node's own a newly seen peer's log is
	// read from: its rooms began before the node heard of them.
	peerBack = 4096
)

// Options of Follow. URL and Report are required.
type Options struct {
	URL     string // nats://host:port[/cluster]
	Settle  time.Duration
	Window  int
	Report  func(replay.Finding) error // of one goroutine; an error ends Follow
	Metrics *Metrics                   // may be nil

	// Group is the name under which auditors share the nodes of a mirror, each
	// node one auditor's at a time, and go on where the group was. Empty: all
	// nodes, from the beginning, and nothing is kept.
	Group string
	Lease time.Duration // how long a node stays with an auditor that is gone
	Note  func(string)  // told which nodes are this auditor's; may be nil
}

// errReplan ends a session: what is ours, or what must be read for it, changed.
var errReplan = errors.New("plan changed")

// Follow reads the mirror and goes on with what comes, until the context ends:
// then it returns nil. Errors are replay.ErrBadSource, replay.ErrUnavailable, or
// Report's own.
func Follow(ctx context.Context, o Options) error {
	if o.Settle <= 0 {
		o.Settle = Settle
	}
	if o.Window <= 0 {
		o.Window = Window
	}
	if o.Lease <= 0 {
		o.Lease = Lease
	}
	if o.Note == nil {
		o.Note = func(string) {}
	}
	server, cluster, err := mirror.ParseURL(o.URL)
	if err != nil {
		return replay.WithKind(err, replay.ErrBadSource)
	}
	nc, err := mirror.Dial(server, mirror.AccessFromEnv(os.Getenv), nats.Name("pdreplay audit"), nats.Timeout(connectTimeout), nats.MaxReconnects(-1),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // a link that breaks mends itself; what lasts is said by who waits
	if errors.Is(err, mirror.ErrAccess) {
		return replay.WithKind(err, replay.ErrBadSource)
	}
	if err != nil {
		return replay.WithKind(err, replay.ErrUnavailable)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return replay.WithKind(err, replay.ErrUnavailable)
	}
	if o.Group == "" {
		filter := strings.TrimSuffix(mirror.SubjectLog(cluster, "x"), "x") + "*"
		if cluster == "" {
			filter = "pdlog.log.*.*" // store.md 6.5
		}
		err = newFollower(o, js, nil).session(ctx, []string{filter}, 0)
	} else {
		err = followGroup(ctx, o, js, cluster)
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) { // whatever it was doing when it was told to end
		return nil
	}
	return err
}

// unavailable is an error of the server's, unless it has a kind already.
func unavailable(err error, url string) error {
	if err == nil || errors.IsAny(err, replay.ErrBadSource, replay.ErrUnavailable) {
		return err
	}
	return replay.WithKind(errors.Wrapf(err, "follow %s", mirror.Redact(url)), replay.ErrUnavailable)
}

// followGroup runs a session for each share of the nodes that the group gives.
func followGroup(ctx context.Context, o Options, js jetstream.JetStream, cluster string) error {
	at, nodes, err := onMirror(ctx, js, cluster)
	if err != nil {
		return unavailable(err, o.URL)
	}
	if len(at) != 1 {
		return replay.WithKind(errors.Newf("the mirror holds clusters %s: name one, as in %s/%s", strings.Join(at, " and "), mirror.Redact(o.URL), at[0]), replay.ErrBadSource)
	}
	st, err := js.Stream(ctx, mirror.StreamLog)
	if err != nil {
		return unavailable(err, o.URL)
	}
	g, err := joinGroup(ctx, js, o.Group, at[0], o.Lease, st.CachedInfo().Config.Replicas)
	if err != nil {
		return unavailable(err, o.URL)
	}
	defer g.leave()
	if _, err := g.tick(ctx, nodes); err != nil {
		return unavailable(err, o.URL)
	}
	for {
		o.Note(g.describe())
		o.Metrics.owned(len(g.mine))
		f := newFollower(o, js, g)
		var subjects []string
		var start uint64
		g.again(ctx, func() (err error) {
			subjects, start, err = f.plan(ctx)
			return err
		})
		if ctx.Err() != nil {
			return nil
		}
		if err := f.session(ctx, subjects, start); !errors.Is(err, errReplan) {
			return unavailable(err, o.URL)
		}
		g.again(ctx, func() error {
			_, err := g.tick(ctx, nodes)
			return err
		})
	}
}

// again tries until it works or ctx ends: a server that is away comes back.
func (g *group) again(ctx context.Context, try func() error) {
	wait := time.NewTicker(g.lease / 4)
	defer wait.Stop()
	for try() != nil {
		select {
		case <-wait.C:
		case <-ctx.Done():
			return
		}
	}
}

// onMirror lists the clusters that match and the nodes of all of them, sorted.
func onMirror(ctx context.Context, js jetstream.JetStream, cluster string) (clusters, nodes []string, err error) {
	st, err := js.Stream(ctx, mirror.StreamLog)
	if err != nil {
		return nil, nil, err
	}
	info, err := st.Info(ctx, jetstream.WithSubjectFilter("pdlog.log.>"))
	if err != nil {
		return nil, nil, err
	}
	for subject := range info.State.Subjects {
		c, node, ok := mirror.SplitLog(subject)
		if !ok || cluster != "" && c != cluster {
			continue
		}
		clusters, nodes = append(clusters, c), append(nodes, node)
	}
	slices.Sort(clusters)
	slices.Sort(nodes)
	if len(nodes) == 0 {
		return nil, nil, errors.New("the mirror holds no log")
	}
	return slices.Compact(clusters), nodes, nil
}

// plan says what to read for the nodes that are ours: their logs and those of
// the nodes they write to, from the oldest message that any of them needs.
func (f *follower) plan(ctx context.Context) (subjects []string, start uint64, err error) {
	for node, h := range f.g.mine {
		f.resumed[node] = h.claim
		for _, name := range append([]string{node}, h.Peers...) {
			if s := mirror.SubjectLog(f.g.cluster, name); !slices.Contains(subjects, s) {
				subjects = append(subjects, s)
			}
		}
		if start == 0 || h.Stream < start {
			start = max(h.Stream, 1)
		}
	}
	st, err := f.js.Stream(ctx, mirror.StreamLog)
	if err != nil {
		return nil, 0, err
	}
	if start > st.CachedInfo().State.LastSeq { // the stream was made anew (cases.md C-80)
		start = 1
	}
	return subjects, start, nil
}

// session reads the subjects from message start on (0 = the first) until ctx
// ends, then it returns nil; or until the plan changes: errReplan.
func (f *follower) session(ctx context.Context, subjects []string, start uint64) error {
	f.start = start
	in, failed := make(chan jetstream.Msg), make(chan error, 1)
	if len(subjects) > 0 {
		c := jetstream.OrderedConsumerConfig{FilterSubjects: subjects}
		if start > 1 {
			c.DeliverPolicy, c.OptStartSeq = jetstream.DeliverByStartSequencePolicy, start
		}
		consumer, err := f.js.OrderedConsumer(ctx, mirror.StreamLog, c)
		if err != nil {
			return unavailable(err, f.o.URL)
		}
		const ahead = 16 // messages of up to 512 KiB
		it, err := consumer.Messages(jetstream.PullMaxMessages(ahead))
		if err != nil {
			return unavailable(err, f.o.URL)
		}
		// Stop ends a Next that makes its consumer anew, but can miss the one that it
		// has just made; the context ends that.
		reading, halt := context.WithCancel(context.WithoutCancel(ctx))
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				msg, err := it.Next(jetstream.NextContext(reading))
				if err != nil {
					failed <- err
					return
				}
				select {
				case in <- msg:
				case <-stop:
					return
				}
			}
		}()
		defer func() {
			close(stop)
			it.Stop()
			halt()
			<-done
		}()
	}
	err := f.run(ctx, in, failed)
	if f.g != nil && err == nil {
		f.save()
	}
	return err
}

func (f *follower) run(ctx context.Context, in <-chan jetstream.Msg, failed <-chan error) error {
	tick := time.NewTicker(f.o.Settle / 4)
	defer tick.Stop()
	round := time.NewTicker(f.o.Lease / 4)
	defer round.Stop()
	for {
		select {
		case <-ctx.Done():
			return f.emit(time.Time{})
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			return unavailable(err, f.o.URL)
		case msg := <-in:
			if err := f.message(msg); err != nil {
				return err
			}
			if f.queued > f.o.Window {
				if err := f.emit(time.Now().Add(-f.o.Settle)); err != nil {
					return err
				}
			}
		case <-tick.C:
			if err := f.emit(time.Now().Add(-f.o.Settle)); err != nil {
				return err
			}
			f.mark(ctx)
		case <-round.C:
			if err := f.round(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// round reports what is late for good, and has the group renew what is ours.
func (f *follower) round(ctx context.Context) error {
	f.checker.Overdue()
	if err := f.tell(true); err != nil || f.g == nil {
		return err
	}
	f.save()
	_, nodes, err := onMirror(ctx, f.js, f.g.cluster)
	if err != nil {
		return nil //nolint:nilerr // the server is away: the lease says how long that is no matter
	}
	changed, err := f.g.tick(ctx, nodes)
	if err == nil && (changed || f.newPeer) {
		return errReplan
	}
	return nil
}

// mark writes how far the nodes were judged at once when something was reported,
// so that a successor does not report it again.
func (f *follower) mark(ctx context.Context) {
	if f.g == nil || len(f.reported) == 0 {
		return
	}
	f.save()
	for node := range f.reported {
		if h := f.g.mine[node]; h != nil {
			_, _ = f.g.put(ctx, node, h, time.Now()) // else the next round does, or finds that it was taken
		}
	}
	clear(f.reported)
}

// save notes in the claims how far each node was judged, and from where a
// successor has to read.
func (f *follower) save() {
	for node, h := range f.g.mine {
		ln := f.current[node]
		if ln == nil || ln.out == 0 {
			continue
		}
		if ln.key.log != h.LogID || ln.out > h.Seq {
			h.LogID, h.Seq = ln.key.log, ln.out
		}
		from, peers := f.checker.Needs(node)
		stream := ln.message(from)
		for peer, seq := range peers {
			if peer == node {
				continue
			}
			if !slices.Contains(h.Peers, peer) {
				h.Peers = append(h.Peers, peer)
				f.newPeer = true
			}
			if p := f.current[peer]; p != nil {
				stream = min(stream, p.message(seq))
			} else {
				stream = max(stream, peerBack+1) - peerBack
			}
		}
		h.Stream = stream
	}
}

type laneKey struct{ node, log string }

// lane is one node's log.
type lane struct {
	key     laneKey
	waiting []arrived
	last    uint64 // read
	out     uint64 // handed on
	marks   []mark // where its messages are on the stream, the newest ones
}

// mark is a message: the last event in it, and its stream sequence.
type mark struct{ last, stream uint64 }

// message is the stream sequence of the message that holds an event; of the
// oldest one known, if that is gone.
func (ln *lane) message(seq uint64) uint64 {
	i, _ := slices.BinarySearchFunc(ln.marks, seq, func(m mark, seq uint64) int {
		switch {
		case m.last < seq:
			return -1
		case m.last > seq:
			return 1
		}
		return 0
	})
	if len(ln.marks) == 0 {
		return 1
	}
	return ln.marks[min(i, len(ln.marks)-1)].stream
}

type arrived struct {
	e  *events.Event
	at time.Time
}

type follower struct {
	o       Options
	js      jetstream.JetStream
	g       *group           // nil: alone
	resumed map[string]claim // as the session found them
	start   uint64
	cluster string
	lanes   map[laneKey]*lane
	current map[string]*lane // by node: the log it has now
	queued  int
	checker *invariants.Checker

	reported map[string]bool // nodes with findings since the last mark
	newPeer  bool            // there is one whose log is not read yet
}

func newFollower(o Options, js jetstream.JetStream, g *group) *follower {
	f := &follower{
		o: o, js: js, g: g, resumed: map[string]claim{}, lanes: map[laneKey]*lane{}, current: map[string]*lane{},
		checker: invariants.New(), reported: map[string]bool{},
	}
	f.checker.CheckChain()
	f.checker.Bound(endedRooms)
	return f
}

// ours says whether a node's findings are ours to report.
func (f *follower) ours(node string) bool { return f.g == nil || f.g.mine[node] != nil }

// message takes one message: frames of one node.
func (f *follower) message(msg jetstream.Msg) error {
	node := msg.Headers().Get(mirror.HeaderNode)
	parts := strings.Split(msg.Subject(), ".")
	switch cluster := parts[len(parts)-2]; {
	case f.cluster == "":
		f.cluster = cluster
	case f.cluster != cluster:
		return replay.WithKind(errors.Newf("the mirror holds clusters %s and %s: name one, as in %s/%s", f.cluster, cluster, mirror.Redact(f.o.URL), f.cluster), replay.ErrBadSource)
	}
	k := laneKey{node, msg.Headers().Get(mirror.HeaderLogID)}
	ln := f.lanes[k]
	if ln == nil {
		ln = &lane{key: k}
		f.lanes[k] = ln
		f.o.Metrics.nodes(len(f.lanes))
	}
	f.current[node] = ln
	now, again, fresh := time.Now(), uint64(0), ln.last == 0
	first, last, err := events.DecodeFrames(msg.Data(), node, func(e *events.Event) error {
		if e.Seq <= ln.last {
			again = e.Seq
			return nil
		}
		ln.last = e.Seq
		ln.waiting = append(ln.waiting, arrived{e, now})
		f.queued++
		return nil
	})
	if meta, merr := msg.Metadata(); merr == nil && f.g != nil && last.Count > 0 {
		ln.marks = append(ln.marks, mark{last.LastSeq, meta.Sequence.Stream})
		if len(ln.marks) > maxMarks {
			ln.marks = slices.Delete(ln.marks, 0, maxMarks/2)
		}
	}
	if r := f.resumed[node]; fresh && f.start > 1 && r.LogID == k.log && first.FirstSeq > r.Seq+1 {
		f.g.mine[node].Stream = 0 // the stream is another one: its events are found by their own numbers
		return errReplan
	}
	if err != nil {
		if err := f.report(replay.Finding{Invariant: "I10", Node: node, Seq: ln.last + 1, Detail: fmt.Sprintf("a message of the mirror does not decode: %v", err)}); err != nil {
			return err
		}
	}
	if again != 0 {
		return f.report(replay.Finding{Invariant: "I10", Node: node, Seq: again, Detail: "the mirror holds events again that it already had"})
	}
	return nil
}

// emit hands on what has waited since before, and what is too much to wait. The
// zero time hands on everything.
func (f *follower) emit(before time.Time) error {
	for f.queued > 0 {
		ln := f.pick()
		if h := ln.waiting[0]; !before.IsZero() && h.at.After(before) && f.queued <= f.o.Window {
			return nil
		}
		e := ln.waiting[0].e
		ln.waiting = ln.waiting[1:]
		ln.out = e.Seq
		f.queued--
		f.checker.Feed(e)
		if f.ours(e.Node) {
			f.o.Metrics.event(e)
		}
		if err := f.tell(false); err != nil {
			return err
		}
	}
	return nil
}

// pick is the lane whose head is the earliest of those whose cause is out; of
// all, if every head waits.
func (f *follower) pick() *lane {
	var best, any *lane
	for _, ln := range f.lanes {
		if len(ln.waiting) == 0 {
			continue
		}
		e := ln.waiting[0].e
		if any == nil || earlier(e, any.waiting[0].e) {
			any = ln
		}
		if (best == nil || earlier(e, best.waiting[0].e)) && !f.waits(e) {
			best = ln
		}
	}
	if best == nil {
		return any
	}
	return best
}

func earlier(a, b *events.Event) bool {
	return a.Hlc < b.Hlc || a.Hlc == b.Hlc && a.Node < b.Node
}

func (f *follower) waits(e *events.Event) bool {
	c := e.Cause
	if c.GetNode() == "" || c.GetNode() == e.Node {
		return false
	}
	for k, ln := range f.lanes {
		if k.node == c.GetNode() && len(ln.waiting) > 0 && ln.out < c.GetSeq() && ln.waiting[0].e.Seq <= c.GetSeq() {
			return true
		}
	}
	return false
}

// tell reports what the checker has found. late: it was found by what did not
// come.
func (f *follower) tell(late bool) error {
	for _, v := range replay.Findings(f.checker.Take()) {
		r, ln := f.resumed[v.Node], f.current[v.Node]
		if !late && v.Seq <= r.Seq && ln != nil && ln.key.log == r.LogID {
			continue // it was reported before this session
		}
		name := fingerprint(v)
		if late && slices.Contains(r.Late, name) {
			continue
		}
		if err := f.report(v); err != nil {
			return err
		}
		if late && f.g != nil && f.g.mine[v.Node] != nil {
			h := f.g.mine[v.Node]
			if h.Late = append(h.Late, name); len(h.Late) > maxLate {
				h.Late = slices.Delete(h.Late, 0, maxLate/2)
			}
		}
	}
	return nil
}

// fingerprint names a finding.
func fingerprint(v replay.Finding) string {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(v.Text()))
	return fmt.Sprintf("%016x", sum.Sum64())
}

// report hands a finding on if its node is ours, and for as long as it is.
func (f *follower) report(v replay.Finding) error {
	if !f.ours(v.Node) {
		return nil
	}
	if f.g != nil && time.Now().After(f.g.mine[v.Node].until) {
		return errReplan
	}
	f.reported[v.Node] = true
	f.o.Metrics.violation(v)
	return f.o.Report(v)
}
