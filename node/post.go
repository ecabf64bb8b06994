package node

import (
	"log/slog"
	"sync"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/backends/geometry"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/rdma"
)

const (
	connectTime = 5 * time.Second
	connectRest = time.Second // after a failed connect, writes to that destination fail at once for so long
	sealsKept   = 1 << 16     // sealed room incarnations that are remembered; queued writes are far younger
)

var errSealed = errors.New("the room ended before the write was posted")

// postPlane is the prefill side of the data plane: a writer per destination,
// each with its connection and its queue, so that a dead one delays no other.
type postPlane struct {
	domain rdma.Domain
	memory *memoryTable
	shapes *shapes
	tell   func(projector.Command)
	log    *slog.Logger
	took   func(peer string, d time.Duration) // a write that completed; may be nil
	// byEngine writes to destinations that gave no key of ours; nil: such a
	// write fails.
	byEngine func(a *projector.PostWrite, seq uint64) error

	sealed sealSet
	tokens tokenTable

	mu      sync.Mutex         // before writer.mu
	writers map[string]*writer // by endpoint of the keys
	closed  bool
	stop    chan struct{}
	wg      sync.WaitGroup
}

// sealSet remembers the newest sealed room incarnations. Its lock is a leaf.
type sealSet struct {
	mu   sync.Mutex
	set  map[rdma.Tag]struct{}
	ring []rdma.Tag
	next int
}

func (s *sealSet) add(t rdma.Tag) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.set == nil {
		s.set = map[rdma.Tag]struct{}{}
	}
	if _, again := s.set[t]; again {
		return
	}
	s.set[t] = struct{}{}
	if len(s.ring) < sealsKept {
		s.ring = append(s.ring, t)
		return
	}
	delete(s.set, s.ring[s.next])
	s.ring[s.next] = t
	s.next = (s.next + 1) % sealsKept
}

func (s *sealSet) has(t rdma.Tag) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.set[t]
	return ok
}

// tokenTable finds the writer of a write that was posted and has not ended.
// Its lock is a leaf.
type tokenTable struct {
	mu sync.Mutex
	m  map[uint64]postedWrite
}

// postedWrite is under way since at, to a peer node.
type postedWrite struct {
	*writer
	peer string
	at   time.Time
}

func (t *tokenTable) hold(j *job, w *writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = map[uint64]postedWrite{}
	}
	if _, rest := t.m[j.token]; !rest { // of which a part left before
		t.m[j.token] = postedWrite{w, j.peer, time.Now()}
	}
}

func (t *tokenTable) drop(token uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.m, token)
}

func (t *tokenTable) get(token uint64) postedWrite {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.m[token]
}

func newPostPlane(memory *memoryTable, sh *shapes, tell func(projector.Command), log *slog.Logger) *postPlane {
	return &postPlane{
		memory: memory, shapes: sh, tell: tell, log: log,
		writers: map[string]*writer{}, stop: make(chan struct{}),
	}
}

// post hands a write to its destination's writer; it does not wait.
func (p *postPlane) post(a projector.PostWrite, seq uint64) {
	if len(a.Keys) == 0 && p.byEngine != nil && (len(a.Pages) > 0 || owesAux(&a)) {
		if err := p.postByEngine(&a, seq); err != nil {
			p.fails(a.Token, err)
		}
		return
	}
	job, err := p.prepare(&a)
	if err == nil && len(job.writes) == 0 {
		p.tell(projector.WriteDone{Token: a.Token, Outcome: projector.WriteCompleted})
		return
	}
	if err == nil {
		err = p.enqueue(job)
	}
	if err != nil {
		p.fails(a.Token, err)
	}
}

func (p *postPlane) postByEngine(a *projector.PostWrite, seq uint64) error {
	if p.sealed.has(rdma.Tag(a.RoomSeq)) {
		return errSealed
	}
	return p.byEngine(a, seq)
}

// owesAux: the destination's aux row goes with this write.
func owesAux(a *projector.PostWrite) bool { return a.Last && a.Aux != nil }

func (p *postPlane) fails(token uint64, err error) {
	p.tell(projector.WriteDone{Token: token, Outcome: projector.WriteFailed, Reason: err.Error()})
}

// job is one write to post: nothing of it has left.
type job struct {
	token  uint64
	tag    rdma.Tag
	meta   uint64
	peer   string // node
	dest   rdma.PeerInfo
	writes []rdma.Write
}

// prepare finds source and destination of every byte.
func (p *postPlane) prepare(a *projector.PostWrite) (job, error) {
	j := job{token: a.Token, tag: rdma.Tag(a.RoomSeq), meta: uint64(a.Chunk), peer: a.To.Node()}
	m := p.memory.rank(a.Rank.Index())
	if m == nil {
		return j, errors.Newf("%s has no memory", a.Rank)
	}
	kv, aux := findKey(a.Keys, keyKV), findKey(a.Keys, keyAux)
	for _, k := range []*events.WriteKey{kv, aux} {
		if k != nil {
			j.dest = rdma.PeerInfo{Provider: k.Provider, Endpoint: k.Endpoint}
		}
	}
	if len(a.Pages) > 0 {
		if kv == nil {
			return j, errors.New("the destination gave no key for its pages")
		}
		cut, err := p.shapes.cut(a.Address, m.pageBytes, a.Rank.Index())
		if err != nil {
			return j, err
		}
		pages, base, key := a.Pages, uint64(0), kv.Key
		if a.Staged {
			ring := findKey(a.Keys, keyStaging)
			if ring == nil {
				return j, errors.New("the destination gave no key for its staging ring")
			}
			pages, base, key = inOrder(len(a.Pages)), a.StagingAt, ring.Key
		}
		if j.writes, err = pageWrites(m, pages, a.SourcePages, cut, base, key); err != nil {
			return j, err
		}
	}
	if owesAux(a) && len(a.Keys) == 0 {
		return j, errors.New("the destination gave no key for its aux row")
	}
	if owesAux(a) && m.auxRows > 0 && aux != nil {
		src, ok := m.row(a.SourceAux)
		if !ok {
			return j, errors.Newf("source aux row %d is outside the %d rows", a.SourceAux, m.auxRows)
		}
		j.writes = append(j.writes, rdma.Write{Src: src, RemoteOff: uint64(*a.Aux) * m.auxBytes, Key: aux.Key})
	}
	return j, nil
}

func findKey(keys []*events.WriteKey, kind uint32) *events.WriteKey {
	for _, k := range keys {
		if k.Kind == kind && k.Index == 0 && k.Component == 0 {
			return k
		}
	}
	return nil
}

// inOrder is the pages of a staged chunk: one behind the other from the start of
// its part of the ring on.
func inOrder(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i) //nolint:gosec // pages
	}
	return out
}

// pageWrites is a write per run of pages that are neighbours on both sides, if
// whole pages go, else one per page. base is where the destination's page 0 is.
func pageWrites(m *rankMemory, pages, sources []uint32, c geometry.Cut, base uint64, key []byte) ([]rdma.Write, error) {
	if len(sources) != len(pages) {
		return nil, errors.Newf("%d source pages for %d pages", len(sources), len(pages))
	}
	whole := c.Len == m.pageBytes && c.DestPage == m.pageBytes
	out := make([]rdma.Write, 0, len(pages))
	for i, d := range pages {
		src, ok := m.page(sources[i])
		if !ok {
			return nil, errors.Newf("source page %d is outside the %d pages", sources[i], m.pages)
		}
		if whole && i > 0 && pages[i-1]+1 == d && sources[i-1]+1 == sources[i] {
			last := &out[len(out)-1]
			n := uint64(len(last.Src)) + m.pageBytes
			at := uint64(sources[i])*m.pageBytes + m.pageBytes - n
			last.Src = m.kv[at : at+n : at+n]
			continue
		}
		out = append(out, rdma.Write{
			Src:       src[c.SrcOff : c.SrcOff+c.Len : c.SrcOff+c.Len],
			RemoteOff: base + uint64(d)*c.DestPage + c.DstOff,
			Key:       key,
		})
	}
	return out, nil
}

func (p *postPlane) enqueue(j job) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrStopped
	}
	w := p.writers[j.dest.Endpoint]
	if w == nil {
		w = &writer{plane: p, dest: j.dest, wake: make(chan struct{}, 1), open: map[rdma.Tag]int{}, rest: map[uint64]job{}}
		p.writers[j.dest.Endpoint] = w
		p.wg.Go(w.run)
	}
	w.push(j)
	return nil
}

// seal: nothing more of this room incarnation is posted once it has returned;
// what is queued still reports, as failed.
func (p *postPlane) seal(roomSeq uint64) {
	p.sealed.add(rdma.Tag(roomSeq))
	p.mu.Lock()
	var ws []*writer
	for _, w := range p.writers {
		ws = append(ws, w)
	}
	p.mu.Unlock()
	for _, w := range ws {
		w.seal(rdma.Tag(roomSeq))
	}
}

// complete is told by the provider how a posted write ended.
func (p *postPlane) complete(c rdma.Completion) {
	w := p.tokens.get(c.Token)
	if w.writer != nil && w.putOff(c) {
		return
	}
	p.settle(c, w.writer)
}

// settle books a completion and tells the core. w may be nil: the write was
// settled before.
func (p *postPlane) settle(c rdma.Completion, w *writer) {
	over := c.Status != rdma.Uncertain
	cut := false
	if w != nil {
		var again bool
		if again, cut = w.ended(c, over); again {
			return // the rest of it goes out first
		}
	}
	if c.Status == rdma.Completed && w != nil && p.took != nil {
		if t := p.tokens.get(c.Token); t.writer != nil {
			p.took(t.peer, time.Since(t.at))
		}
	}
	if over {
		p.tokens.drop(c.Token)
	}
	d := projector.WriteDone{Token: c.Token}
	if c.Err != nil {
		d.Reason = c.Err.Error()
	}
	switch c.Status {
	case rdma.Completed:
		d.Outcome = projector.WriteCompleted
	case rdma.Failed:
		d.Outcome = projector.WriteUncertain
		if c.Proven {
			d.Outcome = projector.WriteFailed
		}
	case rdma.Uncertain:
		d.Outcome = projector.WriteUncertain
	case rdma.Drained:
		d.Outcome, d.Landed = projector.WriteDrained, c.Err == nil && !cut
	}
	p.tell(d)
}

// retire takes a writer without work off the table; false: work has come.
func (p *postPlane) retire(w *writer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !w.idle() {
		return false
	}
	delete(p.writers, w.dest.Endpoint)
	return true
}

// close ends the writers. The domain is closed by its owner, after.
func (p *postPlane) close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.stop)
	}
	p.mu.Unlock()
	p.wg.Wait()
}
