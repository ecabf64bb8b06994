package geometry

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestUniqueRank(t *testing.T) {
	s := Sizes{TP: 3, CP: 4, PP: 3}
	if got := s.Unique(Rank{TP: 2, PP: 1, CP: 3}); got != 31 {
		t.Fatalf("tp 2, pp 1 of 3, cp 3 of 4: have %d, want 31", got)
	}
	if _, ok := s.At(36); ok {
		t.Error("rank 36 of 36 exists")
	}
}

// The table of wire.md 4.3.
func TestRankTable(t *testing.T) {
	one := Sizes{TP: 1, CP: 1, PP: 1}
	tp := func(n int) Sizes { return Sizes{TP: n, CP: 1, PP: 1} }
	for _, c := range []struct {
		name     string
		p        Pairing
		rank     int
		want     []Rank
		dummies  []int // TP ranks
		success  int
		acks     []uint32
		required int
	}{
		{"tp4 MLA to tp2", Pairing{Prefill: tp(4), Decode: tp(2), Model: MLA}, 1, []Rank{{TP: 2}, {TP: 3}}, []int{3}, 1, []uint32{2, 3}, 1},
		{"tp4 GQA to tp2", Pairing{Prefill: tp(4), Decode: tp(2)}, 1, []Rank{{TP: 2}, {TP: 3}}, nil, 2, []uint32{2, 3}, 1},
		{"tp2 to tp4", Pairing{Prefill: tp(2), Decode: tp(4)}, 3, []Rank{{TP: 1}}, nil, 1, []uint32{1}, 2},
		{"tp1 pp2 to tp1", Pairing{Prefill: Sizes{1, 1, 2}, Decode: one}, 0, []Rank{{PP: 1}, {PP: 0}}, nil, 2, []uint32{1, 0}, 1},
		{"cp2, cp 0 only", Pairing{Prefill: Sizes{1, 2, 1}, Decode: one}, 0, []Rank{{}}, nil, 1, []uint32{0}, 1},
		{"cp2, all cp", Pairing{Prefill: Sizes{1, 2, 1}, Decode: one, AllCP: true}, 0, []Rank{{}, {CP: 1}}, nil, 2, []uint32{0, 1}, 1},
		{"engine rank modulo tp", Pairing{Prefill: tp(2), Decode: tp(2)}, 5, []Rank{{TP: 1}}, nil, 1, []uint32{1}, 1},
		{"hybrid MLA has no dummies", Pairing{Prefill: tp(4), Decode: tp(2), Model: HybridMLA}, 0, []Rank{{TP: 0}, {TP: 1}}, nil, 2, []uint32{0, 1}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := c.p.Map(c.rank, 0)
			if err != nil {
				t.Fatal(err)
			}
			var at []Rank
			var dummies []int
			for _, x := range m.Targets {
				at = append(at, x.Rank)
				if x.Dummy {
					dummies = append(dummies, x.TP)
				}
			}
			if !slices.Equal(at, c.want) || !slices.Equal(dummies, c.dummies) {
				t.Errorf("have %v with dummies %v, want %v with %v", at, dummies, c.want, c.dummies)
			}
			if m.Successes != c.success || m.RequiredDst != c.required || !slices.Equal(m.Acks(), c.acks) {
				t.Errorf("have %d successes, %d destinations, acks %v", m.Successes, m.RequiredDst, m.Acks())
			}
		})
	}
}

func TestEveryServedRankGetsItsOwnAck(t *testing.T) {
	p := Pairing{Prefill: Sizes{2, 1, 1}, Decode: Sizes{4, 1, 1}}
	got, err := p.Served(Rank{TP: 1})
	if err != nil || !slices.Equal(got, []Rank{{TP: 2}, {TP: 3}}) {
		t.Fatalf("have %v, %v", got, err)
	}
}

func TestShapesThatDoNotFit(t *testing.T) {
	for _, p := range []Pairing{
		{},
		{Prefill: Sizes{3, 1, 1}, Decode: Sizes{2, 1, 1}},
		{Prefill: Sizes{2, 1, 1}, Decode: Sizes{3, 1, 1}},
		{Prefill: Sizes{1, 1, 1}, Decode: Sizes{1, 2, 1}},
		{Prefill: Sizes{1, 1, 4}, Decode: Sizes{1, 1, 2}},
		{Prefill: Sizes{1, 1, 1}, Decode: Sizes{1, 1, 2}},
		{Prefill: Sizes{1 << 40, 1 << 40, 1}, Decode: Sizes{1, 1, 1}},
		{Prefill: Sizes{-1, 1, -1}, Decode: Sizes{1, 1, 1}},
	} {
		if _, err := p.Map(0, 0); err == nil {
			t.Errorf("%+v is taken", p)
		}
		if _, err := p.Served(Rank{}); err == nil {
			t.Errorf("%+v is taken by Served", p)
		}
	}
	p := Pairing{Prefill: Sizes{2, 1, 1}, Decode: Sizes{2, 1, 1}}
	for _, r := range [][2]int{{-1, 0}, {0, 1}, {0, -1}} {
		if _, err := p.Map(r[0], r[1]); err == nil {
			t.Errorf("decode rank %v is taken", r)
		}
	}
	if _, err := p.Served(Rank{TP: 2}); err == nil {
		t.Error("prefill rank 2 of 2 is taken")
	}
}

// drawPairing draws shapes that fit.
func drawPairing(t *rapid.T) Pairing {
	p := Pairing{Model: Model(rapid.IntRange(0, 2).Draw(t, "model")), AllCP: rapid.Bool().Draw(t, "all cp")}
	a := 1 << rapid.IntRange(0, 3).Draw(t, "small tp")
	b := a * rapid.SampledFrom([]int{1, 2, 3, 4}).Draw(t, "factor")
	if rapid.Bool().Draw(t, "prefill is wider") {
		a, b = b, a
	}
	p.Prefill = Sizes{TP: a, CP: rapid.IntRange(1, 3).Draw(t, "cp"), PP: rapid.IntRange(1, 3).Draw(t, "pp")}
	p.Decode = Sizes{TP: b, CP: 1, PP: rapid.SampledFrom([]int{1, p.Prefill.PP}).Draw(t, "decode pp")}
	return p
}

// Both sides see the same pairs, and every count that travels agrees with them.
func TestMappingIsSymmetric(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPairing(t)
		type pair struct{ prefill, decode Rank }
		fromDecode, fromPrefill := map[pair]int{}, map[pair]int{}
		required := 0
		for tp := range p.Decode.TP {
			for pp := range p.Decode.PP {
				m, err := p.Map(tp, pp)
				if err != nil {
					t.Fatal(err)
				}
				required = m.RequiredDst
				writers := 0
				ids := map[uint32]bool{}
				for _, x := range m.Targets {
					fromDecode[pair{x.Rank, Rank{TP: tp, PP: pp}}]++
					ids[x.Unique] = true
					if back, ok := p.Prefill.At(x.Unique); !ok || back != x.Rank {
						t.Fatalf("unique %d is %v, then %v", x.Unique, x.Rank, back)
					}
					if !x.Dummy {
						writers++
					}
				}
				if len(ids) != len(m.Targets) || len(m.Acks()) != len(m.Targets) || writers != m.Successes || writers == 0 {
					t.Fatalf("%d targets, %d ids, %d writers, %d successes", len(m.Targets), len(ids), writers, m.Successes)
				}
				want := p.cps() * max(1, p.Prefill.PP/p.Decode.PP)
				if p.Model != MLA {
					want *= max(1, p.Prefill.TP/p.Decode.TP)
				}
				if m.Successes != want {
					t.Fatalf("%d successes, the formula of wire.md 4.3 gives %d", m.Successes, want)
				}
			}
		}
		for u := range p.Prefill.TP * p.Prefill.CP * p.Prefill.PP {
			r, _ := p.Prefill.At(uint32(u))
			served, err := p.Served(r)
			if err != nil {
				t.Fatal(err)
			}
			if len(served) != 0 && len(served) != required {
				t.Fatalf("%v serves %d ranks, and waits for %d", r, len(served), required)
			}
			for _, d := range served {
				fromPrefill[pair{r, d}]++
			}
		}
		if len(fromDecode) != len(fromPrefill) {
			t.Fatalf("decode sees %d pairs, prefill %d", len(fromDecode), len(fromPrefill))
		}
		for k, n := range fromDecode {
			if n != 1 || fromPrefill[k] != 1 {
				t.Fatalf("%v: %d times from decode, %d from prefill", k, n, fromPrefill[k])
			}
		}
	})
}
