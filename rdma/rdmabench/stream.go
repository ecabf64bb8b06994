package rdmabench

import (
	"context"
	"errors"
	"fmt"

	"github.com/pdlog/pdlog/rdma"
)

const (
	// MemBytes is the size of each side's region: more than caches hold.
	MemBytes = 64 << 20
	// outstanding is how many pages are on their way (rdma.md 4).
	outstanding = 16
)

// Memory allocates MemBytes bytes whose pages are all there.
func Memory() (*rdma.Memfd, error) {
	m, err := rdma.AllocMemfd("bench", MemBytes)
	if err != nil {
		return nil, err
	}
	for i := 0; i < MemBytes; i += 4096 {
		m.Bytes()[i] = byte(i>>12) | 1
	}
	return m, nil
}

// ListenAt is an address that a provider can listen at and that nobody has yet.
func ListenAt(p rdma.Provider) string {
	if p.Name() == "shm" {
		return "unix:@"
	}
	return "127.0.0.1:0"
}

// Stream is a writer and a target with a lease on all of its memory.
type Stream struct {
	src, dst       *rdma.Memfd
	target, writer rdma.Domain
	region         rdma.Region
	lease          rdma.Lease
	ep             rdma.Endpoint
	ends           chan rdma.Completion
	landed         chan struct{}
	at             int // next page's offset
}

const (
	targetName = rdma.PeerID("d")
	writerName = rdma.PeerID("p")
)

// Open connects a writer to a target. cfg is that of both domains.
func Open(ctx context.Context, p rdma.Provider, cfg rdma.Config) (*Stream, error) {
	s := &Stream{ends: make(chan rdma.Completion, 4096), landed: make(chan struct{}, 1)}
	if err := s.open(ctx, p, cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("set up %s: %w", p.Name(), err), s.Close())
	}
	return s, nil
}

func (s *Stream) open(ctx context.Context, p rdma.Provider, cfg rdma.Config) (err error) {
	if s.src, err = Memory(); err != nil {
		return err
	}
	if s.dst, err = Memory(); err != nil {
		return err
	}
	to, from := cfg, cfg
	to.Self, to.Listen = targetName, ListenAt(p)
	to.OnNotif = func(n rdma.Notif) {
		if n.Kind == rdma.WriteLanded {
			select {
			case s.landed <- struct{}{}:
			default:
			}
		}
	}
	from.Self, from.OnCompletion = writerName, func(c rdma.Completion) { s.ends <- c }
	if s.target, err = p.Open(ctx, to); err != nil {
		return err
	}
	if s.writer, err = p.Open(ctx, from); err != nil {
		return err
	}
	if s.region, err = s.target.RegisterMemory(ctx, s.dst.Memory()); err != nil {
		return err
	}
	if _, err = s.writer.RegisterMemory(ctx, s.src.Memory()); err != nil {
		return err
	}
	if s.lease, err = s.grant(ctx, rdma.Range{Len: MemBytes}); err != nil {
		return err
	}
	s.ep, err = s.writer.Connect(ctx, s.target.Info())
	return err
}

func (s *Stream) grant(ctx context.Context, r rdma.Range) (rdma.Lease, error) {
	return s.region.Grant(ctx, rdma.Grant{Peer: writerName, Ranges: []rdma.Range{r}})
}

// Close ends both sides.
func (s *Stream) Close() error {
	var errs []error
	for _, d := range []rdma.Domain{s.writer, s.target} {
		if d != nil {
			errs = append(errs, d.Close())
		}
	}
	for _, m := range []*rdma.Memfd{s.src, s.dst} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// Write walks the memory in n pages of size bytes each and returns when all are
// acknowledged. At most window pages are on their way; 0: 16, as in rdma.md 4.
func (s *Stream) Write(ctx context.Context, n, size, window int) error {
	if window <= 0 {
		window = outstanding
	}
	key := s.lease.Desc().Key
	writes := make([]rdma.Write, 1)
	for posted, ended := 0, 0; ended < n; {
		for posted < n && posted-ended < window {
			if s.at+size > MemBytes {
				s.at = 0
			}
			writes[0] = rdma.Write{Src: s.src.Bytes()[s.at : s.at+size], RemoteOff: uint64(s.at)}
			if _, err := s.ep.PostBatch(rdma.Batch{Tag: 1, Key: key, Writes: writes}); err != nil {
				return err
			}
			s.at += size
			posted++
		}
		select {
		case c := <-s.ends:
			if c.Status != rdma.Completed {
				return fmt.Errorf("a write %s: %w", c.Status, c.Err)
			}
			ended++
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
