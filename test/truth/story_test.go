package truth

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// story draws a scenario of three nodes or more in which pages are freed by a
// timer, as engines do today, and given away at once, while writes are late,
// messages come twice, nodes restart and clocks are off. No write lands in part:
// how much of one did, only the decode node's log tells, and that node may be
// down when it lands. Nor do a writer and its decode node die in one round: what
// neither saw stands in no log.
func story(seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 11)) //nolint:gosec // a test's dice
	var b strings.Builder
	ranks := map[string]int{"p": 1 + r.IntN(3), "q": 1 + r.IntN(2)}
	decodes := []string{"d", "e"}[:1+r.IntN(2)]
	fmt.Fprintf(&b, "prefill p ranks=%d\nprefill q ranks=%d\n", ranks["p"], ranks["q"])
	for _, d := range decodes {
		fmt.Fprintf(&b, "decode %s ranks=1 pages=256\n", d)
	}
	fmt.Fprintf(&b, "backend %s\n", []string{"mooncake", "nixl", "mori"}[r.IntN(3)])
	b.WriteString("policy release=timeout ack_timeout=1s abort_retry=300ms waiting_timeout=60s transfer_timeout=60s bootstrap_timeout=60s heartbeat=5s\n")
	s := &drawing{dice: r, ranks: ranks}
	for i := range 2 + r.IntN(5) {
		s.round(i, decodes[r.IntN(len(decodes))])
	}
	slices.SortStableFunc(s.lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	for _, l := range s.lines {
		fmt.Fprintf(&b, "%dms %s\n", l.at, l.text)
	}
	return b.String()
}

type line struct {
	at   int
	text string
}

type drawing struct {
	dice  *rand.Rand
	ranks map[string]int
	lines []line
}

func (s *drawing) add(at int, format string, args ...any) {
	s.lines = append(s.lines, line{at, fmt.Sprintf(format, args...)})
}

func (s *drawing) pick(xs ...string) string { return xs[s.dice.IntN(len(xs))] }

// round is one aborted room whose pages the next room takes, in pages and room
// numbers of its own; some rounds overlap in time.
func (s *drawing) round(i int, d string) {
	at := 8000*i + s.dice.IntN(4000)
	lo := 20 * i
	hi := lo + 1 + s.dice.IntN(8)
	first, second := 10*i+1, 10*i+2
	p, q := s.pick("p", "q"), s.pick("p", "q")
	s.clocksAndCopies(at, p, d)
	s.add(at, "open room=%d prefill=%s decode=%s pages=%d-%d", first, p, d, lo, hi)
	for rank := range s.ranks[p] {
		for chunk := range 1 + s.dice.IntN(2) {
			result := s.pick("ok", "error", fmt.Sprintf("late:%dms", 500+s.dice.IntN(9000)), fmt.Sprintf("late:%dms", 3500+s.dice.IntN(3000)), fmt.Sprintf("late:%dms", 2400+s.dice.IntN(400)))
			s.add(at+200, "send room=%d rank=%s/%d chunk=%d pages=%d-%d takes=%dms result=%s", first, p, rank, chunk, lo, hi, s.dice.IntN(500), result)
		}
	}
	s.add(at+1000, "abort room=%d by=%s", first, d)
	// A writer that dies cannot say what became of its writes, and a decode node
	// that is down not what landed: of each round one of them may.
	deaths := s.dice.IntN(4)
	if deaths == 0 {
		s.add(at+1100+s.dice.IntN(300), "crash %s", p)
		s.add(at+1600+s.dice.IntN(400), "restart %s", p)
	}
	// Whatever the ranks answered, the timer has freed the pages by now.
	again := at + 2500
	s.add(again, "open room=%d prefill=%s decode=%s pages=%d-%d", second, q, d, lo+s.dice.IntN(2), hi)
	for rank := range s.ranks[q] {
		s.add(again+200, "send room=%d rank=%s/%d chunk=0 pages=%d-%d takes=%dms last result=ok", second, q, rank, lo, hi, s.dice.IntN(5000))
	}
	if deaths == 1 {
		s.add(again+1000+s.dice.IntN(500), "crash %s", d)
		s.add(again+1600+s.dice.IntN(500), "restart %s", d)
	}
}

func (s *drawing) clocksAndCopies(at int, p, d string) {
	if s.dice.IntN(2) == 0 {
		s.add(at, "dup kind=abort_ack from=%s to=%s after=%dms", p, d, s.dice.IntN(3000))
	}
	if s.dice.IntN(3) == 0 {
		s.add(at, "dup kind=%s from=%s to=%s after=%dms", s.pick("abort", "metadata"), d, p, s.dice.IntN(3000))
	}
	if s.dice.IntN(2) == 0 {
		s.add(at, "clock %s skew=%s%dms", s.pick(p, d), s.pick("", "-"), s.dice.IntN(9000))
	}
}
