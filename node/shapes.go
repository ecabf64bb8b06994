package node

import (
	"sync"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/backends/geometry"
)

// shape is the geometry of a decode rank's memory, from its registration
// (wire.md 1.2, 5).
type shape struct {
	pageBytes uint64
	ranks     int // attention TP size of the decode side
	rank      int
}

// shapes knows them by control address.
type shapes struct {
	ours TopologyConfig

	mu     sync.RWMutex
	byAddr map[string]shape
}

func newShapes(ours TopologyConfig) *shapes {
	return &shapes{ours: ours, byAddr: map[string]shape{}}
}

// maxShapes bounds what strangers can make us remember.
const maxShapes = 1 << 16

func (s *shapes) put(address string, sh shape) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.byAddr[address]; !known && len(s.byAddr) >= maxShapes {
		for a := range s.byAddr { // any one: a live one registers again when it fails
			delete(s.byAddr, a)
			break
		}
	}
	s.byAddr[address] = sh
}

// cut is the part of a page of ours that goes into a page of the destination's
// (geometry.Opaque). A destination that did not say how large its pages are has
// ours.
func (s *shapes) cut(address string, page uint64, ours int) (geometry.Cut, error) {
	s.mu.RLock()
	sh, ok := s.byAddr[address]
	s.mu.RUnlock()
	if !ok || sh.pageBytes == 0 {
		return geometry.Cut{Len: page, DestPage: page}, nil
	}
	o := geometry.Opaque{
		SourcePage: page, DestPage: sh.pageBytes, PrefillTP: s.ours.TPSize, DecodeTP: sh.ranks,
		PP: s.ours.PPSize, Stage: s.ours.PPRank,
	}
	c, err := o.Cut(s.ours.TPRank+ours, sh.rank)
	return c, errors.Wrapf(err, "to %s", address)
}
