package rdmatest

import (
	"context"
	"hash/crc32"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/rdmabench"
)

// patience is how long anything may take before the test fails. It is a
// bound, never a wait; the device may be emulated.
const patience = time.Minute

// log gathers what callbacks say and lets a test wait for it.
type log[T any] struct {
	mu    sync.Mutex
	all   []T
	moved chan struct{} // closed and replaced at each add
}

func newLog[T any]() *log[T] { return &log[T]{moved: make(chan struct{})} }

func (l *log[T]) add(v T) {
	l.mu.Lock()
	l.all = append(l.all, v)
	close(l.moved)
	l.moved = make(chan struct{})
	l.mu.Unlock()
}

func (l *log[T]) list() ([]T, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[:len(l.all):len(l.all)], l.moved
}

// find waits for the first entry that ok likes.
func (l *log[T]) find(t *testing.T, what string, ok func(T) bool) T {
	t.Helper()
	deadline := time.After(patience)
	for seen := 0; ; {
		all, moved := l.list()
		for ; seen < len(all); seen++ {
			if ok(all[seen]) {
				return all[seen]
			}
		}
		select {
		case <-moved:
		case <-deadline:
			t.Fatalf("waited %s for %s; have %d entries: %+v", patience, what, len(all), tail(all))
		}
	}
}

// count waits until n entries are to ok's liking and gives them.
func (l *log[T]) count(t *testing.T, what string, n int, ok func(T) bool) []T {
	t.Helper()
	deadline := time.After(patience)
	for {
		all, moved := l.list()
		var got []T
		for _, v := range all {
			if ok(v) {
				got = append(got, v)
			}
		}
		if len(got) >= n {
			return got
		}
		select {
		case <-moved:
		case <-deadline:
			t.Fatalf("waited %s for %d of %s; have %d; last of all: %+v", patience, n, what, len(got), tail(all))
		}
	}
}

func tail[T any](all []T) []T { return all[max(0, len(all)-5):] }

// node is a domain with what its callbacks said.
type node struct {
	rdma.Domain
	notifs      *log[rdma.Notif]
	completions *log[rdma.Completion]
}

func open(t *testing.T, p rdma.Provider, cfg rdma.Config) *node {
	t.Helper()
	n := &node{notifs: newLog[rdma.Notif](), completions: newLog[rdma.Completion]()}
	onNotif, onCompletion := cfg.OnNotif, cfg.OnCompletion
	cfg.OnNotif = func(v rdma.Notif) {
		if onNotif != nil {
			onNotif(v)
		}
		n.notifs.add(v)
	}
	cfg.OnCompletion = func(v rdma.Completion) {
		if onCompletion != nil {
			onCompletion(v)
		}
		n.completions.add(v)
	}
	d, err := p.Open(t.Context(), cfg)
	if err != nil {
		t.Fatalf("open domain: %v", err)
	}
	n.Domain = d
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close domain: %v", err)
		}
	})
	return n
}

// of waits for a completion of a transfer that is not a Drained.
func (n *node) of(t *testing.T, x rdma.Transfer) rdma.Completion {
	t.Helper()
	return n.completions.find(t, "completion", func(c rdma.Completion) bool {
		return c.ID == x.ID && c.Status != rdma.Drained
	})
}

// memory is a memfd that the test lets go of at its end.
func memory(t *testing.T, size int) *rdma.Memfd {
	t.Helper()
	m, err := rdma.AllocMemfd("rdmatest", size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close memfd: %v", err)
		}
	})
	return m
}

// pair is a writer and a target with one region each.
type pair struct {
	writer, target *node
	src            []byte
	dst            rdma.Region
	ep             rdma.Endpoint
}

const (
	writerName = rdma.PeerID("p0/0")
	targetName = rdma.PeerID("d0/0")
)

// listenAt is an address that p can listen at and that nobody has yet.
func listenAt(p rdma.Provider) string { return rdmabench.ListenAt(p) }

// newPair connects a writer to a target. Sizes are those of both memories.
func newPair(t *testing.T, p rdma.Provider, size int, writer rdma.Config) *pair {
	t.Helper()
	dst, src := memory(t, size), memory(t, size) // before the domains: let go of after them
	w := &pair{src: src.Bytes()}
	w.target = open(t, p, rdma.Config{Self: targetName, Listen: listenAt(p)})
	writer.Self = writerName
	w.writer = open(t, p, writer)
	w.dst = register(t, w.target, dst.Memory())
	register(t, w.writer, src.Memory()) // what is registered may travel in another way
	w.ep = connect(t, w.writer, w.target.Info())
	for i := range w.src {
		w.src[i] = byte(i*7 + i>>12 + 1)
	}
	return w
}

func register(t *testing.T, d rdma.Domain, m rdma.Memory) rdma.Region {
	t.Helper()
	r, err := d.RegisterMemory(t.Context(), m)
	if err != nil {
		t.Fatalf("register memory: %v", err)
	}
	return r
}

func connect(t *testing.T, d rdma.Domain, to rdma.PeerInfo) rdma.Endpoint {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ep, err := d.Connect(ctx, to)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	return ep
}

func grant(t *testing.T, r rdma.Region, tag rdma.Tag, ranges ...rdma.Range) rdma.Lease {
	t.Helper()
	l, err := r.Grant(t.Context(), rdma.Grant{Peer: writerName, Tag: tag, Ranges: ranges})
	if err != nil {
		t.Fatalf("grant: %v", err)
	}
	return l
}

// revoke demands real evidence.
func revoke(t *testing.T, d rdma.Domain, l rdma.Lease) rdma.Fence {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	f, err := l.Revoke(ctx)
	if err != nil {
		t.Fatalf("revoke: %v", err)
	}
	if want := d.Caps().Fence; f.Kind != want || f.Kind == rdma.FenceNone {
		t.Fatalf("revoke: fence %s, the domain says %s", f.Kind, want)
	}
	return f
}

func post(t *testing.T, ep rdma.Endpoint, b rdma.Batch) rdma.Transfer {
	t.Helper()
	x, err := ep.PostBatch(b)
	if err != nil {
		t.Fatalf("post: %v", err)
	}
	return x
}

// write posts src[off:off+n] to the same place.
func (w *pair) write(t *testing.T, l rdma.Lease, tag rdma.Tag, off, n int) rdma.Transfer {
	t.Helper()
	return post(t, w.ep, w.batch(l, tag, off, n))
}

func (w *pair) batch(l rdma.Lease, tag rdma.Tag, off, n int) rdma.Batch {
	return rdma.Batch{
		Tag: tag, Key: l.Desc().Key,
		Writes: []rdma.Write{{Src: w.src[off : off+n], RemoteOff: uint64(off)}},
	}
}

func all(r rdma.Region) rdma.Range { return rdma.Range{Len: uint64(len(r.Bytes()))} }

func sum(b []byte) uint32 { return crc32.ChecksumIEEE(b) }

func (l *log[T]) reset() {
	l.mu.Lock()
	l.all = nil
	l.mu.Unlock()
}

func median(d []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[len(s)/2]
}

func longest(d []time.Duration) time.Duration { return slices.Max(d) }
