package sim

import (
	"errors"
	"hash/crc32"
	"slices"
	"time"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// syncState is what the next fsync does.
type syncState uint8

const (
	syncOK   syncState = iota
	syncLost           // an error, and the batch is not on disk
	syncKept           // an error, and it is
)

// disk is a node's log: the bytes of real frames, and a commit under way.
type disk struct {
	file     []byte // what survives a crash
	head     uint64 // the last sequence that was called durable: kept beside the log, as the store's side file is
	writer   *events.FrameWriter
	durable  uint64
	pending  []*events.Event
	inFlight []*events.Event
	batch    events.FrameBatch
	frames   []byte // of inFlight
	failSync syncState
	full     bool

	snap       []byte
	snapSeq    uint64
	snapSum    uint32
	snapDigest string

	mirrorUp  bool
	mirrorID  []byte
	mirrorSeq uint64
}

// commit starts the next group commit, if none is under way.
func (n *node) commit() {
	if len(n.inFlight) > 0 || len(n.pending) == 0 {
		return
	}
	w := n.w
	n.inFlight, n.pending = n.pending, nil
	for _, e := range n.inFlight {
		if err := n.writer.Append(e); err != nil {
			w.fail("codec", "%s: %v", n.name, err)
			return
		}
	}
	n.writer.Swap(&n.batch)
	n.frames = n.frames[:0]
	for i := range n.batch.Len() {
		_, f := n.batch.Frame(i)
		n.frames = append(n.frames, f...)
	}
	d := w.f.fsync/2 + w.exp(w.f.fsync/2)
	if w.fault(w.f.fsyncSlow) {
		w.inject("slow fsync")
		d += w.between(0, 2*time.Second)
	}
	w.after(d, n.guard(n.committed))
}

// write appends to the file, which grows by doubling: runs are short, logs long.
func (n *node) write(b []byte) {
	if len(n.file)+len(b) > cap(n.file) {
		n.file = slices.Grow(n.file, len(n.file)+len(b))
	}
	n.file = append(n.file, b...)
}

func (n *node) committed() {
	w := n.w
	if n.failSync != syncOK {
		w.inject("fsync error")
		if n.failSync == syncKept {
			n.file = append(n.file, n.frames...)
		}
		n.inFlight, n.frames = nil, n.frames[:0]
		n.die() // never fsync the same file again: the node ends, nothing more is done or told
		n.restartLater()
		return
	}
	n.write(n.frames)
	batch := n.inFlight
	n.inFlight, n.frames = nil, n.frames[:0]
	for _, e := range batch {
		w.feed(n, e)
	}
	n.durable = batch[len(batch)-1].Seq
	n.head = n.durable
	if n.mirrorUp {
		n.mirrorID, n.mirrorSeq = n.logID, n.durable
	}
	n.commit()
	n.flush()
	n.snapshot()
}

// sync makes durable at once what is left at a graceful stop.
func (n *node) sync() {
	for len(n.inFlight) > 0 || len(n.pending) > 0 {
		if len(n.inFlight) == 0 {
			n.commit()
		}
		n.write(n.frames)
		for _, e := range n.inFlight {
			n.w.feed(n, e)
			n.durable = e.Seq
		}
		n.inFlight, n.frames = nil, n.frames[:0]
		n.head = n.durable
	}
}

// cut is what a crash makes of the commit under way: all of it, none, or a part
// that ends anywhere.
func (n *node) cut() {
	if len(n.inFlight) == 0 {
		return
	}
	w := n.w
	w.probe("crash between persist and send")
	keep := pick(w, 0, len(n.frames))
	if w.fault(w.f.torn) {
		keep = w.rng.IntN(len(n.frames) + 1)
		if w.rng.IntN(2) == 0 {
			keep = keep / 512 * 512
		}
	}
	n.file = append(n.file, n.frames[:keep]...)
	n.inFlight, n.frames = nil, n.frames[:0]
}

// open folds what the disk holds into the machine, from the newest snapshot on
// where there is one: what is before it is verified, and not decoded. A tail that was never called
// durable may be missing or torn; anything else that does not verify is damage:
// what verifies is kept, and the past is unknown from then on.
func (n *node) open() (damaged bool) {
	w := n.w
	pos, at := n.fromSnapshot()
	for at < len(n.file) {
		var batch []*events.Event
		in, err := events.DecodeFrame(n.file[at:], n.name, func(e *events.Event) error {
			batch = append(batch, e)
			return nil
		})
		next := pos
		if err == nil {
			err = next.Advance(in)
		}
		if err != nil {
			if pos.Seq >= n.head {
				w.probe("log tail cut on open")
			}
			break
		}
		pos, at = next, at+in.Size
		for _, e := range batch {
			n.m.Apply(e)
			if e.Seq > n.durable { // reached the disk in the crash
				w.feed(n, e)
			}
		}
	}
	n.file = n.file[:at]
	damaged = pos.Seq < n.head
	if pos.Seq < n.head {
		w.probe("damaged log found on open")
		n.lose(pos.Seq)
	}
	n.durable, n.head = pos.Seq, pos.Seq
	n.writer = events.NewFrameWriter(pos)
	return damaged
}

// fromSnapshot puts the state of the newest snapshot in place, if the log verifies
// as far as it, and says how far that is. folds holds the whole log to account.
func (n *node) fromSnapshot() (events.Position, int) {
	var pos events.Position
	at := 0
	for n.snap != nil && pos.Seq < n.snapSeq {
		in, err := events.DecodeFrame(n.file[at:], n.name, nil)
		if err == nil {
			err = pos.Advance(in)
		}
		if err != nil {
			return events.Position{}, 0
		}
		at += in.Size
	}
	if n.snap == nil || pos.Seq != n.snapSeq {
		return events.Position{}, 0
	}
	if n.w.fault(n.w.f.flip) {
		n.snap[n.w.rng.IntN(len(n.snap))] ^= 1
	}
	if crc32.ChecksumIEEE(n.snap) != n.snapSum {
		n.w.probe("snapshot ignored as damaged")
		n.snap = nil
		return events.Position{}, 0
	}
	m := n.machine()
	if err := m.Restore(n.snap); err != nil {
		n.w.fail("snapshot", "%s: %v", n.name, err)
		return events.Position{}, 0
	}
	if have := digest(m); have != n.snapDigest {
		n.w.fail("snapshot", "%s: the snapshot at %d is not the state it was made of:\n%s\n%s", n.name, n.snapSeq, have, n.snapDigest)
	}
	n.w.probe("started from a snapshot")
	n.m = m
	return pos, at
}

// snapshot is taken at times, when all that the state rests on is on disk.
func (n *node) snapshot() {
	if len(n.inFlight)+len(n.pending) > 0 || n.w.rng.IntN(200) != 0 {
		return
	}
	n.snap, n.snapSeq, n.snapDigest = n.m.Snapshot(), n.durable, digest(n.m)
	n.snapSum = crc32.ChecksumIEEE(n.snap)
}

// lose begins another log life: what came after kept is gone.
func (n *node) lose(kept uint64) {
	n.lives++
	n.epoch++
	if n.snapSeq > kept {
		n.snap = nil
	}
	n.forgetUses(kept)
	if n.w.cfg.keep() {
		n.w.recheck(n, kept)
	}
	if n.durable > kept {
		n.durable = kept
	}
}

// wipe gives the node an empty disk.
func (n *node) wipe() {
	n.lives++
	n.epoch++
	n.forgetUses(0)
	n.file, n.head, n.durable, n.logID, n.snap = nil, 0, 0, nil, nil
}

// flip flips one bit of the file at rest. The record that it is in, and all
// after it, are lost; nothing may be silently wrong.
func (n *node) flip() {
	if len(n.file) == 0 {
		return
	}
	n.w.inject("bit flip")
	i := n.w.rng.IntN(len(n.file))
	n.file[i] ^= 1 << n.w.rng.IntN(8)
}

// olderCopy swaps the disk of a prefill node for an older copy of itself: its
// mirror tells it, or, where that cannot be asked, its peers do. Decode nodes are
// left out: what names their rooms, (log_id, room_seq), comes again after a
// restore, and nothing on the wire tells the two apart.
func (n *node) olderCopy() {
	w := n.w
	if len(n.file) == 0 {
		return
	}
	want := len(n.file) - 1 - w.rng.IntN(min(len(n.file), 16<<10))
	at, last := 0, uint64(0)
	for at < len(n.file) {
		in, err := events.FramePeek(n.file[at:])
		if err != nil || at+in.Size > want {
			break
		}
		at, last = at+in.Size, in.LastSeq
	}
	if last == 0 || last >= n.head {
		return
	}
	if !n.endIsKnown(at, last) {
		if n.fence == events.FenceKind_FENCE_KIND_NONE {
			w.probe("older copy left out: nobody remembers its end")
			return
		}
		w.probe("older copy whose end nobody remembers")
	}
	w.inject("older copy of the disk")
	n.file = n.file[:at]
	n.head = last
	n.lose(last)
}

// endIsKnown: of each life whose end would be lost behind the first at bytes, the
// decode nodes that its metadata came from have something on their logs. Where
// that is not so, nothing can find out what was lost (docs/reliability.md); it
// only matters for writers that nobody can fence, for the rest no key outlives
// its room.
func (n *node) endIsKnown(at int, last uint64) bool {
	known := true
	decodes := map[string]*projector.State{}
	_, _, err := events.DecodeFrames(n.file[at:], n.name, func(e *events.Event) error {
		p := e.GetMetadataReceived()
		if p == nil || p.DecodeNode == "" {
			return nil
		}
		st := decodes[p.DecodeNode]
		if st == nil {
			st = n.w.onDisk(p.DecodeNode)
			decodes[p.DecodeNode] = st
		}
		if peer := st.Peers[n.name]; peer == nil || !slices.ContainsFunc(peer.Seen, func(l projector.SeenLife) bool {
			return l.Boot == e.Boot && l.Seq > last
		}) {
			known = false
		}
		return nil
	})
	return known && err == nil
}

// onDisk is what a node's log alone says.
func (w *world) onDisk(name string) *projector.State {
	n := w.nodes[slices.IndexFunc(w.nodes, func(n *node) bool { return n.name == name })]
	m := n.machine()
	if err := n.read(func(e *events.Event) error { m.Apply(e); return nil }); err != nil {
		w.fail("log", "%s: %v", name, err)
	}
	return m.State()
}

func (n *node) setFull(full bool) {
	n.full = full
	n.tell(logState(full))
}

// read decodes the node's present log.
func (n *node) read(visit func(*events.Event) error) error {
	if len(n.file) == 0 {
		return nil
	}
	_, _, err := events.DecodeFrames(n.file, n.name, visit)
	if errors.Is(err, events.ErrFrameShort) || errors.Is(err, events.ErrFrameCRC) {
		return nil // the torn tail of a crash
	}
	return err
}
