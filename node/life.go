package node

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
)

const (
	flushTime = 3 * time.Second // for the mirror to take what is durable, at the end
	closeTime = time.Second     // for HTTP answers that are under way
)

// server is one HTTP server of the node.
type server struct {
	http httpServer
	ln   net.Listener
	name string
}

// httpServer is what the node needs of an HTTP server.
type httpServer interface {
	Serve(ln net.Listener) error
	Shutdown(ctx context.Context) error
	Close() error
}

// listen opens the listeners: the engine API's socket and, on prefill, the
// bootstrap server.
func (n *Node) listen(ctx context.Context) error {
	n.hub.idle = n.engineGone
	var lc net.ListenConfig
	path := n.cfg.SocketPath()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return errors.Wrap(err, "create the socket's directory")
	}
	// Whoever made it is gone: this process holds the log's lock.
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return errors.Wrap(err, "remove an old socket")
	}
	ln, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return errors.Wrapf(err, "socket: listen on %s", path)
	}
	n.servers = append(n.servers, &server{http: n.engineServer(), ln: passingListener{ln.(*net.UnixListener)}, name: "engine API"}) //nolint:forcetypeassert,errcheck // of network unix
	if err := n.cfg.permit(path); err != nil {
		return err
	}
	if err := n.listenEngine(ctx); err != nil {
		return err
	}
	if err := n.listenHTTP(ctx); err != nil {
		return err
	}
	if at := n.cfg.Metrics.Listen; at != "" {
		ln, err := lc.Listen(ctx, "tcp", at)
		if err != nil {
			return errors.Wrap(err, "metrics.listen: listen")
		}
		n.metricsAddr = ln.Addr().String()
		n.servers = append(n.servers, n.metricsServer(ln))
	}
	if n.cfg.Role != "prefill" {
		return nil
	}
	b, err := n.openBootstrap()
	if err != nil {
		return err
	}
	n.routes = b
	ln, err = lc.Listen(ctx, "tcp", n.cfg.Bootstrap)
	if err != nil {
		return errors.Wrap(err, "bootstrap: listen")
	}
	n.bootAddr = ln.Addr().String()
	if err := n.newRegistrar(); err != nil {
		return err
	}
	n.servers = append(n.servers, &server{http: b.HTTPServer(), ln: ln, name: "bootstrap"})
	return nil
}

// serve starts every goroutine. Nothing fails any more from here on but the
// log.
func (n *Node) serve() {
	go n.out.run()
	go n.loop.run()
	if n.curve != nil {
		n.curve.report(n.loop.tell)
	}
	for i, r := range n.pull {
		l := &listener{n: n, rank: projector.MakeRank(n.cfg.Node, i), recv: r, side: n.cfg.side()}
		n.receivers.Go(l.run)
	}
	for _, s := range n.servers {
		n.background.Go(func() {
			if err := s.http.Serve(s.ln); err != nil && !errors.Is(err, http.ErrServerClosed) {
				n.log.Error("server ended", "server", s.name, "err", err)
			}
		})
	}
	n.onRoll() // a roll of the life before may have got no snapshot
	n.background.Go(func() { n.keepSnapshots(n.life) })
	n.background.Go(func() { n.keepScrubbing(n.life) })
	if n.peers != nil {
		n.peers.start(n.life)
	}
	if n.registrar != nil {
		n.registrar.start(n.life)
	}
	n.background.Go(func() {
		select {
		case <-n.store.Failed():
			n.fail(errors.Wrap(n.store.Err(), "the log failed"))
		case <-n.life.Done():
		}
	})
	if n.mirror != nil {
		n.mirror.start(n.life)
	}
}

// Drain begins the graceful stop: no new rooms, open ones may end for grace,
// the rest is aborted. The node ends by itself when that is done; see Done.
func (n *Node) Drain(grace time.Duration, reason string) error {
	n.draining.Store(true)
	n.hub.tell(&enginepb.Notice{Kind: enginepb.Notice_KIND_STOPPING, Reason: reason})
	return n.loop.submit(task{cmd: projector.Stop{Grace: uint64(max(grace, 0).Milliseconds()), Reason: reason}}) //nolint:gosec // not negative
}

// Stop drains and waits for the end. When ctx ends first the node is closed as
// it is; the next start takes up what was left.
func (n *Node) Stop(ctx context.Context, grace time.Duration) error {
	if err := n.Drain(grace, "stop"); err != nil && !errors.Is(err, ErrStopped) {
		return err
	}
	select {
	case <-n.done:
		return n.err
	case <-ctx.Done():
		return errors.CombineErrors(n.Close(), errors.Wrap(ctx.Err(), "stop node"))
	}
}

// Close ends the node at once, without a graceful stop: for the protocol it is
// a crash. What was decided is on disk when it returns.
func (n *Node) Close() error {
	n.end(nil)
	<-n.done
	return n.err
}

// Answers asks the decision loop for a sign of life and waits for it as long as
// ctx allows: what a watchdog asks.
func (n *Node) Answers(ctx context.Context) error {
	ran := make(chan struct{})
	t := task{look: func(*projector.Machine, uint64) { close(ran) }}
	select {
	case n.loop.queue <- t:
	case <-n.loop.done:
		return ErrStopped
	case <-ctx.Done():
		return errors.Wrap(ctx.Err(), "hand a task to the loop")
	}
	select {
	case <-ran:
		return nil
	case <-n.loop.done:
		return ErrStopped
	case <-ctx.Done():
		return errors.Wrap(ctx.Err(), "wait for the loop")
	}
}

// Done is closed when the node has ended and every resource is free.
func (n *Node) Done() <-chan struct{} { return n.done }

// Err is why the node ended, once Done is closed; nil after a stop.
func (n *Node) Err() error {
	select {
	case <-n.done:
		return n.err
	default:
		return nil
	}
}

// fail: the log takes nothing any more. No effect starts from here on, the
// engines are told, the node ends (store.md 6.4).
func (n *Node) fail(err error) {
	n.out.kill()
	n.log.Error("the log failed, the node ends", "err", err)
	n.hub.tell(&enginepb.Notice{Kind: enginepb.Notice_KIND_LOG_FAILED, Reason: err.Error()})
	n.end(err)
}

// end begins the shutdown, once, on a goroutine of its own: whoever calls it
// may be one of those that are waited for.
func (n *Node) end(err error) {
	n.endOnce.Do(func() { go n.shutdown(err) })
}

func (n *Node) shutdown(err error) {
	step := time.Now()
	mark := func(what string) {
		n.log.Debug("ending", "done", what, "took", time.Since(step))
		step = time.Now()
	}
	close(n.halt)
	n.receivers.Wait()
	mark("receivers")
	close(n.loop.stop)
	<-n.loop.done
	if err == nil {
		// What was decided gets to disk; its effects are not begun any more.
		ctx, cancel := context.WithTimeout(context.Background(), flushTime)
		err = errors.Wrap(n.store.Sync(ctx), "write the end of the log")
		cancel()
	}
	n.out.close()
	n.engineCame() // its clock has no meaning any more
	n.hub.close()
	mark("loop")
	for _, s := range n.servers {
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		if s.http.Shutdown(ctx) != nil {
			_ = s.http.Close() // answers that would not end
		}
		cancel()
	}
	mark("servers")
	n.cancel()
	if n.peers != nil {
		n.peers.wait()
	}
	if n.registrar != nil {
		n.registrar.wait()
	}
	if n.mirror != nil {
		n.mirror.stop(n.store.Durable())
	}
	n.background.Wait()
	mark("mirror and peers")
	n.err = errors.CombineErrors(err, n.abandon())
	mark("planes and log")
	n.log.Info("node ended", "err", n.err)
	close(n.done)
}

// abandon frees what open has taken, however far it got.
func (n *Node) abandon() error {
	var err error
	add := func(e error) { err = errors.CombineErrors(err, e) }
	started := n.loop != nil
	n.tracer.close()
	if n.post != nil {
		n.post.close()
	}
	if n.domain != nil {
		add(n.domain.Close())
	}
	if n.senders != nil {
		n.senders.close()
	}
	select {
	case <-n.halt: // the receivers have closed their sockets
	default:
		for _, r := range n.pull {
			add(r.Close())
		}
		for _, s := range n.servers {
			add(s.ln.Close())
		}
		if n.mirror != nil {
			n.mirror.stop(0)
		}
	}
	if n.zmq != nil {
		add(n.zmq.Close())
	}
	if n.client != nil {
		n.client.Close()
	}
	add(n.memory.close())
	if n.store != nil {
		e := n.store.Close()
		if !started || n.store.Err() == nil {
			add(e)
		}
	}
	return err
}

// Config is what the node runs with.
func (n *Node) Config() Config { return n.cfg }

// Bootstrap is the address of a prefill's bootstrap server, "host:port".
func (n *Node) Bootstrap() string { return n.bootAddr }

// Socket is the path of the engine API.
func (n *Node) Socket() string { return n.cfg.SocketPath() }

// NATS is the address of the mirror's server, empty without a mirror.
func (n *Node) NATS() string {
	if n.mirror == nil {
		return ""
	}
	return n.mirror.url()
}
