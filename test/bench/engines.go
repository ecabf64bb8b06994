package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

// engine takes events from any number of producers, and makes them durable.
type engine interface {
	// put gives the event its place and takes it; wait waits until it is durable.
	put(e *events.Event, class events.Class) (seq uint64, err error)
	wait(seq uint64) error
	close() error
}

// batcher takes events many at a time, of class Sync.
type batcher interface {
	engine
	putAll(evs []*events.Event) (last uint64, err error)
}

// The engines, by name. All get the same frames.
const (
	ownOne   = "pdlog"
	ownTwo   = "two syncs"
	raw      = "raw pwrite+fdatasync"
	etcdWAL  = "etcd's wal"
	pebbleDB = "pebble"
	dbBatch  = "db.Batch"
	natsLog  = "JetStream, sync always"
)

func start(name, dir string) (engine, error) {
	dir, err := os.MkdirTemp(dir, "engine-")
	if err != nil {
		return nil, err
	}
	switch name {
	case ownOne:
		return startOwn(dir, store.OneSync)
	case ownTwo:
		return startOwn(dir, store.TwoSync)
	case raw:
		w, err := newRaw(dir)
		return grouped(w, err)
	case etcdWAL:
		w, err := newEtcd(dir)
		return grouped(w, err)
	case pebbleDB:
		w, err := newPebble(dir)
		return grouped(w, err)
	case dbBatch:
		return newBatch(dir)
	case natsLog:
		return newJetStream(dir)
	}
	return nil, fmt.Errorf("no engine %q", name)
}

// startAll starts engines by name; stop closes them.
func startAll(dir string, names ...string) (all map[string]engine, stop func() error, err error) {
	all = map[string]engine{}
	stop = func() error {
		var err error
		for _, e := range all {
			if e := e.close(); e != nil {
				err = e
			}
		}
		return err
	}
	for _, n := range names {
		e, err := start(n, dir)
		if err != nil {
			_ = stop()
			return nil, nil, fmt.Errorf("%s: %w", n, err)
		}
		all[n] = e
	}
	return all, stop, nil
}

// numbered gives events their places, as a node's loop does.
type numbered struct {
	mu       sync.Mutex
	seq, hlc uint64
}

func (n *numbered) stamp(e *events.Event, boot, incarnation uint64) {
	n.seq++
	n.hlc += 3
	e.Seq, e.Hlc, e.Boot, e.Incarnation = n.seq, n.hlc, boot, incarnation
}

type own struct {
	numbered
	log *store.Log
	inc uint64
}

func startOwn(dir string, mode store.CommitMode) (*own, error) {
	l, rec, err := store.Open(context.Background(), filepath.Join(dir, "log"), store.Options{Node: "n", Boot: 1, Commit: mode})
	if err != nil {
		return nil, err
	}
	return &own{log: l, inc: rec.Incarnation, numbered: numbered{seq: rec.LastSeq, hlc: rec.LastHLC}}, nil
}

func (o *own) put(e *events.Event, class events.Class) (uint64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stamp(e, 1, o.inc)
	return e.Seq, o.log.Append([]*events.Event{e}, class)
}

func (o *own) putAll(evs []*events.Event) (uint64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range evs {
		o.stamp(e, 1, o.inc)
	}
	return o.seq, o.log.Append(evs, events.Sync)
}

func (o *own) wait(seq uint64) error { return o.log.Wait(context.Background(), seq) }
func (o *own) close() error          { return o.log.Close() }

// writer makes frames durable; it is called by one goroutine at a time.
type writer interface {
	write(b *events.FrameBatch) error
	close() error
}

// group is the plain group commit around a writer: whatever is pending goes
// with the next write.
type group struct {
	numbered
	w      writer
	frames *events.FrameWriter
	wake   chan struct{}
	done   chan struct{}
	cond   *sync.Cond
	wanted uint64
	at     uint64
	closed bool
	err    error
}

func grouped(w writer, err error) (engine, error) {
	if err != nil {
		return nil, err
	}
	g := &group{w: w, frames: events.NewFrameWriter(events.Position{}), wake: make(chan struct{}, 1), done: make(chan struct{})}
	g.cond = sync.NewCond(&g.mu)
	go g.run()
	return g, nil
}

func (g *group) put(e *events.Event, class events.Class) (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stamp(e, 1, 1)
	if err := g.frames.Append(e); err != nil {
		return 0, err
	}
	if class == events.Sync {
		g.poke()
	}
	return e.Seq, g.err
}

func (g *group) putAll(evs []*events.Event) (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range evs {
		g.stamp(e, 1, 1)
		if err := g.frames.Append(e); err != nil {
			return 0, err
		}
	}
	g.poke()
	return g.seq, g.err
}

func (g *group) poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

func (g *group) wait(seq uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.at < seq && g.err == nil {
		g.cond.Wait()
	}
	return g.err
}

func (g *group) run() {
	defer close(g.done)
	var b events.FrameBatch
	for range g.wake {
		g.mu.Lock()
		g.frames.Swap(&b)
		to, closed := g.seq, g.closed
		g.mu.Unlock()
		var err error
		if b.Len() > 0 {
			err = g.w.write(&b)
		}
		g.mu.Lock()
		g.at, g.err = to, err
		g.cond.Broadcast()
		g.mu.Unlock()
		if closed {
			return
		}
	}
}

func (g *group) close() error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.poke()
	<-g.done
	return g.w.close()
}

// rawFile is the disk itself: one pwrite into written space, one fdatasync.
type rawFile struct {
	f   *os.File
	at  int64
	buf []byte
}

const rawBytes = 64 << 20

func newRaw(dir string) (*rawFile, error) {
	f, err := os.Create(filepath.Join(dir, "raw"))
	if err != nil {
		return nil, err
	}
	zero := make([]byte, 1<<20)
	for range rawBytes / len(zero) {
		if _, err := f.Write(zero); err != nil {
			return nil, err
		}
	}
	return &rawFile{f: f}, f.Sync()
}

func (r *rawFile) write(b *events.FrameBatch) error {
	r.buf = r.buf[:0]
	for i := range b.Len() {
		_, f := b.Frame(i)
		r.buf = append(r.buf, f...)
	}
	if r.at+int64(len(r.buf)) > rawBytes {
		r.at = 0
	}
	if _, err := r.f.WriteAt(r.buf, r.at); err != nil {
		return err
	}
	r.at += int64(len(r.buf))
	return unix.Fdatasync(int(r.f.Fd()))
}

func (r *rawFile) close() error { return r.f.Close() }

// etcd: one entry per frame, one Save per commit.
type etcd struct {
	w     *wal.WAL
	index uint64
}

func newEtcd(dir string) (*etcd, error) {
	w, err := wal.Create(zap.NewNop(), filepath.Join(dir, "wal"), nil)
	return &etcd{w: w}, err
}

func (e *etcd) write(b *events.FrameBatch) error {
	entries := make([]*raftpb.Entry, b.Len())
	for i := range entries {
		_, f := b.Frame(i)
		e.index++
		entries[i] = &raftpb.Entry{Type: raftpb.EntryNormal.Enum(), Term: proto.Uint64(1), Index: proto.Uint64(e.index), Data: f}
	}
	return e.w.Save(&raftpb.HardState{Term: proto.Uint64(1), Vote: proto.Uint64(1), Commit: proto.Uint64(e.index)}, entries)
}

func (e *etcd) close() error { return e.w.Close() }

// pebble: one key per frame, one synced batch per commit.
type pebbleLog struct{ db *pebble.DB }

type silent struct{}

func (silent) Infof(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(f string, a ...any) {
	panic(fmt.Sprintf(f, a...))
}

func newPebble(dir string) (*pebbleLog, error) {
	db, err := pebble.Open(filepath.Join(dir, "pebble"), &pebble.Options{Logger: silent{}})
	return &pebbleLog{db: db}, err
}

func (p *pebbleLog) write(b *events.FrameBatch) error {
	batch := p.db.NewBatch()
	for i := range b.Len() {
		s, f := b.Frame(i)
		if err := batch.Set(key(s.Seq), f, nil); err != nil {
			return err
		}
	}
	return batch.Commit(pebble.Sync)
}

func (p *pebbleLog) close() error { return p.db.Close() }

// batchDB is bbolt's own db.Batch with its defaults: each producer brings its
// frame.
type batchDB struct {
	numbered
	db     *bbolt.DB
	frames *events.FrameWriter
	b      events.FrameBatch
	errs   sync.Map // seq -> chan error
}

var frames = []byte("frames")

func newBatch(dir string) (*batchDB, error) {
	db, err := bbolt.Open(filepath.Join(dir, "batch.db"), 0o600, nil)
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket(frames); return err })
	return &batchDB{db: db, frames: events.NewFrameWriter(events.Position{})}, err
}

func (d *batchDB) put(e *events.Event, class events.Class) (uint64, error) {
	d.mu.Lock()
	d.stamp(e, 1, 1)
	err := d.frames.Append(e)
	if err != nil || class != events.Sync {
		d.mu.Unlock()
		return e.Seq, err
	}
	d.frames.Swap(&d.b)
	var keys, values [][]byte
	for i := range d.b.Len() {
		s, f := d.b.Frame(i)
		keys, values = append(keys, key(s.Seq)), append(values, append([]byte(nil), f...))
	}
	d.mu.Unlock()
	done := make(chan error, 1)
	d.errs.Store(e.Seq, done)
	go func() {
		done <- d.db.Batch(func(tx *bbolt.Tx) error {
			for i, k := range keys {
				if err := tx.Bucket(frames).Put(k, values[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	return e.Seq, nil
}

func (d *batchDB) wait(seq uint64) error {
	ch, _ := d.errs.LoadAndDelete(seq)
	return <-ch.(chan error)
}

func (d *batchDB) close() error { return d.db.Close() }

func key(seq uint64) []byte {
	var b [8]byte
	for i := range b {
		b[7-i] = byte(seq >> (8 * i))
	}
	return b[:]
}
