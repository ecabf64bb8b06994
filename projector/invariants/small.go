package invariants

import "slices"

// small is a map of a few entries in a slice. A room has a handful of pairs and
// open writes, and a checker has some hundred thousand rooms: maps of their own
// would be most of its memory and of its time.
type small[K comparable, V any] []entry[K, V]

type entry[K comparable, V any] struct {
	key   K
	value V
}

func (s small[K, V]) index(k K) int {
	for i := range s {
		if s[i].key == k {
			return i
		}
	}
	return -1
}

func (s small[K, V]) find(k K) (v V, ok bool) {
	if i := s.index(k); i >= 0 {
		return s[i].value, true
	}
	return v, false
}

func (s small[K, V]) get(k K) V {
	v, _ := s.find(k)
	return v
}

func (s *small[K, V]) put(k K, v V) {
	if i := s.index(k); i >= 0 {
		(*s)[i].value = v
		return
	}
	*s = append(*s, entry[K, V]{k, v})
}

func (s *small[K, V]) remove(k K) {
	if i := s.index(k); i >= 0 {
		*s = slices.Delete(*s, i, i+1)
	}
}

// chunkSet holds chunk numbers, of which most rooms have few.
type chunkSet struct {
	low  uint64
	high map[uint32]bool
}

func (s *chunkSet) add(chunk uint32) {
	if chunk < 64 {
		s.low |= 1 << chunk
		return
	}
	if s.high == nil {
		s.high = map[uint32]bool{}
	}
	s.high[chunk] = true
}

func (s *chunkSet) has(chunk uint32) bool {
	if chunk < 64 {
		return s.low&(1<<chunk) != 0
	}
	return s.high[chunk]
}

// owners says which room incarnation (room_seq) owns a page. Pages are taken by
// neighbours, so that they are kept by the block.
type owners struct {
	blocks map[uint32]*[ownersBlock]uint64
	at     uint32
	last   *[ownersBlock]uint64
}

const ownersBlock = 1024

func (o *owners) slot(page uint32, grow bool) *uint64 {
	at := page / ownersBlock
	if o.last == nil || o.at != at {
		b := o.blocks[at]
		if b == nil {
			if !grow {
				return nil
			}
			if o.blocks == nil {
				o.blocks = map[uint32]*[ownersBlock]uint64{}
			}
			b = new([ownersBlock]uint64)
			o.blocks[at] = b
		}
		o.at, o.last = at, b
	}
	return &o.last[page%ownersBlock]
}

func (o *owners) find(page uint32) (seq uint64, ok bool) {
	if s := o.slot(page, false); s != nil {
		return *s, *s != 0
	}
	return 0, false
}

func (o *owners) put(page uint32, seq uint64) { *o.slot(page, true) = seq }

func (o *owners) remove(page uint32) {
	if s := o.slot(page, false); s != nil {
		*s = 0
	}
}
