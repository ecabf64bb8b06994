package demo

import "encoding/binary"

// Stamp names the content of one page of one room incarnation. Prefill and
// decode both know it, so both can compute every byte of the page.
type Stamp struct {
	Room     uint64
	Use      uint32 // how often the room number was used before
	Position uint32 // of the page in the room's page list
}

// base mixes the stamp into 64 bits; stamps that differ anywhere give
// unrelated values.
func (s Stamp) base() uint64 {
	h := mix(s.Room ^ 0x9e3779b97f4a7c15)
	h = mix(h ^ uint64(s.Use)<<32 ^ uint64(s.Position))
	return h
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// word is the content of the 8 bytes at byte offset 8*i of the whole page. One
// multiplication and a shift: filling and checking must not be what a demo of
// data transfer spends its time on.
func word(base, i uint64) uint64 {
	x := (base + i) * 0x9fb21c651e98df25
	return x ^ x>>29
}

// Fill writes the page's bytes [offset, offset+len(b)) into b. A page is cut
// among ranks by position, so offset says which rank's part it is. offset and
// len(b) are multiples of 8.
func (s Stamp) Fill(b []byte, offset int) {
	base, i := s.base(), uint64(offset)/8 //nolint:gosec // not negative
	for len(b) >= 32 {
		binary.LittleEndian.PutUint64(b[0:8], word(base, i))
		binary.LittleEndian.PutUint64(b[8:16], word(base, i+1))
		binary.LittleEndian.PutUint64(b[16:24], word(base, i+2))
		binary.LittleEndian.PutUint64(b[24:32], word(base, i+3))
		b, i = b[32:], i+4
	}
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, word(base, i))
		b, i = b[8:], i+1
	}
}

// Check compares b with the page's bytes [offset, offset+len(b)). It returns
// the offset in b of the first 8 bytes that differ, or -1.
func (s Stamp) Check(b []byte, offset int) int {
	base, i := s.base(), uint64(offset)/8 //nolint:gosec // not negative
	for at := 0; at+32 <= len(b); at, i = at+32, i+4 {
		q := b[at : at+32 : at+32]
		d := binary.LittleEndian.Uint64(q[0:8]) ^ word(base, i)
		d |= binary.LittleEndian.Uint64(q[8:16]) ^ word(base, i+1)
		d |= binary.LittleEndian.Uint64(q[16:24]) ^ word(base, i+2)
		d |= binary.LittleEndian.Uint64(q[24:32]) ^ word(base, i+3)
		if d != 0 {
			return at + s.firstWrong(q, base, i)
		}
	}
	tail := len(b) &^ 31
	if d := s.firstWrong(b[tail:], base, i); d >= 0 {
		return tail + d
	}
	return -1
}

func (s Stamp) firstWrong(b []byte, base, i uint64) int {
	for at := 0; at+8 <= len(b); at, i = at+8, i+1 {
		if binary.LittleEndian.Uint64(b[at:at+8]) != word(base, i) {
			return at
		}
	}
	return -1
}
