package demo

import (
	"testing"

	"pgregory.net/rapid"
)

func TestEveryChangedByteOfAPageIsFound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		st := Stamp{
			Room: rapid.Uint64().Draw(t, "room"), Use: rapid.Uint32Range(0, 5).Draw(t, "use"),
			Position: rapid.Uint32().Draw(t, "position"),
		}
		b := make([]byte, 8*rapid.IntRange(1, 80).Draw(t, "words"))
		offset := 8 * rapid.IntRange(0, 1<<20).Draw(t, "offset")
		st.Fill(b, offset)
		if at := st.Check(b, offset); at != -1 {
			t.Fatalf("an untouched page is wrong at %d", at)
		}
		i := rapid.IntRange(0, len(b)-1).Draw(t, "byte")
		b[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip")) //nolint:gosec // fits
		if at := st.Check(b, offset); at != i&^7 {
			t.Fatalf("byte %d was changed, found at %d", i, at)
		}
	})
}

func TestPagesOfOthersAreNotMistakenForOurs(t *testing.T) {
	t.Parallel()
	const part = 4096
	ours := Stamp{Room: 77, Use: 1, Position: 5}
	for name, other := range map[string]struct {
		s      Stamp
		offset int
	}{
		"another room":       {Stamp{Room: 78, Use: 1, Position: 5}, part},
		"the use before":     {Stamp{Room: 77, Use: 0, Position: 5}, part},
		"the page beside it": {Stamp{Room: 77, Use: 1, Position: 6}, part},
		"another rank":       {ours, 0},
	} {
		b := make([]byte, part)
		other.s.Fill(b, other.offset)
		if at := ours.Check(b, part); at != 0 {
			t.Errorf("%s: first wrong byte at %d, want 0", name, at)
		}
	}
}

// The parts that ranks write make up the page that is checked as a whole.
func TestPartsOfRanksMakeAPage(t *testing.T) {
	t.Parallel()
	st := Stamp{Room: 1 << 62, Position: 3}
	page := make([]byte, 960)
	for r := range 4 {
		st.Fill(page[r*240:(r+1)*240], r*240)
	}
	if at := st.Check(page, 0); at != -1 {
		t.Errorf("page is wrong at %d", at)
	}
}

func BenchmarkCheck(b *testing.B) {
	st, page := Stamp{Room: 9}, make([]byte, 64<<10)
	st.Fill(page, 0)
	b.SetBytes(int64(len(page)))
	for b.Loop() {
		if st.Check(page, 0) != -1 {
			b.Fatal("wrong")
		}
	}
}
