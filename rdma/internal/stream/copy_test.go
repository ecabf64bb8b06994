package stream

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// TestCopyPagesCopies: every length and alignment, and nothing beside it.
func TestCopyPagesCopies(t *testing.T) {
	const most, around = 3*pastMin + 300, 200
	src := make([]byte, most+around)
	for i := range src {
		src[i] = byte(i*7 + i>>8)
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(rapid.IntRange(0, most), rapid.IntRange(pastMin-3, pastMin+300)).Draw(t, "n")
		from, to := rapid.IntRange(0, around).Draw(t, "from"), rapid.IntRange(0, around).Draw(t, "to")
		dst := bytes.Repeat([]byte{0xa5}, to+n+around)
		copyPages(dst[to:to+n], src[from:from+n])
		if !bytes.Equal(dst[to:to+n], src[from:from+n]) {
			t.Fatalf("%d bytes from %d to %d differ", n, from, to)
		}
		if rest := bytes.Count(dst[:to], []byte{0xa5}) + bytes.Count(dst[to+n:], []byte{0xa5}); rest != to+around {
			t.Fatalf("%d bytes from %d to %d: %d beside it were touched", n, from, to, to+around-rest)
		}
	})
}
