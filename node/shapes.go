package node

import (
	"sync"

	"github.com/cockroachdb/errors"
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

// pageCut is the part of a page that one rank writes: srcLen bytes from srcOff
// of its own page to dstOff of the destination's page of dstPage bytes.
type pageCut struct {
	srcOff, srcLen  uint64
	dstOff, dstPage uint64
}

// cut: equal pages go whole. With more ranks on our side, each of ours holds a
// share of the other's page, in rank order; with more on theirs, each of theirs
// takes its share of ours. Where there are more ranks than shares, neighbours
// hold copies of the same one (wire.md F30). The stages of a pipeline hold the
// layers in order: each writes its part of the page, one behind the other.
func (s *shapes) cut(address string, page uint64, ours, theirs int) (pageCut, error) {
	s.mu.RLock()
	sh, ok := s.byAddr[address]
	s.mu.RUnlock()
	if !ok || sh.pageBytes == 0 {
		return pageCut{srcLen: page, dstPage: page}, nil
	}
	stages, tp := uint64(s.ours.PPSize), s.ours.TPSize                        //nolint:gosec // positive
	part := sh.pageBytes / stages                                             // of a page, that is this stage's
	c := pageCut{dstOff: uint64(s.ours.PPRank) * part, dstPage: sh.pageBytes} //nolint:gosec // not negative
	ours += s.ours.TPRank
	switch {
	case part*stages != sh.pageBytes:
	case part == page:
		c.srcLen = page
		return c, nil
	case part > page && part%page == 0:
		if i, ok := share(ours, tp, sh.ranks, part/page); ok {
			c.srcLen, c.dstOff = page, c.dstOff+i*page
			return c, nil
		}
	case part < page && part > 0 && page%part == 0:
		if i, ok := share(theirs, sh.ranks, tp, page/part); ok {
			c.srcOff, c.srcLen = i*part, part
			return c, nil
		}
	}
	return pageCut{}, errors.Newf("pages of %d bytes on %d ranks and %d stages do not fit pages of %d bytes on %d ranks at %s",
		page, tp, stages, sh.pageBytes, sh.ranks, address)
}

// share is the part of n that a rank of the wider side has in a page of the
// narrower side.
func share(rank, wide, narrow int, n uint64) (uint64, bool) {
	if narrow < 1 || rank < 0 || wide%narrow != 0 || wide == 0 || uint64(wide/narrow)%n != 0 {
		return 0, false
	}
	group := wide / narrow // ranks that share one page
	copies := uint64(group) / n
	return uint64(rank%group) / copies, true //nolint:gosec // not negative
}
