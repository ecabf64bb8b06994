package projector

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestRowSet: the set has the members, and the lowest, of a plain map.
func TestRowSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{1, 2, 63, 64, 65, 4095, 4096, 4097, 5000}).Draw(t, "n")
		s := fullRowSet(n)
		out := map[int]bool{} // removed
		row := rapid.OneOf(rapid.IntRange(0, n-1), rapid.IntRange(0, min(n-1, 70)))
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			r := row.Draw(t, "row")
			if rapid.Bool().Draw(t, "remove") {
				s.remove(r)
				out[r] = true
			} else {
				s.add(r)
				delete(out, r)
			}
			want := 0
			for out[want] {
				want++
			}
			if got, ok := s.lowest(); ok != (want < n) || ok && got != want {
				t.Fatalf("lowest = %d %v, want %d of %d", got, ok, want, n)
			}
		}
		var want []uint32
		ask := rapid.IntRange(0, n+1).Draw(t, "ask")
		for i := 0; i < n && len(want) < ask; i++ {
			if !out[i] {
				want = append(want, uint32(i))
			}
		}
		if got := s.first(ask, nil); !slices.Equal(got, want) {
			t.Fatalf("first %d = %v, want %v", ask, got, want)
		}
	})
}

func TestRowSetIsUsedUp(t *testing.T) {
	for _, n := range []int{0, 1, 64, 4097} {
		s := fullRowSet(n)
		for i := range n {
			if got, ok := s.lowest(); !ok || got != i {
				t.Fatalf("of %d: lowest = %d %v, want %d", n, got, ok, i)
			}
			s.remove(i)
		}
		if got, ok := s.lowest(); ok {
			t.Fatalf("of %d: %d is left", n, got)
		}
	}
}
