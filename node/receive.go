package node

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/rdma"
)

// Kinds of write keys (wire.md 9.3).
const (
	keyKV      = 1
	keyAux     = 2
	keyStaging = 4
)

const (
	revokeTime = time.Second // an exact revoke waits for one copy; more than this is a fault
	revokers   = 16          // that wait at once where all is taken back: a key on a device is a round trip, few of which fill its queues
	graveyard  = 1 << 16     // revoked leases whose late writes can still be told with their names; as many as the tcp provider remembers
)

// grant is a lease of ours and whose it is.
type grant struct {
	id      uint64
	room    uint64
	roomSeq uint64
	rank    projector.RankID
	to      projector.RankID
	leases  []rdma.Lease
	pages   rdma.Lease // the one of leases that is on pages
	revoked bool
	foreign bool // the peer writes by other means: we granted nothing and can prove nothing
}

type regionUse struct {
	item    uint64 // bytes of a page or row
	aux     bool
	staging bool
}

// receivePlane is the decode side of the data plane: it grants, revokes and
// hears what lands.
type receivePlane struct {
	domain rdma.Domain
	memory *memoryTable
	tell   func(projector.Command) // waits while the loop is full: before the writer learns anything
	host   string                  // told to writers in place of a wildcard that the domain listens on

	mu      sync.Mutex
	grants  map[uint64]*grant
	graves  []uint64 // ring of revoked ids
	next    int
	regions map[uint32]regionUse
}

func newReceivePlane(memory *memoryTable, tell func(projector.Command)) *receivePlane {
	return &receivePlane{memory: memory, tell: tell, grants: map[uint64]*grant{}, regions: map[uint32]regionUse{}}
}

// peerName is how a node's life names itself to the provider: a key granted to
// one life does not work for the next.
func peerName(node string, boot uint64) rdma.PeerID {
	return rdma.PeerID(fmt.Sprintf("%s/%016x", node, boot))
}

func parsePeerName(p rdma.PeerID) (node string, boot uint64, ok bool) {
	node, hex, found := strings.Cut(string(p), "/")
	boot, err := strconv.ParseUint(hex, 16, 64)
	return node, boot, found && err == nil && node != ""
}

// register makes a rank's memory writable by leases.
func (r *receivePlane) register(ctx context.Context, m *rankMemory) error {
	if err := m.register(ctx, r.domain); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.regions[m.kvRegion.ID()] = regionUse{item: m.pageBytes}
	if m.auxRegion != nil {
		r.regions[m.auxRegion.ID()] = regionUse{item: m.auxBytes, aux: true}
	}
	if m.stagingRegion != nil {
		r.regions[m.stagingRegion.ID()] = regionUse{staging: true}
	}
	return nil
}

// grant lets the peer write the pages and the aux row of one pair of a room.
func (r *receivePlane) grant(ctx context.Context, a *projector.SendMetadata, peer rdma.PeerID) ([]*events.WriteKey, error) {
	m := r.memory.rank(a.To.Index())
	if m == nil {
		return nil, errors.Newf("%s has no memory", a.To)
	}
	g := &grant{id: a.Lease, room: a.Room, roomSeq: a.RoomSeq, rank: a.Rank, to: a.To}
	// In the table before the key exists: a write may land before this returns.
	r.mu.Lock()
	r.grants[a.Lease] = g
	r.mu.Unlock()
	var keys []*events.WriteKey
	add := func(kind uint32, region rdma.Region, ranges []rdma.Range) error {
		l, err := region.Grant(ctx, rdma.Grant{Peer: peer, Tag: rdma.Tag(a.Lease), Ranges: ranges})
		if err != nil {
			return err
		}
		r.mu.Lock()
		g.leases = append(g.leases, l)
		if kind == keyKV {
			g.pages = l
		}
		r.mu.Unlock()
		d := l.Desc()
		keys = append(keys, &events.WriteKey{Kind: kind, Provider: d.Provider, Endpoint: r.reachable(d.Endpoint), Key: d.Key})
		return nil
	}
	pages, err := ranges(a.Pages, m.pageBytes, m.pages)
	if err == nil && len(pages) > 0 {
		err = add(keyKV, m.kvRegion, pages)
	}
	if err == nil && m.auxRegion != nil {
		var row []rdma.Range
		if row, err = ranges([]uint32{a.Aux}, m.auxBytes, m.auxRows); err == nil {
			err = add(keyAux, m.auxRegion, row)
		}
	}
	if err == nil && m.stagingRegion != nil && len(pages) > 0 {
		err = add(keyStaging, m.stagingRegion, []rdma.Range{{Len: m.stagingBytes}})
	}
	if err != nil {
		_, _ = r.take(a.Lease) // nobody has heard of the keys
		return nil, errors.Wrapf(err, "grant lease %d of room %d to %s", a.Lease, a.Room, a.Rank)
	}
	return keys, nil
}

// reachable puts the advertised host in the place of the one listened on.
func (r *receivePlane) reachable(endpoint string) string {
	_, port, err := net.SplitHostPort(endpoint)
	if err != nil || strings.HasPrefix(endpoint, "unix:") || r.host == "" {
		return endpoint
	}
	return net.JoinHostPort(r.host, port)
}

func ranges(items []uint32, size, n uint64) ([]rdma.Range, error) {
	out := make([]rdma.Range, 0, len(items))
	for _, p := range items {
		if uint64(p) >= n {
			return nil, errors.Newf("item %d is outside the %d of the buffer", p, n)
		}
		off := uint64(p) * size
		if k := len(out); k > 0 && out[k-1].End() == off {
			out[k-1].Len += size
			continue
		}
		out = append(out, rdma.Range{Off: off, Len: size})
	}
	return out, nil
}

var errForeign = errors.New("the peer writes by means of its own, which this node cannot take back")

// foreign notes a publish to a peer that is not pdlog: its writes do not go
// through our provider, so nothing of them can be fenced (rdma.md 9.2).
func (r *receivePlane) foreign(lease, room, roomSeq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.grants[lease] = &grant{id: lease, room: room, roomSeq: roomSeq, foreign: true}
}

// forget drops what foreign noted, when the room's pages are released.
func (r *receivePlane) forget(lease uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.grants[lease]; g != nil && g.foreign {
		delete(r.grants, lease)
	}
}

// take revokes a lease. A lease that is not known belongs to an earlier life of
// this node: the process that read for it has ended (it held the log's lock),
// so its reader has stopped.
func (r *receivePlane) take(id uint64) (rdma.Fence, error) {
	ctx := &lazyTimeout{limit: revokeTime}
	defer ctx.end()
	return r.takeWithin(ctx, id)
}

// takeNow revokes a lease if there is nothing to wait for, and forgets one of a
// peer that writes by other means. False: it has to be taken. Where the device
// keeps the keys each of them is a round trip to it.
func (r *receivePlane) takeNow(id uint64) bool {
	r.mu.Lock()
	g := r.grants[id]
	ours := g != nil && !g.foreign && len(g.leases) > 0
	r.mu.Unlock()
	if ours && r.domain.Caps().Fence != rdma.FenceReaderStopped {
		return false
	}
	_, err := r.takeWithin(overContext, id)
	if errors.Is(err, errForeign) {
		r.forget(id)
		return true
	}
	return err == nil
}

// overContext has ended: whoever would wait with it does not.
var overContext = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (r *receivePlane) takeWithin(ctx context.Context, id uint64) (rdma.Fence, error) {
	r.mu.Lock()
	g := r.grants[id]
	var few [4]rdma.Lease // KV, aux, staging
	leases := few[:0]
	if g != nil {
		leases = append(leases, g.leases...)
	}
	r.mu.Unlock()
	switch {
	case g == nil:
		return rdma.Fence{Kind: rdma.FenceReaderStopped, Scope: rdma.ScopeLease, Exact: true}, nil
	case g.foreign:
		return rdma.Fence{}, errForeign
	}
	out := rdma.Fence{Kind: rdma.FenceHard, Scope: rdma.ScopeLease, Exact: true}
	if len(leases) == 0 { // nothing was granted, so nothing can land
		out.Kind = r.domain.Caps().Fence
	}
	for _, l := range leases {
		f, err := l.Revoke(ctx)
		if err != nil {
			return rdma.Fence{}, err
		}
		out.Kind = min(out.Kind, f.Kind)
		out.Exact = out.Exact && f.Exact
		out.Took += f.Took
		out.Torn = append(out.Torn, f.Torn...)
	}
	r.bury(g)
	return out, nil
}

// bury keeps a revoked lease's name for its late writes, for a while.
func (r *receivePlane) bury(g *grant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g.revoked {
		return
	}
	g.revoked = true
	g.leases = nil
	if len(r.graves) < graveyard {
		r.graves = append(r.graves, g.id)
		return
	}
	delete(r.grants, r.graves[r.next])
	r.graves[r.next] = g.id
	r.next = (r.next + 1) % graveyard
}

// fence revokes and reports the evidence.
func (r *receivePlane) fence(a projector.Fence) {
	began := time.Now()
	f, err := r.take(a.Lease)
	res := projector.FenceResult{
		RoomSeq: a.RoomSeq, Lease: a.Lease, Evidence: fenceKind(f.Kind), Method: "revoke_lease",
		TookUS: uint64(time.Since(began).Microseconds()), //nolint:gosec // positive
	}
	if err != nil {
		res.Evidence, res.Reason = events.FenceKind_FENCE_KIND_NONE, err.Error()
	}
	r.tell(res)
}

// live counts the leases that are not revoked.
func (r *receivePlane) live() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, g := range r.grants {
		if !g.revoked && !g.foreign {
			n++
		}
	}
	return n
}

// revokeAll takes back every lease: the memory is registered anew. What takes
// no waiting is taken in turn, the rest together.
func (r *receivePlane) revokeAll() error {
	r.mu.Lock()
	var ids []uint64
	for id, g := range r.grants {
		if !g.revoked && !g.foreign {
			ids = append(ids, id)
		}
	}
	r.mu.Unlock()
	ids = slices.DeleteFunc(ids, r.takeNow)
	var mu sync.Mutex
	var err error
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(revokers, len(ids)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(ids); i = int(next.Add(1)) - 1 {
				_, e := r.take(ids[i])
				mu.Lock()
				err = errors.CombineErrors(err, e)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return err
}

func fenceKind(k rdma.FenceKind) events.FenceKind {
	switch k {
	case rdma.FenceHard:
		return events.FenceKind_FENCE_KIND_HARD
	case rdma.FenceReaderStopped:
		return events.FenceKind_FENCE_KIND_READER_STOPPED
	}
	return events.FenceKind_FENCE_KIND_NONE
}

// hear turns what the provider tells into commands. It returns before the
// writer's answer leaves, so that a landing is in the loop's queue before any
// word of it on the control plane.
func (r *receivePlane) hear(n rdma.Notif) {
	switch n.Kind {
	case rdma.WriteLanded, rdma.LateWriteRefused:
		r.heard(n)
	case rdma.ChecksumFailed:
		r.differ(n)
	case rdma.PeerGone:
		node, boot, ok := parsePeerName(n.Peer)
		if ok && n.Left == 0 && n.Fence != rdma.FenceNone {
			r.tell(projector.ConnectionEnded{Node: node, Boot: boot, Evidence: fenceKind(n.Fence)})
		}
	case rdma.PeerConnected:
	}
}

func (r *receivePlane) heard(n rdma.Notif) {
	r.mu.Lock()
	g := r.grants[uint64(n.Tag)]
	pages, aux, part := r.touched(n.Ranges)
	ring := r.staged(n.Ranges)
	r.mu.Unlock()
	switch {
	case g == nil || g.foreign:
		why := "the key was never granted in this life, or too long ago"
		if n.Err != nil {
			why = n.Err.Error()
		}
		r.tell(projector.Rejected{Kind: "write", Reason: why, From: string(n.Peer)})
	case n.Kind == rdma.WriteLanded:
		r.tell(projector.Landed{
			Lease: g.id, Room: g.room, RoomSeq: g.roomSeq, Rank: g.rank, To: g.to,
			Pages: pages, PageOff: part.Off, PageLen: part.Len, StagingOffset: ring.Off, StagingEnd: ring.End(), Aux: aux, Bytes: uint64(n.Bytes), Chunk: uint32(n.Meta), //nolint:gosec // counts
		})
	default:
		writes := uint64(1)
		var ref *rdma.RefusedError
		if errors.As(n.Err, &ref) {
			writes = uint64(ref.Writes) //nolint:gosec // a count
		}
		r.tell(projector.LateWrite{
			Lease: g.id, Room: g.room, RoomSeq: g.roomSeq, Rank: g.rank, To: g.to,
			Pages: pages, Bytes: uint64(n.Bytes), Writes: writes, //nolint:gosec // a count
		})
	}
}

// staged is what of the staging ring the spans lie between.
func (r *receivePlane) staged(spans []rdma.Span) (in rdma.Range) {
	for _, s := range spans {
		switch {
		case !r.regions[s.Region].staging || s.Len == 0 || s.Off > maxBuffer || s.Len > maxBuffer:
		case in.Len == 0:
			in = s.Range
		default:
			off, end := min(in.Off, s.Off), max(in.End(), s.End())
			in = rdma.Range{Off: off, Len: end - off}
		}
	}
	return in
}

// touched lists the pages that the spans lie in. A writer writes its whole part
// of a page or none of it, so a page that was touched is a page that is there.
// part is which bytes of each page, if not all of it and the same of all.
func (r *receivePlane) touched(spans []rdma.Span) (pages []uint32, aux bool, part rdma.Range) {
	same := true
	for _, s := range spans {
		use, ok := r.regions[s.Region]
		switch {
		case !ok || s.Len == 0 || s.Off > maxBuffer || s.Len > maxBuffer: // thrown away: may name anything
			continue
		case use.staging:
			continue
		case use.aux:
			aux = true
			continue
		}
		in := rdma.Range{Off: s.Off % use.item, Len: s.Len}
		if len(pages) == 0 {
			part = in
		}
		same = same && in == part && in.End() <= use.item && in.Len < use.item
		for p := s.Off / use.item; p <= (s.End()-1)/use.item; p++ {
			if k := len(pages); k == 0 || pages[k-1] != uint32(p) { //nolint:gosec // pages are below 2^32
				pages = append(pages, uint32(p)) //nolint:gosec // as above
			}
		}
	}
	if !same {
		part = rdma.Range{}
	}
	return pages, aux, part
}
