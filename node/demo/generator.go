package demo

import (
	"math"
	"math/rand/v2"
)

// The generator has the shape of the public Mooncake conversation trace
// (FAST'25, 12,031 requests of one hour), measured once:
//
//   - arrivals come in batches every 3 s, as many per batch as a Poisson draw
//     with mean 10.2 (variance over batches there: 11.2);
//   - input lengths are log-normal: mean of the logarithm 8.737, deviation
//     1.199, cut to 894 .. 126,195 tokens, which gives a mean of 12 k, a median
//     of 6 k, a 99th percentile above 80 k: a heavy tail;
//   - output lengths are exponential with mean 343 tokens, at most 2,000.
const (
	genBatchEveryMS = 3000
	genBatchMean    = 10.2
	genLogMean      = 8.737
	genLogDev       = 1.199
	genMinInput     = 894
	genMaxInput     = 126195
	genOutputMean   = 343
	genMaxOutput    = 2000
)

// Generate makes n requests in order of arrival. Equal seeds give equal
// requests, on every host and in every version of Go (PCG, own draws).
func Generate(seed uint64, n int) []Request {
	rng := rand.New(rand.NewPCG(seed, 0x7472616365)) //nolint:gosec // not for secrets
	out := make([]Request, 0, n)
	for at := int64(0); len(out) < n; at += genBatchEveryMS {
		for k := poisson(rng, genBatchMean); k > 0 && len(out) < n; k-- {
			out = append(out, Request{
				AtMS:   at,
				Input:  clamp(int(math.Exp(genLogMean+genLogDev*normal(rng))), genMinInput, genMaxInput),
				Output: clamp(int(-genOutputMean*math.Log(1-rng.Float64())), 1, genMaxOutput),
			})
		}
	}
	return out
}

// poisson is Knuth's method; fine for small means.
func poisson(rng *rand.Rand, mean float64) int {
	limit, p, k := math.Exp(-mean), 1.0, 0
	for p *= rng.Float64(); p > limit; p *= rng.Float64() {
		k++
	}
	return k
}

// normal is one half of a Box-Muller pair.
func normal(rng *rand.Rand) float64 {
	return math.Sqrt(-2*math.Log(1-rng.Float64())) * math.Cos(2*math.Pi*rng.Float64())
}

func clamp(v, lo, hi int) int { return min(max(v, lo), hi) }
