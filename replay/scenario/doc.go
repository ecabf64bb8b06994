// Package scenario runs scenario files: small texts that drive the real core
// (projector), the real dialects and the release rule on a virtual clock, with
// simulated nodes, network, disk and RDMA. The language is the shared one of
// tests, bug reports and operators.
//
// A run is deterministic: the same file gives the same events, byte for byte.
// The package starts no goroutine and reads no clock. The simulation keeps its
// own truth of which bytes landed where, and compares the product's opinion
// with it.
package scenario
