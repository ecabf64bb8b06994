// Package sim runs fleets of nodes on virtual time: the real core
// (projector.Machine), the real event codec, the real dialects, and shells
// whose disk, network, RDMA, clock, mirror and engines break as one seed says.
//
// A run is one goroutine, one heap of what is due and one PCG: the same seed
// gives the same run, step for step. It has two phases. In the safety phase
// everything may fail, with strengths drawn per seed; in the liveness phase
// faults stop, some prefill nodes stay dead, and every page has to come back.
//
// The simulation keeps its own truth of who owns each page and which bytes land
// when. After every step the checkers of projector/invariants (those of
// `pdreplay verify`) have seen each event that became durable, and each landing
// has been held against the truth. The first breach ends the run and names seed,
// step and rule.
//
// The package reads no clock and starts no goroutine. It may import anything;
// nothing may import it.
package sim
