package fault

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pdlog/pdlog/rdma"
)

func number(n uint64) *uint64 { return &n }

func TestParseSpec(t *testing.T) {
	for in, want := range map[string][]Rule{
		"":                       nil,
		"  ":                     nil,
		"error":                  {{Kind: Error, Percent: 100}},
		"late:2s":                {{Kind: Late, After: 2 * time.Second, Percent: 100}},
		"hang:0.5%":              {{Kind: Hang, Percent: 0.5}},
		"ok:50%, error:50%":      {{Kind: OK, Percent: 50}, {Kind: Error, Percent: 50}},
		"delay:10ms:5%":          {{Kind: Delay, After: 10 * time.Millisecond, Percent: 5}},
		"lost@chunk=0":           {{Kind: Lost, Percent: 100, Only: Only{Chunk: number(0)}}},
		"twice:5%@tag=7&peer=d0": {{Kind: Twice, Percent: 5, Only: Only{Tag: number(7), Peer: "d0"}}},
		"slowfence:1s:50%,badfence:50%,early:1ms": {
			{Kind: SlowFence, After: time.Second, Percent: 50}, {Kind: BadFence, Percent: 50}, {Kind: Early, After: time.Millisecond, Percent: 100},
		},
		"late:1s:3%,late:2s:4%": {{Kind: Late, After: time.Second, Percent: 3}, {Kind: Late, After: 2 * time.Second, Percent: 4}},
		"late:500ms:30%,hang:5%,partial:1s:5%,error:10%": {
			{Kind: Late, After: 500 * time.Millisecond, Percent: 30}, {Kind: Hang, Percent: 5},
			{Kind: Partial, After: time.Second, Percent: 5}, {Kind: Error, Percent: 10},
		},
	} {
		got, err := ParseSpec(in)
		if err != nil {
			t.Errorf("%q: %v", in, err)
		}
		if d := cmp.Diff(want, got.Rules); d != "" {
			t.Errorf("%q: %s", in, d)
		}
		if again, err := ParseSpec(got.String()); err != nil || !cmp.Equal(again, got) {
			t.Errorf("%q prints as %q, which reads as %v, %v", in, got.String(), again, err)
		}
	}
}

func TestParseSpecSaysWhatIsWrong(t *testing.T) {
	for in, want := range map[string]string{
		"gone:5%":            `unknown kind "gone"`,
		"error,":             `unknown kind ""`,
		"late":               "late needs a duration",
		"late:30%":           "late needs a duration",
		"partial:x:30%":      `bad duration "x"`,
		"late:-1s":           `bad duration "-1s"`,
		"late:5":             `bad duration "5"`,
		"hang:1s":            `bad share "1s"`,
		"error:10":           `bad share "10"`,
		"error:101%":         `bad share "101%"`,
		"error:-1%":          `bad share "-1%"`,
		"error:NaN%":         `bad share "NaN%"`,
		"error:1%:2%":        `too much: "2%"`,
		"error:60%,hang:50%": "add up to 110%",
		"error,hang":         "add up to 200%",
		"error@chunk=x":      `bad chunk "x"`,
		"error@rank=1":       `bad selector "rank=1"`,
		"error@peer=":        "peer is empty",
		"slowfence":          "slowfence needs a duration",
		"badfence,badfence":  "add up to 200%",
	} {
		_, err := ParseSpec(in)
		if !errors.Is(err, ErrSpec) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v; want one line with %s", in, err, want)
		}
	}
}

func FuzzParseSpec(f *testing.F) {
	f.Add("late:500ms:30%,hang:5%,partial:1s:5%,error:10%")
	f.Fuzz(func(t *testing.T, in string) {
		s, err := ParseSpec(in)
		if err != nil {
			return
		}
		again, err := ParseSpec(s.String())
		if err != nil || !cmp.Equal(s, again) {
			t.Fatalf("%q prints as %q: %v", in, s.String(), err)
		}
	})
}

func TestDrawGoesBySeedTagAndMeta(t *testing.T) {
	s, err := ParseSpec("late:500ms:30%,hang:5%,partial:1s:5%,error:10%")
	if err != nil {
		t.Fatal(err)
	}
	const n = 20000
	draw := func(seed uint64) (out [n]Kind) {
		for i := range n { // 100 chunks of each tag
			out[i] = s.Draw(seed, rdma.Tag(i/100), uint64(i%100), "").Kind
		}
		return out
	}
	a := draw(1)
	if a != draw(1) {
		t.Error("the same seed draws differently")
	}
	same := 0
	for i, k := range draw(2) {
		if k == a[i] {
			same++
		}
	}
	if same > n*45/100 { // independent draws agree in 0.3²+0.05²+0.05²+0.1²+0.5² = 35.5%
		t.Errorf("two seeds draw alike in %d of %d", same, n)
	}
	var count [kinds]int
	for _, k := range a {
		count[k]++
	}
	for kind, share := range map[Kind]float64{OK: 50, Late: 30, Hang: 5, Partial: 5, Error: 10} {
		if got := float64(count[kind]) / n * 100; math.Abs(got-share) > 1.5 {
			t.Errorf("%s: %.1f%% of the batches, want %g%%", kind, got, share)
		}
	}
}
