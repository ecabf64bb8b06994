package span

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/pdlog/pdlog/rdma"
)

// Against a model that knows for each byte which write put it there: verify
// finds every run that was written whole and changed since, and no other.
func TestSumsFindExactlyWhatChanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 48
		mem := make([]byte, size)
		owner := [size]int{} // index of the last write, from 1 on
		var s Sums
		type write struct {
			off, end uint64
			known    bool
		}
		writes := []write{{}}
		for range rapid.IntRange(1, 12).Draw(t, "writes") {
			off := rapid.Uint64Range(0, size-1).Draw(t, "off")
			w := write{off: off, end: off + rapid.Uint64Range(1, size-off).Draw(t, "len"), known: rapid.Bool().Draw(t, "known")}
			writes = append(writes, w)
			for i := w.off; i < w.end; i++ {
				mem[i] = rapid.Byte().Draw(t, "byte")
				owner[i] = len(writes) - 1
			}
			s.Add(w.off, uint32(w.end-w.off), Checksum(mem[w.off:w.end]), w.known)
		}
		changed := rapid.IntRange(-1, size-1).Draw(t, "changed")
		if changed >= 0 {
			mem[changed] ^= 0x40
		}
		var want []rdma.Range
		unknown := false
		for n, w := range writes[1:] {
			left := 0
			for _, o := range owner {
				if o == n+1 {
					left++
				}
			}
			whole := left == int(w.end-w.off)
			unknown = unknown || left > 0 && (!whole || !w.known)
			if whole && w.known && changed >= 0 && owner[changed] == n+1 {
				want = append(want, rdma.Range{Off: w.off, Len: w.end - w.off})
			}
		}
		bad, err := s.Verify(t.Context(), mem)
		if len(bad) != len(want) || len(bad) == 1 && bad[0] != want[0] || errors.Is(err, rdma.ErrNoChecksum) != unknown {
			t.Fatalf("found %v, %v; want %v, unknown %v", bad, err, want, unknown)
		}
	})
}
