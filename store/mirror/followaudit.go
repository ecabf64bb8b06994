package mirror

import (
	"context"
	"strings"

	"github.com/cockroachdb/errors"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdlog/pdlog/store"
)

// Milestone is one message of the audit stream.
type Milestone struct {
	Cluster, Node string
	LogID         store.LogID
	Seq           uint64
	Type          string // of the event, such as "Released"
	JSON          []byte // the event; its room is a string
	StreamSeq     uint64
}

// AuditOptions of FollowAudit. Empty names match any.
type AuditOptions struct {
	Cluster, Node, Type string
	// FromStart begins with the oldest milestone that the stream keeps; else with
	// the next one that comes.
	FromStart bool
	// Once ends, with nil, behind the last milestone that there was at the start.
	Once bool
}

// FollowAudit hands milestones to visit, those of a node in the order of its
// log, until ctx ends (then it returns nil) or visit fails; it outlasts a server
// that goes away and comes back. A message that is no milestone of a mirror is an
// ErrMirrorDiverged; a mirror that has none yet is jetstream.ErrStreamNotFound.
func FollowAudit(ctx context.Context, nc *nats.Conn, o AuditOptions, visit func(Milestone) error) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return errors.Wrap(err, "follow the audit stream")
	}
	eventType := o.Type
	if eventType == "" {
		eventType = "*"
	}
	c := jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{prefixAudit + orAny(o.Cluster) + "." + orAny(o.Node) + "." + eventType},
		DeliverPolicy:  jetstream.DeliverNewPolicy,
	}
	if o.FromStart {
		c.DeliverPolicy = jetstream.DeliverAllPolicy
	}
	consumer, err := ask(ctx, func(ctx context.Context) (jetstream.Consumer, error) { return js.OrderedConsumer(ctx, StreamAudit, c) })
	if err != nil {
		return errors.Wrapf(err, "follow stream %s", StreamAudit)
	}
	there := consumer.CachedInfo().NumPending
	if o.Once && there == 0 {
		return nil
	}
	it, err := consumer.Messages()
	if err != nil {
		return errors.Wrapf(err, "follow stream %s", StreamAudit)
	}
	defer it.Stop()
	stop := context.AfterFunc(ctx, it.Stop)
	defer stop()
	for {
		msg, err := it.Next(jetstream.NextContext(ctx)) // Stop alone can miss a consumer that was just made anew
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return errors.Wrapf(err, "follow stream %s", StreamAudit)
		}
		m, err := milestone(msg)
		if err != nil {
			return err
		}
		if err := visit(m); err != nil {
			return err
		}
		if there--; o.Once && there == 0 {
			return nil
		}
	}
}

func milestone(msg jetstream.Msg) (Milestone, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return Milestone{}, errors.Wrapf(err, "follow stream %s", StreamAudit)
	}
	p := headParser{h: msg.Headers()}
	m := Milestone{LogID: p.logID(), Seq: p.uint(HeaderSeq, 10, 64), JSON: msg.Data(), StreamSeq: meta.Sequence.Stream}
	parts := strings.Split(strings.TrimPrefix(msg.Subject(), prefixAudit), ".")
	if p.err != nil || len(parts) != 3 {
		return Milestone{}, errors.Wrapf(ErrMirrorDiverged, "message %d of %s, subject %s: %v", m.StreamSeq, StreamAudit, msg.Subject(), p.err)
	}
	m.Cluster, m.Node, m.Type = untoken(parts[0]), untoken(parts[1]), parts[2]
	return m, nil
}
