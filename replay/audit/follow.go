package audit

import (
	"context"
	"fmt"
	"os"
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
)

// connectTimeout bounds the wait for a server at the start; later ones are waited
// for as long as it takes.
const connectTimeout = 5 * time.Second

// Options of Follow. URL and Report are required.
type Options struct {
	URL     string // nats://host:port[/cluster]
	Settle  time.Duration
	Window  int
	Report  func(replay.Finding) error // of one goroutine; an error ends Follow
	Metrics *Metrics                   // may be nil
}

// Follow reads the mirror from its beginning and goes on with what comes, until
// the context ends: then it returns nil. Errors are replay.ErrBadSource,
// replay.ErrUnavailable, or Report's own.
func Follow(ctx context.Context, o Options) error {
	if o.Settle <= 0 {
		o.Settle = Settle
	}
	if o.Window <= 0 {
		o.Window = Window
	}
	server, cluster, err := mirror.ParseURL(o.URL)
	if err != nil {
		return replay.WithKind(err, replay.ErrBadSource)
	}
	nc, err := mirror.Dial(server, mirror.AccessFromEnv(os.Getenv), nats.Name("pdreplay audit"), nats.Timeout(connectTimeout), nats.MaxReconnects(-1))
	if errors.Is(err, mirror.ErrAccess) {
		return replay.WithKind(err, replay.ErrBadSource)
	}
	if err != nil {
		return replay.WithKind(err, replay.ErrUnavailable)
	}
	defer nc.Close()
	it, err := messages(ctx, nc, cluster)
	if err != nil {
		return replay.WithKind(errors.Wrapf(err, "follow %s", o.URL), replay.ErrUnavailable)
	}
	in := make(chan jetstream.Msg)
	failed := make(chan error, 1)
	done := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(done)
		for {
			msg, err := it.Next()
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
		<-done
	}()
	f := &follower{o: o, lanes: map[laneKey]*lane{}, checker: invariants.New()}
	f.checker.CheckChain()
	tick := time.NewTicker(o.Settle / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return f.emit(time.Time{})
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			return replay.WithKind(errors.Wrapf(err, "follow %s", o.URL), replay.ErrUnavailable)
		case msg := <-in:
			if err := f.message(msg); err != nil {
				return err
			}
			if f.queued > o.Window {
				if err := f.emit(time.Now().Add(-o.Settle)); err != nil {
					return err
				}
			}
		case <-tick.C:
			if err := f.emit(time.Now().Add(-o.Settle)); err != nil {
				return err
			}
		}
	}
}

func messages(ctx context.Context, nc *nats.Conn, cluster string) (jetstream.MessagesContext, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	subject := "pdlog.log.*.*" // store.md 6.5
	if cluster != "" {
		subject = strings.TrimSuffix(mirror.SubjectLog(cluster, "x"), "x") + "*"
	}
	c, err := js.OrderedConsumer(ctx, mirror.StreamLog, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
	if err != nil {
		return nil, err
	}
	const ahead = 16 // messages of up to 512 KiB
	return c.Messages(jetstream.PullMaxMessages(ahead))
}

type laneKey struct{ node, log string }

// lane is one node's log.
type lane struct {
	waiting []arrived
	last    uint64 // read
	out     uint64 // handed on
}

type arrived struct {
	e  *events.Event
	at time.Time
}

type follower struct {
	o       Options
	cluster string
	lanes   map[laneKey]*lane
	queued  int
	checker *invariants.Checker
	told    int
}

// message takes one message: frames of one node.
func (f *follower) message(msg jetstream.Msg) error {
	node := msg.Headers().Get(mirror.HeaderNode)
	parts := strings.Split(msg.Subject(), ".")
	switch cluster := parts[len(parts)-2]; {
	case f.cluster == "":
		f.cluster = cluster
	case f.cluster != cluster:
		return replay.WithKind(errors.Newf("the mirror holds clusters %s and %s: name one, as in %s/%s", f.cluster, cluster, f.o.URL, f.cluster), replay.ErrBadSource)
	}
	k := laneKey{node, msg.Headers().Get(mirror.HeaderLogID)}
	ln := f.lanes[k]
	if ln == nil {
		ln = &lane{}
		f.lanes[k] = ln
		f.o.Metrics.nodes(len(f.lanes))
	}
	now, again := time.Now(), uint64(0)
	_, _, err := events.DecodeFrames(msg.Data(), node, func(e *events.Event) error {
		if e.Seq <= ln.last {
			again = e.Seq
			return nil
		}
		ln.last = e.Seq
		ln.waiting = append(ln.waiting, arrived{e, now})
		f.queued++
		return nil
	})
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
		f.o.Metrics.event(e)
		all := f.checker.Violations()
		for ; f.told < len(all); f.told++ {
			if err := f.report(replay.Findings(all[f.told : f.told+1])[0]); err != nil {
				return err
			}
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

func (f *follower) report(v replay.Finding) error {
	f.o.Metrics.violation(v)
	return f.o.Report(v)
}
