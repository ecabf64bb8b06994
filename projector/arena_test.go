package projector

import (
	"testing"

	"pgregory.net/rapid"
)

// TestArenaIsReused: once a piece is as long as what is needed between two
// rewinds, lists lie in it again; what was kept is never written to.
func TestArenaIsReused(t *testing.T) {
	a := arena[int]{reuse: true}
	fill := func(from int) (lists [][]int) {
		for i := range 100 {
			list := a.open()
			for k := range 10 {
				list = append(list, from+i*10+k)
			}
			lists = append(lists, a.close(list))
		}
		return lists
	}
	fill(0)
	a.rewind(false)
	first := fill(1000)
	a.rewind(false)
	if again := fill(2000); &again[0][0] != &first[0][0] {
		t.Error("a list was made anew")
	}
	a.rewind(true)
	kept := first[99][9]
	fill(3000)
	a.rewind(false)
	fill(4000)
	if first[99][9] != kept || kept != 2999 {
		t.Errorf("a kept list has %d, had %d; want 2999", first[99][9], kept)
	}
}

// TestArenaListsAreTheirReceiversAlone: whatever lists are opened, filled and
// appended to afterwards, each holds what was put into it.
func TestArenaListsAreTheirReceiversAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a arena[int]
		var got, want [][]int
		next := 0
		for range rapid.IntRange(1, 80).Draw(t, "lists") {
			list := a.open()
			var mine []int
			for range rapid.IntRange(0, 2*arenaPiece).Filter(func(n int) bool { return n < 40 || n > arenaPiece-3 }).Draw(t, "length") {
				next++
				list, mine = append(list, next), append(mine, next)
			}
			got, want = append(got, a.close(list)), append(want, mine)
		}
		for i := range got {
			got[i] = append(got[i], -1) // must not run into a neighbour
		}
		for i := range got {
			if len(got[i]) != len(want[i])+1 {
				t.Fatalf("list %d has %d elements, want %d", i, len(got[i])-1, len(want[i]))
			}
			for k, v := range want[i] {
				if got[i][k] != v {
					t.Fatalf("list %d, element %d: %d, want %d", i, k, got[i][k], v)
				}
			}
		}
	})
}
