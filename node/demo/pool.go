package demo

import (
	"context"
	"fmt"
	"sync"
)

// Pool hands out page numbers, the last freed ones first: a page that was
// released is in use again at once, which is what makes a release that came
// too early visible. Waiters are served in order of arrival, so a large
// request is not starved by small ones. Safe for concurrent use.
type Pool struct {
	mu      sync.Mutex
	free    []uint32 // a stack, the top is the end
	in      []bool   // by page: is it in free
	waiters []*poolWaiter
}

type poolWaiter struct {
	n    int
	got  []uint32
	done chan struct{}
}

// NewPool makes a pool of pages 0 .. pages-1; the first Take gets page 0 first.
func NewPool(pages int) *Pool {
	p := &Pool{free: make([]uint32, pages), in: make([]bool, pages)}
	for i := range p.free {
		p.free[i] = uint32(pages - 1 - i) //nolint:gosec // page numbers are small
		p.in[i] = true
	}
	return p
}

// Size is the number of pages of the pool, free or not.
func (p *Pool) Size() int { return len(p.in) }

// Take waits for n pages. It fails when ctx ends first, or at once when the
// pool never had n pages.
func (p *Pool) Take(ctx context.Context, n int) ([]uint32, error) {
	if n > p.Size() {
		return nil, fmt.Errorf("%d pages wanted of a pool of %d", n, p.Size())
	}
	w := &poolWaiter{n: n, done: make(chan struct{})}
	p.mu.Lock()
	p.waiters = append(p.waiters, w)
	p.serve()
	p.mu.Unlock()
	select { // what is there at once is taken even when ctx has ended
	case <-w.done:
		return w.got, nil
	default:
	}
	select {
	case <-w.done:
		return w.got, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.got != nil { // served in the same moment
		p.put(w.got)
	}
	for i, o := range p.waiters {
		if o == w {
			p.waiters = append(p.waiters[:i], p.waiters[i+1:]...)
			break
		}
	}
	p.serve()
	return nil, ctx.Err()
}

// Put gives pages back. It fails, and takes none of them, when one is free
// already or was never part of the pool: two owners are the fault this whole
// program is about (events.md I11).
func (p *Pool) Put(pages []uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := make(map[uint32]bool, len(pages))
	for _, g := range pages {
		if int(g) >= len(p.in) || p.in[g] || seen[g] {
			return fmt.Errorf("page %d is given back twice or is not of this pool", g)
		}
		seen[g] = true
	}
	p.put(pages)
	p.serve()
	return nil
}

// Taken lists the pages that are out, in ascending order.
func (p *Pool) Taken() []uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []uint32
	for g, in := range p.in {
		if !in {
			out = append(out, uint32(g)) //nolint:gosec // page numbers are small
		}
	}
	return out
}

func (p *Pool) put(pages []uint32) {
	for _, g := range pages {
		p.in[g] = true
	}
	p.free = append(p.free, pages...)
}

// serve hands pages to waiters in order while the first one can be served.
func (p *Pool) serve() {
	for len(p.waiters) > 0 && p.waiters[0].n <= len(p.free) {
		w := p.waiters[0]
		p.waiters = p.waiters[1:]
		w.got = make([]uint32, w.n)
		for i := range w.got {
			last := len(p.free) - 1
			w.got[i] = p.free[last]
			p.free = p.free[:last]
			p.in[w.got[i]] = false
		}
		close(w.done)
	}
}
