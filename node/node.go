package node

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/errors"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdlog/pdlog/backends"
	_ "github.com/pdlog/pdlog/backends/all" // the dialects
	"github.com/pdlog/pdlog/backends/bootstrap"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/store"
	"github.com/pdlog/pdlog/store/mirror"
)

// Version is told to peers and recorded at each start; it decides nothing. The
// build sets it.
var Version = "0.1.0"

// Node is a running node. Start is the only way in.
type Node struct {
	cfg   Config
	log   *slog.Logger
	boot  uint64
	began time.Time
	live  atomic.Pointer[liveConfig] // what Reload may change

	store   *store.Log
	loop    *loop
	out     *outbox
	dialect backends.Dialect
	zmq     transport
	curve   *curve // nil: the control sockets are plain
	senders *senders
	shapes  *shapes
	memory  *memoryTable
	offered atomic.Bool // every local rank has memory, and the peers were told of it
	domain  rdma.Domain
	receive *receivePlane // decode
	post    *postPlane    // prefill

	engineWrites *engineWrites     // prefill, with rdma.engine_writes
	peers        *peerTable        // decode
	routes       *bootstrap.Server // prefill
	registrar    *registrar        // prefill
	hub          *hub
	mirror       *mirrorRun
	servers      []*server

	pull      []receiver
	addresses []string // control address of each local rank
	client    *bootstrap.Client
	bootAddr  string
	logSince  uint64

	builder backends.Builder // the outbox's
	notices notices          // the outbox's

	effects      atomic.Uint64
	revokeFailed atomic.Uint64
	acks         [backends.AckDrainFull + 1]atomic.Uint64 // decode: ABORT_ACKs received, by form
	draining     atomic.Bool
	memoryMu     sync.Mutex
	engines      engineClock
	acknowledged atomic.Uint64 // how far the engine has dealt with notices
	gate         *gate
	dropped      sealSet // decode: rooms that ended before they were published

	root       string          // store.Recovered.Root
	fold       *fold           // of the log, between openLog and rebuild
	rolled     chan struct{}   // a segment was sealed
	logOver    bool            // of keepSnapshots: the log is above its cap
	snapshotAt uint64          // of keepSnapshots: the record of the newest snapshot
	oldestRoom uint64          // of keepSnapshots: Machine.OldestRoom at the newest snapshot
	lost       bool            // the log lost its end, or its beginning, before this life
	damaged    atomic.Int64    // sealed segments that did not verify in the last scrub
	notBelow   mirror.NodeInfo // what the mirror has of this log and the log has not: zero mostly
	life       context.Context // ends with the node
	cancel     context.CancelFunc
	halt       chan struct{} // closed: receivers end
	receivers  sync.WaitGroup
	background sync.WaitGroup
	done       chan struct{}
	endOnce    sync.Once

	tracer      *tracer // nil without traces
	metrics     *metrics
	metricsOnce sync.Once
	metricsAddr string
	engineAddr  string // of the engine API on TCP
	httpAddr    string // of the page
	gatherer    prometheus.Gatherer

	err error // valid when done is closed
}

// Start runs a node: it opens the log, rebuilds the state from it,
// begins a new life, and serves. ctx bounds the starting alone. A log that
// another process has open gives store.ErrLocked.
func Start(ctx context.Context, cfg Config, log *slog.Logger) (*Node, error) {
	return startOn(ctx, cfg, log, nil)
}

// startOn is Start with a control plane of the caller's; nil is libzmq.
func startOn(ctx context.Context, cfg Config, log *slog.Logger, control transport) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	n := &Node{
		cfg: cfg, log: log.With("node", cfg.Node), began: time.Now(),
		shapes: newShapes(cfg.topology()), memory: newMemoryTable(cfg.Ranks), hub: newHub(), metrics: newMetrics(),
		gate: newGate(cfg.Limits.Chunks), halt: make(chan struct{}), done: make(chan struct{}), rolled: make(chan struct{}, 1),
		zmq: control,
	}
	n.life, n.cancel = context.WithCancel(context.Background())
	n.live.Store(liveOf(&cfg))
	if err := n.open(ctx); err != nil {
		n.cancel()
		return nil, errors.CombineErrors(err, n.abandon())
	}
	n.serve()
	n.log.Info("node started", "role", cfg.Role, "incarnation", n.store.Incarnation(), "log", cfg.LogDir(),
		"last_seq", n.store.Appended(), "ranks", n.addresses, "bootstrap", n.bootAddr, "socket", cfg.SocketPath())
	return n, nil
}

// open takes everything that can fail to be had.
func (n *Node) open(ctx context.Context) error {
	var err error
	if n.boot, err = randomBoot(); err != nil {
		return err
	}
	if n.dialect, err = backends.Lookup(n.cfg.Dialect); err != nil {
		return err
	}
	n.out = newOutbox(0, n.perform)
	n.out.slow = n.revoke
	n.out.drop = func(roomSeq uint64) { n.dropped.add(rdma.Tag(roomSeq)) }
	if err := n.bind(); err != nil { // the log is folded for ranks that have their addresses
		return err
	}
	if err := n.openLog(ctx); err != nil {
		return err
	}
	if err := n.openServer(); err != nil {
		return err
	}
	mem := n.askMirror(ctx)
	if err := n.leaveOlderCopy(ctx, mem); err != nil {
		return err
	}
	if err := n.openPlanes(ctx); err != nil {
		return err
	}
	if err := n.openMirror(); err != nil {
		return err
	}
	if err := n.openTraces(ctx); err != nil {
		return err
	}
	if err := n.rebuild(n.pastUnknown(ctx, mem)); err != nil {
		return err
	}
	return n.listen(ctx)
}

func randomBoot() (uint64, error) {
	for {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			return 0, errors.Wrap(err, "draw a boot number")
		}
		if v := binary.LittleEndian.Uint64(b[:]); v != 0 {
			return v, nil
		}
	}
}

// openLog opens the log and folds it: a snapshot that rests on it, and what
// came after. Segments that the snapshot stands for are checked by their ends.
func (n *Node) openLog(ctx context.Context) error {
	for snap, err := range store.DirSnapshots(n.cfg.LogDir()) {
		if errors.Is(err, os.ErrNotExist) { // there is no log yet
			break
		}
		var f *fold
		if err == nil {
			if f, err = n.openOn(ctx, snap); err != nil {
				return err
			}
		} else {
			n.snapshotIgnored(err)
		}
		if f != nil {
			n.snapshotAt, n.oldestRoom = snap.Seq, f.m.OldestRoom()
			return n.foldLog(ctx, f, snap.Seq)
		}
	}
	if err := n.openStore(ctx, nil); err != nil {
		return err
	}
	after := n.store.First() - 1
	if after > 0 {
		n.lost = true
		n.log.Error("the log's beginning was let go and no snapshot can be used: the past is unknown", "first_seq", n.store.First())
	}
	return n.foldLog(ctx, newFold(n.projectorConfig()), after)
}

// openOn opens the log on a snapshot and reads the snapshot meanwhile. One that
// this build cannot go on from, or that does not rest on the log, gives nil, is
// named and left alone, and the log is closed again: more of it has to be verified.
func (n *Node) openOn(ctx context.Context, snap *store.Snapshot) (*fold, error) {
	var f *fold
	decoded := make(chan error, 1)
	go func() {
		var err error
		f, err = decodeFold(n.projectorConfig(), snap.Data)
		decoded <- errors.Wrapf(err, "after record %d", snap.Seq)
	}()
	err := n.openStore(ctx, snap)
	unfit := <-decoded
	if err != nil {
		return nil, err
	}
	if unfit == nil {
		unfit = n.store.Fits(snap)
	}
	if unfit == nil {
		return f, nil
	}
	n.snapshotIgnored(unfit)
	l := n.store
	n.store = nil
	return nil, l.Close()
}

func (n *Node) snapshotIgnored(err error) {
	n.log.Error("snapshot is ignored: the start reads more of the log", "dir", n.cfg.LogDir(), "err", err)
}

// foldLog folds the log behind record after.
func (n *Node) foldLog(ctx context.Context, f *fold, after uint64) error {
	opened := time.Since(n.began)
	if _, err := foldAll(f, ahead(n.records(ctx, after, n.store.Durable()))); err != nil {
		return err
	}
	n.fold = f
	n.log.Debug("log is folded", "from", after+1, "to", n.store.Durable(), "opened", opened, "took", time.Since(n.began))
	return nil
}

// openStore opens the log's files; snap stands for what is before it.
func (n *Node) openStore(ctx context.Context, snap *store.Snapshot) error {
	opts := store.Options{
		Node: n.cfg.Node, Boot: n.boot, OnDurable: n.onDurable, OnCommit: n.metrics.committed, OnRoll: n.onRoll, Socket: n.cfg.SocketPath(), Logger: n.log, Salvage: true,
		SegmentBytes: n.cfg.Log.SegmentBytes, Commit: store.CommitMode(n.cfg.Store.Commit),
		NotBelow: n.notBelow.LastSeq, NotBelowID: n.notBelow.LogID,
	}
	if snap != nil {
		opts.TrustBelow = snap.Seq + 1
	}
	l, rec, err := store.Open(ctx, n.cfg.LogDir(), opts)
	if err != nil {
		return err
	}
	n.store, n.root = l, rec.Root
	n.out.durable.Store(l.Durable())
	if rec.LostFrom != 0 {
		n.lost = true
		n.log.Error("the log has lost its end: what verifies was kept, the past is unknown", "lost_from", rec.LostFrom, "why", rec.Reason, "set_aside", rec.Damaged)
	}
	return nil
}

// onDurable is told of each durable sequence by the log's committer.
func (n *Node) onDurable(seq uint64) {
	n.metrics.durable(seq)
	n.out.advance(seq)
}

// bind takes the control sockets of the local ranks.
func (n *Node) bind() error {
	if n.zmq == nil {
		var err error
		if n.curve, err = openCurve(&n.cfg.Curve, n.log); err != nil {
			return err
		}
		z, err := newZMQ(n.cfg.Limits.FrameBytes, n.curve)
		if err != nil {
			return err
		}
		n.zmq = z
	}
	for range n.cfg.Ranks {
		r, err := n.zmq.Listen(n.cfg.Listen)
		if err != nil {
			return err
		}
		n.pull = append(n.pull, r)
		at := net.JoinHostPort(n.cfg.advertised(), strconv.Itoa(r.Port()))
		if a, err := netip.ParseAddrPort(at); err == nil {
			at = a.String()
		}
		n.addresses = append(n.addresses, at)
	}
	side, gone := toPrefill, func(string) {}
	if n.cfg.Role == "prefill" {
		side, gone = toDecode, func(a string) { n.loop.tell(projector.GateClosed{Address: a}) }
	}
	n.senders = newSenders(n.zmq, side, gone, n.log)
	n.senders.plain = n.plain
	return nil
}

func (n *Node) rankAddress(rank int) string {
	if rank < 0 || rank >= len(n.addresses) {
		return ""
	}
	return n.addresses[rank]
}

// rebuild begins this life on what the log was folded to. The loop does not run
// yet.
func (n *Node) rebuild(unknown []string) error {
	f := n.fold
	n.fold = nil
	n.metrics.waits = f.waits
	if n.receive != nil {
		for id, l := range f.foreign {
			n.receive.foreign(id, l.Room, l.Seq)
		}
	}
	m := f.m
	n.expectPeers(m)
	if n.tracer != nil {
		n.tracer.fold.resume(m.State())
	}
	n.loop = &loop{
		m: m, log: n.store, clock: startClock(f.clock), out: n.out, seq: n.store.Appended(),
		fail: n.fail, stats: n.metrics, trace: n.tracer, queue: make(chan task, queueLen), stop: make(chan struct{}), done: make(chan struct{}),
	}
	id := n.store.LogID()
	start := projector.Start{
		Boot: n.boot, Incarnation: n.store.Incarnation(), LogID: id[:], Root: n.root, UnknownPast: unknown != nil, AskPeers: unknown,
		GenerationBase: uint64(time.Now().Unix()) << 24, //nolint:gosec // events.md, identity
	}
	var b batch
	n.loop.decide(&b, start, nil, false)
	if err := n.store.Append(b.evs, b.class); err != nil {
		return errors.Wrap(err, "record the start")
	}
	n.metrics.observe(b.evs)
	n.tracer.observe(b.evs)
	if n.lost {
		if err := n.store.Sync(n.life); err != nil {
			return errors.Wrap(err, "record the start")
		}
		if err := n.store.LossRecorded(); err != nil {
			return errors.Wrap(err, "record the loss")
		}
	}
	b.evs = nil
	n.loop.flush(&b)
	n.logSince = m.LogSince()
	return nil
}

func (n *Node) projectorConfig() projector.Config {
	c := projector.Config{
		Node: n.cfg.Node, Role: n.cfg.role(), Version: Version, Dialect: n.cfg.Dialect, Provider: n.cfg.RDMA.Provider,
		PageSize: n.cfg.PageSize, Policy: n.cfg.policy(),
		AckTimeout: n.cfg.AckTimeout, AbortRetry: n.cfg.AbortRetry, BootstrapTimeout: n.cfg.BootstrapTimeout,
		WaitingTimeout: n.cfg.WaitingTimeout, TransferTimeout: n.cfg.TransferTimeout,
		AllowWeak: n.cfg.WeakPeers == "allow", MaxRooms: n.cfg.Limits.Rooms, MaxPeers: n.cfg.Limits.Peers, MaxParked: n.cfg.Limits.Parked,
	}
	if n.cfg.Role == "decode" {
		c.Pages, c.AuxRows = n.cfg.Pages, n.cfg.AuxRows
		c.PageCheck = n.cfg.RDMA.Checksums
	}
	t := n.cfg.topology()
	if n.cfg.Role == "prefill" {
		c.Place, c.Staging = t.record(), n.cfg.RDMA.Staging
	}
	for i, at := range n.addresses {
		c.Ranks = append(c.Ranks, projector.LocalRank{Address: at, WireID: uint32(t.shape().unique(t.place(i)))}) //nolint:gosec // ranks
	}
	return c
}

// hlcNow is a clock value for a message that follows from no event.
func (n *Node) hlcNow() uint64 {
	return uint64(events.MakeHLC(n.loop.clock.now().Wall, 0))
}

// pause waits, unless the node ends first.
func (n *Node) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-n.life.Done():
		return false
	}
}
