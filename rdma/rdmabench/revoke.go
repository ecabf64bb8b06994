package rdmabench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pdlog/pdlog/rdma"
)

const (
	revokeBytes  = 2 << 20   // written under each lease that is revoked
	revokePieces = 128 << 10 // in writes of this size
)

// Revocation is what one revocation in the middle of a stream came to.
type Revocation struct {
	Took time.Duration // of the call of Revoke
	Cut  bool          // writes were refused: it came while they streamed in
	Late int           // bytes that landed after Revoke had returned
}

// Revoke grants a lease, streams into it, revokes it when its first writes have
// landed, clears the pages as their next owner would, and looks at them again
// when every write has ended.
func (s *Stream) Revoke(ctx context.Context) (r Revocation, err error) {
	lease, err := s.grant(ctx, rdma.Range{Len: revokeBytes})
	if err != nil {
		return r, err
	}
	select { // of an earlier round
	case <-s.landed:
	default:
	}
	key := lease.Desc().Key
	const writes = revokeBytes / revokePieces
	for off := 0; off < revokeBytes; off += revokePieces {
		w := []rdma.Write{{Src: s.src.Bytes()[off : off+revokePieces], RemoteOff: uint64(off)}}
		if _, err := s.ep.PostBatch(rdma.Batch{Tag: 2, Key: key, Writes: w}); err != nil {
			return r, err
		}
	}
	select {
	case <-s.landed:
	case <-ctx.Done():
		return r, ctx.Err()
	}
	start := time.Now()
	fence, err := lease.Revoke(ctx)
	r.Took = time.Since(start)
	switch {
	case err != nil:
		return r, err
	case fence.Kind == rdma.FenceNone:
		return r, errors.New("the revocation proved nothing")
	}
	pages := s.dst.Bytes()[:revokeBytes]
	clear(pages)
	for range writes {
		select {
		case c := <-s.ends:
			switch {
			case c.Status == rdma.Completed:
			case c.Status == rdma.Failed && c.Proven:
				r.Cut = true
			default:
				return r, fmt.Errorf("a write %s: %w", c.Status, c.Err)
			}
		case <-ctx.Done():
			return r, ctx.Err()
		}
	}
	for _, b := range pages {
		if b != 0 {
			r.Late++
		}
	}
	return r, nil
}
