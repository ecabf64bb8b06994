package sim_test

import (
	"testing"
	"time"

	"github.com/pdlog/pdlog/test/sim"
)

func BenchmarkSteps(b *testing.B) {
	var total sim.Total
	start := time.Now()
	for i := range b.N {
		r := sim.Run(sim.Config{Seed: uint64(1 + i%50)})
		total.Add(&r)
	}
	b.ReportMetric(float64(total.Steps)/time.Since(start).Seconds(), "steps/s")
}
