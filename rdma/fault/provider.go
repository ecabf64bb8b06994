package fault

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/pdlog/pdlog/rdma"
)

// ErrInjected is the error of every failure that this package makes.
var ErrInjected = errors.New("rdma/fault: injected")

type provider struct {
	inner rdma.Provider
	spec  Spec
	seed  uint64
}

var _ rdma.Provider = (*provider)(nil)

// New wraps a provider. It has the inner one's name, so that peers see no
// difference.
func New(inner rdma.Provider, spec Spec, seed uint64) rdma.Provider {
	return &provider{inner: inner, spec: spec, seed: seed}
}

func (p *provider) Name() string { return p.inner.Name() }

func (p *provider) Open(ctx context.Context, cfg rdma.Config) (rdma.Domain, error) {
	cfg = cfg.WithDefaults()
	d := &domain{p: p, tell: cfg.OnCompletion, flights: make(map[uint64]*flight), endpoints: make(map[*endpoint]struct{})}
	cfg.OnCompletion = d.completed
	inner, err := p.inner.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	d.Domain = inner
	return d, nil
}

// domain is the inner one; only its endpoints differ.
type domain struct {
	rdma.Domain
	p    *provider
	tell func(rdma.Completion)
	last atomic.Uint64 // number of flights, and transfer id

	mu        sync.Mutex
	flights   map[uint64]*flight // posted to the inner provider, by inner token
	endpoints map[*endpoint]struct{}
}

// Connect wraps the inner endpoint.
func (d *domain) Connect(ctx context.Context, p rdma.PeerInfo) (rdma.Endpoint, error) {
	inner, err := d.Domain.Connect(ctx, p)
	if err != nil {
		return nil, err
	}
	e := &endpoint{
		d: d, inner: inner, ledger: rdma.NewLedger(d.tell),
		held: make(map[*flight]struct{}), done: make(chan struct{}),
	}
	d.mu.Lock()
	d.endpoints[e] = struct{}{}
	d.mu.Unlock()
	go e.supervise()
	return e, nil
}

// Close closes the inner domain, then waits for the ends of what was held.
func (d *domain) Close() error {
	err := d.Domain.Close()
	d.mu.Lock()
	var ends []*endpoint
	for e := range d.endpoints {
		ends = append(ends, e)
	}
	d.mu.Unlock()
	for _, e := range ends {
		<-e.done
	}
	return err
}

// launch posts a flight to the inner provider.
func (d *domain) launch(f *flight) (rdma.Transfer, error) {
	b := f.batch
	b.Token = f.id
	d.mu.Lock()
	d.flights[f.id] = f
	d.mu.Unlock()
	x, err := f.e.inner.PostBatch(b)
	var part *rdma.PartialError
	if err != nil && !errors.As(err, &part) {
		d.mu.Lock()
		delete(d.flights, f.id)
		d.mu.Unlock()
	}
	return x, err
}

// completed hears the inner provider's completions.
func (d *domain) completed(c rdma.Completion) {
	d.mu.Lock()
	f := d.flights[c.Token]
	if f != nil && c.Status != rdma.Uncertain {
		delete(d.flights, c.Token) // an uncertain one may yet be drained
	}
	d.mu.Unlock()
	if f != nil {
		f.e.landed(f, c)
	}
}
