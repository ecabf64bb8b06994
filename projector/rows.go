package projector

import "math/bits"

// rowSet is a set of small numbers with the lowest one at hand: a bitmap, and
// above each level one bit per word that has a bit. Lowest, add and remove cost
// one step per level, which is four for sixteen million rows. The zero value is
// empty.
type rowSet [][]uint64

// fullRowSet holds 0 to n-1.
func fullRowSet(n int) rowSet {
	var s rowSet
	for {
		level := make([]uint64, (n+63)/64)
		for i := range level {
			level[i] = ^uint64(0)
		}
		if rest := n % 64; rest != 0 {
			level[len(level)-1] = 1<<rest - 1
		}
		s = append(s, level)
		if n = len(level); n <= 1 {
			return s
		}
	}
}

// lowest is the smallest member; false when there is none.
func (s rowSet) lowest() (int, bool) {
	at := 0
	for l := len(s) - 1; l >= 0; l-- {
		if at >= len(s[l]) || s[l][at] == 0 {
			return 0, false
		}
		at = at*64 + bits.TrailingZeros64(s[l][at])
	}
	return at, true
}

// first appends the smallest members to out, in order, until out has n or the
// set has no more.
func (s rowSet) first(n int, out []uint32) []uint32 {
	if len(s) == 0 {
		return out
	}
	return s.under(len(s)-1, 0, n, out)
}

// under is first of what stands below one word of a level.
func (s rowSet) under(level, word, n int, out []uint32) []uint32 {
	if word >= len(s[level]) {
		return out
	}
	for left := s[level][word]; left != 0 && len(out) < n; left &= left - 1 {
		at := word*64 + bits.TrailingZeros64(left)
		if level == 0 {
			out = append(out, uint32(at)) //nolint:gosec // rows of a pool
		} else {
			out = s.under(level-1, at, n, out)
		}
	}
	return out
}

func (s rowSet) add(n int) {
	for _, level := range s {
		level[n/64] |= 1 << (n % 64)
		n /= 64
	}
}

func (s rowSet) remove(n int) {
	for _, level := range s {
		level[n/64] &^= 1 << (n % 64)
		if level[n/64] != 0 {
			return
		}
		n /= 64
	}
}
