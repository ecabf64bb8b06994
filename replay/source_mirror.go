package replay

import (
	"context"
	"iter"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/errors"
	"github.com/nats-io/nats.go"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store/mirror"
)

// connectTimeout bounds the wait for a server that may be across a network.
const connectTimeout = 5 * time.Second

// errEnough ends a read that nobody wants to go on with.
var errEnough = errors.New("enough")

// problem is what a mirror's reader found wrong with it (events.md I10).
type problem struct {
	seq    uint64
	detail string
}

// mirrorLogs are the logs on a stream: one per node and log id. The stream is
// read once to find them; a node that was wiped has two.
func mirrorLogs(ctx context.Context, src string) ([]*Log, error) {
	server, cluster, err := mirror.ParseURL(src)
	if err != nil {
		return nil, mark(err, ErrBadSource)
	}
	nc, err := dialMirror(server)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	type key struct{ cluster, node, id string }
	found := map[key]*Log{}
	var out []*Log
	findings, err := mirror.Read(ctx, nc, mirror.Filter{Cluster: cluster}, func(it mirror.Item) error {
		k := key{it.Cluster, it.Event.Node, it.LogID.String()}
		if found[k] == nil {
			l := &Log{Node: k.node, ID: k.id, Source: mirror.Redact(src), Kind: FromMirror, First: it.Event.Seq}
			if id := recordedID(it.Event); id != "" {
				l.ID = id
			}
			l.read = selecting(mirrorReader(server, mirror.Filter{Cluster: k.cluster, Node: k.node}, k.id))
			found[k] = l
			out = append(out, l)
		}
		return nil
	})
	if err != nil {
		return nil, mark(errors.Wrap(err, "read the mirror"), ErrUnavailable)
	}
	clusters := map[string]bool{}
	for k := range found {
		clusters[k.cluster] = true
	}
	if len(clusters) > 1 {
		var names []string
		for c := range clusters {
			names = append(names, c)
		}
		slices.Sort(names)
		return nil, errors.Wrapf(ErrBadSource, "the mirror holds clusters %s: name one, as in %s/%s", strings.Join(names, ", "), mirror.Redact(server), names[0])
	}
	if len(out) == 0 {
		return nil, errors.Wrap(ErrBadSource, "the mirror holds no log")
	}
	for _, f := range findings {
		if l := found[key{f.Cluster, f.Node, f.LogID.String()}]; l != nil && f.Kind != mirror.FindingOtherLog {
			l.problems = append(l.problems, problem{seq: f.Want, detail: f.String()})
		}
	}
	return out, nil
}

// dialMirror gets in as the nats tool would, by NATS_CREDS and the like.
func dialMirror(server string) (*nats.Conn, error) {
	nc, err := mirror.Dial(server, mirror.AccessFromEnv(os.Getenv), nats.Name("pdreplay"), nats.Timeout(connectTimeout), nats.MaxReconnects(3))
	if errors.Is(err, mirror.ErrAccess) {
		return nil, mark(err, ErrBadSource)
	}
	return nc, mark(err, ErrUnavailable)
}

func mirrorReader(server string, f mirror.Filter, id string) func(context.Context) iter.Seq2[*events.Event, error] {
	return func(ctx context.Context) iter.Seq2[*events.Event, error] {
		return func(yield func(*events.Event, error) bool) {
			nc, err := dialMirror(server)
			if err != nil {
				yield(nil, err)
				return
			}
			defer nc.Close()
			_, err = mirror.Read(ctx, nc, f, func(it mirror.Item) error {
				if it.LogID.String() == id && !yield(it.Event, nil) {
					return errEnough
				}
				return nil
			})
			if err != nil && !errors.Is(err, errEnough) {
				yield(nil, mark(errors.Wrap(err, "read the mirror"), ErrUnavailable))
			}
		}
	}
}
