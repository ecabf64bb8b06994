package node

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/store/mirror"
)

// mirrorRun is the node's mirror and, if it is embedded, its server. It reads
// the durable log behind the committer and takes part in no decision.
type mirrorRun struct {
	m        *mirror.Mirror
	server   *mirror.Embedded
	address  string
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	stopOnce sync.Once

	mu  sync.Mutex
	err error // why it ended for good
}

// openServer starts the embedded server, and knows the mirror's address from then
// on. Without nats.url and nats.embedded there is none. It comes behind the log,
// whose lock keeps a second process from the server's files.
func (n *Node) openServer() error {
	r := &mirrorRun{address: n.cfg.NATS.URL}
	if r.address == "" {
		if !n.cfg.NATS.Embedded {
			return nil
		}
		s, err := mirror.StartEmbedded(mirror.EmbeddedOptions{
			StoreDir: filepath.Join(n.cfg.DataDir, "nats"), Host: n.cfg.NATS.Host, Port: n.cfg.NATS.Port,
			Name: n.cfg.Node, Logger: n.log,
		})
		if err != nil {
			return errors.Wrap(err, "nats.embedded")
		}
		r.server, r.address = s, s.ClientURL()
	} else if err := n.cfg.NATS.access().Check(); err != nil {
		return badKey("nats", "%v", err)
	}
	n.mirror = r
	return nil
}

// openMirror prepares the mirror of the log that is open.
func (n *Node) openMirror() error {
	r := n.mirror
	if r == nil {
		return nil
	}
	m, err := mirror.New(mirror.Options{
		URL: r.address, Access: n.cfg.NATS.access(), LagAlarm: n.cfg.NATS.LagAlarm, Cluster: n.cfg.NATS.Cluster, Node: n.cfg.Node, Log: n.store,
		Replicas: n.cfg.NATS.Replicas, Logger: n.log,
	})
	if err != nil {
		return err
	}
	r.m = m
	return nil
}

func (r *mirrorRun) url() string { return mirror.Redact(r.address) }

func (r *mirrorRun) start(ctx context.Context) {
	// Not the node's own life: the end of the log is mirrored too, see stop.
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	r.wg.Go(func() {
		err := r.m.Run(ctx)
		r.mu.Lock()
		r.err = err
		r.mu.Unlock()
	})
}

// stop waits a while until seq is mirrored, then ends the mirror and its
// server.
func (r *mirrorRun) stop(seq uint64) {
	r.stopOnce.Do(func() {
		if r.cancel != nil {
			if seq > 0 && r.failure() == nil {
				ctx, cancel := context.WithTimeout(context.Background(), flushTime)
				_ = r.m.WaitMirrored(ctx, seq) // what is missing is mirrored after the next start
				cancel()
			}
			r.cancel()
			r.wg.Wait()
		}
		if r.server != nil {
			r.server.Shutdown()
		}
	})
}

func (r *mirrorRun) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	return r.m.Err()
}

func (r *mirrorRun) describe(s *enginepb.StatusResponse) {
	s.Mirror, s.NatsUrl = true, mirror.Redact(r.address)
	lag, age := r.m.Behind(time.Now())
	s.MirrorLag, s.MirrorLagMs = lag, uint64(age.Milliseconds()) //nolint:gosec // not negative
	if err := r.failure(); err != nil {
		s.MirrorError = err.Error()
	}
}
