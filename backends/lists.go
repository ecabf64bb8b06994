package backends

import "encoding/binary"

// item is an element of a packed list: u64[] and lol(Q), u32[] and lol(I),
// pages and lol(i). All are little-endian (wire.md section 0).
type item interface{ uint64 | uint32 | int32 }

func itemSize[T item]() int {
	if any(*new(T)) == any(uint64(0)) {
		return 8
	}
	return 4
}

// readItems fills dst from b, which holds exactly that many items. A negative
// item is bad: the signed lists are page and state indices.
func readItems[T item](dst []T, b []byte) bool {
	// Loops of their own, since page lists are long.
	switch dst := any(dst).(type) {
	case []uint64:
		for i := range dst {
			dst[i] = binary.LittleEndian.Uint64(b[8*i:])
		}
	case []uint32:
		for i := range dst {
			dst[i] = binary.LittleEndian.Uint32(b[4*i:])
		}
	case []int32:
		var signs int32
		for i := range dst {
			dst[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
			signs |= dst[i]
		}
		return signs >= 0
	}
	return true
}

// parseArray reads a packed array. An empty frame is an empty list, not nil.
func parseArray[T item](b []byte) ([]T, bool) {
	size := itemSize[T]()
	if len(b)%size != 0 {
		return nil, false
	}
	list := make([]T, len(b)/size)
	return list, readItems(list, b)
}

// parseLists reads lol(T): count, byte lengths, payloads, and nothing behind
// them. Sizes are checked in 64 bits before anything is allocated.
func parseLists[T item](b []byte) ([][]T, bool) {
	if len(b) == 0 {
		return [][]T{}, true
	}
	if len(b) < 4 {
		return nil, false
	}
	n := uint64(binary.LittleEndian.Uint32(b))
	header := 4 + 4*n
	if header > uint64(len(b)) {
		return nil, false
	}
	lens, payload := b[4:header], b[header:]
	size := uint64(itemSize[T]())
	var total uint64 // at most 2^32 terms below 2^32: no wrap
	for i := uint64(0); i < n; i++ {
		l := uint64(binary.LittleEndian.Uint32(lens[4*i:]))
		if l%size != 0 {
			return nil, false
		}
		total += l
	}
	if total != uint64(len(payload)) {
		return nil, false
	}
	flat := make([]T, total/size)
	if !readItems(flat, payload) {
		return nil, false
	}
	lists := make([][]T, n)
	for i := range lists {
		k := uint64(binary.LittleEndian.Uint32(lens[4*i:])) / size
		lists[i], flat = flat[:k:k], flat[k:]
	}
	return lists, true
}

// appendArray is the inverse of parseArray; ok is false for a negative item.
func appendArray[T item](b []byte, list []T) (_ []byte, ok bool) {
	ok = true
	for _, v := range list {
		if itemSize[T]() == 8 {
			b = binary.LittleEndian.AppendUint64(b, uint64(v))
			continue
		}
		ok = ok && v >= 0
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b, ok
}

// appendLists is the inverse of parseLists: no lists are an empty frame, one
// empty list is not. ok is false for a negative item or a list too long.
func appendLists[T item](b []byte, lists [][]T) (_ []byte, ok bool) {
	if len(lists) == 0 {
		return b, true
	}
	const limit = 1<<32 - 1
	if uint64(len(lists)) > limit {
		return b, false
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(lists)))
	for _, l := range lists {
		n := uint64(len(l)) * uint64(itemSize[T]())
		if n > limit {
			return b, false
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	ok = true
	for _, l := range lists {
		var good bool
		b, good = appendArray(b, l)
		ok = ok && good
	}
	return b, ok
}
