package node

import "testing"

// BenchmarkAborts: an operation is one abort, from the command to the free
// pages: an ABORT and an ABORT_ACK, on both nodes and both logs. ns/op is wall
// time; cpu-ns/op is what both nodes spent.
func BenchmarkAborts(b *testing.B) {
	const rooms = 2000
	p, err := NewPairBench(b.Context(), b.TempDir(), PairShape{Rooms: rooms, Memory: true})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			b.Error(err)
		}
	}()
	b.ReportAllocs()
	cpu, done := 0.0, 0
	for done < b.N {
		b.StopTimer()
		if err := p.Open(b.Context(), rooms); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		run, err := p.AbortAll(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		cpu, done = cpu+float64(run.CPU.Nanoseconds()), done+rooms
	}
	b.ReportMetric(cpu/float64(done), "cpu-ns/op")
}
