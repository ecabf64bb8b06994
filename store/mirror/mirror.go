package mirror

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/errors"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

// Log is what the mirror reads: *store.Log.
type Log interface {
	ReadFrames(from uint64, maxBytes int) ([]store.Frame, error)
	Durable() uint64
	First() uint64
	LogID() store.LogID
	Changed() <-chan struct{}
}

var _ Log = (*store.Log)(nil)

// NoticeKind says what a Notice is about.
type NoticeKind string

// Kinds of notices.
const (
	NoticeAhead    NoticeKind = "ahead"     // ErrMirrorAhead
	NoticeDiverged NoticeKind = "diverged"  // ErrMirrorDiverged
	NoticeHole     NoticeKind = "hole"      // events are not on the stream, and not in the log any more
	NoticeLost     NoticeKind = "lost"      // the stream lacks what it had acknowledged; it is published again
	NoticeFull     NoticeKind = "full"      // the stream takes nothing more
	NoticeBehind   NoticeKind = "behind"    // the oldest event that is not mirrored is older than Options.LagAlarm
	NoticeCaughtUp NoticeKind = "caught_up" // after full or behind: the mirror goes on, or is near again
	NoticeOtherLog NoticeKind = "other_log" // the stream holds another log of this node name
	NoticeStream   NoticeKind = "stream"    // the stream exists with settings that can lose messages
)

// Notice is something an operator should know.
type Notice struct {
	Kind   NoticeKind
	Detail string
}

// Options of New. Cluster, Node, Log and one of URL and Conn are required.
type Options struct {
	URL      string     // connected to by Run, for ever; several servers with commas between them
	Access   Access     // with URL
	Conn     *nats.Conn // used and left open; should have ReconnectBufSize(-1)
	Cluster  string
	Node     string
	Log      Log
	Replicas int // of streams that are created; default 1
	// PublishTimeout bounds the wait for one acknowledgement; default 5 s.
	PublishTimeout time.Duration
	// Pace is the least time between two messages of the log while less than a
	// full one waits: each costs the server a sync, which is the disk's time and,
	// where the server is in this process, ours. Default 20 ms; below 0: none.
	Pace time.Duration
	// CheckEvery is how often an idle mirror looks whether the stream is still
	// what it was; default 30 s.
	CheckEvery time.Duration
	// LagAlarm is the age of the oldest event that is not mirrored at which the
	// mirror says so; default 30 s.
	LagAlarm time.Duration
	// OnNotice is called from Run's goroutines. Everything is logged as well.
	OnNotice func(Notice)
	Logger   *slog.Logger
}

const (
	messageBytes          = 512 << 10 // half of a server's default max_payload
	messageEvents         = 1024      // store.md 4.1: the largest batch measured
	defaultPublishTimeout = 5 * time.Second
	defaultPace           = 20 * time.Millisecond // beside a lag of a second that is allowed
	defaultCheckEvery     = 30 * time.Second
	backoffMin            = 50 * time.Millisecond
	backoffMax            = 5 * time.Second
	defaultLagAlarm       = 30 * time.Second
)

// Mirror publishes one node's log. New is the only way in.
type Mirror struct {
	opts    Options
	subject string
	log     *slog.Logger

	mirrored atomic.Uint64
	audited  atomic.Uint64
	ahead    atomic.Bool
	full     [2]atomic.Bool // log stream, audit stream

	mu       sync.Mutex
	progress chan struct{} // closed and replaced when mirrored or audited moves
	synced   bool          // mirrored was read from the stream at least once
	began    time.Time     // Run was called
	logErr   error         // what keeps the log lane from going on
	auditErr error
}

// New checks the options. Run does the work.
func New(o Options) (*Mirror, error) {
	if o.Cluster == "" || o.Node == "" || o.Log == nil || (o.URL == "") == (o.Conn == nil) {
		return nil, errors.New("mirror: cluster, node, log and one of url and connection are required")
	}
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.PublishTimeout == 0 {
		o.PublishTimeout = defaultPublishTimeout
	}
	if o.Pace == 0 {
		o.Pace = defaultPace
	}
	if o.CheckEvery == 0 {
		o.CheckEvery = defaultCheckEvery
	}
	if o.LagAlarm == 0 {
		o.LagAlarm = defaultLagAlarm
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Mirror{
		opts:     o,
		subject:  SubjectLog(o.Cluster, o.Node),
		log:      o.Logger.With("cluster", o.Cluster),
		progress: make(chan struct{}),
	}, nil
}

// LastMirrored is the last sequence the stream is known to have; 0 until the
// stream was read.
func (m *Mirror) LastMirrored() uint64 { return m.mirrored.Load() }

// LastAudited is the last sequence whose milestones are on the audit stream.
func (m *Mirror) LastAudited() uint64 { return m.audited.Load() }

// Lag is the number of durable events that are not mirrored.
func (m *Mirror) Lag() uint64 {
	d, s := m.opts.Log.Durable(), m.mirrored.Load()
	if s >= d {
		return 0
	}
	return d - s
}

// Behind is how many durable events the mirror lacks and how old the oldest of
// them is by the clock of its event; while the stream was not read yet, how long
// that has been so. It reads one frame of the log.
func (m *Mirror) Behind(now time.Time) (lag uint64, age time.Duration) {
	lag = m.Lag()
	if lag == 0 {
		return 0, 0
	}
	m.mu.Lock()
	synced, began := m.synced, m.began
	m.mu.Unlock()
	if !synced {
		if began.IsZero() {
			return lag, 0
		}
		return lag, max(now.Sub(began), 0)
	}
	log := m.opts.Log
	frames, err := log.ReadFrames(max(m.mirrored.Load()+1, log.First()), 1)
	if err != nil || len(frames) == 0 {
		return lag, 0 // the log is closed
	}
	at := events.HLC(frames[0].Info.FirstHLC).Time()
	return lag, max(now.Sub(at), 0)
}

// Ahead says that the stream has events of this log that the log lost.
func (m *Mirror) Ahead() bool { return m.ahead.Load() }

// Err is the trouble the mirror has now, nil while all is well.
func (m *Mirror) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return errors.Join(m.logErr, m.auditErr)
}

// WaitMirrored returns when log and audit stream have everything up to seq, or
// with the context's error.
func (m *Mirror) WaitMirrored(ctx context.Context, seq uint64) error {
	for {
		ch := m.moved()
		if m.mirrored.Load() >= seq && m.audited.Load() >= seq {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return errors.Wrapf(ctx.Err(), "wait for record %d on the mirror: it has %d, audited %d", seq, m.mirrored.Load(), m.audited.Load())
		}
	}
}

func (m *Mirror) moved() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.progress
}

// moveLog notes that the stream has everything up to seq.
func (m *Mirror) moveLog(seq uint64) {
	m.mu.Lock()
	m.mirrored.Store(seq)
	m.synced, m.logErr = true, nil
	m.tell()
}

// moveAudit notes that the milestones up to seq are on the audit stream.
func (m *Mirror) moveAudit(seq uint64) {
	m.mu.Lock()
	m.audited.Store(seq)
	m.auditErr = nil
	m.tell()
}

// tell wakes who waits for progress and unlocks mu.
func (m *Mirror) tell() {
	close(m.progress)
	m.progress = make(chan struct{})
	m.mu.Unlock()
}

func (m *Mirror) setErr(of *error, err error) {
	m.mu.Lock()
	*of = err
	m.mu.Unlock()
}

func (m *Mirror) notice(kind NoticeKind, detail string) {
	level := slog.LevelWarn
	switch kind {
	case NoticeAhead, NoticeDiverged, NoticeFull, NoticeHole, NoticeLost:
		level = slog.LevelError
	case NoticeCaughtUp:
		level = slog.LevelInfo
	case NoticeOtherLog, NoticeStream, NoticeBehind:
	}
	m.log.Log(context.Background(), level, "mirror: "+detail, "kind", string(kind))
	if m.opts.OnNotice != nil {
		m.opts.OnNotice(Notice{Kind: kind, Detail: detail})
	}
}

// Run mirrors until ctx ends (then it returns nil), the log is closed
// (store.ErrClosed), or the stream turns out not to be this log's copy
// (ErrMirrorAhead, ErrMirrorDiverged). Every other trouble is waited out.
func (m *Mirror) Run(ctx context.Context) error {
	m.mu.Lock()
	m.began = time.Now()
	m.mu.Unlock()
	nc := m.opts.Conn
	if nc == nil {
		var err error
		nc, err = Dial(m.opts.URL, m.opts.Access,
			nats.Name("pdlog mirror "+m.opts.Node),
			nats.Timeout(m.opts.PublishTimeout),
			nats.RetryOnFailedConnect(true),
			nats.IgnoreAuthErrorAbort(), // credentials are put right without a restart of the node
			nats.MaxReconnects(-1),
			nats.ReconnectWait(backoffMin*4),
			nats.ReconnectJitter(backoffMin*2, backoffMin*2),
			nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { m.log.Warn("mirror: connection", "err", err) }),
			nats.ReconnectHandler(func(nc *nats.Conn) { m.log.Info("mirror: connected again", "url", nc.ConnectedUrlRedacted()) }),
			nats.ReconnectBufSize(-1), // a publish while down fails at once instead of piling up (store.md 4.3)
		)
		if err != nil {
			return errors.Wrap(err, "mirror")
		}
		defer nc.Close()
	}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(m.opts.PublishTimeout))
	if err != nil {
		return errors.Wrap(err, "mirror")
	}
	l := newLink(nc)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.watch(gctx) })
	g.Go(func() error { return m.keep(gctx, l, &m.logErr, (&logLane{m: m, js: js}).session) })
	g.Go(func() error { return m.keep(gctx, l, &m.auditErr, (&auditLane{m: m, js: js}).session) })
	g.Go(func() error { return m.watchLag(gctx) })
	err = g.Wait()
	if ctx.Err() != nil && !final(err) {
		return nil
	}
	return err
}

// keep runs sessions of a lane until one ends it, backing off between them;
// a session that got something done starts the backing off anew.
func (m *Mirror) keep(ctx context.Context, l *link, trouble *error, session func(context.Context) (done bool, err error)) error {
	wait := backoffMin
	for {
		back := l.returned()
		part, end := l.within(ctx)
		done, err := session(part)
		end()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if final(err) {
			kind := NoticeDiverged
			if errors.Is(err, ErrMirrorAhead) {
				kind = NoticeAhead
				m.ahead.Store(true)
			}
			m.setErr(trouble, err)
			m.notice(kind, err.Error())
			return err
		}
		if errors.Is(err, store.ErrClosed) {
			return err
		}
		if done {
			wait = backoffMin
		}
		if errors.Is(err, errConflict) || errors.Is(err, errDuplicate) {
			m.log.Debug("mirror: reading back", "why", err)
		} else {
			err = l.explain(err)
			m.setErr(trouble, err)
			m.log.Warn("mirror: trying again", "lag", m.Lag(), "in", wait, "err", err)
		}
		timer := time.NewTimer(wait/2 + rand.N(wait/2+1))
		select {
		case <-timer.C:
		case <-back:
			timer.Stop()
			wait = backoffMin
			continue
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		wait = min(2*wait, backoffMax)
	}
}

// watchLag reports a mirror that has fallen behind, and one that is back.
func (m *Mirror) watchLag(ctx context.Context) error {
	tick := time.NewTicker(max(m.opts.LagAlarm/8, time.Millisecond))
	defer tick.Stop()
	behind := false
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		lag, age := m.Behind(time.Now())
		switch {
		case !behind && age > m.opts.LagAlarm:
			behind = true
			m.notice(NoticeBehind, fmt.Sprintf("%d events are not mirrored, the oldest is %s old", lag, age.Round(time.Second)))
		case behind && age <= m.opts.LagAlarm/2:
			behind = false
			m.notice(NoticeCaughtUp, fmt.Sprintf("%d events are not mirrored, the oldest is %s old", lag, age.Round(time.Second)))
		}
	}
}
