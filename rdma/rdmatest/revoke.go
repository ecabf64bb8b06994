package rdmatest

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/test/ladder"
)

// EnvRounds sets how many times testRevokeMidTransfer revokes. 1,000 are the
// bar of rdma.md 9.4; a plain run makes 150, or as many as a provider with a
// method Rounds says.
const EnvRounds = "PDLOG_RDMATEST_ROUNDS"

func roundsOf(t *testing.T, p rdma.Provider) int {
	v := os.Getenv(EnvRounds)
	if v == "" {
		if r, ok := p.(interface{ Rounds() int }); ok {
			return r.Rounds()
		}
		return 150
	}
	n, err := strconv.Atoi(v)
	if err != nil || n <= 0 {
		t.Fatalf("%s=%s: want a number of rounds", EnvRounds, v)
	}
	return n
}

// sizes of streamed writes.
var sizes = []int{1 << 20, 64 << 10, 300_000, 512 << 10, 128 << 10, 64<<10 + 1}

// stream posts writes of mixed sizes over the whole of the memory.
func (w *pair) stream(t *testing.T, l rdma.Lease, tag rdma.Tag, first int) (posted int) {
	t.Helper()
	for off, i := 0, first; off < len(w.src); i++ {
		n := min(sizes[i%len(sizes)], len(w.src)-off)
		b := w.batch(l, tag, off, n)
		if n > 8 { // two writes in one transfer
			b.Writes = []rdma.Write{
				{Src: w.src[off : off+n/3], RemoteOff: uint64(off)},
				{Src: w.src[off+n/3 : off+n], RemoteOff: uint64(off + n/3)},
			}
		}
		post(t, w.ep, b)
		posted++
		off += n
	}
	return posted
}

// testRevokeMidTransfer: once Revoke has returned, the pages are cleared, and
// after everything has ended they must be as they were left.
func testRevokeMidTransfer(t *testing.T, p rdma.Provider) {
	const size = 4 << 20
	start, rounds := time.Now(), roundsOf(t, p)
	w := newPair(t, p, size, rdma.Config{})
	cut, partly := 0, 0
	var took []time.Duration
	for round := range rounds {
		tag := rdma.Tag(1000 + round)
		l := grant(t, w.dst, tag, all(w.dst))
		mine := func(c rdma.Completion) bool { return c.Tag == tag }
		posted := w.stream(t, l, tag, round)
		if k := round % 5; k > 0 { // from nothing landed to much landed
			w.target.notifs.count(t, "landed", k, func(v rdma.Notif) bool { return v.Tag == tag && v.Kind == rdma.WriteLanded })
		}
		took = append(took, revoke(t, w.target, l).Took)
		clear(w.dst.Bytes())
		var failed int
		for _, c := range w.writer.completions.count(t, "ends", posted, mine) {
			switch {
			case c.Status == rdma.Completed:
			case c.Status == rdma.Failed && c.Proven:
				failed++
				if c.Bytes > 0 {
					partly++
				}
			default:
				t.Fatalf("round %d: %+v", round, c)
			}
		}
		if !zero(w.dst.Bytes()) {
			t.Fatalf("round %d: bytes landed after Revoke had returned (%d of %d writes refused)", round, failed, posted)
		}
		if failed > 0 {
			cut++
		}
		if refused := w.target.notifs.count(t, "refusals", failed, func(v rdma.Notif) bool { return v.Tag == tag && v.Kind == rdma.LateWriteRefused }); len(refused) != failed {
			t.Fatalf("round %d: the writer knows of %d refusals, the target told of %d", round, failed, len(refused))
		}
		w.writer.completions.reset()
		w.target.notifs.reset()
	}
	if cut < max(1, rounds/8) {
		t.Errorf("only %d of %d rounds cut a stream: the test has not tested", cut, rounds)
	}
	l := grant(t, w.dst, 1, all(w.dst))
	w.works(t, l, 0, page)
	ladder.Report(t, ladder.Row{Rung: "data plane", What: "revocations mid-transfer, " + p.Name(), Runs: uint64(rounds), Faults: uint64(cut), Took: time.Since(start)}) //nolint:gosec // counts
	t.Logf("RESULT %s: %d revocations mid-transfer, %d cut a stream, %d writes were part way in, 0 late bytes, p50 %s, max %s",
		p.Name(), rounds, cut, partly, median(took), longest(took))
}

// testRevokeBeside: lease A is revoked again and again while B streams over
// the same endpoint; nothing of B is lost.
func testRevokeBeside(t *testing.T, p rdma.Provider) {
	const half = 2 << 20
	w := newPair(t, p, 2*half, rdma.Config{})
	b := grant(t, w.dst, 2, rdma.Range{Off: half, Len: half})
	var posted, refusals int
	for round := range 20 {
		a := grant(t, w.dst, 1, rdma.Range{Len: half})
		for off := 0; off < half; off += 128 << 10 {
			w.write(t, a, 1, off, 128<<10)
			w.write(t, b, 2, half+off, 128<<10)
			posted++
			if off == half/4 {
				revoke(t, w.target, a)
				clear(w.dst.Bytes()[:half])
			}
		}
		ends := w.writer.completions.count(t, "ends", 2*posted, func(rdma.Completion) bool { return true })
		for _, c := range ends[2*(posted-half/(128<<10)):] {
			if c.Tag == 2 && c.Status != rdma.Completed {
				t.Fatalf("round %d: the other lease: %+v", round, c)
			}
			if c.Tag == 1 && c.Status == rdma.Failed {
				refusals++
			}
		}
		if !zero(w.dst.Bytes()[:half]) {
			t.Fatalf("round %d: bytes landed under the revoked lease", round)
		}
		if sum(w.dst.Bytes()[half:]) != sum(w.src[half:]) {
			t.Fatalf("round %d: the other lease's bytes differ", round)
		}
		clear(w.dst.Bytes()[half:])
	}
	if refusals == 0 {
		t.Error("no write was refused: the test has not tested")
	}
}
